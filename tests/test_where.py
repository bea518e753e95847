"""``where`` against DuckDB: the same rows for the same predicate, and pruning that never loses one."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.artifacts.errors import SpecError
from headrace.jobs.footers import parse_footer
from headrace.jobs.where import EVERYTHING, ColumnStats, Where, parse_where

DAY = dt.date(2024, 1, 1)
TABLE = pa.table(
    {
        "k": pa.array(range(12), pa.int64()),
        "i": pa.array([1, None, 3, 4, 5, -6, 7, 8, None, 10, 0, 12], pa.int32()),
        "j": pa.array([5, 4, None, 4, 3, 2, 1, 0, -1, None, 0, 12], pa.int16()),
        "f": pa.array([0.5, 1.5, None, 3.0, 4.25, -5.0, 0.1, 7.0, 8.0, 9.0, 0.0, None], pa.float64()),
        "g": pa.array([0.1, 0.2, None, 3.0, 4.25, -5.0, 0.1, 7.0, 8.0, 9.0, 0.0, None], pa.float32()),
        "s": pa.array(["a", "B", None, "", "ab", "a_b", "a%b", "Éa", "x\ny", "b\\c", "it's", "ab"], pa.string()),
        "t": pa.array(["1", "2.5", None, "x", "-4", "1e2", "", "08", "9", "b", "a", "1 "], pa.large_string()),
        "c": pa.array(["a", "b", None, "a", "b", "a", "b", "a", "b", "a", "b", "c"]).dictionary_encode(),
        "b": pa.array([True, False, None, True, False, None, True, False, True, None, True, False]),
        "d": pa.array([DAY + dt.timedelta(n) if n % 5 else None for n in range(12)], pa.date32()),
        "m": pa.array(
            [dt.datetime(2024, 1, 1, n) + dt.timedelta(n) if n % 4 else None for n in range(12)], pa.timestamp("us")
        ),
        "p": pa.array([Decimal(n) / 4 if n % 3 else None for n in range(12)], pa.decimal128(9, 2)),
    }
)

CONNECTION = duckdb.connect(config={"threads": 1})
CONNECTION.from_arrow(TABLE).create("source")


def ours(sql: str, table: pa.Table = TABLE) -> list[int]:
    where = parse_where(sql)
    expression = where.expression({name: table.schema.field(name).type for name in table.column_names})
    return table.filter(expression)["k"].to_pylist() if expression is not None else table["k"].to_pylist()


def duckdbs(sql: str) -> list[int]:
    return [row[0] for row in CONNECTION.execute(f"select k from source where {sql} order by k").fetchall()]


@pytest.mark.parametrize(
    "sql",
    [
        "i > 3", "3 < i", "i = 3.0", "i > 2.5", "i <> 4", "i != 4", "i == 4", "not i > 3", "i is null", "i is not null",
        "i in (1, 3, null)", "i not in (1, 3)", "i not in (1, null)", "i in (1.5, 3)", "i between 3 and 7",
        "i not between 3 and 7", "i = null", "i > j", "i + j > 5", "i - 1 = j * 1", "i / 2 > 1.4",
        "-i > -4", "f > 1", "f >= 1.5 and f < 8", "g = 0.1", "f = g", "f in (0.5, 7)", "p > 1.5", "p = 1",
        "p in (0.25, 1)",
        "p > i", "p + 1 > 2.5", "p > 1e0", "s = 'a'", "s > 'a'", "s in ('a', 'ab')", "s = 'it''s'", "s like 'a%'",
        "s like 'a_b'", "s like '%b'", "s not like 'a%'", "s ilike 'B'", "s ilike 'ÉA'", "s like '%x_y%'",
        "s like 'b\\c'",
        "lower(s) = 'b'", "upper(s) = 'AB'", "length(s) = 2", "s = c", "c = 'a'", "c in ('a', 'c')", "c like 'a'",
        "t = '08'",
        "try_cast(t as double) > 1", "try_cast(t as double) is null", "cast(i as varchar) = '10'", "i::double / 4 = 1",
        "b", "not b", "b = true", "b is true", "b is not true", "b is false", "b and i > 3", "b or i > 3", "b is null",
        "d >= '2024-01-05'", "d = date '2024-01-07'", "d in ('2024-01-02')", "d between '2024-01-02' and '2024-01-09'",
        "d > timestamp '2024-01-05 12:00:00'", "m > '2024-01-04 01:00:00'", "m > timestamp '2024-01-04'", "m > d",
        "m > date '2024-01-04'", "cast(m as date) = '2024-01-06'", "true", "false", "null", "null or i > 3", "1 = 1",
        "1 > 2 or i = 1", "(i > 3 and j < 4) or s = 'a'", "not (i > 3 and j < 4)", "i > 3 -- and nothing", '"i" > 3',
        "date '2024-01-05' <= d", "i in (1) and true", "i > -10",
    ],
)  # fmt: skip
def test_the_rows_are_duckdbs(sql: str) -> None:
    assert ours(sql) == duckdbs(sql)


_numbers = st.sampled_from(["i", "j", "f", "p", "(i + j)", "(i - 2)", "(j * 3)", "(i / 4)"])
_literals = st.sampled_from(["0", "1", "3", "4", "-5", "1.5", "0.25", "7.0", "12"])
_texts = st.sampled_from(["s", "c", "t", "lower(s)", "upper(c)"])
_quoted = st.sampled_from(["'a'", "'ab'", "''", "'B'", "'08'", "'zz'"])
_ops = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
_patterns = st.sampled_from(["'a%'", "'%b%'", "'_'", "'%'", "''", "'a\\%'"])
_atoms = st.one_of(
    st.builds("{} {} {}".format, _numbers, _ops, _literals),
    st.builds("{} {} {}".format, _numbers, _ops, _numbers),
    st.builds("{} {} {}".format, _texts, _ops, _quoted),
    st.builds("{} {} {}".format, st.sampled_from(["s", "c"]), _ops, st.sampled_from(["t", "c"])),
    st.builds("{} in ({}, {}, null)".format, _numbers, _literals, _literals),
    st.builds("{} not in ({}, {})".format, _texts, _quoted, _quoted),
    st.builds("{} between {} and {}".format, _numbers, _literals, _literals),
    st.builds("{} is null".format, st.one_of(_numbers, _texts)),
    st.builds("{} like {}".format, _texts, _patterns),
    st.builds("d {} '2024-01-0{}'".format, _ops, st.integers(1, 9)),
    st.builds("m {} timestamp '2024-01-0{} 03:00:00'".format, _ops, st.integers(1, 9)),
    st.sampled_from(["b", "b is not true", "b = false", "null", "true", "try_cast(t as double) > 2"]),
)
_conditions = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(_conditions)
def test_any_condition_selects_duckdbs_rows(sql: str) -> None:
    assert ours(sql) == duckdbs(sql)
    # The canonical text means the same, also to DuckDB, and is its own canonical text.
    text = parse_where(sql).text
    assert text is not None
    assert duckdbs(text) == duckdbs(sql)
    assert parse_where(text).text == text


@settings(max_examples=150, deadline=None)
@given(_conditions, st.integers(1, 5))
def test_pruning_by_statistics_loses_no_row(sql: str, row_group_rows: int) -> None:
    where = parse_where(sql)
    buffer = io.BytesIO()
    pq.write_table(TABLE, buffer, row_group_size=row_group_rows)
    footer = parse_footer(buffer.getvalue(), where.columns)
    matching = set(duckdbs(sql))
    for group, stats in enumerate(footer.stats):
        rows = set(range(group * row_group_rows, min((group + 1) * row_group_rows, 12)))
        assert where.may_match(stats) or not rows & matching


def test_pruning_leaves_out_what_it_can() -> None:
    stats = {"i": ColumnStats(10, 20, nulls=False), "s": ColumnStats("b", "d"), "d": ColumnStats(DAY, DAY)}
    gone = [
        "i > 20", "i < 10", "i = 9", "i in (1, 21)", "not i >= 10", "i is null", "i between 21 and 30", "25 < i",
        "s = 'a'", "s > 'e'", "d > '2024-01-01'", "d = date '2023-12-31'", "i > 20 or s = 'a'", "i = 15 and s = 'z'",
        "i = null", "false", "null",
    ]  # fmt: skip
    kept = [
        "i > 19",
        "i <= 10",
        "i <> 10",
        "s is null",
        "s = 'c'",
        "i + 1 > 100",
        "x = 1",
        "d <= '2024-01-01'",
        "s > 'c'",
    ]
    assert [sql for sql in gone if parse_where(sql).may_match(stats)] == []
    assert [sql for sql in kept if not parse_where(sql).may_match(stats)] == []


def test_pruning_minds_nan_which_is_in_no_statistics() -> None:
    stats = {"f": ColumnStats(5.0, 5.0, nulls=False)}
    assert parse_where("f <> 5").may_match(stats)
    assert parse_where("not f = 5").may_match(stats)
    assert not parse_where("f > 5").may_match(stats)


def test_pruning_with_cut_text_statistics() -> None:
    """Bounds that a writer has shortened are no values: only comparing against them is allowed."""
    stats = {"s": ColumnStats("aaa", "aac", nulls=False)}
    assert parse_where("s = 'aaab'").may_match(stats)
    assert not parse_where("s = 'ab'").may_match(stats)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("i >", "line 1"),
        ("s = 'abc", "can't be read"),
        ("i > 1; drop table x", "can't be read"),
        ("i > 1 limit 3", "can't be read"),
        ("i in (select 1)", "SELECT"),
        ("a.b > 1", "struct"),
        ("s = 'a' or regexp_matches(s, 'a')", "character 12"),
        ("case when b then true end", "CASE"),
        ("i % 2 = 0", "MOD"),
        ("m > now()", "NOW()"),
        ("s like c", "only a literal"),
        ("s like 'a' escape '!'", "ESCAPE"),
        ("cast(s as json) is null", "JSON"),
        ("d > date '2024-13-01'", "2024-13-01"),
    ],
)
def test_what_is_not_supported_is_named(sql: str, words: str) -> None:
    with pytest.raises(SpecError, match="where") as caught:
        parse_where(sql)
    assert words in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("i > 'x'", "int64 with 'x'"),
        ("s > 1", "string with 1"),
        ("s = true", "TRUE"),
        ("i = s", "int64 with string"),
        ("d > 'tomorrow'", "tomorrow"),
        ("d > 5", "5"),
        ("i", "not a condition"),
        ("cast(s as int) > 1", "no number"),
        ("lower(i) = 'a'", "lower"),
        ("i like 'a'", "LIKE"),
        ("s + 1 = 2", "calculates"),
        ("m > timestamptz '2024-01-01 00:00:00+00:00'", "zone"),
    ],
)
def test_types_that_do_not_go_together(sql: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        ours(sql)
    assert words in str(caught.value) and caught.value.hint


def test_partition_terms_are_split_off() -> None:
    where = parse_where("month >= '2024-02' and id > 3 and (month = 'x' or id = 1) and lower(lang) = 'en'")
    files, rows = where.split(["month", "lang"])
    assert files.columns == ("month", "lang")
    assert rows.columns == ("id", "month")
    assert rows.text == parse_where("(month = 'x' or id = 1) and id > 3").text
    assert where.split([])[0] == EVERYTHING and EVERYTHING.text is None


def test_a_partition_is_selected_or_not() -> None:
    where = parse_where("month >= '2024-02' and day = 4")
    types = {"month": pa.string(), "day": pa.int32()}
    yes = {"month": pa.scalar("2024-03"), "day": pa.scalar(4, pa.int32())}
    assert where.matches(yes, types)
    assert not where.matches({**yes, "day": pa.scalar(5, pa.int32())}, types)
    assert not where.matches({"month": pa.scalar("2024-03")}, types)  # a key that is not there is null


def test_one_expression_fits_files_of_other_types_of_the_kind() -> None:
    where: Where = parse_where("i in (1, 3) and s > 'a' and u > 1")
    types = {"i": pa.int32(), "s": pa.dictionary(pa.int32(), pa.string()), "u": pa.uint64()}
    expression = where.expression(types)
    table = pa.table(
        {"i": pa.array([1, 3, 4], pa.int64()), "s": ["b", "c", "d"], "u": pa.array([2**63 + 1, 1, 5], pa.uint64())}
    )
    assert table.filter(expression)["i"].to_pylist() == [1]


def test_a_division_by_zero_is_null() -> None:
    """DuckDB gives infinity, or NaN which it then calls greater than all; other databases an error."""
    assert ours("i / j is null") == [1, 2, 7, 8, 9, 10]
    assert ours("i / j > 100 or i / j <= 100") == [0, 3, 4, 5, 6, 11]


def test_a_long_list_and_a_long_chain() -> None:
    values = ", ".join(map(str, range(20_000)))
    assert ours(f"i in ({values})") == duckdbs("i >= 0")
    assert ours(" or ".join(f"i = {n}" for n in range(500))) == duckdbs("i >= 0")


def test_a_column_that_is_null_throughout_in_one_file(tmp_path: Path) -> None:
    """The expression that workers get filters a Parquet batch with a null-typed column."""
    pq.write_table(pa.table({"k": [1, 2], "i": pa.nulls(2)}), tmp_path / "a.parquet")
    expression = parse_where("i > 3 or k = 2").expression({"i": pa.int64(), "k": pa.int64()})
    assert pq.read_table(tmp_path / "a.parquet").filter(expression)["k"].to_pylist() == [2]
