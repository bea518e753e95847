"""What the dispatcher remembers of workers and attempts, and the numbers it goes by."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

PENDING, SCORING, STAGED, GRANTED, CHECKING, DONE, FAILED, LEFT = range(8)

#: Seconds that a grant lasts on the worker's clock, and what the driver waits beyond them before it grants again.
GRANT_S, MARGIN_S = 10.0, 2.0
#: Shards in one worker's hands: one being scored, one waiting, so that it never idles for an answer.
DEPTH = 2
#: Workers of one pool that may fail to start, or die, in a row without any shard committed in between.
MAX_FRUITLESS = 12
#: Grants of one shard that may run out before they are used: by a driver or a disk that is too slow.
MAX_LATE = 5
#: A shard under which so many workers died runs alone; if one more dies, its rows are bisected.
DEATHS_BEFORE_ALONE = 2
#: A shard that still kills workers after so many isolations is scored row by row, and given up after one more.
ISOLATIONS_BEFORE_ROWS = 2
BACKOFF_S, BACKOFF_CAP_S = 1.0, 30.0


@dataclass
class Held:
    """A worker as the dispatcher sees it."""

    pool: str
    ready: bool = False
    queue: deque[int] = field(default_factory=deque)  #: shards in scoring order; the first one is being scored
    alone: bool = False  #: holds a shard that must have no neighbours, or probes one


@dataclass(frozen=True, slots=True)
class Attempt:
    """A staged attempt: where it is and when its worker said so, on both clocks."""

    worker: str
    number: int
    worker_clock_s: float
    staged_at_s: float
