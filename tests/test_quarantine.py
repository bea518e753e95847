"""What is in quarantine, and that it comes back."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parts import parquet

from headrace.artifacts.storage import Folder
from headrace.workers import paths
from headrace.workers.quarantine import SCHEMA, decode, encode, read_quarantine, write_bad_file, write_rows
from headrace.workers.shard import BadRow, FileIdentity

FILE = FileIdentity("s3://lake/ä.parquet", 1 << 40, "etag")
ROWS = [
    BadRow(FILE, 7, "text", "text is not UTF-8", "ab" * 16),
    BadRow(FILE, 1 << 33, "infer", "why", "cd" * 16, "text"),
]


def test_rows_come_back() -> None:
    data = encode(ROWS, "s" * 20)
    assert decode(data) == ROWS
    assert encode(ROWS, "s" * 20) == data
    assert pq.read_schema(io.BytesIO(data)).equals(SCHEMA)


@pytest.mark.parametrize("data", [b"", b"PAR1", parquet(pa.table({"row": [1]}))], ids=["empty", "torn", "other"])
def test_what_is_no_quarantine_file_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_reading_starts_no_threads() -> None:
    """Arrow's pools may abort a process that ends soon after they were used, with the output long printed."""
    program = "import os, sys; from headrace.workers.quarantine import decode; data = sys.stdin.buffer.read(); "
    program += "before = len(os.listdir('/proc/self/task')); rows = decode(data); "
    program += "print(len(rows), len(os.listdir('/proc/self/task')) - before)"
    done = subprocess.run([sys.executable, "-c", program], input=encode(ROWS, None), capture_output=True, check=True)
    assert done.stdout.decode().split() == ["2", "0"]


def test_rows_and_files_lie_in_one_folder_that_duckdb_reads(tmp_path: Path) -> None:
    state = Folder(str(tmp_path / "state"))
    whole = BadRow(FileIdentity("/lake/torn.parquet", 3, "1"), None, "read", "ArrowInvalid: not a Parquet file")
    write_rows(state, "s1", encode(ROWS, "s1"))
    write_bad_file(state, whole)
    assert sorted(read_quarantine(state), key=str) == sorted([*ROWS, whole], key=str)
    folder = state.path(paths.QUARANTINE)
    found = duckdb.sql(f"select source_file, source_row, shard_id from '{folder}/*.parquet' order by 2")
    assert found.fetchall() == [(FILE.path, 7, "s1"), (FILE.path, 1 << 33, "s1"), ("/lake/torn.parquet", None, None)]


def test_writing_again_replaces_and_nothing_removes(tmp_path: Path) -> None:
    state = Folder(str(tmp_path / "state"))
    write_rows(state, "s1", encode(ROWS, "s1"))
    write_rows(state, "s1", encode(ROWS[:1], "s1"))
    assert read_quarantine(state) == ROWS[:1]
    write_rows(state, "s1", None)
    write_rows(state, "s1", None)
    assert read_quarantine(state) == []
