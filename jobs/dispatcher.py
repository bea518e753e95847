"""Who scores what, who may publish, what a failure means: a pure state machine, events in, instructions out.

It knows no Ray, no files and no clock: every event carries ``now_s``, seconds of the driver's monotonic clock. A shard
goes ``PENDING -> SCORING -> STAGED -> GRANTED -> DONE``. Lost workers send their shards back to ``PENDING``; a grant
that ends without an answer goes through ``CHECKING`` first, because its part may be visible. A shard that takes its
worker down again and again runs alone, then is bisected (``isolation.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from . import instructions as do
from .dispatch_state import (
    BACKOFF_CAP_S,
    BACKOFF_S,
    CHECKING,
    DEPTH,
    DONE,
    FAILED,
    GRANT_S,
    GRANTED,
    LEFT,
    MARGIN_S,
    MAX_FRUITLESS,
    MAX_LATE,
    PENDING,
    SCORING,
    STAGED,
    Attempt,
    Held,
)
from .isolation import Suspects
from .records import Replacement
from .replacements import Replacements
from .workqueue import WorkQueue


class Dispatcher:
    """``rows`` per shard, (shards,); ``pools`` name to number of workers; ``replacements`` of the plan."""

    def __init__(
        self,
        rows: npt.NDArray[np.int64],
        pools: Mapping[str, int],
        replacements: Sequence[Replacement] = (),
        max_attempts: int = 3,
    ) -> None:
        count = len(rows)
        self.rows = rows
        self.pools = dict(pools)
        self.max_attempts = max_attempts
        self.state: npt.NDArray[np.int8] = np.full(count, PENDING, dtype=np.int8)
        self.attempts: npt.NDArray[np.int16] = np.zeros(count, dtype=np.int16)  #: tries so far, numbers the next one
        self.workers: dict[str, Held] = {}
        self.staged: dict[int, Attempt] = {}  #: STAGED and GRANTED shards
        self._failures: dict[int, int] = {}  #: failures of the shard itself
        self._suspects = Suspects(rows)
        self._expires: dict[int, float] = {}  #: GRANTED shards, driver's clock
        self._queue = WorkQueue(range(count))  #: PENDING shards
        self._hungry: dict[str, None] = {}  #: ready workers that may take more, in order
        self._late: dict[int, int] = {}  #: grants of it that ran out before they were used
        self._replacements = Replacements(replacements)
        self._fruitless: dict[str, int] = dict.fromkeys(pools, 0)
        self._names = 0
        self.unfinished = count
        self.aborted = False

    # -- events ------------------------------------------------------------------------------------------------------

    def start(self) -> list[do.Instruction]:
        out: list[do.Instruction] = [do.BeginReplacement(index) for index in self._replacements.removals()]
        left = self.unfinished
        for pool, size in self.pools.items():
            out += [self._start_worker(pool) for _ in range(min(size, left))]
        return out

    def worker_ready(self, worker: str, now_s: float) -> list[do.Instruction]:
        held = self.workers.get(worker)
        if held is None:
            return []
        held.ready = True
        self._hungry[worker] = None
        return self._fill(now_s)

    def staged_one(self, worker: str, shard: int, attempt: int, clock_s: float, now_s: float) -> list[do.Instruction]:
        """The worker holds all bytes of the attempt. ``clock_s`` is its own clock when it answered."""
        if not self._holds(worker, shard, attempt):
            return [do.Discard(worker, shard, attempt)]
        self._let_go(worker, shard)
        if self._replacements.is_dropped(shard):
            self._leave(shard)
            return [do.Discard(worker, shard, attempt), *self._fill(now_s)]
        self.state[shard] = STAGED
        self.staged[shard] = Attempt(worker, attempt, clock_s, now_s)
        return self._publish_when_due(shard, now_s) + self._fill(now_s)

    def published(self, worker: str, shard: int, attempt: int, visible: bool, now_s: float) -> list[do.Instruction]:
        """The answer to a grant. Not visible: the worker was late, or its staged bytes are gone. Neither is the
        shard's fault, but a shard that is always late ends too."""
        if not self._granted(worker, shard, attempt):
            return []
        if visible:
            return self._done(shard) + self._fill(now_s)
        late = self._late[shard] = self._late.get(shard, 0) + 1
        if late < MAX_LATE:
            self._unstage(shard)
            return self._fill(now_s)
        del self.staged[shard]
        self._expires.pop(shard, None)
        return self._give_up(shard, f"its part could not be published in time, {late} times") + self._fill(now_s)

    def publish_unclear(self, worker: str, shard: int, attempt: int) -> list[do.Instruction]:
        """Publishing raised: whether the part is visible is for the sink to say."""
        return [self._check(shard)] if self._granted(worker, shard, attempt) else []

    def score_failed(self, worker: str, shard: int, attempt: int, error: str, now_s: float) -> list[do.Instruction]:
        """The shard itself raised: this is what counts towards ``max_attempts``."""
        if not self._holds(worker, shard, attempt):
            return []
        self._let_go(worker, shard)
        return self._fail(shard, error, now_s) + self._fill(now_s)

    def nothing_to_publish(self, worker: str, shard: int, attempt: int, now_s: float) -> list[do.Instruction]:
        """No piece of the shard could be read: it has no part, its files are in quarantine. Where it should have
        replaced an older version's parts, these stay."""
        if not self._holds(worker, shard, attempt):
            return []
        self._let_go(worker, shard)
        others = self._drop(shard)
        self.staged[shard] = Attempt(worker, attempt, 0.0, now_s)
        return self._done(shard) + others + self._fill(now_s)

    def withdrawn(self, worker: str, shard: int, attempt: int, now_s: float) -> list[do.Instruction]:
        """The shard is not what was planned any more: it is left to another plan, with all that goes with it."""
        if not self._holds(worker, shard, attempt):
            return []
        self._let_go(worker, shard)
        others = self._drop(shard)
        self._leave(shard)
        return others + self._ended() + self._fill(now_s)

    def probed(self, worker: str, shard: int, now_s: float) -> list[do.Instruction]:
        """The probed range did its worker no harm."""
        held = self.workers.get(worker)
        if held is None or not self._suspects.is_bisected(shard):
            return []
        self._let_go(worker, shard)
        return self._after_probe(shard, died=False) + self._fill(now_s)

    def worker_lost(
        self, worker: str, now_s: float, *, innocent: bool = False, confirmed: bool = True, why: str = ""
    ) -> list[do.Instruction]:
        """``innocent``: its node went or it never got ready, so no shard is to blame. ``confirmed``: surely dead."""
        held = self.workers.pop(worker, None)
        if held is None:
            return []
        self._hungry.pop(worker, None)
        out: list[do.Instruction] = []
        probing = any(map(self._suspects.is_bisected, held.queue))
        for position, shard in reversed(list(enumerate(held.queue))):
            if self._suspects.is_bisected(shard) and not innocent:
                out += self._after_probe(shard, died=True)
            elif position == 0 and not innocent:
                self._suspects.blame(shard)
                self._requeue(shard)
            else:
                self._requeue(shard)
        for shard in [s for s, attempt in self.staged.items() if attempt.worker == worker]:
            if self.state[shard] == STAGED:
                self._unstage(shard)
            elif self.state[shard] == GRANTED and confirmed:
                out.append(self._check(shard))
        return out + self._replace(held.pool, why, counts=not probing) + self._fill(now_s)

    def part_checked(self, shard: int, visible: bool, now_s: float) -> list[do.Instruction]:
        if self.state[shard] != CHECKING:
            return []
        if visible:
            return self._done(shard)
        self._unstage(shard)
        return self._fill(now_s)

    def replacement_begun(self, replacement: int, now_s: float) -> list[do.Instruction]:
        """The intent is written and the old parts are gone: the new ones may appear."""
        staged = [shard for shard in self._replacements.begin(replacement) if self.state[shard] == STAGED]
        return [*(self._grant(shard, now_s) for shard in staged), *self._ended()]

    def tick(self, now_s: float) -> list[do.Instruction]:
        """Called a few times a second: grants that ran out, shards whose back-off is over."""
        out: list[do.Instruction] = []
        for shard, expires in list(self._expires.items()):
            if now_s < expires or self.state[shard] != GRANTED:
                continue
            worker = self.staged[shard].worker
            out.append(self._check(shard))
            if worker in self.workers:
                why = "it did not answer a grant in time"
                out += [do.KillWorker(worker, why), *self._lost_unconfirmed(worker, now_s, why)]
        return out + self._fill(now_s)

    # -- what shells may ask -----------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.aborted or (self.unfinished == 0 and self._replacements.settled)

    def count(self, *states: int) -> int:
        return int(np.isin(self.state, states).sum())

    # -- steps -------------------------------------------------------------------------------------------------------

    def _lost_unconfirmed(self, worker: str, now_s: float, why: str) -> list[do.Instruction]:
        return self.worker_lost(worker, now_s, innocent=True, confirmed=False, why=why)

    def _start_worker(self, pool: str) -> do.StartWorker:
        self._names += 1
        worker = f"{pool}-{self._names}"
        self.workers[worker] = Held(pool)
        return do.StartWorker(worker, pool)

    def _replace(self, pool: str, why: str, counts: bool) -> list[do.Instruction]:
        """A new worker for a lost one, as long as there is work for it and the pool gets anything done at all."""
        self._fruitless[pool] += counts
        if self._fruitless[pool] > MAX_FRUITLESS:
            self.aborted = True
            message = f"{self._fruitless[pool]} workers of pool {pool} were lost in a row"
            return [do.Abort(f"{message}: {why}" if why else message, "see the run's log for the first one's error")]
        alive = sum(held.pool == pool for held in self.workers.values())
        wanted = min(self.pools[pool], self.unfinished)
        return [self._start_worker(pool)] if alive < wanted else []

    def _fill(self, now_s: float) -> list[do.Instruction]:
        """Gives hungry workers work: shards that must run alone first, then the queue."""
        out: list[do.Instruction] = []
        self._queue.release(now_s)
        if self.aborted:
            return out
        for name in [name for name in self._hungry if not self.workers[name].queue]:
            shard = self._queue.take_alone()
            if shard is None:
                break
            out.append(self._give_alone(name, shard))
        # Towards the end a second shard in hand would keep another worker idle.
        for level in range(1, DEPTH + 1):
            if level > 1 and len(self._queue) <= len(self.workers):
                break
            for name in [name for name in self._hungry if len(self.workers[name].queue) < level]:
                shard = self._queue.take()
                if shard is None:
                    return out
                out.append(self._give(name, shard))
        return out

    def _give(self, worker: str, shard: int) -> do.Score:
        held = self.workers[worker]
        self.attempts[shard] += 1
        self.state[shard] = SCORING
        held.queue.append(shard)
        if held.alone or len(held.queue) >= DEPTH:
            del self._hungry[worker]
        excluded, row_by_row = self._suspects.excluded(shard), self._suspects.is_row_by_row(shard)
        return do.Score(worker, shard, int(self.attempts[shard]), excluded, row_by_row)

    def _give_alone(self, worker: str, shard: int) -> do.Instruction:
        held = self.workers[worker]
        held.alone = True
        if not self._suspects.is_bisected(shard):
            return self._give(worker, shard)
        held.queue.append(shard)
        del self._hungry[worker]
        self.state[shard] = SCORING
        return do.Probe(worker, shard, *self._suspects.next_range(shard), self._suspects.excluded(shard))

    def _holds(self, worker: str, shard: int, attempt: int) -> bool:
        held = self.workers.get(worker)
        return (
            held is not None
            and shard in held.queue
            and self.state[shard] == SCORING
            and self.attempts[shard] == attempt
        )

    def _let_go(self, worker: str, shard: int) -> None:
        held = self.workers[worker]
        held.queue.remove(shard)
        held.alone = False
        self._hungry[worker] = None

    def _granted(self, worker: str, shard: int, attempt: int) -> bool:
        current = self.staged.get(shard)
        return (
            self.state[shard] == GRANTED
            and current is not None
            and (current.worker, current.number) == (worker, attempt)
        )

    def _requeue(self, shard: int) -> None:
        if self._replacements.is_dropped(shard):
            self._leave(shard)
            return
        self.state[shard] = PENDING
        self._queue.put_back(shard, self._suspects.must_be_alone(shard))

    def _leave(self, shard: int) -> None:
        """Not done and not to be tried again in this run."""
        self.state[shard] = LEFT
        self.unfinished -= 1
        self._replacements.close(shard)

    def _after_probe(self, shard: int, died: bool) -> list[do.Instruction]:
        if self._suspects.answer(shard, died):
            self._requeue(shard)
            return []
        return self._give_up(shard, "it kills its workers and no single row of it does")

    def _unstage(self, shard: int) -> None:
        del self.staged[shard]
        self._expires.pop(shard, None)
        self._replacements.unstage(shard)
        self._requeue(shard)

    def _fail(self, shard: int, error: str, now_s: float) -> list[do.Instruction]:
        failures = self._failures[shard] = self._failures.get(shard, 0) + 1
        if self._replacements.is_dropped(shard):
            self._leave(shard)
            return []
        if failures >= self.max_attempts:
            return self._give_up(shard, error)
        self.state[shard] = PENDING
        self._queue.put_off(shard, now_s + min(BACKOFF_S * 2 ** (failures - 1), BACKOFF_CAP_S))
        return []

    def _give_up(self, shard: int, error: str) -> list[do.Instruction]:
        self.state[shard] = FAILED
        self.unfinished -= 1
        others = self._drop(shard)
        self._replacements.close(shard)
        return [do.GiveUp(shard, error), *others, *self._ended()]

    def _drop(self, shard: int) -> list[do.Instruction]:
        """A replacement that lost a member before it began leaves the old parts where they are."""
        out: list[do.Instruction] = []
        for other in self._replacements.drop(shard):
            if self.state[other] == STAGED:
                attempt = self.staged.pop(other)
                out.append(do.Discard(attempt.worker, other, attempt.number))
                self._leave(other)
            elif self.state[other] == PENDING:
                self._queue.remove(other)
                self._leave(other)
        return out

    def _publish_when_due(self, shard: int, now_s: float) -> list[do.Instruction]:
        if self._replacements.may_publish(shard):
            return [self._grant(shard, now_s)]
        index = self._replacements.stage(shard)
        return [] if index is None else [do.BeginReplacement(index)]

    def _grant(self, shard: int, now_s: float) -> do.Publish:
        attempt = self.staged[shard]
        self.state[shard] = GRANTED
        self._expires[shard] = now_s + GRANT_S + MARGIN_S
        # The worker's clock at its answer plus what has passed here since is at most the worker's clock now.
        deadline_s = attempt.worker_clock_s + (now_s - attempt.staged_at_s) + GRANT_S
        return do.Publish(attempt.worker, shard, attempt.number, deadline_s)

    def _check(self, shard: int) -> do.CheckPart:
        self.state[shard] = CHECKING
        self._expires.pop(shard, None)
        return do.CheckPart(shard)

    def _done(self, shard: int) -> list[do.Instruction]:
        attempt = self.staged.pop(shard)
        self._expires.pop(shard, None)
        self.state[shard] = DONE
        self.unfinished -= 1
        self._fruitless = dict.fromkeys(self._fruitless, 0)
        self._replacements.close(shard)
        return [do.Commit(attempt.worker, shard, attempt.number), *self._ended()]

    def _ended(self) -> list[do.Instruction]:
        return [do.EndReplacement(index) for index in self._replacements.end()]
