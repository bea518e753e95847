"""Progress on a terminal and off it; durations and sizes as people write them."""

from __future__ import annotations

import io

import pytest
import results

from headrace.jobs.display import LineDisplay, LiveDisplay, display_for, progress_line
from headrace.jobs.output import columns, duration, size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_line_says_it_all() -> None:
    line = progress_line(results.progress(quarantined=3, bad_files=1, waiting_for="storage"))
    assert line == (
        "scoring: 250 of 1,000 rows (25%), 3/10 shards, 5 rows/s - 2 min 30 s left; "
        "in quarantine: 3 rows, 1 file; waiting for storage"
    )


@pytest.mark.parametrize("state", ["draining", "interrupted", "failed", "done"])
def test_a_run_that_ends_has_nothing_left_and_waits_for_nothing(state: str) -> None:
    line = progress_line(results.progress(state=state, waiting_for="1 worker(s) to start", quarantined=3))
    assert "left" not in line and "waiting" not in line
    assert "250 of 1,000 rows" in line and "in quarantine: 3 rows" in line


def test_without_shards_there_is_no_ray_to_start() -> None:
    nothing = {"shards_done": 0, "shards_total": 0, "rows_done": 0, "rows_total": 0, "eta_s": None}
    assert progress_line(results.progress(state="starting", **nothing)) == "running: no rows to score"
    line = progress_line(results.progress(state="done", bad_files=1, **nothing))
    assert line == "done: no rows to score; in quarantine: 0 rows, 1 file"


def test_lines_come_every_few_seconds_and_at_a_change() -> None:
    stream, now = io.StringIO(), [0.0]
    display = LineDisplay(stream, every_s=5.0, clock=lambda: now[0])
    for second in range(12):
        now[0] = float(second)
        display.update(results.progress(rows_done=second))
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["0", "5", "10"]
    display.update(results.progress(state="draining", rows_done=11))
    assert stream.getvalue().splitlines()[-1].startswith("stopping: 11 of")
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()


def test_the_terminal_decides() -> None:
    assert isinstance(display_for(io.StringIO()), LineDisplay)
    assert isinstance(display_for(Terminal()), LiveDisplay)


def test_a_panel_shows_run_and_pools_and_leaves_nothing_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    stream = Terminal()
    display = LiveDisplay(Console(file=stream, force_terminal=True, width=120))
    display.update(results.progress())
    display.update(results.progress(rows_done=500))
    display.close()
    shown = stream.getvalue()
    assert "500 of 1,000 rows" in shown and "cpu-vnni-int8" in shown and "2 workers (+1 starting)" in shown
    assert capsys.readouterr().out == ""


def test_a_panel_that_never_showed_closes() -> None:
    stream = Terminal()
    display_for(stream).close()
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (59.6, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert duration(3 * 86_400 + 4 * 3600) == "3 d 4 h"


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0 B"), (812, "812 B"), (1400, "1.4 kB"), (123e6, "123 MB"), (5e12, "5.0 TB")]
)
def test_sizes(amount: float, text: str) -> None:
    assert size(amount) == text


def test_columns_line_up_and_have_no_trailing_blanks() -> None:
    assert columns([("a", "bb", "c"), ("aaa", "b", "")], "  ") == ["  a    bb  c", "  aaa  b"]
    assert columns([]) == []
