"""``headrace verify``: counts rows from the files alone and holds sink, ledger and quarantine against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..artifacts.storage import Folder
from ..workers import paths
from ..workers.shard import Counts
from .host import is_gone
from .leasefile import LeaseInfo, read_lease
from .ledger import read_ledger
from .overlaps import overlaps
from .records import LedgerView, PartRecord
from .repair import Repaired, repair
from .scan import FoundPart, Scan, is_whole, quarantined_rows, scan
from .sink import check_used

#: Parts that the ledger does not know, or knew before they were written over.
_PUBLISHED = ("unknown-part", "other-pieces", "other-counts")
_QUARANTINE = ("quarantine-missing", "quarantine-count", "quarantine-orphan")

__all__ = ["Fault", "Repaired", "VerifyReport", "repair", "verify"]


@dataclass(frozen=True, slots=True)
class Fault:
    """``kind``: missing-part, unknown-part, torn-part, misplaced-part, other-pieces, other-counts, row-equation,
    row-count, duplicate-rows, quarantine-missing, quarantine-count, quarantine-orphan, unreadable-lease."""

    kind: str
    subject: str  #: a key in sink or state, a shard id, or a source path
    detail: str


@dataclass(frozen=True)
class VerifyReport:
    """Counts are summed over the parts' footers; ``rows`` is what Parquet counts in the parts."""

    parts: int
    rows: int
    rows_by_partition: dict[str, int]
    counts: Counts
    duplicate_rows: int
    bad_files: int  #: source files in quarantine as a whole
    foreign: tuple[str, ...]  #: files in the sink that headrace did not write, not counted
    uncommitted: int  #: parts that a run under way has published and not yet written into the ledger
    running: LeaseInfo | None  #: the run that holds the sink now, if any
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        return not self.faults


def verify(sink: Folder, state: Folder) -> VerifyReport:
    """Reads every part's footer and the ledger, writes nothing.

    While a run is under way its latest parts are not in the ledger yet, nor those it wrote over, and those it replaces
    may be gone: these are no faults then. Raises LedgerFault where a ledger segment can't be read, UsageError where
    there is neither state nor part.
    """
    check_used(sink, state)
    running = _running(state)
    view = read_ledger(state)
    found = scan(sink)
    twice = overlaps(found.parts)
    faults = [*_sink_faults(found, view), *_part_faults(found.parts), *_quarantine_faults(state, found.parts)]
    for one in twice:
        detail = f"{one.rows} rows from row {one.first_row} are in shards {one.a} and {one.b}"
        faults.append(Fault("duplicate-rows", one.path, detail))
    faults += _lease_faults(state)
    passing: set[Fault] = set()
    if running is not None and faults:
        later = read_ledger(state)  # what the run wrote since explains what the scan found
        passing = {fault for fault in faults if _passes(fault, view, later)}
    by_partition: Counter[str] = Counter()
    for part in found.parts:
        by_partition[part.partition] += part.rows
    return VerifyReport(
        parts=len(found.parts),
        rows=sum(part.rows for part in found.parts),
        rows_by_partition=dict(by_partition),
        counts=_sum(found.parts),
        duplicate_rows=sum(one.rows for one in twice),
        bad_files=len(view.bad_files),
        foreign=found.foreign,
        uncommitted=sum(fault.kind in _PUBLISHED for fault in passing),
        running=running,
        faults=tuple(fault for fault in faults if fault not in passing),
    )


def _running(state: Folder) -> LeaseInfo | None:
    lease = read_lease(state)
    held = lease is not None and lease.is_readable and lease.state == "held" and not is_gone(lease.owner)
    return lease if held else None


def _lease_faults(state: Folder) -> Iterator[Fault]:
    lease = read_lease(state)
    if lease is not None and not lease.is_readable:
        yield Fault("unreadable-lease", paths.lease(lease.epoch), "who holds the sink, if anyone does, can't be told")


def _passes(fault: Fault, before: LedgerView, after: LedgerView) -> bool:
    """What a run under way explains, given the ledger as it was before and after the scan.

    A part's quarantined rows and the part itself are two files, so a shard done again may be seen between the two.
    """
    if fault.kind != "missing-part":
        return fault.kind in _PUBLISHED or fault.kind in _QUARANTINE
    shard_id = paths.shard_of_part(fault.subject) or ""
    replaced = {one for view in (before, after) for intent in view.intents.values() for one in intent.remove}
    return shard_id in replaced or after.parts.get(shard_id) != before.parts.get(shard_id)


def _sink_faults(found: Scan, view: LedgerView) -> Iterator[Fault]:
    yield from (Fault("torn-part", key, "not a whole Parquet file") for key in found.torn)
    keys = {part.key for part in found.parts}
    for record in view.parts.values():
        if record.key not in keys and record.key not in found.torn:
            yield Fault("missing-part", record.key, f"the ledger counts {record.counts.rows_out} rows in it")
    for part in found.parts:
        known = view.parts.get(part.shard_id)
        if known is None:
            yield Fault("unknown-part", part.key, f"{part.rows} rows that the ledger does not know")
        elif known.key != part.key:
            yield Fault("misplaced-part", part.key, f"the ledger has this shard at {known.key}")
        else:
            yield from _difference(part, known)


def _difference(part: FoundPart, record: PartRecord) -> Iterator[Fault]:
    footer = part.footer
    if (footer.pieces, footer.fingerprint) != (record.pieces, record.fingerprint):
        yield Fault("other-pieces", part.key, "its footer names other source rows or another fingerprint")
    elif footer.counts != record.counts:
        yield Fault("other-counts", part.key, f"ledger {_tell(record.counts)}; footer {_tell(footer.counts)}")


def _part_faults(parts: tuple[FoundPart, ...]) -> Iterator[Fault]:
    for part in parts:
        counts = part.footer.counts
        if counts.rows_in != counts.rows_out + counts.quarantined + counts.filtered:
            yield Fault("row-equation", part.key, f"rows in are not rows out + quarantined + filtered: {_tell(counts)}")
        rows = sum(piece.rows for piece in part.footer.pieces)
        if rows != counts.rows_in:
            yield Fault("row-equation", part.key, f"its pieces of the source have {rows} rows; footer {_tell(counts)}")
        if part.rows != counts.rows_out:
            yield Fault("row-count", part.key, f"{part.rows} rows in the file; footer {_tell(counts)}")


def _quarantine_faults(state: Folder, parts: tuple[FoundPart, ...]) -> Iterator[Fault]:
    rows = quarantined_rows(state)
    for part in parts:
        if is_whole(part, rows):
            continue
        key, expected, found = (
            paths.quarantine_rows(part.shard_id),
            part.footer.counts.quarantined,
            rows.get(part.shard_id),
        )
        if found is None:
            yield Fault("quarantine-missing", part.key, f"{expected} rows were quarantined, and {key} is gone")
        else:
            held = "unreadable" if found < 0 else f"{found} rows"
            yield Fault("quarantine-count", part.key, f"{expected} rows were quarantined, {key} is {held}")
    for shard_id in sorted(rows.keys() - {part.shard_id for part in parts}):
        yield Fault("quarantine-orphan", paths.quarantine_rows(shard_id), "its shard has no part")


def _sum(parts: tuple[FoundPart, ...]) -> Counts:
    counts = [part.footer.counts for part in parts]
    return Counts(
        rows_in=sum(one.rows_in for one in counts),
        rows_out=sum(one.rows_out for one in counts),
        quarantined=sum(one.quarantined for one in counts),
        filtered=sum(one.filtered for one in counts),
    )


def _tell(counts: Counts) -> str:
    return f"{counts.rows_in} in, {counts.rows_out} out, {counts.quarantined} quarantined, {counts.filtered} filtered"
