"""Finds the rows of one shard that kill their worker, by bisection. Pure."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from .dispatch_state import DEATHS_BEFORE_ALONE, ISOLATIONS_BEFORE_ROWS


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


class Suspects:
    """Shards under which workers died: innocent at first, then to run alone, then bisected, at last row by row."""

    def __init__(self, rows: npt.NDArray[np.int64]) -> None:
        self._rows = rows  # (shards,)
        self._deaths: dict[int, int] = {}  #: since the last isolation
        self._isolations: dict[int, int] = {}  #: that came to an end
        self._excluded: dict[int, tuple[int, ...]] = {}
        self._running: dict[int, Isolation] = {}

    def blame(self, shard: int) -> None:
        """One more worker died scoring it."""
        self._deaths[shard] = self._deaths.get(shard, 0) + 1
        if self._deaths[shard] > DEATHS_BEFORE_ALONE:
            self._running[shard] = Isolation(int(self._rows[shard]), self.excluded(shard))

    def answer(self, shard: int, died: bool) -> bool:
        """What became of the worker that probed ``next_range``. False: no single row does it, and all was tried."""
        isolation = self._running[shard]
        isolation.answer(died)
        if not isolation.finished:
            return True
        del self._running[shard]
        self._excluded[shard] = isolation.excluded
        self._isolations[shard] = self._isolations.get(shard, 0) + 1
        self._deaths[shard] = 0
        return self._isolations[shard] <= ISOLATIONS_BEFORE_ROWS

    def is_bisected(self, shard: int) -> bool:
        return shard in self._running

    def must_be_alone(self, shard: int) -> bool:
        return self.is_bisected(shard) or self._deaths.get(shard, 0) >= DEATHS_BEFORE_ALONE

    def is_row_by_row(self, shard: int) -> bool:
        return self._isolations.get(shard, 0) >= ISOLATIONS_BEFORE_ROWS

    def excluded(self, shard: int) -> tuple[int, ...]:
        """Rows of the shard that kill their worker, counted from its first."""
        return self._excluded.get(shard, ())

    def next_range(self, shard: int) -> tuple[int, int]:
        return self._running[shard].next_range()
