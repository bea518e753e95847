"""Removing committed parts: the middle step of a replacement, and all of it where a source file vanished."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from ..artifacts.storage import Folder
from ..workers import paths
from .ledger import Ledger
from .records import LedgerView


def remove_parts(sink: Folder, state: Folder, ledger: Ledger, view: LedgerView, shard_ids: Iterable[str]) -> None:
    """Deletes the parts, then their quarantined rows, and says so in ``ledger`` (unflushed) and ``view``.

    Idempotent: ids that the view does not know are passed over, files that are gone are fine. The intent that covers
    it must be flushed before.
    """
    records = [view.parts[shard_id] for shard_id in shard_ids if shard_id in view.parts]
    sink.delete_many(record.key for record in records)
    state.delete_many(paths.quarantine_rows(record.shard_id) for record in records)
    for record in records:
        ledger.append_removed(record.shard_id)
        view.parts.pop(record.shard_id, None)
    prune_folders(sink, {record.partition for record in records})


def prune_folders(sink: Folder, partitions: Iterable[str]) -> None:
    """Removes partition folders of a local sink that are empty now, never the sink itself."""
    if not sink.is_local:
        return
    root = Path(sink.root)
    for partition in partitions:
        folder = root / partition
        while folder != root and root in folder.parents:
            with contextlib.suppress(FileNotFoundError):
                try:
                    folder.rmdir()
                except OSError:  # not empty
                    break
            folder = folder.parent
