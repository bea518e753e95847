"""Columns to texts: every kind of column, nulls, blanks, bytes that are not UTF-8, joins and templates."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.artifacts.errors import SpecError
from headrace.workers.shard import TextSpec
from headrace.workers.text import as_text, hash_text, is_text, text_columns, texts_of

VALUES = ["one", None, "", "zwölf"]
KINDS = [
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string()),
    pa.dictionary(pa.int32(), pa.binary()), pa.dictionary(pa.int32(), pa.string_view()),
]  # fmt: skip


def made(type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(type_):
        values = pa.array(["one", "", "zwölf"]).cast(type_.value_type)
        return pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 2], type_.index_type), values)
    return pa.array(VALUES).cast(type_)


def as_invalid(values: list[bytes | None]) -> pa.Array:
    """As Parquet gives it: a string column whose bytes nobody checked."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


@pytest.mark.parametrize("type_", KINDS, ids=str)
def test_every_kind_of_text_column(type_: pa.DataType) -> None:
    assert is_text(type_)
    assert as_text(made(type_)).to_pylist() == VALUES
    assert as_text(made(type_).slice(2)).to_pylist() == VALUES[2:]


@pytest.mark.parametrize("type_", [pa.binary(3), pa.dictionary(pa.int8(), pa.binary(3))], ids=str)
def test_bytes_of_one_length(type_: pa.DataType) -> None:
    array = pa.array([b"one", None, b"two", "né".encode()], pa.binary(3))
    array = array.dictionary_encode().cast(type_) if pa.types.is_dictionary(type_) else array
    assert is_text(type_)
    assert as_text(array).to_pylist() == ["one", None, "two", "né"]
    assert as_text(array.slice(2)).to_pylist() == ["two", "né"]


def test_what_is_no_text() -> None:
    assert as_text(pa.nulls(2)).to_pylist() == [None, None]
    assert not any(map(is_text, [pa.int64(), pa.list_(pa.string()), pa.dictionary(pa.int8(), pa.int64())]))


def test_joins_leave_out_nulls_and_empty_strings_but_not_blanks() -> None:
    columns = {
        "subject": as_text(pa.array(["s", None, "", "s", " "])),
        "body": as_text(pa.array(["b", "b", "b", None, "b"])),
    }
    texts = texts_of(columns, TextSpec(("subject", "body"), separator=" / "))
    assert texts.values == ["s / b", "b", "b", "s", "  / b"]
    assert not texts.empty.any()


def test_empty_is_null_or_empty_or_blank_in_every_column() -> None:
    columns = {
        "a": as_text(pa.array([None, "", " \t\n", "x", None])),
        "b": as_text(pa.array([None, None, "", " ", "\u2003"])),
    }
    assert texts_of(columns, TextSpec(("a", "b"))).empty.tolist() == [True, True, True, False, True]


@given(st.lists(st.tuples(st.none() | st.text(), st.none() | st.text()), max_size=20))
def test_joined_as_python_would(rows: list[tuple[str | None, str | None]]) -> None:
    columns = {name: as_text(pa.array([row[i] for row in rows], pa.string())) for i, name in enumerate("ab")}
    texts = texts_of(columns, TextSpec(("a", "b"), separator="; "))
    assert texts.values == ["; ".join(value for value in row if value) for row in rows]
    assert texts.empty.tolist() == [not any(value and value.strip() for value in row) for row in rows]


def test_templates() -> None:
    spec = TextSpec((), template="{{{subject}}}: {body} ({subject})")
    columns = {"subject": as_text(pa.array(["s", None])), "body": as_text(pa.array(["", "b"]))}
    assert text_columns(spec) == ("subject", "body")
    assert texts_of(columns, spec).values == ["{s}:  (s)", "{}: b ()"]


@pytest.mark.parametrize("template", ["{a.b}", "{a[0]}", "{}", "{0}", "{a!r}", "{a:>3}", "{a", "a}", "no column"])
def test_templates_that_are_refused(template: str) -> None:
    with pytest.raises(SpecError, match="template") as caught:
        text_columns(TextSpec((), template=template))
    assert caught.value.hint


def test_rows_that_are_not_utf8_are_found_and_the_others_kept() -> None:
    bad = [b"ok", b"\xff\xfe", None, b"cut \xe2\x82", "é".encode()]
    columns = {"a": as_text(as_invalid(bad)), "b": as_text(pa.array(["1", "2", "3", None, "5"]))}
    texts = texts_of(columns, TextSpec(("a", "b")))
    assert texts.invalid.tolist() == [False, True, False, True, False]
    assert [texts.values[row] for row in (0, 2, 4)] == ["ok 1", "3", "é 5"]
    assert not texts.empty.any()
    assert texts.data(1) == b"\xff\xfe 2"
    assert hash_text(texts.data(1)) == hashlib.sha256(b"\xff\xfe 2").hexdigest()[:32]


def test_no_rows() -> None:
    texts = texts_of({"a": as_text(pa.array([], pa.string()))}, TextSpec(("a",)))
    assert (texts.values, len(texts.empty), len(texts.invalid)) == ([], 0, 0)
    assert texts.empty.dtype == np.bool_
