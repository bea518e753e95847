"""How a pass over a plan ended, and the result that reports are made of."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from ..artifacts.errors import HeadraceError
from .loop import Loop
from .progress import RunResult, RunState, ShardOutcome, WorkerTotals
from .records import Plan
from .spec import Job
from .tally import Tally


@dataclass
class Outcome:
    """``error`` is raised by the driver after it has written the report. Files that changed under the reader and are
    still to be planned again stand in ``changed_files``."""

    shards: tuple[ShardOutcome, ...] = ()
    workers: tuple[WorkerTotals, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    changed_files: frozenset[str] = frozenset()
    bad_files: int = 0  #: found while reading
    shards_total: int = 0  #: planned
    rows_total: int = 0
    removed_parts: int = 0
    start_s: float = 0.0
    score_s: float = 0.0
    signal_number: int | None = None
    settled: bool = True  #: no grant is left without an answer
    error: HeadraceError | None = None

    @classmethod
    def of(cls, tally: Tally, loop: Loop | None) -> Outcome:
        """What a tally and a loop have counted; ``loop`` is None when it never came to one."""
        outcome = cls(
            shards=tuple(tally.outcomes),
            workers=tally.totals(loop.vitals if loop else {}),
            bad_files=tally.bad_files,
            shards_total=len(tally.plan.shards),
            rows_total=int(tally.plan.shards.piece_rows.sum()),
        )
        if tally.first_score_s is not None and tally.last_commit_s is not None:
            outcome.score_s = tally.last_commit_s - tally.first_score_s
        if loop is not None:
            outcome.failed = tuple(loop.failed)
            outcome.changed_files = frozenset(loop.changed_files)
            outcome.removed_parts = loop.removed_parts
        return outcome

    @property
    def state(self) -> RunState:
        if self.signal_number is not None:
            return "interrupted"
        return "failed" if self.error or self.failed or self.changed_files else "done"

    def then(self, second: Outcome, bad_files: int) -> Outcome:
        """This pass followed by another over what was planned again, which found ``bad_files`` more."""
        return dataclasses.replace(
            second,
            shards=self.shards + second.shards,
            workers=self.workers + second.workers,
            failed=self.failed + second.failed,
            bad_files=self.bad_files + second.bad_files + bad_files,
            removed_parts=self.removed_parts + second.removed_parts,
            # What the first pass did not commit is planned again in the second.
            shards_total=len(self.shards) + second.shards_total,
            rows_total=sum(each.record.counts.rows_in for each in self.shards) + second.rows_total,
            start_s=self.start_s + second.start_s,
            score_s=self.score_s + second.score_s,
        )

    def result(
        self, job: Job, plan: Plan, run_id: str, started_at: float, fail_on_quarantine: bool = False
    ) -> RunResult:
        bad = self.bad_files + len(plan.bad_files)
        bad_rows = sum(outcome.record.counts.quarantined for outcome in self.shards)
        return RunResult(
            run_id=run_id,
            job=job.name,
            state=self.state,
            exit_code=self._exit_code(fail_on_quarantine and bool(bad or bad_rows)),
            started_at=started_at,
            wall_s=time.time() - started_at,
            start_s=self.start_s,
            score_s=self.score_s,
            files=plan.files,
            shards_total=self.shards_total,
            rows_total=self.rows_total,
            rows_before=plan.done_rows,
            outcomes=self.shards,
            workers=self.workers,
            bad_files=bad,
            known_bad_files=plan.known_bad_files,
            vanished=plan.vanished,
            removed_parts=self.removed_parts,
            failed=self.failed,
            error=self.error.message if self.error else None,
            hint=self.error.hint if self.error else None,
            limits={"max_bad_rows": job.limits.max_bad_rows, "max_attempts": job.limits.max_attempts},
        )

    def _exit_code(self, quarantined: bool) -> int:
        if self.error is not None:
            return self.error.exit_code
        if self.signal_number is not None:
            return 128 + self.signal_number
        if self.state == "failed":
            return 1
        return 3 if quarantined else 0
