"""A shard's rows in windows: from any file layout, as DuckDB reads them, and what makes a file unreadable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from shards import identity, piece, spec, write

from headrace.artifacts.errors import SourceChanged, SourceError, TransientError
from headrace.workers.opened import UnreadableFile
from headrace.workers.reader import Window, read_windows
from headrace.workers.shard import FileIdentity, Piece, ScoreSpec, TextSpec


def rows_of(count: int, start: int = 0) -> pa.Table:
    ids = range(start, start + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "body": [f"row {i}" for i in ids], "other": ["x"] * count})


def windows(*pieces: Piece, score: ScoreSpec | None = None, partition: str = "", **options: Any) -> list[Window]:
    return list(read_windows(pieces, partition, score or spec(), options))


def kept(found: list[Window], score: ScoreSpec | None = None) -> dict[str, list[Any]]:
    score = score or spec()
    columns = [window.kept(score) for window in found]
    return {name: [v for c in columns for v in c[i].to_pylist()] for i, name in enumerate(score.keep)}


@pytest.mark.parametrize(("first", "count"), [(0, 1000), (0, 1), (63, 2), (250, 300), (299, 401), (999, 1), (300, 300)])
def test_a_row_range_is_what_duckdb_reads(tmp_path: Path, first: int, count: int) -> None:
    path = write(tmp_path / "a.parquet", rows_of(1000), row_group_rows=300)
    found = windows(piece(path, first, count))
    sql = f"select id, body, file_row_number from read_parquet('{path}', file_row_number=true) order by 3"
    expected = duckdb.sql(f"{sql} limit {count} offset {first}").fetchall()
    columns = kept(found)
    texts = [text for window in found for text in window.texts]
    assert list(zip(columns["id"], texts, columns["source_row"], strict=True)) == expected


def test_windows_are_full_but_the_last_and_cross_row_groups_and_pieces(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", rows_of(150), row_group_rows=50)
    second = write(tmp_path / "b.parquet", rows_of(30, 150))
    third = write(tmp_path / "c.parquet", rows_of(0, 180))
    score = spec(keep=("source_file", "id", "source_row"))
    found = windows(piece(first, 10), piece(third), piece(second), score=score)
    assert [len(window) for window in found] == [64, 64, 42]
    columns = kept(found, score)
    assert columns["id"] == list(range(10, 180))
    assert columns["source_row"] == [*range(10, 150), *range(30)]
    assert columns["source_file"] == [str(first)] * 140 + [str(second)] * 30


def test_windows_do_not_depend_on_the_row_groups(tmp_path: Path) -> None:
    texts = []
    for size in (7, 64, 1000):
        path = write(tmp_path / f"{size}.parquet", rows_of(500), row_group_rows=size)
        texts.append([window.texts for window in windows(piece(path, 3, 400))])
    assert texts[0] == texts[1] == texts[2]


def test_only_needed_columns_are_read(tmp_path: Path) -> None:
    """A column that nobody asked for may be damaged."""
    path = write(tmp_path / "a.parquet", rows_of(100))
    chunk = pq.read_metadata(path).row_group(0).column(2)
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)
    assert kept(windows(piece(path)))["id"] == list(range(100))
    with pytest.raises(UnreadableFile):
        windows(piece(path), score=spec(columns=("other",)))


def test_where_selects_exactly_and_null_is_no(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 3, 4], "body": ["a"] * 4, "size": [5, None, 50, 500]})
    path = write(tmp_path / "a.parquet", table)
    score = spec(where=pc.field("size") < 100, where_columns=("size",))
    (window,) = windows(piece(path), score=score)
    expected = duckdb.sql(f"select id from '{path}' where size < 100").fetchall()
    assert [(i,) for i in window.kept(score)[0].filter(pa.array(window.selected)).to_pylist()] == expected
    assert window.selected.tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_where_on_text_of_any_kind(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"id": [1, 2, 3], "body": pa.array(["b", "a", None]).cast(kind)})
    score = spec(where=(pc.field("body") >= "b") | pc.field("body").isin(["c"]), where_columns=("body",))
    (window,) = windows(piece(write(tmp_path / "a.parquet", table)), score=score)
    assert window.selected.tolist() == [True, False, False]


def test_hive_keys_are_columns_where_the_file_has_none(tmp_path: Path) -> None:
    partition = "month=04/who=a%20b/gone=__HIVE_DEFAULT_PARTITION__"
    path = write(tmp_path / partition / "a.parquet", rows_of(3))
    keep = ("month", "who", "gone", "day")
    strings = dict.fromkeys(keep, pa.string())
    score = spec(
        keep=keep[:3],
        keep_types=strings,
        columns=("who", "body"),
        where=pc.field("month") == "04",
        where_columns=("month",),
    )
    (window,) = windows(piece(path), score=score, partition=partition)
    assert kept([window], score) == {"month": ["04"] * 3, "who": ["a b"] * 3, "gone": [None] * 3}
    assert window.texts[0] == "a b row 0"
    assert window.selected.all()
    typed = spec(
        keep=("month",), keep_types={"month": pa.int32()}, partition_types={"month": pa.int32()},
        where=pc.field("month") < 5, where_columns=("month",),
    )  # fmt: skip
    assert kept(windows(piece(path), score=typed, partition=partition), typed) == {"month": [4, 4, 4]}
    with pytest.raises(SourceError, match="does not fit its declared type: x, int32"):
        windows(piece(path), score=typed, partition="month=x")


def test_types_of_one_family_are_cast_to_the_frozen_one(tmp_path: Path) -> None:
    types = {"id": pa.int64(), "f": pa.float64(), "s": pa.string(), "d": pa.dictionary(pa.int32(), pa.string())}
    score = spec(keep=tuple(types), keep_types=types)
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int8()),
            "f": pa.array([1, None], pa.int32()),
            "s": pa.array([b"x", b"y"]),
            "d": pa.nulls(2),
            "body": ["a", "b"],
        }
    )
    found = windows(piece(write(tmp_path / "a.parquet", table)), score=score)
    assert kept(found, score) == {"id": [1, 2], "f": [1.0, None], "s": ["x", "y"], "d": [None, None]}
    assert [column.type for column in found[0].kept(score)] == list(types.values())


def test_views_are_kept_as_plain_strings(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(["a", None], pa.string_view()), "body": pa.array(["x", "y"], pa.string_view())})
    score = spec(keep=("id",), keep_types={"id": pa.string_view()})
    (window,) = windows(piece(write(tmp_path / "a.parquet", table)), score=score)
    assert (window.kept(score)[0].type, window.kept(score)[0].to_pylist()) == (pa.string(), ["a", None])


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("id", ["a", "b"], "column has another type than in other files: id, string instead of int64"),
        ("id", [1.5, 2.0], "column does not fit its type in other files: id"),
        ("body", [1, 2], "column is no text: body, int64"),
        ("size", ["1", "2"], "where can't be evaluated"),
        ("size", None, "no such column: size; present are id, body"),
        ("body", None, "no such column: body; present are id, size"),
    ],
)
def test_a_file_whose_columns_do_not_fit_is_unreadable(tmp_path: Path, column: str, values: Any, reason: str) -> None:
    columns = {"id": [1, 2], "body": ["a", "b"], "size": [1, 2], column: values}
    path = write(tmp_path / "a.parquet", pa.table({name: v for name, v in columns.items() if v is not None}))
    with pytest.raises(UnreadableFile) as caught:
        windows(piece(path), score=spec(where=pc.field("size") > 0, where_columns=("size",)))
    assert caught.value.file == identity(path)
    assert caught.value.reason.startswith(reason)


def test_files_that_are_no_whole_parquet_file(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.parquet", rows_of(5000), row_group_rows=5000).read_bytes()
    metadata = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    damaged = bytearray(whole)
    middle = metadata.column(1).data_page_offset
    damaged[middle : middle + 2000] = os.urandom(2000)
    cases = {"empty": b"", "text": b"not a Parquet file" * 9, "cut": whole[:-100], "damaged": bytes(damaged)}
    for name, data in cases.items():
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(data)
        with pytest.raises(UnreadableFile) as caught:
            windows(Piece(identity(path), 0, 5000))
        assert caught.value.file.path == str(path), name


def test_fewer_rows_than_planned(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rows_of(10))
    with pytest.raises(UnreadableFile, match="fewer rows than planned: 10, not 11"):
        windows(Piece(identity(path), 5, 6))


def test_a_file_that_is_not_the_planned_one_any_more(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rows_of(200))
    planned = piece(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceChanged, match="not the one that was planned") as caught:
        windows(planned)
    assert caught.value.path == str(path)
    path.unlink()
    with pytest.raises(SourceChanged, match="it is gone"):
        windows(planned)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rows_of(200))
    reading = read_windows([piece(path)], "", spec(), {})
    next(reading)
    write(tmp_path / "a.parquet", rows_of(300))
    with pytest.raises(SourceChanged):
        list(reading)


class Flaky(MemoryFileSystem):
    """Storage whose reads fail after the first few."""

    protocol = "flaky"
    reads_left = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("flaky://", "memory://")))

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super().open(path, mode, **options)
        if mode == "rb":
            original = file.read

            def read(size: int = -1) -> bytes:
                Flaky.reads_left -= 1
                if Flaky.reads_left < 0:
                    raise ConnectionResetError("the store went away")
                return bytes(original(size))

            file.read = read
        return file


@pytest.mark.parametrize("reads", [0, 1, 3])
def test_trouble_of_the_storage_is_not_blamed_on_the_file(tmp_path: Path, reads: int) -> None:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    Flaky.reads_left = 1000
    data = write(tmp_path / "a.parquet", rows_of(5000)).read_bytes()
    fs = fsspec.filesystem("flaky")
    fs.pipe_file("/lake/a.parquet", data)
    file = identity("flaky:///lake/a.parquet")
    assert kept(windows(Piece(file, 0, 5000)))["id"] == list(range(5000))
    Flaky.reads_left = reads
    with pytest.raises(TransientError, match="the store went away"):
        windows(Piece(file, 0, 5000))


def test_reads_from_an_object_store(tmp_path: Path, s3: Any) -> None:
    url = s3.url("lake")
    fs = fsspec.filesystem("s3", **s3.options)
    fs.pipe_file(f"{url}/a.parquet", write(tmp_path / "a.parquet", rows_of(1000), 300).read_bytes())
    file = identity(f"{url}/a.parquet", s3.options)
    assert kept(windows(Piece(file, 200, 700), **s3.options))["id"] == list(range(200, 900))
    fs.pipe_file(f"{url}/a.parquet", write(tmp_path / "b.parquet", rows_of(1001), 300).read_bytes())
    with pytest.raises(SourceChanged):
        windows(Piece(file, 200, 700), **s3.options)
    nowhere = {"endpoint_url": "http://127.0.0.1:9"}
    away = s3.options | {"client_kwargs": nowhere, "config_kwargs": {"retries": {"max_attempts": 1}}}
    with pytest.raises(TransientError):
        windows(Piece(FileIdentity(f"{url}/a.parquet", 1, ""), 0, 1), **away)


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    """In a kept column and in one of ``where``: the row is told, the others are untouched."""
    values = pa.array([b"ok", b"\xff", None, b"z"])
    name = pa.Array.from_buffers(pa.string(), 4, values.buffers())
    table = pa.table({"id": [1, 2, 3, 4], "name": name, "body": ["a", "b", "c", "d"]})
    path = write(tmp_path / "a.parquet", table)
    score = spec(keep=("id", "name"), keep_types={"id": pa.int64(), "name": pa.string()})
    (window,) = windows(piece(path), score=score)
    assert dict(window.runs[0].unreadable) == {1: "name"}
    assert kept([window], score)["name"] == ["ok", "", None, "z"]
    filtering = spec(where=pc.utf8_lower(pc.field("name")) == "ok", where_columns=("name",))
    (window,) = windows(piece(path), score=filtering)
    assert window.selected.tolist() == [True, True, False, False]
    assert dict(window.runs[0].unreadable) == {1: "name"}


def test_templates_and_bytes(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "subject": pa.array([b"s", None]), "body": ["b", "c"]})
    score = spec(text=TextSpec((), template="{subject}: {body}"))
    (window,) = windows(piece(write(tmp_path / "a.parquet", table)), score=score)
    assert window.texts == ["s: b", ": c"]
    assert not np.any(window.empty)
