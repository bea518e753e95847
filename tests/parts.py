"""Small real parts, as a worker would publish them, and the ledger rows that go with them."""

from __future__ import annotations

import io
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.artifacts.storage import Folder
from headrace.jobs.records import PartRecord
from headrace.workers import footer, paths
from headrace.workers.shard import Counts, FileIdentity, Piece

FINGERPRINT = "f" * 64
VERSIONS = {"headrace": "0", "onnxruntime": "0", "pyarrow": "0", "tokenizers": "0"}


def source(name: str, version: str = "v1") -> FileIdentity:
    return FileIdentity(f"/lake/{name}", 1000, version)


def piece(name: str, first_row: int = 0, rows: int = 4, version: str = "v1") -> Piece:
    return Piece(source(name, version), first_row, rows)


def shard_id(*pieces: Piece) -> str:
    """One piece: a shard of a file; several: a group."""
    if len(pieces) == 1:
        return paths.shard_id(pieces[0].file.path, pieces[0].first_row, pieces[0].rows)
    return paths.group_id(one.file.path for one in pieces)


def record(
    *pieces: Piece, partition: str = "", quarantined: int = 0, fingerprint: str = FINGERPRINT, id: str | None = None
) -> PartRecord:
    """A ledger row; all rows of the pieces are scored but those quarantined."""
    rows = sum(one.rows for one in pieces)
    return PartRecord(
        shard_id=id or shard_id(*pieces),
        partition=partition,
        pieces=pieces,
        fingerprint=fingerprint,
        artifact="a" * 64,
        variant="cpu-fp32",
        instruction_set="avx2",
        batching="budget",
        counts=Counts(rows, rows - quarantined, quarantined, 0),
        size_bytes=0,
        run_id="run-1",
        epoch=1,
        attempt=1,
        committed_at=1.5e9,
    )


def publish(sink: Folder, state: Folder, made: PartRecord, rows: int | None = None) -> PartRecord:
    """Writes the part and its quarantined rows; the record with its size. ``rows`` overrides what the part holds."""
    counts = made.counts
    said = footer.Footer(
        VERSIONS,
        made.artifact,
        made.variant,
        "fp32",
        made.instruction_set,
        made.fingerprint,
        made.batching,
        made.pieces,
        counts,
    )
    table = pa.table({"source_row": pa.array(range(counts.rows_out if rows is None else rows), pa.int64())})
    data = parquet(table.replace_schema_metadata({footer.KEY: footer.dump(said)}))
    sink.write(made.key, data)
    if counts.quarantined:
        bad = pa.table({"row": pa.array(range(counts.quarantined), pa.int64())})
        state.write(paths.quarantine_rows(made.shard_id), parquet(bad))
    return replace(made, size_bytes=len(data))


def parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


class Crash(Exception):
    """The process ends here."""


class Mortal(Folder):
    """Dies at the start of one write or delete. ``left`` holds how many are allowed; several folders may share it."""

    def __init__(self, url: str, left: list[int]) -> None:
        super().__init__(url)
        object.__setattr__(self, "left", left)

    def _step(self) -> None:
        left: list[int] = self.left  # type: ignore[attr-defined]
        if left[0] == 0:
            raise Crash
        left[0] -= 1

    def write(self, key: str, data: bytes) -> None:
        self._step()
        super().write(key, data)

    def delete(self, key: str) -> None:
        self._step()
        super().delete(key)
