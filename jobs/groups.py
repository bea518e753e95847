"""Recorded groups of small files: ``plans/groups-<epoch>.json``. A group's make-up depends on history, so it is
written down before its first shard runs, and never extended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from ..artifacts.errors import LedgerFault
from ..artifacts.storage import Folder
from ..workers import paths
from .records import Group

_PREFIX = f"{paths.PLANS}/groups-"


def load_groups(state: Folder) -> list[Group]:
    """Every group, in the order of recording; a group that was recorded again has its last make-up."""
    keys = [entry.key for entry in state.list(paths.PLANS) if entry.key.startswith(_PREFIX)]
    found: dict[str, Group] = {}
    for key, raw in state.read_many(keys).items():
        found.update((group.id, group) for group in _parse(state, key, raw))
    return list(found.values())


def delete_unreadable_groups(state: Folder) -> None:
    """For repair, which records them again from the parts."""
    for entry in state.list(paths.PLANS):
        if entry.key.startswith(_PREFIX):
            try:
                _parse(state, entry.key, state.read(entry.key))
            except LedgerFault:
                state.delete(entry.key)


def save_groups(state: Folder, epoch: int, groups: Sequence[Group]) -> None:
    """Adds ``groups`` to those recorded under ``epoch``; writes nothing where there is nothing to add."""
    if not groups:
        return
    key = paths.groups(epoch)
    present = {group.id: group for group in _parse(state, key, state.read(key))} if state.exists(key) else {}
    present.update((group.id, group) for group in groups)
    state.write(key, _dump(present.values()))


def _dump(groups: Iterable[Group]) -> bytes:
    values = [{"id": group.id, "partition": group.partition, "files": list(group.files)} for group in groups]
    return json.dumps(values, indent=1, ensure_ascii=False).encode()


def _parse(state: Folder, key: str, raw: bytes) -> list[Group]:
    try:
        return [Group(value["id"], value["partition"], tuple(value["files"])) for value in json.loads(raw)]
    except (ValueError, KeyError, TypeError) as error:
        hint = f"Run 'headrace repair' on the sink, with --state {state.url}"
        raise LedgerFault(f"recorded groups can't be read: {state.path(key)}", hint) from error
