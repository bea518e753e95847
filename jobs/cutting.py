"""Where files are cut into shards. Pure: the cuts of a file depend on its row groups and ``shard_rows`` only, so they
are the same after any crash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

#: Each file of a group costs a worker an opening: so many at most.
GROUP_FILES = 512


def cut(row_groups: Sequence[int], shard_rows: int) -> list[tuple[int, int]]:
    """Shards of one file as (first row, rows). ``row_groups`` are the rows of each.

    Consecutive row groups are joined whole up to ``shard_rows``; a larger one is cut in even ranges of its own.
    """
    cuts: list[tuple[int, int]] = []
    first, joined = 0, 0
    for rows in row_groups:
        if joined and joined + rows > shard_rows:
            cuts.append((first, joined))
            first, joined = first + joined, 0
        if rows > shard_rows:
            cuts += _even(first, rows, shard_rows)
            first += rows
        else:
            joined += rows
    return [*cuts, (first, joined)] if joined else cuts


def _even(first: int, rows: int, shard_rows: int) -> list[tuple[int, int]]:
    """As few ranges as possible, no two of which differ by more than one row."""
    count = -(-rows // shard_rows)
    bounds = [first + rows * number // count for number in range(count + 1)]
    return [(start, end - start) for start, end in pairwise(bounds)]


def is_small(rows: int, shard_rows: int) -> bool:
    """Whether a file is scored together with others."""
    return rows <= shard_rows // 2


def group(files: Iterable[tuple[str, int]], shard_rows: int) -> list[list[str]]:
    """Small files of one partition, as (path, rows) in path order, in groups of at most ``shard_rows`` rows."""
    groups: list[list[str]] = []
    room = 0
    for path, rows in files:
        if not groups or rows > room or len(groups[-1]) >= GROUP_FILES:
            groups.append([])
            room = shard_rows
        groups[-1].append(path)
        room -= rows
    return groups


def without(cuts: Iterable[tuple[int, int]], row_groups: Sequence[int], dead: Sequence[int]) -> list[tuple[int, int]]:
    """``cuts`` but those that lie in ``dead`` row groups (their numbers, ascending) alone."""
    if not dead:
        return list(cuts)
    ends = list(accumulate(row_groups))
    gone = set(dead)
    alive = [(end - rows, end) for number, (end, rows) in enumerate(zip(ends, row_groups, strict=True))
             if number not in gone and rows]  # fmt: skip
    kept, at = [], 0
    for first, rows in cuts:
        while at < len(alive) and alive[at][1] <= first:
            at += 1
        if at < len(alive) and alive[at][0] < first + rows:
            kept.append((first, rows))
    return kept
