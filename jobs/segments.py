"""Ledger segments as Arrow tables: the schema, records to rows and rows to records."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..workers.shard import Counts, FileIdentity, Piece
from .records import FileRecord, Intent, LedgerView, PartRecord

PIECE = pa.struct(
    [
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("version", pa.string()),
        ("first_row", pa.int64()),
        ("rows", pa.int64()),
    ]
)
#: one row is one event; ``id`` is a shard id, a source path or an intent's id
SCHEMA = pa.schema(
    [
        ("kind", pa.string()),  # part, removed, file, file-cleared, intent, intent-done
        ("id", pa.string()),
        ("partition", pa.string()),
        ("pieces", pa.list_(PIECE)),
        ("fingerprint", pa.string()),
        ("artifact", pa.string()),
        ("variant", pa.string()),
        ("instruction_set", pa.string()),
        ("batching", pa.string()),
        ("rows_in", pa.int64()),
        ("rows_out", pa.int64()),
        ("quarantined", pa.int64()),
        ("filtered", pa.int64()),
        ("size_bytes", pa.int64()),
        ("run_id", pa.string()),
        ("epoch", pa.int64()),
        ("attempt", pa.int64()),
        ("committed_at", pa.float64()),
        ("stage", pa.string()),
        ("reason", pa.string()),
        ("remove", pa.list_(pa.string())),
        ("publish", pa.list_(pa.string())),
    ]
)
_SUBJECT = {"removed": "part", "file-cleared": "file", "intent-done": "intent"}
Row = dict[str, Any]


def part_row(record: PartRecord) -> Row:
    counts = record.counts
    return {
        "kind": "part",
        "id": record.shard_id,
        "partition": record.partition,
        "pieces": [_piece_row(piece) for piece in record.pieces],
        "fingerprint": record.fingerprint,
        "artifact": record.artifact,
        "variant": record.variant,
        "instruction_set": record.instruction_set,
        "batching": record.batching,
        "rows_in": counts.rows_in,
        "rows_out": counts.rows_out,
        "quarantined": counts.quarantined,
        "filtered": counts.filtered,
        "size_bytes": record.size_bytes,
        "run_id": record.run_id,
        "epoch": record.epoch,
        "attempt": record.attempt,
        "committed_at": record.committed_at,
    }


def file_row(record: FileRecord) -> Row:
    return {
        "kind": "file",
        "id": record.file.path,
        "pieces": [_piece_row(Piece(record.file, 0, 0))],
        "stage": record.stage,
        "reason": record.reason,
        "run_id": record.run_id,
        "committed_at": record.committed_at,
    }


def intent_row(intent: Intent) -> Row:
    return {"kind": "intent", "id": intent.id, "remove": list(intent.remove), "publish": list(intent.publish)}


def view_rows(view: LedgerView) -> list[Row]:
    """The rows that stand for a whole view."""
    parts = [part_row(record) for record in view.parts.values()]
    files = [file_row(record) for record in view.bad_files.values()]
    return parts + files + [intent_row(intent) for intent in view.intents.values()]


def to_bytes(rows: Sequence[Row]) -> bytes:
    return table_bytes(pa.Table.from_pylist(list(rows), schema=SCHEMA))


def table_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, SCHEMA, options=options) as writer:
        writer.write_table(table)
    return cast("bytes", sink.getvalue().to_pybytes())


def from_bytes(raw: bytes) -> pa.Table:
    """Raises pyarrow.ArrowInvalid, or another ArrowException, where it is no segment."""
    with pa.ipc.open_file(pa.py_buffer(raw)) as reader:
        return reader.read_all().select(SCHEMA.names).cast(SCHEMA)


def fold(tables: Iterable[pa.Table]) -> pa.Table:
    """What is still so after all events in order: the last row of each subject, without those that end one."""
    table = pa.concat_tables([SCHEMA.empty_table(), *tables])
    last: dict[tuple[str, str], int] = {}
    kinds, ids = table["kind"].to_pylist(), table["id"].to_pylist()
    for index, (kind, subject) in enumerate(zip(kinds, ids, strict=True)):
        ends = _SUBJECT.get(kind)
        if ends is None:
            last[kind, subject] = index
        else:
            last.pop((ends, subject), None)
    return table.take(pa.array(sorted(last.values()), pa.int64())).combine_chunks()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Many records made and none dropped: the cycle collector would walk them again and again, half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_no_collection()
def to_view(folded: pa.Table) -> LedgerView:
    """Records of a folded table."""
    kinds = folded["kind"].to_numpy()
    parts = folded.filter(pa.array(kinds == "part", pa.bool_()))
    files = folded.filter(pa.array(kinds == "file", pa.bool_())).to_pylist()
    intents = folded.filter(pa.array(kinds == "intent", pa.bool_())).to_pylist()
    return LedgerView(
        parts={record.shard_id: record for record in _parts(parts)},
        bad_files={row["id"]: _file_record(row) for row in files},
        intents={row["id"]: Intent(row["id"], tuple(row["remove"]), tuple(row["publish"])) for row in intents},
    )


def _parts(table: pa.Table) -> list[PartRecord]:
    """By columns: a dict for each row and piece would take several times as long."""
    table = table.combine_chunks()
    counts = map(Counts, *(_values(table[name]) for name in ("rows_in", "rows_out", "quarantined", "filtered")))
    before = [_values(table[name]) for name in ("id", "partition")]
    described = ("fingerprint", "artifact", "variant", "instruction_set", "batching")
    after = [_values(table[name]) for name in ("size_bytes", "run_id", "epoch", "attempt", "committed_at")]
    middle = [_values(table[name]) for name in described]
    return list(map(PartRecord, *before, _pieces(table["pieces"]), *middle, counts, *after))


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Python values of a column without nulls; text that repeats is one object."""
    if pa.types.is_string(column.type):
        encoded = column.combine_chunks().dictionary_encode()
        words = encoded.dictionary.to_pylist()
        return [words[code] for code in encoded.indices.to_pylist()]
    return cast("list[Any]", column.to_numpy().tolist())


def _pieces(column: pa.ChunkedArray) -> Iterable[tuple[Piece, ...]]:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # of no chunks
        array = pa.concat_arrays([*array.chunks, pa.array([], column.type)])
    lengths: npt.NDArray[np.int64] = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    values = array.flatten()
    names = (field.name for field in PIECE)
    path, size_bytes, version, first_row, rows = (_values(pa.chunked_array([values.field(name)])) for name in names)
    identities = list(zip(path, size_bytes, version, strict=True))
    files = {identity: FileIdentity(*identity) for identity in set(identities)}
    pieces = list(map(Piece, map(files.__getitem__, identities), first_row, rows))
    ends = np.cumsum(lengths).tolist()
    return [tuple(pieces[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]


def _file_record(row: Row) -> FileRecord:
    piece = row["pieces"][0]
    file = FileIdentity(piece["path"], piece["size_bytes"], piece["version"])
    return FileRecord(file, row["stage"], row["reason"], row["run_id"], row["committed_at"])


def _piece_row(piece: Piece) -> Row:
    file = piece.file
    return {
        "path": file.path,
        "size_bytes": file.size_bytes,
        "version": file.version,
        "first_row": piece.first_row,
        "rows": piece.rows,
    }
