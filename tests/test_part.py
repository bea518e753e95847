"""A part's bytes, its footer, its names, and the readers that must understand it."""

from __future__ import annotations

import io
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shards import spec

from headrace.artifacts.errors import BadFile, SpecError
from headrace.artifacts.manifest import Content
from headrace.workers.footer import Footer, dump, parse, read_footer, runtime_versions
from headrace.workers.part import ROW_GROUP_ROWS, PartWriter
from headrace.workers.schema import check_names, output_schema
from headrace.workers.shard import Counts, FileIdentity, Piece, TaskOptions

FOOTER = Footer(
    versions=runtime_versions(),
    artifact="a" * 64,
    variant="cpu-fp32",
    precision="fp32",
    instruction_set="avx2",
    fingerprint="f" * 64,
    batching="budget",
    pieces=(Piece(FileIdentity("/lake/ä.parquet", 10, "v1"), 5, 7),),
    counts=Counts(7, 5, 1, 1),
)
CLASSIFIER = Content(
    name="m", task="text-classification", problem_type="single_label_classification", labels=("a", "b"), max_length=8,
    variants=(), files=(),
)  # fmt: skip


def rows(count: int) -> pa.Table:
    vectors = np.arange(count * 3, dtype=np.float32) / 7
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(vectors), 3)
    return pa.table(
        {"id": pa.array(range(count)), "kind": pa.array(["x", "y"] * count)[:count], "embedding": embedding}
    )


def part(table: pa.Table, chunks: int) -> bytes:
    """Written in slices of ``chunks`` rows."""
    out = io.BytesIO()
    writer = PartWriter(out, table.schema)
    for start in range(0, len(table), chunks):
        writer.write(table.slice(start, chunks))
    writer.close(FOOTER)
    assert writer.rows == len(table)
    return out.getvalue()


def test_bytes_do_not_depend_on_how_the_rows_came_in() -> None:
    table = rows(ROW_GROUP_ROWS * 2 + 100)
    written = {part(table, chunks) for chunks in (1000, 2048, ROW_GROUP_ROWS, len(table))}
    assert len(written) == 1
    metadata = pq.read_metadata(io.BytesIO(written.pop()))
    groups = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
    assert groups == [ROW_GROUP_ROWS, ROW_GROUP_ROWS, 100]


def test_dictionaries_that_differ_from_window_to_window() -> None:
    type_ = pa.dictionary(pa.int32(), pa.string())
    tables = [pa.table({"d": pa.array(values).cast(type_)}) for values in (["a", "b"], ["b", None, "c"], ["a"])]
    out = io.BytesIO()
    writer = PartWriter(out, tables[0].schema)
    for table in tables:
        writer.write(table)
    writer.close(FOOTER)
    assert pq.read_table(out).column("d").to_pylist() == ["a", "b", "b", None, "c", "a"]


def test_duckdb_polars_pandas_and_pyarrow_read_it(tmp_path: Path) -> None:
    table = rows(50)
    path = tmp_path / "part.parquet"
    path.write_bytes(part(table, 20))
    expected = table.column("embedding").to_pylist()
    assert pq.read_table(path).schema.field("embedding").type == pa.list_(pa.float32(), 3)
    assert [list(v) for (v,) in duckdb.sql(f"select embedding from '{path}'").fetchall()] == expected
    assert pl.read_parquet(path)["embedding"].to_list() == expected
    assert [v.tolist() for v in pd.read_parquet(path)["embedding"]] == expected


def test_a_part_without_rows_has_schema_and_footer() -> None:
    data = part(rows(0), 10)
    assert pq.read_table(io.BytesIO(data)).schema.names == ["id", "kind", "embedding"]
    assert read_footer(io.BytesIO(data)) == FOOTER


def test_the_footer_comes_back_and_names_no_run_host_or_time() -> None:
    assert parse(dump(FOOTER)) == FOOTER
    assert read_footer(io.BytesIO(part(rows(3), 2))) == FOOTER
    assert set(FOOTER.versions) == {"headrace", "onnxruntime", "tokenizers", "pyarrow"}
    assert not {"run", "host", "time", "attempt", "epoch"} & set(Footer.__dataclass_fields__)


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b"{}", b'{"format": 2}', b'{"format": 1, "pieces": []}', b"\xff"])
def test_metadata_that_is_no_footer(data: bytes) -> None:
    assert parse(data) is None


def test_foreign_and_broken_files() -> None:
    out = io.BytesIO()
    pq.write_table(rows(3), out)
    assert read_footer(out) is None
    with pytest.raises(BadFile, match="not a whole Parquet file"):
        read_footer(io.BytesIO(out.getvalue()[:-20]))
    with pytest.raises(BadFile):
        read_footer(io.BytesIO(b""))


def test_an_aborted_part_raises_nothing() -> None:
    out = io.BytesIO()
    writer = PartWriter(out, rows(1).schema)
    writer.write(rows(1))
    out.close()
    writer.abort()


def test_columns_of_a_part() -> None:
    score = spec(column_prefix="p_", task=TaskOptions(top_k=1))
    schema = output_schema(score, CLASSIFIER)
    assert schema.names == [
        "id",
        "source_row",
        "p_label",
        "p_score",
        "p_scores",
        "p_model",
        "p_n_tokens",
        "p_truncated",
    ]
    assert [schema.field(name).type for name in ("id", "source_row", "p_n_tokens")] == [
        pa.int64(),
        pa.int64(),
        pa.int32(),
    ]


def test_names_that_clash() -> None:
    check_names(spec(), CLASSIFIER)
    clashing = {"keep": ("id", "Label"), "keep_types": {"id": pa.int64(), "Label": pa.string()}}
    with pytest.raises(SpecError, match="two output columns have the same name: Label, label") as caught:
        check_names(spec(**clashing), CLASSIFIER)
    assert "sink.column_prefix" in str(caught.value.hint)
    check_names(spec(**clashing, column_prefix="p_"), CLASSIFIER)
