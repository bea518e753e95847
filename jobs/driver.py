"""Runs a job: plan, lease, recovery, session, books. Each step is a module; this one orders them."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass

from ..artifacts.errors import LeaseLost
from ..workers import paths
from . import done
from .cluster import refuse_unreachable
from .contract import save_contract
from .groups import save_groups
from .lease import Lease, probe_create
from .leasefile import read_lease
from .ledger import Ledger, quarantine_file
from .outcome import Outcome
from .planner import PlannedJob
from .prepare import Prepared, prepare
from .progress import RunResult
from .recovery import recover
from .report import write_report
from .runlog import RunLog
from .session import RunOptions, Session
from .signals import Signals
from .sink import create as create_places
from .spec import Job, resolved_yaml
from .takeover import remove_staged

LOG = logging.getLogger("headrace")


@dataclass
class Books:
    """What a run writes to, besides parts."""

    run_id: str
    lease: Lease
    ledger: Ledger
    signals: Signals
    clean: bool = True  #: no attempt can be under way and the ledger tells all: the next run need not recover


def plan_job(job: Job) -> PlannedJob:
    """What a run would do now; writes nothing."""
    return prepare(job).planned


def run_job(job: Job, options: RunOptions | None = None) -> RunResult:
    """Brings the sink up to date with the source; with nothing to do it takes no lease and starts no Ray.

    Raises HeadraceError; its ``exit_code`` is the process's. A run that gave shards up or was interrupted returns with
    an ``exit_code`` other than 0.
    """
    options = options or RunOptions()
    with Signals() as signals:
        return _run(job, options, signals)


def _run(job: Job, options: RunOptions, signals: Signals) -> RunResult:
    started_at = time.time()
    prepared = prepare(job, options.retry_quarantined)
    for notice in prepared.planned.notices:
        LOG.info(notice)
    if _is_settled(prepared):
        _mark_done(prepared)
        return Outcome().result(prepared.job, prepared.planned.plan, "", started_at, options.fail_on_quarantine)
    if len(prepared.planned.plan.shards):
        refuse_unreachable(options.address)
    create_places(prepared.sink, prepared.state)
    if not prepared.state.is_local:
        probe_create(prepared.state, unsafe=job.sink.unsafe_lease)
    run_id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(started_at))}-{uuid.uuid4().hex[:6]}"
    lease = Lease.acquire(prepared.state, run_id, say=LOG.warning)
    books = Books(run_id, lease, Ledger(prepared.state, lease.epoch), signals)
    try:
        with RunLog(prepared.state, run_id):
            return _run_with_lease(prepared, options, books, started_at)
    finally:
        signals.drain = True
        lease.release(books.clean)


def _is_settled(prepared: Prepared) -> bool:
    """Nothing to do, and the last run ended in order: what one that did not left behind may be hidden from the plan."""
    lease = read_lease(prepared.state)
    clean = lease is None or (lease.state == "released" and lease.clean)
    return clean and not prepared.view.intents and prepared.planned.plan.nothing_to_do


def _run_with_lease(prepared: Prepared, options: RunOptions, books: Books, started_at: float) -> RunResult:
    _recover(prepared, books)
    prepared = _open_books(prepared, options, books)
    plan = prepared.planned.plan
    outcome = Outcome()
    if not plan.nothing_to_do:
        books.clean = False
        outcome = _session(prepared, books).run(options)
    if outcome.changed_files and outcome.error is None and outcome.signal_number is None:
        # Files that changed under the reader are planned again once; what changes again goes to quarantine.
        prepared = _open_books(prepared, options, books)
        again = _session(prepared, books).run(options, last_try=True)
        outcome = outcome.then(again, len(prepared.planned.plan.bad_files))
    result = outcome.result(prepared.job, plan, books.run_id, started_at, options.fail_on_quarantine)
    _close_books(prepared, books, outcome, result)
    if outcome.error is not None:
        raise outcome.error
    return result


def _session(prepared: Prepared, books: Books) -> Session:
    return Session(prepared, books.lease, books.ledger, books.run_id, books.signals)


def _recover(prepared: Prepared, books: Books) -> None:
    """Puts in order what a run that did not end left: by its parts' footers, once its grants have run out."""
    if not books.lease.took_over:
        return
    LOG.warning("taking over an unfinished run: its last grants run out first")
    books.lease.wait_out_grants()
    books.lease.check()
    found = recover(prepared.sink, prepared.state, books.ledger, prepared.view, prepared.is_current, books.lease.check)
    books.lease.settled()
    LOG.warning("took over: %d parts adopted, %d removed", len(found.adopted), len(found.removed))


def _open_books(prepared: Prepared, options: RunOptions, books: Books) -> Prepared:
    """Plans with the lease in hand and writes down what must come before the first shard: contract, groups, quarantined
    files, marks taken back, replacements that a stopped run had begun (their old parts are gone: that is settled)."""
    books.lease.check()
    books.ledger.flush()  # the plan is made of what the ledger says
    prepared = prepare(prepared.job, options.retry_quarantined, prepared.planned.contract)
    planned, state = prepared.planned, prepared.state
    books.lease.check()
    save_contract(state, planned.contract)
    save_groups(state, books.lease.epoch, planned.plan.new_groups)
    for path in planned.plan.cleared_files:
        state.delete(paths.quarantine_file(path))
        books.ledger.clear_file(path)
    for bad in planned.plan.bad_files:
        quarantine_file(state, books.ledger, bad, books.run_id)
    for intent in prepared.view.intents:
        books.ledger.append_intent_done(intent)
    books.ledger.flush()
    success_files = prepared.job.sink.success_files
    done.unmark(prepared.sink, state, planned.plan.unfinished_partitions, success_files)
    state.write(paths.run(books.run_id, "job.yaml"), resolved_yaml(prepared.job).encode())
    return prepared


def _close_books(prepared: Prepared, books: Books, outcome: Outcome, result: RunResult) -> None:
    """Ledger, marks, report. A run that lost its lease writes nothing more: the sink is another's."""
    if isinstance(outcome.error, LeaseLost):
        return
    books.lease.check()
    books.ledger.flush()
    remove_staged(prepared.state, books.lease.epoch)
    if result.state != "done":
        prepared.sink.abort_uploads()
    books.clean = outcome.settled
    if result.state == "done":
        books.ledger.compact()
        _mark_done(prepared)
    write_report(prepared.state, result)


def _mark_done(prepared: Prepared) -> None:
    """A run cut short by ``--limit`` finishes nothing."""
    if prepared.job.limit is None:
        partitions = prepared.planned.plan.partitions
        done.mark(prepared.sink, prepared.state, partitions, prepared.job.sink.success_files)
