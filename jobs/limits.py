"""``limits.max_bad_rows``: when a job stops because too much of its input went to quarantine. Pure."""

from __future__ import annotations

from ..artifacts.errors import LimitExceeded
from ..workers.shard import Counts

#: Below so many rows a share means little: one bad row in the first shard must not stop a job.
ROWS_BEFORE_JUDGING = 1000


class BadRowLimit:
    """Counts rows of this run. ``share`` is the largest allowed share of quarantined rows, 0 to 1."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.rows = 0
        self.bad = 0

    def add(self, counts: Counts) -> None:
        self.rows += counts.rows_in
        self.bad += counts.quarantined

    def check(self) -> None:
        """Raises LimitExceeded once the share is over the limit and enough rows were seen."""
        if self.rows < ROWS_BEFORE_JUDGING or self.bad <= self._share * self.rows:
            return
        raise LimitExceeded(
            f"too many bad rows: {self.bad:,} of {self.rows:,} are in quarantine, {self._share:.2%} are allowed",
            "`headrace status SINK` lists them by reason; raise limits.max_bad_rows if they are expected",
        )
