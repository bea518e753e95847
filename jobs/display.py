"""Progress while a run goes on, on stderr: a live panel on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from .output import count, duration
from .progress import Progress

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from .session import Display

LINE_EVERY_S = 5.0
_STATE_WORDS = {"planning": "planning", "starting": "starting Ray", "running": "scoring", "draining": "stopping"}
#: What is left, and what it waits for, is over in the other states.
_UNDER_WAY = {"planning", "starting", "running"}


def display_for(stream: TextIO) -> Display:
    """A live panel where ``stream`` is a terminal, lines otherwise."""
    return LiveDisplay() if stream.isatty() else LineDisplay(stream)


def progress_line(progress: Progress) -> str:
    """One look in one line, without a line break."""
    if not progress.shards_total:
        # Only books are kept: files into quarantine or out of it, parts removed. No Ray is started for that.
        state = "running" if progress.state == "starting" else progress.state
        return "; ".join([f"{state}: no rows to score", *_notes(progress)])
    share = progress.rows_done / progress.rows_total if progress.rows_total else 1.0
    words = [
        f"{_STATE_WORDS.get(progress.state, progress.state)}:",
        f"{progress.rows_done:,} of {progress.rows_total:,} rows ({share:.0%}),",
        f"{progress.shards_done:,}/{progress.shards_total:,} shards, {progress.rows_per_s:,.0f} rows/s",
    ]
    if progress.state in _UNDER_WAY and progress.eta_s is not None and progress.rows_done < progress.rows_total:
        words.append(f"- {duration(progress.eta_s)} left")
    return " ".join(words) + "".join(f"; {note}" for note in _notes(progress))


def _notes(progress: Progress) -> list[str]:
    notes = []
    if progress.quarantined or progress.bad_files:
        notes.append(f"in quarantine: {count(progress.quarantined, 'row')}, {count(progress.bad_files, 'file')}")
    if progress.waiting_for and progress.state in _UNDER_WAY:
        notes.append(f"waiting for {progress.waiting_for}")
    return notes


class LineDisplay:
    """A line every ``every_s`` seconds, and at each change of state."""

    def __init__(
        self, stream: TextIO, every_s: float = LINE_EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._every_s, self._clock = stream, every_s, clock
        self._state: str | None = None
        self._shown_s = 0.0

    def update(self, progress: Progress) -> None:
        now_s = self._clock()
        if progress.state == self._state and now_s - self._shown_s < self._every_s:
            return
        self._state, self._shown_s = progress.state, now_s
        print(progress_line(progress), file=self._stream, flush=True)

    def close(self) -> None:
        """There is nothing to put back."""


class LiveDisplay:
    """A bar for the run and a row per pool, redrawn in place; log lines appear above it. Starts at the first look."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._live: Live | None = None

    def update(self, progress: Progress) -> None:
        self._started().update(_panel(progress))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _started(self) -> Live:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            console = self._console or Console(file=sys.stderr)
            # stdout is for data: rich must not catch it.
            self._live = Live(console=console, refresh_per_second=4, redirect_stdout=False, transient=True)
            self._live.start()
        return self._live


def _panel(progress: Progress) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = ProgressBar(total=float(progress.rows_total) or 1.0, completed=progress.rows_done, width=60)
    pools = Table.grid(padding=(0, 2))
    for pool in progress.pools:
        workers = count(pool.ready, "worker") + (f" (+{pool.starting} starting)" if pool.starting else "")
        rates = (count(pool.rows, "row"), f"{pool.rows_per_s:,.0f} rows/s")
        pools.add_row(Text(f"  {pool.name}"), Text(pool.variant), Text(workers), *map(Text, rates))
    return Group(Text(progress_line(progress)), bar, pools)
