"""``headrace status`` from files alone: real leases, one of them of a process that was killed."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import results

from headrace.artifacts.errors import UsageError
from headrace.artifacts.storage import Folder
from headrace.jobs import done
from headrace.jobs.host import Owner
from headrace.jobs.lease import Lease, read_lease
from headrace.jobs.leasefile import LeaseInfo
from headrace.jobs.report import write_progress, write_report
from headrace.jobs.status import SinkStatus, read_status, status_lines
from headrace.workers import paths, quarantine
from headrace.workers.shard import BadRow, FileIdentity

RUN = "20240102T030405Z-abc"


@pytest.fixture
def sink(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "scores"))


@pytest.fixture
def state(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "_headrace" / "scores"))


@pytest.fixture
def held(state: Folder) -> Iterator[Lease]:
    lease = Lease.acquire(state, RUN)
    yield lease
    lease.release()


def text_of(status: SinkStatus) -> str:
    json.dumps(status.to_json())  # --json must always work
    return "\n".join(status_lines(status))


def test_a_sink_that_no_run_has_used(sink: Folder, state: Folder) -> None:
    with pytest.raises(UsageError, match="no run has used this sink") as caught:
        read_status(sink, state)
    assert caught.value.exit_code == 2 and "--state" in str(caught.value.hint)


def test_a_run_under_way(sink: Folder, state: Folder, held: Lease) -> None:
    write_progress(state, results.progress(waiting_for="storage"))
    status = read_status(sink, state)
    assert status.verdict == "running" and status.run == RUN
    assert status.heartbeat_age_s is not None and status.heartbeat_age_s < 30
    text = text_of(status)
    for words in (
        "running",
        f"pid {os.getpid()}",
        "250 of 1,000 (25%)",
        "about 2 min 30 s left",
        "waiting for storage",
    ):
        assert words in text
    assert "1 min 35 s  scoring  node-b pid 777  100 rows  /lake/slow.parquet" in text
    assert "hint:" not in text


def test_a_run_that_has_told_nothing_yet(sink: Folder, state: Folder, held: Lease) -> None:
    status = read_status(sink, state)
    assert status.verdict == "running" and status.progress is None
    assert RUN in text_of(status)


def test_an_earlier_runs_progress_is_not_taken_for_this_ones(sink: Folder, state: Folder, held: Lease) -> None:
    write_progress(state, results.progress(run_id="20240101T000000Z-old"))
    assert read_status(sink, state).progress is None


def test_a_killed_run_is_known_at_once_on_its_own_host(sink: Folder, state: Folder) -> None:
    code = """
import sys, time
from headrace.artifacts.storage import Folder
from headrace.jobs.lease import Lease
Lease.acquire(Folder(sys.argv[1]), sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code, state.url, RUN], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "held\n"
        write_progress(state, results.progress())
        assert read_status(sink, state).verdict == "running"
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    status = read_status(sink, state)
    assert status.verdict == "died"
    text = text_of(status)
    assert f"pid {driver.pid}" in text and "hint: run the same command again" in text and "/lake/slow.parquet" in text


def test_a_run_on_another_host_is_judged_by_its_heartbeat(sink: Folder, state: Folder) -> None:
    info = LeaseInfo(1, RUN, Owner("elsewhere", 5), results.AT, results.AT, 9, "held", False, "t")
    state.create(paths.lease(1), info.to_bytes())
    assert read_status(sink, state, now=results.AT + 20).verdict == "running"
    late = read_status(sink, state, now=results.AT + 200)
    assert late.verdict == "died"
    assert "last heartbeat 3 min 20 s ago" in text_of(late) and "elsewhere" in text_of(late)


def test_a_run_that_ended(sink: Folder, state: Folder) -> None:
    Lease.acquire(state, RUN).release()
    write_progress(state, results.progress(state="done", rows_done=1000))
    write_report(state, results.result())
    status = read_status(sink, state)
    assert status.verdict == "done" and status.summary is not None and status.summary["rows"] == 300
    assert status.heartbeat_age_s is None and "hint:" not in text_of(status)


def test_a_run_that_failed_tells_its_error(sink: Folder, state: Folder) -> None:
    Lease.acquire(state, RUN).release()
    write_report(state, results.result(state="failed", exit_code=1, error="too many bad rows: 7", hint="look"))
    text = text_of(read_status(sink, state))
    assert "failed" in text and "error: too many bad rows: 7" in text and f"runs/{RUN}/log" in text


def test_a_lease_ended_by_hand_leaves_no_report(sink: Folder, state: Folder) -> None:
    lease = Lease.acquire(state, RUN)
    lease.release()
    info = read_lease(state)
    assert info is not None
    state.write(paths.lease(info.epoch), dataclasses.replace(info, clean=False).to_bytes())
    write_progress(state, results.progress())
    status = read_status(sink, state)
    assert status.verdict == "ended without a report" and "run the same command again" in text_of(status)


def test_a_lease_that_can_not_be_read(sink: Folder, state: Folder) -> None:
    state.write(paths.lease(3), b"{")
    status = read_status(sink, state)
    assert (status.verdict, status.holder, status.heartbeat_age_s) == ("ended without a report", None, None)
    text = text_of(status)
    assert f"the lease can't be read, so who holds the sink is not known: {state.root}/{paths.lease(3)}" in text
    assert "pid 0" not in text and "1970" not in text
    write_progress(state, results.progress(state="done", rows_done=1000))
    assert "250" not in text_of(read_status(sink, state)) and read_status(sink, state).run == RUN
    assert status.to_json()["unreadable_lease"] == state.path(paths.lease(3))


def test_partitions_and_quarantine(sink: Folder, state: Folder, held: Lease) -> None:
    done.mark(sink, state, [f"day={day:02d}" for day in range(12)], success_files=False)
    file = FileIdentity("/lake/a.parquet", 10, "v")
    rows = [BadRow(file, row, "text", "text is not UTF-8", "h") for row in range(3)]
    quarantine.write_rows(state, "s1", quarantine.encode(rows, "s1"))
    quarantine.write_bad_file(state, BadRow(file, None, "read", "truncated"))
    status = read_status(sink, state)
    assert status.quarantine == (("text", "text is not UTF-8", 3), ("read", "truncated", 1))
    text = text_of(status)
    assert "finished partitions: 12" in text and "day=11" in text and "and 2 before them" in text
    assert "in quarantine: 4 rows and files" in text and "3  text  text is not UTF-8" in text
    assert status.to_json()["quarantine"][0] == {"stage": "text", "reason": "text is not UTF-8", "count": 3}
