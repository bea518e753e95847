"""What a run has done so far: feeds the display while it runs and the report when it ends."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..workers.actor import Vitals
from ..workers.shard import ShardStats, Timings, WorkerInfo
from .progress import InFlight, PoolProgress, Progress, RunState, ShardOutcome, WorkerTotals
from .records import PartRecord, Plan

HeldState = Literal["scoring", "staged", "publishing", "isolating"]
#: Rates are taken over the last so many seconds, so that a change shows soon.
RATE_WINDOW_S = 60.0


@dataclass
class Hand:
    """A shard in a worker's hands."""

    worker: str
    state: HeldState
    since_s: float


@dataclass
class Life:
    """A worker from start to end, on the driver's clock."""

    pool: str
    started_s: float
    ready_s: float | None = None
    ended_s: float | None = None
    shards: int = 0
    rows: int = 0
    quarantined: int = 0
    stats: ShardStats = field(default_factory=ShardStats)


class Tally:
    """Not pure about time on purpose: rates and heartbeats are what it is for."""

    def __init__(self, plan: Plan, run_id: str, job: str, variant: str) -> None:
        self.plan, self.run_id, self.job, self.variant = plan, run_id, job, variant
        self.infos: dict[str, WorkerInfo] = {}
        self.lives: dict[str, Life] = {}
        self.outcomes: list[ShardOutcome] = []
        self.bad_files = 0
        self.quarantined = 0
        self.rows = 0
        self.first_score_s: float | None = None
        self.last_commit_s: float | None = None
        self._begun_s = time.monotonic()
        self._hands: dict[int, Hand] = {}
        self._rates: deque[tuple[float, str, int, int]] = deque()  #: committed at, pool, rows, tokens

    def starting(self, worker: str, pool: str, now_s: float) -> None:
        self.lives[worker] = Life(pool, now_s)

    def ready(self, info: WorkerInfo, now_s: float) -> None:
        self.infos[info.worker] = info
        self.lives[info.worker].ready_s = now_s

    def lost(self, worker: str, now_s: float) -> None:
        if worker in self.lives and self.lives[worker].ended_s is None:
            self.lives[worker].ended_s = now_s
        self._hands = {shard: hand for shard, hand in self._hands.items() if hand.worker != worker}

    def scoring(self, worker: str, shard: int, now_s: float, isolating: bool = False) -> None:
        self.first_score_s = now_s if self.first_score_s is None else self.first_score_s
        self._hands[shard] = Hand(worker, "isolating" if isolating else "scoring", now_s)

    def staged(self, worker: str, shard: int, now_s: float) -> None:
        if shard in self._hands:
            self._hands[shard].state = "staged"

    def publishing(self, shard: int) -> None:
        if shard in self._hands:
            self._hands[shard].state = "publishing"

    def dropped(self, shard: int) -> None:
        self._hands.pop(shard, None)

    def committed(self, worker: str, shard: int, record: PartRecord, stats: ShardStats, now_s: float) -> None:
        self._hands.pop(shard, None)
        info, life = self.infos[worker], self.lives[worker]
        self.outcomes.append(ShardOutcome(record, stats, worker, info.host, life.pool))
        life.shards += 1
        life.rows += record.counts.rows_in
        life.quarantined += record.counts.quarantined
        life.stats = add_stats(life.stats, stats)
        self.rows += record.counts.rows_in
        self.quarantined += record.counts.quarantined
        self.last_commit_s = now_s
        self._rates.append((now_s, life.pool, record.counts.rows_in, stats.tokens))

    def progress(self, state: RunState, waiting_for: str | None = None) -> Progress:
        now_s = time.monotonic()
        while self._rates and self._rates[0][0] < now_s - RATE_WINDOW_S:
            self._rates.popleft()
        rows_per_s = self._rate(now_s, 2)
        rows_total = int(self.plan.shards.piece_rows.sum())
        left = rows_total - self.rows
        return Progress(
            run_id=self.run_id,
            job=self.job,
            state=state,
            heartbeat_at=time.time(),
            elapsed_s=now_s - self._begun_s,
            rows_done=self.rows,
            rows_total=rows_total,
            shards_done=len(self.outcomes),
            shards_total=len(self.plan.shards),
            quarantined=self.quarantined,
            bad_files=self.bad_files,
            rows_per_s=rows_per_s,
            tokens_per_s=self._rate(now_s, 3),
            eta_s=left / rows_per_s if rows_per_s else None,
            waiting_for=waiting_for or self._waiting_for(),
            pools=self._pools(now_s),
            in_flight=self._in_flight(now_s),
        )

    def totals(self, vitals: Mapping[str, Vitals]) -> tuple[WorkerTotals, ...]:
        """Workers that got ready, in the order of their start."""
        end_s = time.monotonic()
        return tuple(
            self._total(name, life, vitals.get(name), end_s) for name, life in self.lives.items() if name in self.infos
        )

    def _total(self, worker: str, life: Life, vitals: Vitals | None, end_s: float) -> WorkerTotals:
        ready_s = life.ready_s if life.ready_s is not None else end_s
        wall_s = max(0.0, (life.ended_s or end_s) - ready_s)
        return WorkerTotals(
            info=self.infos[worker],
            pool=life.pool,
            shards=life.shards,
            rows=life.rows,
            quarantined=life.quarantined,
            stats=life.stats,
            wait_s=max(0.0, wall_s - life.stats.timings.wall_s),
            wall_s=wall_s,
            peak_rss_bytes=vitals.peak_rss_bytes if vitals else 0,
        )

    def _rate(self, now_s: float, column: Literal[2, 3], pool: str | None = None) -> float:
        if not self._rates or self.first_score_s is None:
            return 0.0
        since_s = max(self.first_score_s, now_s - RATE_WINDOW_S)
        amount = sum(entry[column] for entry in self._rates if pool in (None, entry[1]))
        return amount / max(now_s - since_s, 1e-3)

    def _waiting_for(self) -> str | None:
        ready = any(life.ready_s is not None and life.ended_s is None for life in self.lives.values())
        starting = sum(life.ready_s is None and life.ended_s is None for life in self.lives.values())
        if ready or not starting:
            return None
        return f"{starting} worker(s) to start: resources, or the model to load"

    def _pools(self, now_s: float) -> tuple[PoolProgress, ...]:
        names = dict.fromkeys(life.pool for life in self.lives.values())
        return tuple(self._pool(name, now_s) for name in names)

    def _pool(self, name: str, now_s: float) -> PoolProgress:
        lives = [life for life in self.lives.values() if life.pool == name]
        alive = [life for life in lives if life.ended_s is None]
        return PoolProgress(
            name=name,
            variant=self.variant,
            ready=sum(life.ready_s is not None for life in alive),
            starting=sum(life.ready_s is None for life in alive),
            rows=sum(life.rows for life in lives),
            rows_per_s=self._rate(now_s, 2, name),
        )

    def _in_flight(self, now_s: float) -> tuple[InFlight, ...]:
        slowest = sorted(self._hands.items(), key=lambda item: item[1].since_s)[:10]
        return tuple(self._held(shard, hand, now_s) for shard, hand in slowest)

    def _held(self, index: int, hand: Hand, now_s: float) -> InFlight:
        shard = self.plan.shards.shard(index)
        info = self.infos[hand.worker]
        return InFlight(
            shard_id=shard.id,
            partition=shard.partition,
            source_file=shard.pieces[0].file.path,
            rows=shard.rows,
            state=hand.state,
            since_s=now_s - hand.since_s,
            worker=hand.worker,
            host=info.host,
            pid=info.pid,
        )


def add_stats(one: ShardStats, other: ShardStats) -> ShardStats:
    """Field by field; timings too."""
    return ShardStats(
        **{
            name: getattr(one, name) + getattr(other, name)
            for name in ("unique_rows", "empty_rows", "truncated", "tokens", "padded_tokens", "batches")
        },
        timings=Timings(
            **{
                entry.name: getattr(one.timings, entry.name) + getattr(other.timings, entry.name)
                for entry in dataclasses.fields(Timings)
            }
        ),
    )
