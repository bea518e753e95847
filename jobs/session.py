"""One connection to Ray for one run: workers up, loop, workers down. What it did comes back as an ``Outcome``."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ..artifacts.errors import HeadraceError, UsageError, one_line
from ..artifacts.hardware import available_cpus
from ..artifacts.storage import Folder
from ..workers.shard import WorkerSpec
from .cluster import Cluster
from .dispatcher import Dispatcher
from .lease import Lease
from .ledger import Ledger
from .limits import BadRowLimit
from .loop import Loop, RunContext
from .outcome import Outcome
from .prepare import Prepared
from .progress import Progress, RunState
from .report import write_progress
from .signals import Signals
from .tally import Tally

LOG = logging.getLogger("headrace")
PROGRESS_EVERY_S = 2.0


class Display(Protocol):
    """Shows progress to a person; ``close`` leaves the terminal as it was."""

    def update(self, progress: Progress) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class RunOptions:
    """What the command line adds to a job; none of it changes a prediction."""

    address: str | None = None
    retry_quarantined: bool = False
    fail_on_quarantine: bool = False
    display: Display | None = None


@dataclass(frozen=True)
class Session:
    prepared: Prepared
    lease: Lease
    ledger: Ledger
    run_id: str
    signals: Signals

    def run(self, options: RunOptions, last_try: bool = False) -> Outcome:
        """Scores the plan. ``last_try``: a file that changes under the reader goes to quarantine."""
        plan, began_s = self.prepared.planned.plan, time.monotonic()
        tally = Tally(plan, self.run_id, self.prepared.job.name, self.prepared.variant.name)
        looks = _Looks(self.prepared.state, tally, options.display)
        looks.now("starting")
        self.signals.drain = True
        with _quiet_stdout(), contextlib.closing(Cluster(options.address)) as cluster:
            outcome = self._pass(cluster, tally, looks, last_try)
        first_s = tally.first_score_s if tally.first_score_s is not None else time.monotonic()
        outcome = dataclasses.replace(outcome, start_s=first_s - began_s)
        looks.now(outcome.state)
        return outcome

    def _pass(self, cluster: Cluster, tally: Tally, looks: _Looks, last_try: bool) -> Outcome:
        """The loop and its orderly end, whatever ends it."""
        loop: Loop | None = None
        signal_number, error, settled = None, None, True
        try:
            if len(tally.plan.shards):
                self._connect(cluster)
            loop = self._loop(cluster, tally, last_try)
            loop.stop, loop.look = self.signals, looks.maybe
            signal_number = loop.run()
        except HeadraceError as raised:
            error = raised
        except Exception as raised:  # Ray's and each store's own: the report is written all the same
            LOG.error("unexpected error", exc_info=raised)
            error = HeadraceError(one_line(raised), "see the run's log")
            error.__cause__ = raised
        if loop is not None and (error is not None or signal_number is not None):
            looks.now("draining")
            settled = loop.settle()
        cluster.kill_all()
        outcome = Outcome.of(tally, loop)
        return dataclasses.replace(outcome, signal_number=signal_number, settled=settled, error=error)

    def _connect(self, cluster: Cluster) -> None:
        where = cluster.connect()
        self.signals.install()
        LOG.info("run %s: %d shards on %s", self.run_id, len(self.prepared.planned.plan.shards), where)
        cluster.ship(self.prepared.bundle, self.prepared.variant.name)

    def _loop(self, cluster: Cluster, tally: Tally, last_try: bool) -> Loop:
        job, plan = self.prepared.job, self.prepared.planned.plan
        pools = self._pools(cluster)
        sizes = {name: pool.workers for name, pool in pools.items()}
        dispatcher = Dispatcher(plan.shards.rows, sizes, plan.replacements, job.limits.max_attempts)
        cpus = {name: pool.num_cpus for name, pool in pools.items()}
        return Loop(self._context(last_try), dispatcher, cluster, cpus, tally, BadRowLimit(job.limits.max_bad_rows))

    def _context(self, last_try: bool) -> RunContext:
        prepared = self.prepared
        spec = WorkerSpec(
            score=prepared.planned.score,
            variant=prepared.variant.name,
            threads=1,
            last_try=last_try,
            sink_url=prepared.sink.url,
            state_url=prepared.state.url,
            sink_options=prepared.job.sink.storage_options,
            source_options=prepared.job.source.storage_options,
        )
        return RunContext(self.run_id, prepared, spec, self.ledger, self.lease)

    def _pools(self, cluster: Cluster) -> dict[str, PoolSize]:
        """Workers per pool. ``auto`` shares the cluster's CPUs out; a pool that can't run at all is a usage error."""
        if not len(self.prepared.planned.plan.shards):
            return {}
        total = cluster.resources().get("CPU", 0.0) or float(available_cpus())
        sizes = {}
        for name, pool in self.prepared.job.pools.items():
            if pool.num_cpus > total:
                message = f"pool {name} wants {pool.num_cpus:g} CPUs for a worker, the cluster has: {total:g}"
                raise UsageError(message, f"lower pools.{name}.num_cpus")
            workers = max(1, int(total // pool.num_cpus)) if pool.workers == "auto" else pool.workers
            total -= workers * pool.num_cpus if pool.workers == "auto" else 0
            sizes[name] = PoolSize(int(workers), float(pool.num_cpus))
        if not sum(size.workers for size in sizes.values()):
            raise UsageError("no pool has a worker", "set pools.<name>.workers to 1 or more, or to auto")
        return sizes


@dataclass(frozen=True, slots=True)
class PoolSize:
    workers: int
    num_cpus: float


class _Looks:
    """Shows and writes progress, not too often."""

    def __init__(self, state: Folder, tally: Tally, display: Display | None) -> None:
        self._state, self._tally, self._display = state, tally, display
        self._written_s = 0.0

    def maybe(self) -> None:
        if self._display is not None:
            self._display.update(self._tally.progress("running"))
        if time.monotonic() - self._written_s >= PROGRESS_EVERY_S:
            self._write(self._tally.progress("running"))

    def now(self, state: RunState, waiting_for: str | None = None) -> None:
        progress = self._tally.progress(state, waiting_for)
        if self._display is not None:
            self._display.update(progress)
        self._write(progress)

    def _write(self, progress: Progress) -> None:
        self._written_s = time.monotonic()
        try:
            write_progress(self._state, progress)
        except Exception as error:  # noqa: BLE001 - each store raises its own, and a look must never end a run
            LOG.debug("the progress could not be written: %s", error)


class _ToLog(io.TextIOBase):
    """Ray prints news of dead workers to stdout, whatever it is told about logging; stdout is for data."""

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.strip():
                LOG.debug("ray: %s", line.strip())
        return len(text)


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    with contextlib.redirect_stdout(_ToLog()):
        yield
