"""Finds the rows of one shard that kill their worker, by bisection. Pure."""

from __future__ import annotations

from collections import deque


class Isolation:
    """Ranges of rows still under suspicion. A range that kills is halved; a single row that kills is excluded.

    ``excluded`` are positions in the shard, ascending. ``known`` rows, found by an earlier isolation, stay excluded and
    are stepped over by the caller.
    """

    def __init__(self, rows: int, known: tuple[int, ...] = ()) -> None:
        self._ranges: deque[tuple[int, int]] = deque(_halves(0, rows) if rows > 1 else [(0, rows)])
        self._found: set[int] = set(known)

    @property
    def finished(self) -> bool:
        return not self._ranges

    @property
    def excluded(self) -> tuple[int, ...]:
        return tuple(sorted(self._found))

    def next_range(self) -> tuple[int, int]:
        """Rows ``first`` to ``last``, to be scored by a worker with nothing else in hand."""
        return self._ranges[0]

    def answer(self, died: bool) -> None:
        """What became of the worker that scored ``next_range()``."""
        first, last = self._ranges.popleft()
        if not died:
            return
        if last - first <= 1:
            self._found.add(first)
        else:
            self._ranges.extendleft(reversed(_halves(first, last)))


def _halves(first: int, last: int) -> list[tuple[int, int]]:
    middle = (first + last) // 2
    return [(first, middle), (middle, last)]
