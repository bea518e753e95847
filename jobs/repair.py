"""``headrace repair``: the ledger anew, from what the parts say of themselves."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from ..artifacts.storage import Folder
from ..workers import paths
from ..workers.quarantine import decode
from ..workers.shard import BadRow
from .groups import delete_unreadable_groups, load_groups, save_groups
from .lease import WATCH_S, Lease
from .ledger import Ledger, list_segments, read_what_is_readable
from .overlaps import newest_disjoint
from .records import FileRecord, Group, LedgerView
from .recovery import sweep
from .replacing import prune_folders
from .scan import FoundPart, is_whole, quarantined_rows, record_of, same_work, scan
from .sink import check_used


@dataclass(frozen=True)
class Repaired:
    """What the ledger now says, and what was done for it."""

    parts: int
    rows: int  #: in those parts
    learned: int  #: parts that the old ledger did not know, or knew otherwise
    forgotten: tuple[str, ...]  #: shard ids of the old ledger that have no part now
    dropped: tuple[str, ...]  #: keys of deleted parts whose source rows a newer part holds too
    partial: tuple[str, ...]  #: keys of deleted parts whose quarantined rows were not there in their number
    torn: tuple[str, ...]  #: keys of deleted parts that were no whole Parquet file
    foreign: tuple[str, ...]  #: keys of files that are not ours, left alone
    bad_files: int  #: records of quarantined source files that were kept
    unreadable: tuple[str, ...]  #: keys of ledger segments that could not be read
    groups: int  #: groups of small files that had to be recorded again


def repair(sink: Folder, state: Folder, lease: Lease | None = None, watch_s: float = WATCH_S) -> Repaired:
    """Makes ledger and sink agree with the parts' footers; takes the lease for it unless given one.

    Of parts that hold the same source rows the one published last stays, by the store's own clock; a part whose
    quarantined rows are lost goes. Deleted parts lose nothing for good: the next run scores their rows. Records of
    source files in quarantine are kept, and read from the quarantine itself where the ledger is lost. Open
    replacements are forgotten: the next run plans them again. Raises SinkHeld while a run holds the sink, UsageError
    (and writes nothing) where there is neither state nor part.
    """
    if lease is not None:
        return _repair(sink, state, lease)
    check_used(sink, state)
    with Lease.acquire(state, f"repair-{uuid.uuid4().hex[:8]}", watch_s=watch_s) as own:
        return _repair(sink, state, own)


def _repair(sink: Folder, state: Folder, lease: Lease) -> Repaired:
    lease.wait_out_grants()
    sink.abort_uploads()
    before, unreadable = read_what_is_readable(state)
    if unreadable or not list_segments(state):
        before.bad_files = {**_bad_files(state), **before.bad_files}
    found, quarantined = scan(sink), quarantined_rows(state)
    kept, dropped = newest_disjoint([part for part in found.parts if is_whole(part, quarantined)])
    partial = [part for part in found.parts if not is_whole(part, quarantined)]
    deleted = [*(part.key for part in (*dropped, *partial)), *found.torn]
    lease.check()
    sink.delete_many(deleted)
    view = _rebuilt(kept, before, lease.epoch)
    Ledger(state, lease.epoch).replace(view)
    groups = _record_groups(state, lease.epoch, kept)
    sweep(state, lease.epoch, set(view.parts))
    prune_folders(sink, {key.rpartition("/")[0] for key in deleted})
    lease.settled()
    return Repaired(
        parts=len(kept),
        rows=sum(part.rows for part in kept),
        learned=sum(view.parts[part.shard_id] != before.parts.get(part.shard_id) for part in kept),
        forgotten=tuple(shard_id for shard_id in before.parts if shard_id not in view.parts),
        dropped=tuple(part.key for part in dropped),
        partial=tuple(part.key for part in partial),
        torn=found.torn,
        foreign=found.foreign,
        bad_files=len(view.bad_files),
        unreadable=tuple(unreadable),
        groups=groups,
    )


def _bad_files(state: Folder) -> dict[str, FileRecord]:
    """By source path, from the quarantine's own files; which run found them and when is lost."""
    keys = [entry.key for entry in state.list(paths.QUARANTINE) if paths.shard_of_quarantine(entry.key) is None]
    found = [bad for raw in state.read_many(keys).values() for bad in _decode(raw)]
    now = time.time()
    return {bad.file.path: FileRecord(bad.file, bad.stage, bad.reason, "", now) for bad in found if bad.row is None}


def _decode(raw: bytes) -> list[BadRow]:
    try:
        return decode(raw)
    except (pa.ArrowException, ValueError):  # then the next run finds the bad file itself
        return []


def _rebuilt(parts: Iterable[FoundPart], before: LedgerView, epoch: int) -> LedgerView:
    view = LedgerView(bad_files=dict(before.bad_files))
    for part in parts:
        former = before.parts.get(part.shard_id)
        known = former if former is not None and same_work(former, part) else None
        view.parts[part.shard_id] = record_of(part, epoch, known)
    return view


def _record_groups(state: Folder, epoch: int, parts: Iterable[FoundPart]) -> int:
    """Records groups that are nowhere recorded: those of parts whose id is not that of one piece."""
    delete_unreadable_groups(state)
    known = {group.id for group in load_groups(state)}
    found = [_group(part) for part in parts if part.shard_id not in known and _is_group(part)]
    save_groups(state, epoch, found)
    return len(found)


def _is_group(part: FoundPart) -> bool:
    pieces = part.footer.pieces
    return all(paths.shard_id(one.file.path, one.first_row, one.rows) != part.shard_id for one in pieces)


def _group(part: FoundPart) -> Group:
    return Group(part.shard_id, part.partition, tuple(dict.fromkeys(one.file.path for one in part.footer.pieces)))
