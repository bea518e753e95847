"""Shards that wait for a worker: at once, alone, or after a back-off. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable


class WorkQueue:
    """Positions of shards. Each waits in one place at most; returned ones go to the front."""

    def __init__(self, shards: Iterable[int]) -> None:
        self._pending: deque[int] = deque(shards)
        self._alone: deque[int] = deque()
        self._later: list[tuple[float, int]] = []

    def __len__(self) -> int:
        """Shards that any worker may take now."""
        return len(self._pending)

    def put_back(self, shard: int, alone: bool = False) -> None:
        (self._alone if alone else self._pending).appendleft(shard)

    def put_off(self, shard: int, due_s: float) -> None:
        heapq.heappush(self._later, (due_s, shard))

    def release(self, now_s: float) -> None:
        """Moves shards whose back-off is over behind the others."""
        while self._later and self._later[0][0] <= now_s:
            self._pending.append(heapq.heappop(self._later)[1])

    def take(self) -> int | None:
        return self._pending.popleft() if self._pending else None

    def take_alone(self) -> int | None:
        return self._alone.popleft() if self._alone else None

    def remove(self, shard: int) -> None:
        for queue in (self._pending, self._alone):
            if shard in queue:
                queue.remove(shard)
        self._later = [entry for entry in self._later if entry[1] != shard]
        heapq.heapify(self._later)
