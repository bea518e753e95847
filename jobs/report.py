"""What a run leaves in ``runs/<run id>/``: workers.parquet, shards.parquet, summary.json, and progress.json meanwhile.

Rates of a worker or shard are per second of its scoring time; rates of a run are per second from the first shard
begun to the last one committed. ``padding_efficiency`` is tokens / (tokens + padding), null where there were none.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..artifacts.storage import Folder
from ..workers import paths
from ..workers.shard import ShardStats
from .progress import Progress, RunResult, ShardOutcome, WorkerTotals

WORKERS, SHARDS, SUMMARY, PROGRESS = "workers.parquet", "shards.parquet", "summary.json", "progress.json"
_FORMAT = 1
_STEPS = ("read_s", "tokenize_s", "infer_s", "postprocess_s", "write_s")

WORKER_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("run", "worker", "node", "host")]
    + [("pid", pa.int64())]
    + [(name, pa.string()) for name in ("pool", "variant", "provider")]
    + [("threads", pa.int32()), ("cpu_model", pa.string()), ("cpu_flags", pa.string())]
    + [(name, pa.int64()) for name in ("shards", "rows", "unique_rows", "tokens", "padded_tokens", "truncated")]
    + [("quarantined", pa.int64()), ("batches", pa.int64())]
    + [(name, pa.float64()) for name in ("load_s", *_STEPS, "wait_s", "wall_s")]
    + [(name, pa.float64()) for name in ("rows_per_s", "tokens_per_s", "padding_efficiency")]
    + [("peak_rss_bytes", pa.int64())]
)

SHARD_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("run", "shard", "partition", "source_file")]
    + [("first_row", pa.int64()), ("pieces", pa.int32())]
    + [(name, pa.string()) for name in ("worker", "host", "pool", "variant", "instruction_set", "batching")]
    + [("attempt", pa.int32()), ("committed_at", pa.timestamp("us", tz="UTC"))]
    + [(name, pa.int64()) for name in ("rows_in", "rows_out", "quarantined", "filtered", "size_bytes")]
    + [(name, pa.int64()) for name in ("unique_rows", "empty_rows", "truncated", "tokens", "padded_tokens", "batches")]
    + [(name, pa.float64()) for name in (*_STEPS, "wall_s", "rows_per_s", "tokens_per_s", "padding_efficiency")]
)


def write_report(state: Folder, result: RunResult) -> None:
    """Writes the three files of a run; the summary last, so that where it is, the others are."""
    workers = [_worker(result.run_id, totals) for totals in result.workers]
    shards = [_shard(result.run_id, outcome) for outcome in result.outcomes]
    state.write(paths.run(result.run_id, WORKERS), _parquet(workers, WORKER_SCHEMA))
    state.write(paths.run(result.run_id, SHARDS), _parquet(shards, SHARD_SCHEMA))
    state.write(paths.run(result.run_id, SUMMARY), _json(summary_of(result)))


def write_progress(state: Folder, progress: Progress) -> None:
    state.write(paths.run(progress.run_id, PROGRESS), _json(dataclasses.asdict(progress)))


def summary_of(result: RunResult) -> dict[str, Any]:
    """``summary.json`` as a value; keys stay as they are from version to version."""
    stats = [outcome.stats for outcome in result.outcomes]
    return {
        "format": _FORMAT,
        "run": result.run_id or None,
        "job": result.job,
        "state": result.state,
        "exit_code": result.exit_code,
        "error": result.error,
        "hint": result.hint,
        "started_at": dt.datetime.fromtimestamp(result.started_at, dt.UTC).isoformat(timespec="seconds"),
        "wall_s": result.wall_s,
        "start_s": result.start_s,
        "score_s": result.score_s,
        **_rows(result),
        **_bad(result),
        **_work(stats, result.score_s),
        "pools": _pools(result),
        "failed_shards": [{"shard": shard, "error": error} for shard, error in result.failed],
    }


def _rows(result: RunResult) -> dict[str, Any]:
    counts = [outcome.record.counts for outcome in result.outcomes]
    rows = sum(one.rows_in for one in counts)
    return {
        "files": result.files,
        "shards": len(result.outcomes),
        "shards_planned": result.shards_total,
        "rows": rows,
        "rows_planned": result.rows_total,
        "rows_before": result.rows_before,
        "rows_written": sum(one.rows_out for one in counts),
        "rows_filtered": sum(one.filtered for one in counts),
        "rows_per_s": _rate(rows, result.score_s),
        "size_bytes": sum(outcome.record.size_bytes for outcome in result.outcomes),
        "removed_parts": result.removed_parts,
        "vanished_files": len(result.vanished),
    }


def _bad(result: RunResult) -> dict[str, Any]:
    counts = [outcome.record.counts for outcome in result.outcomes]
    rows, bad = sum(one.rows_in for one in counts), sum(one.quarantined for one in counts)
    return {
        "bad_rows": bad,
        "bad_row_share": bad / rows if rows else 0.0,
        "bad_files": result.bad_files,
        "known_bad_files": result.known_bad_files,
        "limits": dict(result.limits),
        "row_by_row_shards": sum(outcome.record.batching == "row" for outcome in result.outcomes),
    }


def _work(stats: Sequence[ShardStats], score_s: float) -> dict[str, Any]:
    """``score_s`` is what the rates are taken over. Unique and empty rows are counted as the workers met them."""
    tokens, padded = sum(one.tokens for one in stats), sum(one.padded_tokens for one in stats)
    return {
        "unique_rows": sum(one.unique_rows for one in stats),
        "empty_rows": sum(one.empty_rows for one in stats),
        "truncated_rows": sum(one.truncated for one in stats),
        "tokens": tokens,
        "padded_tokens": padded,
        "batches": sum(one.batches for one in stats),
        "padding_efficiency": _efficiency(tokens, padded),
        "tokens_per_s": _rate(tokens, score_s),
    }


def _pools(result: RunResult) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(totals.pool for totals in result.workers)
    return {name: _pool([one for one in result.workers if one.pool == name], result.score_s) for name in names}


def _pool(workers: Sequence[WorkerTotals], score_s: float) -> dict[str, Any]:
    rows, tokens = sum(one.rows for one in workers), sum(one.stats.tokens for one in workers)
    return {
        "variant": workers[0].info.variant,
        "workers": len(workers),
        "hosts": len({one.info.host for one in workers}),
        "shards": sum(one.shards for one in workers),
        "rows": rows,
        "rows_per_s": _rate(rows, score_s),
        "tokens_per_s": _rate(tokens, score_s),
        "wait_s": sum(one.wait_s for one in workers),
        "peak_rss_bytes": max(one.peak_rss_bytes for one in workers) or None,
    }


def _worker(run: str, totals: WorkerTotals) -> dict[str, Any]:
    info, stats = totals.info, totals.stats
    return {
        "run": run,
        **_named(info, "worker node host pid variant provider threads cpu_model cpu_flags load_s"),
        **_named(totals, "pool shards rows quarantined wait_s wall_s"),
        "peak_rss_bytes": totals.peak_rss_bytes or None,  # a killed worker's is not known
        **_named(stats, "unique_rows tokens padded_tokens truncated batches"),
        **_named(stats.timings, " ".join(_STEPS)),
        **_rates(stats, totals.rows),
    }


def _shard(run: str, outcome: ShardOutcome) -> dict[str, Any]:
    record, stats, first = outcome.record, outcome.stats, outcome.record.pieces[0]
    return {
        "run": run,
        "shard": record.shard_id,
        "source_file": first.file.path,
        "first_row": first.first_row,
        "pieces": len(record.pieces),
        "committed_at": dt.datetime.fromtimestamp(record.committed_at, dt.UTC),
        **_named(record, "partition variant instruction_set batching attempt size_bytes"),
        **_named(outcome, "worker host pool"),
        **_named(record.counts, "rows_in rows_out quarantined filtered"),
        **_named(stats, "unique_rows empty_rows truncated tokens padded_tokens batches"),
        **_named(stats.timings, " ".join((*_STEPS, "wall_s"))),
        **_rates(stats, record.counts.rows_in),
    }


def _rates(stats: ShardStats, rows: int) -> dict[str, float | None]:
    busy_s = stats.timings.wall_s
    return {
        "rows_per_s": _rate(rows, busy_s),
        "tokens_per_s": _rate(stats.tokens, busy_s),
        "padding_efficiency": _efficiency(stats.tokens, stats.padded_tokens),
    }


def _rate(amount: int, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def _efficiency(tokens: int, padded: int) -> float | None:
    return tokens / (tokens + padded) if tokens else None


def _named(value: object, names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names.split()}


def _parquet(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), out, compression="zstd")
    return out.getvalue()


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
