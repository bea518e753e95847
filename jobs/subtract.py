"""What is left to do: the shards that should be there without those that are, and what must give way to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..workers.shard import FileIdentity
from .records import PartRecord, Replacement, ShardColumns
from .targets import Target


@dataclass(frozen=True)
class Committed:
    """What the ledger holds. ``by_path`` gives the shard ids that have pieces of a source file."""

    parts: Mapping[str, PartRecord]
    by_path: Mapping[str, list[str]]

    @classmethod
    def of(cls, parts: Mapping[str, PartRecord]) -> Committed:
        by_path: dict[str, list[str]] = {}
        for shard_id, record in parts.items():
            for path in {piece.file.path: None for piece in record.pieces}:
                by_path.setdefault(path, []).append(shard_id)
        return cls(parts, by_path)


@dataclass(frozen=True)
class Rules:
    """``planned`` are the paths whose parts this plan answers for. ``ignored`` are files whose pieces stay in a part
    as they are: they can't be read, or are no longer there. ``settled`` are files that keep the parts they have."""

    fingerprint: str
    planned: Collection[str]
    ignored: Collection[str] = ()
    settled: Collection[str] = ()
    any_fingerprint: bool = False  #: parts made under other terms count as done
    retry_quarantined: bool = False


@dataclass
class Left:
    """``done_rows`` and ``done_shards`` are of targets that are committed and current."""

    shards: ShardColumns
    replacements: tuple[Replacement, ...]
    done_rows: int
    done_shards: int
    unfinished: dict[str, int]  #: shards to do by partition; 0 where parts are only removed


def subtract(targets: Iterable[Target], committed: Committed, rules: Rules) -> Left:
    columns, current = _Columns(), set[str]()
    alone: list[Replacement] = []
    done_rows = done_shards = 0
    for target in targets:
        record = committed.parts.get(target.id)
        same = record is not None and _same(target, record, rules.ignored)
        if record is None or not same:
            columns.add(target)
        elif record.fingerprint != rules.fingerprint and not rules.any_fingerprint:
            columns.add(target)  # the same rows under the same name: publishing overwrites, no row is ever twice
            current.add(target.id)
        elif rules.retry_quarantined and record.counts.quarantined:
            # A part of the same pieces and fingerprint counts as published: it has to go first.
            alone.append(Replacement((target.id,), (columns.add(target),)))
            current.add(target.id)
        else:
            current.add(target.id)
            done_rows += sum(piece.rows for piece in target.pieces)
            done_shards += 1
    stale = _stale(committed, current, rules)
    replacements = (*alone, *_replacements(columns, stale, committed, rules))
    unfinished = dict.fromkeys(sorted({record.partition for record in stale.values()}), 0)
    for partition in columns.partition:
        name = columns.partitions[partition]
        unfinished[name] = unfinished.get(name, 0) + 1
    return Left(columns.frozen(), replacements, done_rows, done_shards, unfinished)


def _same(target: Target, record: PartRecord, ignored: Collection[str]) -> bool:
    if target.partition != record.partition:
        return False
    return record.pieces == target.pieces or (
        tuple(piece for piece in record.pieces if piece.file.path not in ignored) == target.pieces
    )


def _stale(committed: Committed, current: Collection[str], rules: Rules) -> dict[str, PartRecord]:
    """Parts with rows of planned files that no target stands for any more."""
    return {
        shard_id: committed.parts[shard_id]
        for path, shard_ids in committed.by_path.items()
        if path in rules.planned and path not in rules.settled
        for shard_id in shard_ids
        if shard_id not in current
    }


def _replacements(
    columns: _Columns, stale: Mapping[str, PartRecord], committed: Committed, rules: Rules
) -> list[Replacement]:
    """One per set of files that are connected by old parts or new shards: in between, no row is there twice."""
    if not stale:
        return []
    sets = _Sets()
    for record in stale.values():
        sets.join([piece.file.path for piece in record.pieces])
    new = [(index, names) for index, names in columns.paths() if any(name in sets for name in names)]
    for _, names in new:
        sets.join(names)
    removed: dict[str, list[str]] = {}
    for shard_id, record in stale.items():
        removed.setdefault(sets.root(record.pieces[0].file.path), []).append(shard_id)
    added: dict[str, list[int]] = {}
    for index, names in new:
        added.setdefault(sets.root(names[0]), []).append(index)
    found = []
    for root, shard_ids in removed.items():
        shards = added.get(root, [])
        if not _overwrites(columns, shard_ids, shards, committed):
            found.append(Replacement(tuple(shard_ids), tuple(shards)))
    return found


def _overwrites(columns: _Columns, shard_ids: list[str], shards: list[int], committed: Committed) -> bool:
    """Whether publishing the one new shard replaces the one old part by itself."""
    if len(shard_ids) != 1 or len(shards) != 1 or columns.ids[shards[0]] != shard_ids[0]:
        return False
    return columns.partitions[columns.partition[shards[0]]] == committed.parts[shard_ids[0]].partition


@dataclass
class _Sets:
    """Disjoint sets of paths."""

    above: dict[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.above

    def root(self, name: str) -> str:
        while self.above[name] != name:
            self.above[name] = self.above[self.above[name]]
            name = self.above[name]
        return name

    def join(self, names: list[str]) -> None:
        for name in names:
            self.above.setdefault(name, name)
            self.above[self.root(name)] = self.root(names[0])


@dataclass
class _Columns:
    """Shards to do, growing."""

    ids: list[str] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)
    partition: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=lambda: [0])
    files: dict[FileIdentity, int] = field(default_factory=dict)
    piece_file: list[int] = field(default_factory=list)
    first_row: list[int] = field(default_factory=list)
    piece_rows: list[int] = field(default_factory=list)

    def add(self, target: Target) -> int:
        """The shard's position in the plan."""
        if not self.partitions or self.partitions[-1] != target.partition:
            self.partitions.append(target.partition)  # they come in order
        self.ids.append(target.id)
        self.partition.append(len(self.partitions) - 1)
        for piece in target.pieces:
            self.piece_file.append(self.files.setdefault(piece.file, len(self.files)))
            self.first_row.append(piece.first_row)
            self.piece_rows.append(piece.rows)
        self.offsets.append(len(self.piece_file))
        return len(self.ids) - 1

    def paths(self) -> Iterable[tuple[int, list[str]]]:
        """Source paths of each shard."""
        names = [file.path for file in self.files]
        for index in range(len(self.ids)):
            yield index, [names[k] for k in self.piece_file[self.offsets[index] : self.offsets[index + 1]]]

    def frozen(self) -> ShardColumns:
        return ShardColumns(
            ids=tuple(self.ids),
            partitions=tuple(self.partitions),
            partition=np.array(self.partition, dtype=np.int32),
            offsets=np.array(self.offsets, dtype=np.int64),
            files=tuple(self.files),
            piece_file=np.array(self.piece_file, dtype=np.int32),
            first_row=np.array(self.first_row, dtype=np.int64),
            piece_rows=np.array(self.piece_rows, dtype=np.int64),
        )
