"""Cuts: by hand, and as properties over any row groups."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs.cutting import GROUP_FILES, cut, group, is_small, without

_row_groups = st.lists(st.integers(0, 300), max_size=30)
_shard_rows = st.integers(1, 120)


def test_by_hand() -> None:
    assert cut([512, 512, 176], 512) == [(0, 512), (512, 512), (1024, 176)]
    assert cut([100, 100, 100], 256) == [(0, 200), (200, 100)]
    assert cut([1000], 256) == [(0, 250), (250, 250), (500, 250), (750, 250)]
    assert cut([100, 1000, 100], 600) == [(0, 100), (100, 500), (600, 500), (1100, 100)]
    assert cut([10], 4) == [(0, 3), (3, 3), (6, 4)]
    assert cut([], 4) == cut([0, 0], 4) == []
    assert cut([0, 5, 0], 4) == [(0, 2), (2, 3)]


@given(_row_groups, _shard_rows)
def test_every_row_once_and_no_shard_too_large(row_groups: list[int], shard_rows: int) -> None:
    cuts = cut(row_groups, shard_rows)
    assert [row for first, rows in cuts for row in range(first, first + rows)] == list(range(sum(row_groups)))
    assert all(0 < rows <= shard_rows for _, rows in cuts)


@given(_row_groups, _shard_rows)
def test_a_shard_is_whole_row_groups_or_lies_inside_one(row_groups: list[int], shard_rows: int) -> None:
    bounds = [sum(row_groups[:number]) for number in range(len(row_groups) + 1)]
    for first, rows in cut(row_groups, shard_rows):
        whole = first in bounds and first + rows in bounds
        inside = any(start <= first and first + rows <= end for start, end in itertools.pairwise(bounds))
        assert whole or inside


@given(_row_groups, _row_groups, _shard_rows)
def test_more_row_groups_leave_earlier_cuts_where_they_are(some: list[int], more: list[int], shard_rows: int) -> None:
    """But the last one, which may be joined with what follows."""
    before = cut(some, shard_rows)
    assert cut(some + more, shard_rows)[: max(0, len(before) - 1)] == before[:-1]


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(120, 300))
def test_groups_hold_every_file_once_in_order(sizes: list[int], shard_rows: int) -> None:
    files = [(f"f{number:03d}", rows) for number, rows in enumerate(sizes)]
    groups = group(files, shard_rows)
    assert [path for paths in groups for path in paths] == [path for path, _ in files]
    totals = [sum(dict(files)[path] for path in paths) for paths in groups]
    assert all(total <= shard_rows for total in totals)
    # No two neighbours would have fitted together.
    assert all(a + dict(files)[paths[0]] > shard_rows for a, paths in zip(totals, groups[1:], strict=False))


def test_a_group_has_not_too_many_files() -> None:
    assert [len(paths) for paths in group([(str(n), 1) for n in range(GROUP_FILES + 3)], 10**6)] == [GROUP_FILES, 3]


def test_small_is_half_a_shard() -> None:
    assert is_small(256, 512) and not is_small(257, 512)


@given(_row_groups, _shard_rows, st.data())
def test_only_shards_with_no_living_row_group_are_left_out(
    row_groups: list[int], size: int, data: st.DataObject
) -> None:
    numbers = st.sampled_from(range(len(row_groups))) if row_groups else st.nothing()
    dead = sorted(data.draw(st.sets(numbers)))
    alive = {row for number, rows in enumerate(row_groups) if number not in dead
             for row in range(sum(row_groups[:number]), sum(row_groups[:number]) + rows)}  # fmt: skip
    cuts = cut(row_groups, size)
    assert without(cuts, row_groups, dead) == [c for c in cuts if alive & set(range(c[0], c[0] + c[1]))]
