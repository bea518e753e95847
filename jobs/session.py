"""One connection to Ray for one run: workers up, loop, workers down. What it did comes back as an ``Outcome``."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

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
from .outcome import Outcome, outcome_of
from .prepare import Prepared
from .progress import Progress, RunState
from .report import write_progress
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

    def run(self, options: RunOptions, last_try: bool = False) -> Outcome:
        """Scores the plan. ``last_try``: a file that changes under the reader goes to quarantine."""
        job, plan, began_s = self.prepared.job, self.prepared.planned.plan, time.monotonic()
        tally = Tally(plan, self.run_id, job.name, self.prepared.variant.name)
        looks = _Looks(self.prepared.state, tally, options.display)
        looks.now("starting")
        cluster = Cluster(options.address)
        loop: Loop | None = None
        signal_number, error, settled = None, None, True
        with _Signals() as stop, _quiet_stdout(), contextlib.closing(cluster):
            try:
                if len(plan.shards):
                    where = cluster.connect()
                    stop.install()
                    LOG.info("run %s: %d shards on %s", self.run_id, len(plan.shards), where)
                    cluster.ship(self.prepared.bundle, self.prepared.variant.name)
                loop = self._loop(cluster, tally, last_try)
                loop.stop, loop.look = stop, looks.maybe
                signal_number = loop.run()
            except HeadraceError as raised:
                error = raised
            except Exception as raised:
                LOG.error("unexpected error", exc_info=raised)
                error = HeadraceError(f"{type(raised).__name__}: {one_line(raised)}", "see the run's log")
                error.__cause__ = raised
            if loop is not None and (error is not None or signal_number is not None):
                looks.now("draining")
                settled = loop.settle()
            cluster.kill_all()
        outcome = outcome_of(tally, loop.vitals if loop else {}, began_s)
        if loop is not None:
            outcome = dataclasses.replace(
                outcome,
                failed=tuple(loop.failed),
                changed_files=frozenset(loop.changed_files),
                removed_parts=loop.removed_parts,
            )
        outcome = dataclasses.replace(outcome, signal_number=signal_number, settled=settled, error=error)
        looks.now(outcome.state)
        return outcome

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


class _Signals:
    """SIGINT and SIGTERM drain the run instead of ending the process; outside the main thread there are no handlers.

    Ray puts a handler of its own in place when it starts: ``install`` again afterwards.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self._caught: list[int] = []
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> int | None:
        """The first signal that came, None while none has."""
        return self._caught[0] if self._caught else None

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in self._NUMBERS:
                self._before.setdefault(number, signal.signal(number, self._catch))

    def __enter__(self) -> _Signals:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self._caught.append(number)


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
