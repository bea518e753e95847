"""Run results made by hand, with numbers that are easy to add up."""

from __future__ import annotations

import dataclasses
from typing import Any

from headrace.jobs.progress import InFlight, PoolProgress, Progress, RunResult, ShardOutcome, WorkerTotals
from headrace.jobs.records import PartRecord
from headrace.workers.shard import Counts, FileIdentity, Piece, ShardStats, Timings, WorkerInfo

#: 2024-01-02 03:04:05 UTC
AT = 1704164645.0


def outcome(number: int = 0, worker: str = "cpu-0", bad: int = 0, busy_s: float = 2.0) -> ShardOutcome:
    """A shard of 100 rows in which 10 were filtered, with 900 tokens and 100 of padding."""
    counts = Counts(100, 90 - bad, bad, 10)
    piece = Piece(FileIdentity(f"/lake/{number}.parquet", 1000, "v1"), 50, 100)
    record = PartRecord(
        f"shard{number}", "day=1", (piece,), "f" * 8, "d" * 64, "cpu-vnni-int8", "avx512-vnni", "budget", counts, 5000,
        "20240102T030405Z-abc", 1, 0, AT,
    )  # fmt: skip
    timings = Timings(0.1, 0.2, 1.0, 0.3, 0.4, busy_s)
    stats = ShardStats(80, 5, 3, 900, 100, 7, timings)
    return ShardOutcome(record, stats, worker, "node-a", "cpu")


def worker(name: str, shards: int, bad: int = 0) -> WorkerTotals:
    """The sums of ``shards`` outcomes."""
    info = WorkerInfo(
        name, "node1", "node-a", 4242, "cpu-vnni-int8", "int8", "CPUExecutionProvider", 1, "a cpu", "avx2 avx512_vnni",
        "avx512-vnni", 0.5, 12.0,
    )  # fmt: skip
    timings = Timings(*(shards * part for part in (0.1, 0.2, 1.0, 0.3, 0.4, 2.0)))
    stats = ShardStats(80 * shards, 5 * shards, 3 * shards, 900 * shards, 100 * shards, 7 * shards, timings)
    return WorkerTotals(info, "cpu", shards, 100 * shards, bad, stats, 1.0, 2.0 * shards + 1.0, 123_000_000)


def result(**changes: Any) -> RunResult:
    """Three shards by two workers in 4 s; 700 rows were there before."""
    made = RunResult(
        run_id="20240102T030405Z-abc",
        job="nightly",
        state="done",
        exit_code=0,
        started_at=AT,
        wall_s=12.5,
        start_s=6.0,
        score_s=4.0,
        files=10,
        shards_total=3,
        rows_total=300,
        rows_before=700,
        outcomes=(outcome(0), outcome(1, "cpu-1", bad=2), outcome(2)),
        workers=(worker("cpu-0", 2), worker("cpu-1", 1, bad=2)),
        bad_files=1,
        known_bad_files=4,
        vanished=("/lake/old.parquet",),
        removed_parts=0,
        limits={"max_bad_rows": 0.01},
    )
    return dataclasses.replace(made, **changes)


def progress(**changes: Any) -> Progress:
    held = InFlight("shard7", "day=2", "/lake/slow.parquet", 100, "scoring", 95.0, "cpu-1", "node-b", 777)
    made = Progress(
        run_id="20240102T030405Z-abc",
        job="nightly",
        state="running",
        heartbeat_at=AT,
        elapsed_s=60.0,
        rows_done=250,
        rows_total=1000,
        shards_done=3,
        shards_total=10,
        quarantined=0,
        bad_files=0,
        rows_per_s=5.0,
        tokens_per_s=50.0,
        eta_s=150.0,
        waiting_for=None,
        pools=(PoolProgress("cpu", "cpu-vnni-int8", 2, 1, 250, 5.0),),
        in_flight=(held,),
    )
    return dataclasses.replace(made, **changes)
