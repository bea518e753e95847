"""Rows and files that could not be scored, as small Parquet files in the state: one per shard, one per whole file."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from ..artifacts.storage import Folder
from . import paths
from .shard import BadRow, FileIdentity

#: ``source_row`` and ``shard_id`` are null for a whole file; ``text`` is null without ``sink.keep_text``.
SCHEMA = pa.schema(
    [
        pa.field("source_file", pa.string(), nullable=False),
        pa.field("source_row", pa.int64()),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("text_hash", pa.string()),
        pa.field("text", pa.string()),
        pa.field("file_size_bytes", pa.int64(), nullable=False),
        pa.field("file_version", pa.string(), nullable=False),
        pa.field("shard_id", pa.string()),
    ]
)


def encode(rows: Sequence[BadRow], shard_id: str | None) -> bytes:
    """A Parquet file; equal for equal rows."""
    values = [
        {
            "source_file": bad.file.path,
            "source_row": bad.row,
            "stage": bad.stage,
            "reason": bad.reason,
            "text_hash": bad.text_hash,
            "text": bad.text,
            "file_size_bytes": bad.file.size_bytes,
            "file_version": bad.file.version,
            "shard_id": shard_id,
        }
        for bad in rows
    ]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(values, schema=SCHEMA), out, compression="zstd")
    return out.getvalue()


def decode(data: bytes) -> list[BadRow]:
    """Raises ValueError, as pyarrow.ArrowInvalid is one, where ``data`` is no such file."""
    # Not read_table, no pre-buffering: the threads that they start may abort a process that ends soon after.
    with pq.ParquetFile(io.BytesIO(data), pre_buffer=False) as file:
        table = file.read(use_threads=False)
    if not set(SCHEMA.names) <= set(table.column_names):
        raise ValueError(f"not a file of quarantined rows, its columns: {', '.join(table.column_names)}")
    return [
        BadRow(
            FileIdentity(row["source_file"], row["file_size_bytes"], row["file_version"]),
            row["source_row"],
            row["stage"],
            row["reason"],
            row["text_hash"],
            row["text"],
        )
        for row in table.to_pylist()
    ]


def write_rows(state: Folder, shard_id: str, rows: bytes | None) -> None:
    """Replaces what is there for the shard; ``None`` removes it."""
    key = paths.quarantine_rows(shard_id)
    if rows is None:
        state.delete(key)
    else:
        state.write(key, rows)


def write_bad_file(state: Folder, bad: BadRow) -> None:
    """``bad`` stands for a whole file: its row is None."""
    state.write(paths.quarantine_file(bad.file.path), encode([bad], None))


def read_quarantine(state: Folder) -> list[BadRow]:
    """Every quarantined row and file, by key of its file."""
    keys = [entry.key for entry in state.list(paths.QUARANTINE)]
    return [bad for key in keys for bad in decode(state.read(key))]
