"""The driver's loop: Ray's answers become the dispatcher's events, its instructions become Ray calls and ledger rows.

No decision is made here. What needs one (who scores, who publishes, what a failure means) is ``dispatcher.py``'s.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod

from ..artifacts.errors import HeadraceError, LeaseLost, SourceChanged, TransientError
from ..workers.actor import Vitals
from ..workers.shard import Grant, Staged, WorkerInfo, WorkerSpec
from . import instructions as do
from .cluster import Answer, Call, Cluster
from .dispatch_state import CHECKING, GRANT_S, GRANTED, MARGIN_S
from .dispatcher import Dispatcher
from .lease import Lease
from .ledger import Ledger, quarantine_file
from .limits import BadRowLimit
from .prepare import Prepared
from .records import Intent, PartRecord, Plan
from .replacing import remove_parts
from .takeover import published_part
from .tally import Tally

LOG = logging.getLogger("headrace")
POLL_S = 0.2
#: How often a worker is asked for a sign of life, and how long it may be silent: it is frozen or cut off then.
PING_EVERY_S, SILENT_S = 10.0, 60.0
#: How long the ledger may be out of reach before the run ends.
FLUSH_PATIENCE_S = 60.0


@dataclass(frozen=True)
class RunContext:
    """What stays the same through one run."""

    run_id: str
    prepared: Prepared
    spec: WorkerSpec  #: but for the threads, which are the pool's CPUs
    ledger: Ledger
    lease: Lease

    @property
    def plan(self) -> Plan:
        plan: Plan = self.prepared.planned.plan
        return plan


@dataclass
class Loop:
    """One run from the first worker to the last commit. ``stop()`` tells it to drain: it returns the signal number."""

    context: RunContext
    dispatcher: Dispatcher
    cluster: Cluster
    cpus: Mapping[str, float]  #: of one worker, by pool
    tally: Tally
    limit: BadRowLimit
    stop: Callable[[], int | None] = lambda: None
    look: Callable[[], None] = lambda: None  #: called a few times a second, for the display
    changed_files: set[str] = field(default_factory=set)  #: to be planned again
    failed: list[tuple[str, str]] = field(default_factory=list)
    vitals: dict[str, Vitals] = field(default_factory=dict)
    removed_parts: int = 0
    _staged: dict[tuple[int, int], Staged] = field(default_factory=dict)  #: by shard and attempt
    _fatal: HeadraceError | None = None
    _settling: bool = False
    _pinged: dict[str, float] = field(default_factory=dict)  #: workers that were asked for a sign of life, since when
    _flush_failing_s: float | None = None
    _last_ping_s: float = field(default_factory=time.monotonic)

    def run(self) -> int | None:
        """Until every shard is done or given up. Returns the signal that ended it early, None otherwise.

        Raises LeaseLost, LimitExceeded, ArtifactCorrupt, and HeadraceError when no worker can be kept alive.
        """
        self._obey(self.dispatcher.start())
        while not self.dispatcher.finished:
            signal_number = self.stop()
            if signal_number is not None:
                return signal_number
            for answer in self.cluster.answers(POLL_S):
                self._obey(self._event(answer))
            self._obey(self.dispatcher.tick(time.monotonic()))
            self._obey(self._ping(time.monotonic()))
            self._flush()
            self.look()
            if self._fatal is not None:
                raise self._fatal
        self._ask_vitals()
        return None

    def settle(self) -> bool:
        """Ends early: nothing new is granted, grants that are out are waited for. False: one got no answer."""
        self.dispatcher.aborted = self._settling = True
        until = time.monotonic() + GRANT_S + MARGIN_S
        while self.cluster.outstanding("publish") and time.monotonic() < until:
            for answer in self.cluster.answers(POLL_S):
                if answer.call.kind == "publish" and answer.lost is None:
                    self._obey([it for it in self._event(answer) if isinstance(it, do.Commit | do.EndReplacement)])
        return not self.dispatcher.count(GRANTED, CHECKING)

    # -- answers become events ---------------------------------------------------------------------------------------

    def _event(self, answer: Answer) -> list[do.Instruction]:
        call, now_s = answer.call, time.monotonic()
        if answer.lost is not None:
            return self._lost(answer, now_s)
        if call.kind == "ready":
            return self._ready(call.worker, answer, now_s)
        if call.kind == "score":
            return self._scored(answer, now_s)
        if call.kind == "probe":
            return self.dispatcher.probed(call.worker, call.shard, now_s)
        if call.kind == "publish":
            return self._published(answer, now_s)
        if call.kind == "vitals" and isinstance(answer.value, Vitals):
            self._pinged.pop(call.worker, None)
            self.vitals[call.worker] = answer.value
        return []

    def _published(self, answer: Answer, now_s: float) -> list[do.Instruction]:
        call = answer.call
        if answer.error is not None:
            LOG.warning("publishing failed on %s: %s", call.worker, answer.error)
            return self.dispatcher.publish_unclear(call.worker, call.shard, call.attempt)
        return self.dispatcher.published(call.worker, call.shard, call.attempt, answer.value is True, now_s)

    def _ready(self, worker: str, answer: Answer, now_s: float) -> list[do.Instruction]:
        info = answer.value
        if not isinstance(info, WorkerInfo):
            return self._lost(answer, now_s)
        LOG.info("worker %s is ready: host %s, pid %d, %s", worker, info.host, info.pid, info.variant)
        self.tally.ready(info, now_s)
        return self.dispatcher.worker_ready(worker, now_s)

    def _lost(self, answer: Answer, now_s: float, innocent: bool = False) -> list[do.Instruction]:
        """An actor is gone. A worker that never got ready, or whose node went, leaves no shard to blame. An error of
        its model ends the run: the next worker would fail the same."""
        worker = answer.call.worker
        cause = answer.error if isinstance(answer.error, HeadraceError) else None
        if cause is not None and not isinstance(cause, TransientError):
            self._fatal = cause
            return []
        info = self.tally.infos.get(worker)
        innocent = innocent or info is None or info.node not in self.cluster.alive_nodes()
        why = str(cause or answer.error or answer.lost or "unknown")
        LOG.warning("worker %s is lost: %s", worker, why)
        self._pinged.pop(worker, None)
        self.tally.lost(worker, now_s)
        self.cluster.kill(worker)
        return self.dispatcher.worker_lost(worker, now_s, innocent=innocent, confirmed=answer.confirmed, why=why)

    def _scored(self, answer: Answer, now_s: float) -> list[do.Instruction]:
        call = answer.call
        if isinstance(answer.error, SourceChanged):
            return self._changed(call, answer.error, now_s)
        if answer.error is not None:
            self.tally.dropped(call.shard)
            LOG.warning("shard %s failed on %s: %s", self._shard_id(call.shard), call.worker, answer.error)
            return self.dispatcher.score_failed(call.worker, call.shard, call.attempt, _tell(answer.error), now_s)
        staged: Staged = answer.value
        self._staged[call.shard, call.attempt] = staged
        self.tally.staged(call.worker, call.shard, now_s)
        if not staged.size_bytes:
            return self.dispatcher.nothing_to_publish(call.worker, call.shard, call.attempt, now_s)
        return self.dispatcher.staged_one(call.worker, call.shard, call.attempt, staged.clock_s, now_s)

    def _changed(self, call: Call, error: SourceChanged, now_s: float) -> list[do.Instruction]:
        """A file is no longer the one that was planned: the driver plans it again once."""
        LOG.warning("%s", error)
        self.changed_files.add(error.path)
        self.tally.dropped(call.shard)
        return self.dispatcher.withdrawn(call.worker, call.shard, call.attempt, now_s)

    # -- instructions become deeds -----------------------------------------------------------------------------------

    def _obey(self, instructions: list[do.Instruction]) -> None:
        for instruction in instructions:
            self._do(instruction)

    @singledispatchmethod
    def _do(self, instruction: do.Instruction) -> None:
        raise TypeError(type(instruction).__name__)

    @_do.register
    def _(self, it: do.StartWorker) -> None:
        context = self.context
        self.tally.starting(it.worker, it.pool, time.monotonic())
        content, epoch = context.prepared.bundle.content, context.lease.epoch
        cpus = self.cpus[it.pool]
        spec = dataclasses.replace(context.spec, threads=max(1, int(cpus)))
        self.cluster.start(it.worker, spec, content, epoch, cpus)

    @_do.register
    def _(self, it: do.KillWorker) -> None:
        LOG.warning("worker %s is ended: %s", it.worker, it.why)
        self._pinged.pop(it.worker, None)
        self.tally.lost(it.worker, time.monotonic())
        self.cluster.kill(it.worker)

    @_do.register
    def _(self, it: do.Score) -> None:
        shard = self.context.plan.shards.shard(it.shard)
        self.tally.scoring(it.worker, it.shard, time.monotonic())
        call = Call("score", it.worker, it.shard, it.attempt)
        self.cluster.call(call, "score", shard, it.attempt, it.excluded, it.row_by_row)

    @_do.register
    def _(self, it: do.Probe) -> None:
        shard = self.context.plan.shards.shard(it.shard)
        LOG.warning("looking for rows that kill their worker: shard %s, rows %d to %d", shard.id, it.first, it.last)
        self.tally.scoring(it.worker, it.shard, time.monotonic(), isolating=True)
        call = Call("probe", it.worker, it.shard)
        self.cluster.call(call, "probe", shard, it.first, it.last, it.excluded)

    @_do.register
    def _(self, it: do.Publish) -> None:
        self.context.lease.check()
        self.tally.publishing(it.shard)
        grant = Grant(self._shard_id(it.shard), it.attempt, self.context.lease.epoch, it.deadline_s)
        self.cluster.call(Call("publish", it.worker, it.shard, it.attempt), "publish", grant)

    @_do.register
    def _(self, it: do.Discard) -> None:
        self._staged.pop((it.shard, it.attempt), None)
        call = Call("discard", it.worker, it.shard, it.attempt)
        self.cluster.call(call, "discard", self._shard_id(it.shard), it.attempt)

    @_do.register
    def _(self, it: do.Commit) -> None:
        staged = self._staged.pop((it.shard, it.attempt))
        for bad in staged.bad_files:
            quarantine_file(self.context.prepared.state, self.context.ledger, bad, self.context.run_id)
            self.tally.bad_files += 1
        if not staged.size_bytes:  # no file of it could be read: there is no part
            self.tally.dropped(it.shard)
            return
        record = self._record(it.shard, it.worker, staged)
        self.context.ledger.append_part(record)
        self.tally.committed(it.worker, it.shard, record, staged.stats, time.monotonic())
        self.limit.add(staged.counts)
        if not self._settling:
            self.limit.check()

    @_do.register
    def _(self, it: do.CheckPart) -> None:
        shard = self.context.plan.shards.shard(it.shard)
        found = published_part(self.context.prepared.sink, shard, self.context.spec.score.fingerprint)
        self._obey(self.dispatcher.part_checked(it.shard, found, time.monotonic()))

    @_do.register
    def _(self, it: do.BeginReplacement) -> None:
        self.context.lease.check()
        replacement = self.context.plan.replacements[it.replacement]
        new = tuple(self._shard_id(shard) for shard in replacement.shards)
        ledger = self.context.ledger
        ledger.append_intent(Intent(self._intent(it.replacement), replacement.remove, new))
        ledger.flush()
        self.context.lease.check()  # a driver that was frozen here must not remove what another has published
        prepared = self.context.prepared
        remove_parts(prepared.sink, prepared.state, ledger, prepared.view, replacement.remove)
        ledger.flush()  # it must not tell of parts that are gone: a plan would take them for done
        self.removed_parts += len(replacement.remove)
        self._obey(self.dispatcher.replacement_begun(it.replacement, time.monotonic()))

    @_do.register
    def _(self, it: do.EndReplacement) -> None:
        self.context.ledger.append_intent_done(self._intent(it.replacement))

    @_do.register
    def _(self, it: do.GiveUp) -> None:
        LOG.error("shard %s is given up: %s", self._shard_id(it.shard), it.error)
        self.tally.dropped(it.shard)
        self.failed.append((self._shard_id(it.shard), it.error))

    @_do.register
    def _(self, it: do.Abort) -> None:
        self._fatal = HeadraceError(it.error, it.hint)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _ping(self, now_s: float) -> list[do.Instruction]:
        """Control calls have threads of their own: a worker that scores answers too, one that is stopped does not."""
        out: list[do.Instruction] = []
        for worker, since_s in list(self._pinged.items()):
            if now_s - since_s > SILENT_S:
                lost = Answer(
                    Call("vitals", worker), lost=f"no sign of life for {now_s - since_s:.0f} s", confirmed=False
                )
                out += self._lost(lost, now_s, innocent=True)
        if now_s - self._last_ping_s >= PING_EVERY_S:
            self._last_ping_s = now_s
            for worker in self._ready_workers() - self._pinged.keys():
                self._pinged[worker] = now_s
                self.cluster.call(Call("vitals", worker), "vitals")
        return out

    def _ready_workers(self) -> set[str]:
        """Living ones; those that still load a model would answer late."""
        return self.tally.infos.keys() & self.cluster.actors.keys()

    def _flush(self) -> None:
        """A store that does not answer just now is tried again at the next turn; the rows are kept meanwhile."""
        now_s = time.monotonic()
        if not self.context.ledger.flush_due(now_s):
            self._flush_failing_s = None
            return
        try:
            self.context.lease.check()
            self.context.ledger.flush()
        except LeaseLost:
            raise
        except Exception as error:  # each store raises its own
            self._flush_failing_s = self._flush_failing_s or now_s
            if now_s - self._flush_failing_s > FLUSH_PATIENCE_S:
                raise
            LOG.warning("the ledger could not be written, trying again: %s", error)
            time.sleep(POLL_S)

    def _shard_id(self, shard: int) -> str:
        return self.context.plan.shards.ids[shard]

    def _intent(self, replacement: int) -> str:
        return f"{self.context.lease.epoch}-{replacement}"

    def _record(self, index: int, worker: str, staged: Staged) -> PartRecord:
        shard = self.context.plan.shards.shard(index)
        lost = {bad.file.path for bad in staged.bad_files}
        return PartRecord(
            shard_id=shard.id,
            partition=shard.partition,
            pieces=tuple(piece for piece in shard.pieces if piece.file.path not in lost),
            fingerprint=self.context.spec.score.fingerprint,
            artifact=self.context.prepared.bundle.digest,
            variant=self.context.spec.variant,
            instruction_set=self.tally.infos[worker].instruction_set,
            batching=staged.batching,
            counts=staged.counts,
            size_bytes=staged.size_bytes,
            run_id=self.context.run_id,
            epoch=self.context.lease.epoch,
            attempt=staged.attempt,
            committed_at=time.time(),
        )

    def _ask_vitals(self) -> None:
        """Each living worker's peak memory, for the report. Not waited for long: the work is done."""
        for worker in self._ready_workers():
            self.cluster.call(Call("vitals", worker), "vitals")
        until = time.monotonic() + 5
        while self.cluster.outstanding("vitals") and time.monotonic() < until:
            for answer in self.cluster.answers(POLL_S):
                if answer.lost is None:
                    self._event(answer)


def _tell(error: BaseException) -> str:
    return str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
