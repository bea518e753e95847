"""The ledger: which pieces are committed, as Arrow segments in the state.

Every few seconds what happened since becomes one new segment, written atomically. Segments are read in the order of
their epoch and sequence. A compacted one stands for all before it, so whatever an earlier holder writes late, under
its lower epoch, is before it and never read.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import pyarrow as pa

from ..artifacts.errors import LedgerFault
from ..artifacts.storage import Folder
from ..workers import paths
from ..workers.quarantine import write_bad_file
from ..workers.shard import BadRow
from . import segments
from .records import FileRecord, Intent, LedgerView, PartRecord

FLUSH_S = 3.0
_TRIES = 10


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    epoch: int
    sequence: int
    compacted: bool

    @property
    def key(self) -> str:
        return paths.segment(self.epoch, self.sequence, self.compacted)


class Ledger:
    """The writing end, for the holder of the lease under ``epoch``. Rows are kept until ``flush()``, before which the
    caller checks the lease."""

    def __init__(self, state: Folder, epoch: int) -> None:
        self.state, self.epoch = state, epoch
        self._rows: list[segments.Row] = []
        self._next: int | None = None  #: sequence of the next segment, once the old ones were listed
        self._flushed_at = time.monotonic()

    def append_part(self, record: PartRecord) -> None:
        self._rows.append(segments.part_row(record))

    def append_removed(self, shard_id: str) -> None:
        self._rows.append({"kind": "removed", "id": shard_id})

    def append_file(self, record: FileRecord) -> None:
        self._rows.append(segments.file_row(record))

    def clear_file(self, path: str) -> None:
        """The source file at ``path`` is no longer in quarantine."""
        self._rows.append({"kind": "file-cleared", "id": path})

    def append_intent(self, intent: Intent) -> None:
        self._rows.append(segments.intent_row(intent))

    def append_intent_done(self, intent_id: str) -> None:
        self._rows.append({"kind": "intent-done", "id": intent_id})

    def flush_due(self, now_s: float) -> bool:
        """``now_s`` is on ``time.monotonic``."""
        return bool(self._rows) and now_s - self._flushed_at >= FLUSH_S

    def flush(self) -> None:
        """Writes what was appended as one segment; nothing where there is nothing. After an error the rows are kept."""
        if self._rows:
            self._write(segments.to_bytes(self._rows), compacted=False)
            self._rows = []
        self._flushed_at = time.monotonic()

    def compact(self) -> None:
        """Flushes, writes one segment that stands for all before it, then deletes those. Nothing where one compacted
        segment is all there is."""
        self.flush()
        old = self._earlier()
        if not old or (len(old) == 1 and old[0].compacted):
            return
        self._write(segments.table_bytes(_fold(self.state, old)), compacted=True)
        self.state.delete_many(segment.key for segment in old)

    def replace(self, view: LedgerView) -> None:
        """Writes ``view`` as the whole truth, whatever stood there before, readable or not; drops unflushed rows."""
        self._rows = []
        old = self._earlier()
        self._write(segments.to_bytes(segments.view_rows(view)), compacted=True)
        self.state.delete_many(segment.key for segment in old)

    def _earlier(self) -> list[Segment]:
        """All but those of later epochs, which a holder that lost its lease must leave alone."""
        return [segment for segment in list_segments(self.state) if segment.epoch <= self.epoch]

    def _write(self, raw: bytes, compacted: bool) -> None:
        if self._next is None:
            used = [segment.sequence for segment in list_segments(self.state) if segment.epoch == self.epoch]
            self._next = max(used, default=-1) + 1
        self.state.write(paths.segment(self.epoch, self._next, compacted), raw)
        self._next += 1


def quarantine_file(state: Folder, ledger: Ledger, bad: BadRow, run_id: str) -> None:
    """A source file that can't be used goes to quarantine as a whole, for people and in ``ledger`` (unflushed)."""
    write_bad_file(state, bad)
    ledger.append_file(FileRecord(bad.file, bad.stage, bad.reason, run_id, time.time()))


def read_ledger(state: Folder) -> LedgerView:
    """The present state, also while a run writes. Raises LedgerFault for a segment that can't be read."""
    return segments.to_view(_folded(state))


def read_what_is_readable(state: Folder) -> tuple[LedgerView, list[str]]:
    """For repair: a view of the segments that can be read, and the keys of those that can't."""
    tables, broken = [], []
    for segment in _in_force(list_segments(state)):
        try:
            tables.append(_table(state, segment.key, state.read(segment.key)))
        except LedgerFault:
            broken.append(segment.key)
    return segments.to_view(segments.fold(tables)), broken


def list_segments(state: Folder) -> list[Segment]:
    """In order."""
    found = (_parse(entry.key) for entry in state.list(paths.LEDGER))
    return sorted(segment for segment in found if segment is not None)


def _folded(state: Folder) -> pa.Table:
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):  # compacted since they were listed
            return _fold(state, list_segments(state))
    raise LedgerFault("the ledger's segments vanish while they are read", hint="Is something else deleting them?")


def _fold(state: Folder, ordered: list[Segment]) -> pa.Table:
    contents = state.read_many(segment.key for segment in _in_force(ordered))
    return segments.fold(_table(state, key, raw) for key, raw in contents.items())


def _in_force(ordered: list[Segment]) -> list[Segment]:
    compacted = [index for index, segment in enumerate(ordered) if segment.compacted]
    return ordered[compacted[-1] :] if compacted else ordered


def _table(state: Folder, key: str, raw: bytes) -> pa.Table:
    try:
        return segments.from_bytes(raw)
    except (pa.ArrowException, KeyError) as error:
        hint = f"Run 'headrace repair' on the sink, with --state {state.url}"
        raise LedgerFault(f"a ledger segment can't be read: {state.path(key)}", hint) from error


def _parse(key: str) -> Segment | None:
    stem, dot, _ = key.rsplit("/", 1)[-1].partition(".arrow")
    numbers = stem.removesuffix("-c").split("-")
    if not dot or len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        return None
    return Segment(int(numbers[0]), int(numbers[1]), stem.endswith("-c"))
