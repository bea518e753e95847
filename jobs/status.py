"""``headrace status``: what a sink's state files say, with no cluster and no driver to ask.

Ages compare the files' times with this machine's clock, so they are as good as the two clocks agree.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..artifacts.storage import Folder
from ..workers import paths
from ..workers.quarantine import read_quarantine
from . import done
from .host import is_gone
from .lease import STALE_S, read_lease
from .leasefile import LeaseInfo
from .output import columns, count, duration
from .report import PROGRESS, SUMMARY
from .sink import unused

Verdict = Literal["running", "died", "done", "failed", "interrupted", "ended without a report", "idle"]
_SHOWN = 10


@dataclass(frozen=True)
class SinkStatus:
    """``progress`` and ``summary`` are the newest run's files as they stand there, None where there is none."""

    sink: str
    state: str
    verdict: Verdict
    run: str | None
    holder: LeaseInfo | None  #: of the newest lease, held or released; None also where that can't be read
    unreadable_lease: str | None  #: where the newest lease lies that can't be read
    heartbeat_age_s: float | None
    progress: Mapping[str, Any] | None
    summary: Mapping[str, Any] | None
    finished_partitions: tuple[str, ...]  #: the unpartitioned one is the empty string
    quarantine: tuple[tuple[str, str, int], ...]  #: stage, reason, count; the most frequent first

    def to_json(self) -> dict[str, Any]:
        holder = dataclasses.asdict(self.holder) if self.holder else None
        quarantine = [{"stage": stage, "reason": reason, "count": count} for stage, reason, count in self.quarantine]
        return {**vars(self), "holder": holder, "quarantine": quarantine, "advice": advice(self)}


def read_status(sink: Folder, state: Folder, now: float | None = None) -> SinkStatus:
    """``now`` in seconds since the epoch. Raises UsageError where there is no state at all."""
    now = time.time() if now is None else now
    found = read_lease(state)
    lease = found if found is not None and found.is_readable else None
    # An epoch that did not end in order names the run to ask about, even if that run has written nothing yet.
    run = lease.run_id if lease is not None and not lease.clean else _newest_run(state)
    if found is None and run is None:
        raise unused(sink, state)
    progress, summary = (_load(state, run, name) for name in (PROGRESS, SUMMARY))
    return SinkStatus(
        sink=sink.url,
        state=state.url,
        verdict=_verdict(found, summary, progress, now),
        run=run,
        holder=lease,
        unreadable_lease=state.path(paths.lease(found.epoch)) if found is not None and lease is None else None,
        heartbeat_age_s=now - lease.beat_at if lease and lease.state == "held" else None,
        progress=progress,
        summary=summary,
        finished_partitions=tuple(sorted(done.marked(state))),
        quarantine=_quarantine(state),
    )


def _newest_run(state: Folder) -> str | None:
    """Run ids begin with the time of their start."""
    runs = {entry.key.split("/")[1] for entry in state.list(paths.RUNS)}
    return max(runs, default=None)


def _load(state: Folder, run: str | None, name: str) -> dict[str, Any] | None:
    if run is None:
        return None
    try:
        loaded: dict[str, Any] = json.loads(state.read(paths.run(run, name)))
    except (FileNotFoundError, ValueError):
        return None
    return loaded


def _verdict(
    lease: LeaseInfo | None, summary: Mapping[str, Any] | None, progress: Mapping[str, Any] | None, now: float
) -> Verdict:
    if lease is not None and lease.is_readable and lease.state == "held":
        return "died" if is_gone(lease.owner) or now - lease.beat_at > STALE_S else "running"
    if summary is not None and summary.get("state") in ("done", "failed", "interrupted"):
        verdict: Verdict = summary["state"]
        return verdict
    return "ended without a report" if progress is not None or (lease is not None and not lease.clean) else "idle"


def _quarantine(state: Folder) -> tuple[tuple[str, str, int], ...]:
    found = Counter((bad.stage, bad.reason) for bad in read_quarantine(state))
    return tuple((stage, reason, count) for (stage, reason), count in found.most_common())


def advice(status: SinkStatus) -> str | None:
    """What to do now, None where nothing is."""
    again = "run the same command again: it continues where this one stopped"
    advices = {
        "died": f"{again}, after waiting for the old lease if its host can't be asked",
        "interrupted": again,
        "failed": f"see the error and {status.state}/runs/{status.run}/log, then {again}",
        "ended without a report": again,
    }
    return advices.get(status.verdict)


def status_lines(status: SinkStatus) -> list[str]:
    blocks = [_head(status), _progress(status), _slowest(status), _partitions(status), _bad(status)]
    return [line for block in blocks for line in block]


def _head(status: SinkStatus) -> Iterator[str]:
    yield f"{status.sink}: {status.verdict}"
    if status.holder is not None and status.holder.state == "held":
        yield f"  {status.holder.holder}"
        yield f"  last heartbeat {duration(max(0.0, status.heartbeat_age_s or 0.0))} ago"
    elif status.run is not None:
        yield f"  last run {status.run}"
    if status.unreadable_lease is not None:
        yield f"  the lease can't be read, so who holds the sink is not known: {status.unreadable_lease}"
    if status.summary is not None and status.summary.get("error") and status.verdict == "failed":
        yield f"  error: {status.summary['error']}"
    what = advice(status)
    if what is not None:
        yield f"  hint: {what}"


def _progress(status: SinkStatus) -> Iterator[str]:
    progress = status.progress
    if progress is None:
        return
    done_rows, total = progress["rows_done"], progress["rows_total"]
    yield f"  rows {done_rows:,} of {total:,} ({done_rows / total if total else 1.0:.0%})"
    yield f"  shards {progress['shards_done']:,} of {progress['shards_total']:,}"
    if status.verdict != "running":
        return
    left = f", about {duration(progress['eta_s'])} left" if progress["eta_s"] is not None else ""
    yield f"  {progress['rows_per_s']:,.0f} rows/s{left}"
    if progress["waiting_for"]:
        yield f"  waiting for {progress['waiting_for']}"
    for pool in progress["pools"]:
        starting = f", {pool['starting']} starting" if pool["starting"] else ""
        rate = f"{pool['rows_per_s']:,.0f} rows/s"
        yield f"  pool {pool['name']}: {count(pool['ready'], 'worker')}{starting}, {rate}, {pool['variant']}"


def _slowest(status: SinkStatus) -> Iterator[str]:
    """Where a run hangs: the shards that have been in one worker's hands the longest."""
    held = (status.progress or {}).get("in_flight") or ()
    if not held or status.verdict not in ("running", "died"):
        return
    yield "slowest shards"
    rows = [
        (
            duration(one["since_s"]),
            one["state"],
            f"{one['host']} pid {one['pid']}",
            count(one["rows"], "row"),
            one["source_file"],
        )
        for one in held
    ]
    yield from columns(rows, indent="  ")


def _partitions(status: SinkStatus) -> Iterator[str]:
    named = [name for name in status.finished_partitions if name]
    if named:
        yield f"finished partitions: {len(named):,}"
        yield from (f"  {name}" for name in named[-_SHOWN:])
        if len(named) > _SHOWN:
            yield f"  and {len(named) - _SHOWN:,} before them"


def _bad(status: SinkStatus) -> Iterator[str]:
    if not status.quarantine:
        return
    total = sum(count for _, _, count in status.quarantine)
    yield f"in quarantine: {total:,} rows and files, see {status.state}/quarantine/"
    yield from columns([(f"{count:,}", stage, reason) for stage, reason, count in status.quarantine[:_SHOWN]], "  ")
