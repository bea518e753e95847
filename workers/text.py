"""Columns of a window to one text per row.

Arrow does not check that a string is UTF-8, and one bad row would make a whole column raise, so text is held as
``large_string`` that may be invalid (``as_text``) until ``texts_of`` has looked at every row.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..artifacts.errors import SpecError
from .shard import TextSpec

_HASH_DIGITS = 32
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Texts:
    """One text per row. ``invalid`` rows are not UTF-8 and hold an empty string; ``empty`` rows say nothing.

    ``raw`` gives the bytes of an invalid row, by position.
    """

    values: list[str]
    empty: Mask  # (rows,)
    invalid: Mask  # (rows,)
    raw: Mapping[int, bytes]

    def data(self, row: int) -> bytes:
        return self.raw[row] if row in self.raw else self.values[row].encode()


def text_columns(spec: TextSpec) -> tuple[str, ...]:
    """The columns that a text is made of, each once. Raises SpecError for a template that can't be used."""
    if spec.template is None:
        return tuple(dict.fromkeys(spec.columns))
    named = tuple(dict.fromkeys(name for _, name in _parts(spec.template) if name is not None))
    if not named:
        raise SpecError(f"template names no column: {spec.template}", "write a column in braces, as in {body}")
    return named


def is_text(type_: pa.DataType) -> bool:
    """Strings and bytes of every kind, dictionaries of them, and columns that are null throughout."""
    if pa.types.is_dictionary(type_):
        return is_text(type_.value_type)
    return pa.types.is_null(type_) or is_string(type_) or is_bytes(type_)


def is_string(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def is_bytes(type_: pa.DataType) -> bool:
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(kind(type_) for kind in kinds)


def as_text(array: pa.Array) -> pa.Array:
    """Any ``is_text`` array as large_string (64-bit offsets: no overflow on concat), its bytes not checked."""
    if pa.types.is_dictionary(array.type):
        values = array.dictionary.cast(pa.large_binary())
        array = pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
    return array.cast(pa.large_binary()).view(pa.large_string())


def invalid_rows(array: pa.Array) -> Mask:
    """Rows of a large_string array that are not UTF-8, (rows,) bool. One pass in C++ where all are."""
    bad = np.zeros(len(array), dtype=np.bool_)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        for row, value in enumerate(array.view(pa.large_binary()).to_pylist()):
            bad[row] = value is not None and not _is_utf8(value)
    return bad


def emptied(array: pa.Array, rows: Mask) -> pa.Array:
    """``array`` with an empty string in ``rows``. Not null: that would keep the bad bytes in the buffer."""
    return pc.if_else(pa.array(rows), pa.scalar("", array.type), array) if rows.any() else array


def texts_of(columns: Mapping[str, pa.Array], spec: TextSpec) -> Texts:
    """``columns`` are large_string arrays of one length, by name; a row with an invalid one is invalid itself.

    Joined texts leave out nulls and empty strings (but not blank ones); in a template both become an empty string. A
    row is empty when every column is null, empty or blank.
    """
    named = [columns[name] for name in text_columns(spec)]
    invalid = np.logical_or.reduce([invalid_rows(column) for column in named])
    clean = [emptied(column, invalid) for column in named]
    empty = np.logical_and.reduce([_blank(column) for column in clean]) & ~invalid
    joined = _joined(dict(zip(text_columns(spec), clean, strict=True)), spec)
    raw = {int(row): _raw(named, int(row), spec) for row in np.flatnonzero(invalid)}
    return Texts(joined, empty, invalid, raw)


def hash_text(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]


def _joined(columns: Mapping[str, pa.Array], spec: TextSpec) -> list[str]:
    if spec.template is not None:
        filled: list[str] = _filled(columns, spec.template).to_pylist()
        return filled
    # Not binary_join_element_wise(null_handling="skip"): pyarrow 26 loses rows where every value is null.
    values = [columns[name].to_pylist() for name in spec.columns]
    return [spec.separator.join(filter(None, row)) for row in zip(*values, strict=True)]


def _filled(columns: Mapping[str, pa.Array], template: str) -> pa.Array:
    pieces: list[object] = []
    for literal, name in _parts(template):
        pieces.append(_literal(literal))
        if name is not None:
            pieces.append(columns[name])
    return pc.binary_join_element_wise(*pieces, _literal(""), null_handling="replace", null_replacement="")


def _parts(template: str) -> list[tuple[str, str | None]]:
    """Literal text and the column after it, None after the last. Only plain ``{column}`` is understood."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise SpecError(f"template can't be read: {template}: {error}", "write {{ and }} for braces") from error
    for _, name, form, conversion in parsed:
        if name is not None and (not name or name.isdigit() or form or conversion or set(name) & set(".[")):
            raise SpecError(
                f"template has more than plain columns: {template}", "write {column}, nothing else, in braces"
            )
    return [(literal, name) for literal, name, _, _ in parsed]


def _raw(columns: list[pa.Array], row: int, spec: TextSpec) -> bytes:
    """The bytes of an invalid row: its values joined, whatever the template."""
    values = (column.view(pa.large_binary())[row].as_py() for column in columns)
    return spec.separator.encode().join(value for value in values if value)


def _blank(column: pa.Array) -> Mask:
    blank = pc.or_(pc.equal(column, ""), pc.utf8_is_space(column))
    return np.asarray(pc.fill_null(blank, True), dtype=np.bool_)


def _literal(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
