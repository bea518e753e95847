"""After a takeover: sink and ledger are made to agree before the new run starts.

Parts are published before the ledger tells of them, so a run that died leaves parts that the ledger does not know,
rows of parts that a replacement had removed, half a replacement, and attempts that were staged and never published.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from ..artifacts.storage import Folder
from ..workers import paths
from ..workers.footer import Footer
from .ledger import Ledger, read_ledger
from .records import LedgerView, PartRecord
from .replacing import prune_folders
from .scan import FoundPart, Scan, is_whole, quarantined_rows, record_of, same_work, scan

IsCurrent = Callable[[Footer], bool]  #: would the present plan make this part?


@dataclass(frozen=True)
class Recovered:
    adopted: tuple[PartRecord, ...]  #: parts that the ledger did not know, or knew otherwise
    removed: tuple[str, ...]  #: keys of parts that were deleted
    missing: tuple[str, ...]  #: shard ids in the ledger whose part is gone
    foreign: tuple[str, ...]  #: keys of files that are not ours, left alone
    intents: tuple[str, ...]  #: replacements that were finished


def recover(
    sink: Folder,
    state: Folder,
    ledger: Ledger,
    view: LedgerView,
    is_current: IsCurrent,
    check: Callable[[], None] = lambda: None,
) -> Recovered:
    """Brings sink, ``ledger`` and ``view`` together; call it once every earlier grant has run out.

    ``check`` raises when the lease is lost: it is called after the long look and before the first deletion.

    ``view`` is read anew first, in place: the earlier holder may have written since it was read.

    A part that the ledger knows as it is stays, current or not: replacing it is the planner's. One whose quarantined
    rows are not as many as its footer says goes with what is left of them: the run scores its rows again. Ends with a
    compaction, so that nothing an earlier holder writes late is ever read. Doing it again after a crash anywhere is
    fine.
    """
    sink.abort_uploads()
    _read_anew(ledger, view)
    found, quarantined = scan(sink), quarantined_rows(state)

    def stays(part: FoundPart, known: bool) -> bool:
        return is_whole(part, quarantined) and (known or is_current(part.footer))

    kept, adopted, doomed = _sort(found, view, stays, ledger.epoch)
    removed = [*(part.key for part in doomed), *found.torn]
    check()
    sink.delete_many(removed)
    missing = [shard_id for shard_id in view.parts if shard_id not in kept]
    for shard_id in missing:
        del view.parts[shard_id]
    for record in adopted:
        view.parts[record.shard_id] = record
    finished = tuple(view.intents)
    view.intents.clear()
    sweep(state, ledger.epoch, set(kept))
    prune_folders(sink, {key.rpartition("/")[0] for key in removed})
    ledger.replace(view)
    had_part = {part.shard_id for part in doomed}
    lost = tuple(shard_id for shard_id in missing if shard_id not in had_part)
    return Recovered(tuple(adopted), tuple(removed), lost, found.foreign, finished)


def _read_anew(ledger: Ledger, view: LedgerView) -> None:
    ledger.flush()
    fresh = read_ledger(ledger.state)
    view.parts, view.bad_files, view.intents = fresh.parts, fresh.bad_files, fresh.intents


def _sort(
    found: Scan, view: LedgerView, stays: Callable[[FoundPart, bool], bool], epoch: int
) -> tuple[dict[str, FoundPart], list[PartRecord], list[FoundPart]]:
    """Parts to keep by shard id, records to add for some of them, parts to delete."""
    given_way = {shard_id for intent in view.intents.values() for shard_id in intent.remove}
    kept: dict[str, FoundPart] = {}
    adopted: list[PartRecord] = []
    doomed: list[FoundPart] = []
    for part in sorted(found.parts, key=lambda part: not _known(view, part)):  # known ones first: they stay
        known = _known(view, part)
        if part.shard_id in kept or not stays(part, known and part.shard_id not in given_way):
            doomed.append(part)
            continue
        kept[part.shard_id] = part
        record = record_of(part, epoch, view.parts[part.shard_id] if known else None)
        if not known or record != view.parts[part.shard_id]:
            adopted.append(record)
    return kept, adopted, doomed


def _known(view: LedgerView, part: FoundPart) -> bool:
    record = view.parts.get(part.shard_id)
    return record is not None and same_work(record, part)


def sweep(state: Folder, epoch: int, shards: set[str]) -> None:
    """Deletes attempts staged under earlier epochs, and quarantined rows of shards that have no part."""
    staged = [entry.key for entry in state.list(paths.TMP) if _epoch_of(entry.key) < epoch]
    state.delete_many([*staged, *orphaned_rows(state, shards)])


def orphaned_rows(state: Folder, shards: Container[str]) -> list[str]:
    """Keys of quarantined rows whose shard is not one of ``shards``."""
    found = ((entry.key, paths.shard_of_quarantine(entry.key)) for entry in state.list(paths.QUARANTINE))
    return [key for key, shard_id in found if shard_id is not None and shard_id not in shards]


def _epoch_of(key: str) -> float:
    epoch = key.rsplit("/", 1)[-1].split("-", 1)[0]
    return int(epoch) if epoch.isdigit() else float("inf")
