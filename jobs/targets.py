"""The shards that the source as it is now should have in the sink, whatever is there already."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ..workers import paths
from ..workers.shard import Piece
from .cutting import cut, group, is_small, without
from .known_files import FileFacts
from .records import Group
from .source import SourceFile


@dataclass(frozen=True, slots=True)
class Target:
    id: str
    partition: str
    pieces: tuple[Piece, ...]


@dataclass
class Grouping:
    """``recorded`` by member path. ``placed`` files have parts and never join a new group. ``kept`` are pieces of
    members that are not in this listing, but may still be there, by group id. ``new`` is filled by ``targets``."""

    recorded: Mapping[str, Group]
    placed: Collection[str] = ()
    kept: Mapping[str, Sequence[Piece]] = field(default_factory=dict)
    new: list[Group] = field(default_factory=list)


Usable = tuple[SourceFile, FileFacts]
_Unit = tuple[str, str | None, list[Usable]]  #: first path, the group's id, members


def targets(files: Iterable[Usable], grouping: Grouping, shard_rows: int, limit: int | None = None) -> Iterator[Target]:
    """In order: by partition, then by the first file's path. ``files`` come in the order (partition, path).

    Files and shards in which no row can match are left out. ``limit`` cuts the sequence off after so many rows.
    """
    found = (
        target
        for partition, some in groupby(files, key=lambda usable: usable[0].partition)
        for target in _of_partition(partition, [one for one in some if not one[1].is_dead], grouping, shard_rows)
    )
    return found if limit is None else _first(found, limit)


def _of_partition(partition: str, files: list[Usable], grouping: Grouping, shard_rows: int) -> Iterator[Target]:
    grouped: dict[str, list[Usable]] = {}
    loose: list[Usable] = []
    own: list[Usable] = []
    for usable in files:
        path, facts = usable[0].identity.path, usable[1]
        recorded = grouping.recorded.get(path)
        if recorded is not None:
            grouped.setdefault(recorded.id, []).append(usable)
        elif is_small(facts.rows, shard_rows) and path not in grouping.placed:
            loose.append(usable)
        else:
            own.append(usable)
    units: list[_Unit] = []
    for recorded_id, members in grouped.items():
        if _outgrown(members, shard_rows):
            own += members
        else:
            units.append((members[0][0].identity.path, recorded_id, members))
    units += _new_groups(partition, loose, own, grouping, shard_rows)
    units += ((usable[0].identity.path, None, [usable]) for usable in own)
    for _, group_id, members in sorted(units, key=lambda unit: unit[0]):
        if group_id is None:
            yield from _cut(members[0], shard_rows)
        else:
            yield _grouped(group_id, partition, members, grouping.kept.get(group_id, ()))


def _new_groups(
    partition: str, loose: list[Usable], own: list[Usable], grouping: Grouping, shard_rows: int
) -> Iterator[tuple[str, str, list[Usable]]]:
    """Groups of ``loose`` files, which are recorded as new; a file that is left alone goes to ``own``."""
    by_path = {usable[0].identity.path: usable for usable in loose}
    for members in group(((path, usable[1].rows) for path, usable in by_path.items()), shard_rows):
        if len(members) == 1:
            own.append(by_path[members[0]])
            continue
        made = Group(paths.group_id(members), partition, tuple(members))
        grouping.new.append(made)
        yield members[0], made.id, [by_path[path] for path in members]


def _outgrown(members: list[Usable], shard_rows: int) -> bool:
    """Files that grew since they were grouped: each is cut by itself then. Depends on the files alone, not on what was
    committed, so it is the same after a crash."""
    return sum(facts.rows for _, facts in members) > 2 * shard_rows


def _cut(usable: Usable, shard_rows: int) -> Iterator[Target]:
    file, facts = usable
    path = file.identity.path
    for first, rows in without(cut(facts.row_groups, shard_rows), facts.row_groups, facts.dead):
        yield Target(paths.shard_id(path, first, rows), file.partition, (Piece(file.identity, first, rows),))


def _grouped(group_id: str, partition: str, members: list[Usable], kept: Sequence[Piece]) -> Target:
    pieces = [*(Piece(file.identity, 0, facts.rows) for file, facts in members), *kept]
    return Target(group_id, partition, tuple(sorted(pieces, key=lambda piece: piece.file.path)))


def _first(found: Iterable[Target], limit: int) -> Iterator[Target]:
    """The last shard is cut to what is left; a group keeps its id."""
    left = limit
    for target in found:
        pieces = []
        for piece in target.pieces:
            rows = min(piece.rows, left)
            left -= rows
            if rows:
                pieces.append(Piece(piece.file, piece.first_row, rows))
        if tuple(pieces) == target.pieces:
            yield target
        else:
            lone = len(target.pieces) == 1
            shard = paths.shard_id(pieces[0].file.path, pieces[0].first_row, pieces[0].rows) if lone else target.id
            yield Target(shard, target.partition, tuple(pieces))
        if not left:
            return
