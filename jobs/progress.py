"""What the driver tells while it runs and when it ends. Displays, ``status`` and the reports are made from these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..workers.shard import ShardStats, WorkerInfo
from .records import PartRecord

RunState = Literal["planning", "starting", "running", "draining", "done", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class PoolProgress:
    name: str
    variant: str
    ready: int  #: workers that score
    starting: int
    rows: int
    rows_per_s: float


@dataclass(frozen=True, slots=True)
class InFlight:
    """A shard that a worker holds now."""

    shard_id: str
    partition: str
    source_file: str  #: the first piece's
    rows: int
    state: Literal["scoring", "staged", "publishing", "isolating"]
    since_s: float  #: seconds in that worker's hands
    worker: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a run; written to ``progress.json`` every few seconds."""

    run_id: str
    job: str
    state: RunState
    heartbeat_at: float  #: seconds since the epoch
    elapsed_s: float
    rows_done: int  #: by this run
    rows_total: int
    shards_done: int
    shards_total: int
    quarantined: int
    bad_files: int
    rows_per_s: float
    tokens_per_s: float
    eta_s: float | None
    waiting_for: str | None  #: resources, storage, a lease, workers starting; None when it is not waiting
    pools: tuple[PoolProgress, ...] = ()
    in_flight: tuple[InFlight, ...] = ()  #: slowest first, ten at most


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """A shard that this run committed: one row of ``shards.parquet``."""

    record: PartRecord
    stats: ShardStats
    worker: str
    host: str
    pool: str


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """One worker of this run: one row of ``workers.parquet``, with the sums of its shards."""

    info: WorkerInfo
    pool: str
    shards: int
    rows: int
    quarantined: int
    stats: ShardStats  #: summed, timings too
    wait_s: float  #: alive and ready with nothing to do
    wall_s: float  #: from ready to end
    peak_rss_bytes: int


@dataclass(frozen=True)
class RunResult:
    """How a run ended. ``start_s`` is what Ray and the workers took before the first shard began."""

    run_id: str
    job: str
    state: RunState
    exit_code: int
    started_at: float
    wall_s: float
    start_s: float
    score_s: float  #: first shard begun to last shard committed
    files: int
    shards_total: int
    rows_total: int
    rows_before: int  #: committed by earlier runs and still current
    outcomes: tuple[ShardOutcome, ...]
    workers: tuple[WorkerTotals, ...]
    bad_files: int
    known_bad_files: int
    vanished: tuple[str, ...]
    removed_parts: int
    failed: tuple[tuple[str, str], ...] = ()  #: shard id and error of shards that used up their attempts
    error: str | None = None
    hint: str | None = None
    limits: Mapping[str, float] = field(default_factory=dict)  #: as the job set them
