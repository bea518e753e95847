"""One holder at a time, whatever dies or sleeps: two handles on one store, threads and real processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from s3_server import S3

from headrace.artifacts.errors import LeaseLost, SinkError, SinkHeld
from headrace.artifacts.storage import Folder
from headrace.jobs.lease import Lease, probe_create, read_lease, unlock
from headrace.jobs.leasefile import LeaseInfo, epochs
from headrace.workers import paths

HOLD = """
import sys, time
from headrace.artifacts.storage import Folder
from headrace.jobs.lease import Lease
lease = Lease.acquire(Folder(sys.argv[1]), sys.argv[2], beat_s=0.1, stale_s=float(sys.argv[3]), watch_s=0)
print(lease.epoch, flush=True)
sys.stdin.readline()
try:
    lease.check()
    print("held", flush=True)
except Exception as error:
    print(type(error).__name__, flush=True)
"""


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.on_sleep: list[tuple[float, object]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(params=["local", "s3"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "local":
        return Folder(str(tmp_path / "_headrace" / "scores"))
    s3: S3 = request.getfixturevalue("s3")
    return Folder(s3.url("_headrace/scores"), s3.options)


@pytest.fixture
def local(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "_headrace" / "scores"))


def _elsewhere(state: Folder, epoch: int = 1, run_id: str = "run-far") -> LeaseInfo:
    """A lease held on another host, so that only its beats tell whether its holder lives."""
    with Lease.acquire(Folder(state.url + "-scratch", state.options), run_id, beat_s=60) as lease:
        info = lease._info
    owner = dataclasses.replace(info.owner, host="far-away", boot="another")
    held = dataclasses.replace(info, epoch=epoch, owner=owner, state="held", token="theirs")
    state.write(paths.lease(epoch), held.to_bytes())
    return held


@contextlib.contextmanager
def _holder(state: Folder, run_id: str, stale_s: float = 30.0) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, state.root, run_id, str(stale_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline().strip().isdigit()
        yield process
        process.kill()
        process.wait()


def test_first_then_next(state: Folder) -> None:
    assert read_lease(state) is None
    first = Lease.acquire(state, "run-1", beat_s=60)
    first.check()
    assert (first.epoch, first.took_over) == (1, False)
    info = read_lease(state)
    assert info is not None
    assert (info.run_id, info.state, info.owner.pid) == ("run-1", "held", os.getpid())
    first.release()
    after = read_lease(state)
    assert after is not None
    assert (after.state, after.clean) == ("released", True)
    with pytest.raises(LeaseLost):
        first.check()
    with Lease.acquire(state, "run-2", beat_s=60) as second:
        assert (second.epoch, second.took_over) == (2, False)
        second.wait_out_grants()


def test_epochs_never_start_over_and_old_files_go(state: Folder) -> None:
    for expected in range(1, 6):
        with Lease.acquire(state, f"run-{expected}", beat_s=60) as lease:
            assert lease.epoch == expected
    assert epochs(state) == [4, 5]


def test_a_living_holder_is_named(state: Folder) -> None:
    clock, said = Clock(), list[str]()
    with Lease.acquire(state, "run-1", beat_s=0.01) as lease:

        def sleep(seconds: float) -> None:
            before = read_lease(state)
            while read_lease(state) == before:
                time.sleep(0.01)
            clock.sleep(seconds)

        with pytest.raises(SinkHeld) as held:
            Lease.acquire(state, "run-2", watch_s=5, stale_s=4, clock=clock, sleep=sleep, say=said.append)
        lease.check()
    assert held.value.exit_code == 75
    for fact in ("run-1", str(os.getpid()), os.uname().nodename, "since 20"):
        assert fact in held.value.message
    assert said[0].startswith("waiting up to 5 s: run run-1 on host")
    assert clock.now == pytest.approx(105, abs=1.1)


def test_a_silent_holder_is_taken_over_after_thirty_seconds_of_my_clock(state: Folder) -> None:
    _elsewhere(state)
    clock = Clock()
    with Lease.acquire(state, "run-2", beat_s=60, clock=clock, sleep=clock.sleep) as lease:
        assert (lease.epoch, lease.took_over) == (2, True)
        assert 130 <= clock.now <= 132
        before = clock.now
        lease.wait_out_grants()
        assert clock.now == pytest.approx(before + 12, abs=0.01)
        lease.wait_out_grants()
        assert clock.now == pytest.approx(before + 12, abs=0.01)


def test_a_beat_in_between_starts_the_wait_anew(local: Folder) -> None:
    info = _elsewhere(local)
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if 120 <= clock.now < 121:
            local.write(paths.lease(1), dataclasses.replace(info, beat=7).to_bytes())

    with pytest.raises(SinkHeld):  # alive at 20 s: at 35 s it is not stale yet
        Lease.acquire(local, "run-2", beat_s=60, clock=clock, sleep=sleep)
    assert clock.now == pytest.approx(135, abs=1.1)


def test_a_lease_released_while_watched_is_taken(local: Folder) -> None:
    holder = Lease.acquire(local, "run-1", beat_s=60)
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now > 103:
            holder.release()

    with Lease.acquire(local, "run-2", beat_s=60, clock=clock, sleep=sleep) as lease:
        assert (lease.epoch, lease.took_over) == (2, False)
    assert clock.now < 106


def test_holder_sees_a_later_epoch_and_stops(state: Folder) -> None:
    holder = Lease.acquire(state, "run-1", beat_s=0.01)
    _elsewhere(state, epoch=2)
    holder._thread.join(10)
    assert not holder._thread.is_alive()
    with pytest.raises(LeaseLost, match="epoch 2 follows 1"):
        holder.check()
    ours = state.read(paths.lease(1))
    holder.release()
    assert state.read(paths.lease(1)) == ours  # a lost lease is left as it is
    assert epochs(state) == [1, 2]


def test_check_looks_itself(state: Folder) -> None:
    """Between two beats a takeover must not go unseen: ``check`` stands before each grant."""
    holder = Lease.acquire(state, "run-1", beat_s=60)
    holder.check()
    _elsewhere(state, epoch=2)
    with pytest.raises(LeaseLost):
        holder.check()


def test_a_holder_that_can_not_beat_has_lost(local: Folder) -> None:
    clock = Clock()
    holder = Lease.acquire(local, "run-1", beat_s=60, stale_s=30, clock=clock)
    clock.now += 29
    holder.check()
    clock.now += 2
    with pytest.raises(LeaseLost, match="could not be renewed for 31 s"):
        holder.check()


def test_a_state_that_can_not_be_listed_is_borne_while_nobody_may_take_over(
    local: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    holder = Lease.acquire(local, "run-1", beat_s=0.01, stale_s=30, clock=clock)

    def fail(self: Folder, prefix: str = "") -> list[object]:
        raise ConnectionError("no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "list", fail)
        holder.check()
        time.sleep(0.05)
        assert holder._thread.is_alive()
        clock.now += 31
        with pytest.raises(LeaseLost, match="could not be renewed for 31 s"):
            holder.check()
        holder.release()  # can't, and says so in the log only
    info = read_lease(local)
    assert info is not None
    assert info.state == "held"


def test_beats_are_written(local: Folder) -> None:
    with Lease.acquire(local, "run-1", beat_s=0.01):
        until = time.monotonic() + 10
        beat = 0
        while beat < 3 and time.monotonic() < until:
            info = read_lease(local)
            beat = info.beat if info else 0
    assert beat >= 3


def test_of_many_newcomers_one_wins(state: Folder) -> None:
    """Fresh, and over a stale lease: every round has one holder, the others see it held."""
    for round_ in (1, 2, 3):
        start = threading.Barrier(6)

        def acquire(number: int, start: threading.Barrier = start) -> Lease | None:
            start.wait()
            try:
                return Lease.acquire(state, f"run-{number}", beat_s=60, watch_s=0)
            except SinkHeld:
                return None

        with ThreadPoolExecutor(6) as pool:
            leases = [lease for lease in pool.map(acquire, range(6)) if lease is not None]
        assert [lease.epoch for lease in leases] == [round_]
        leases[0].check()
        leases[0].release()


def test_of_many_processes_one_wins(local: Folder) -> None:
    command = [sys.executable, "-c", HOLD, local.root, "run", "30"]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    time.sleep(0.1)
    for process in processes:
        assert process.stdin is not None
        if process.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write("\n")
                process.stdin.flush()
    outputs = [process.communicate() for process in processes]
    won = [out.split() for out, _ in outputs if out]
    # One that starts after the winner ended takes over from a process that is gone: later epochs, never equal ones.
    assert len({epoch for epoch, _ in won}) == len(won) >= 1
    assert all("SinkHeld" in err for out, err in outputs if not out)


def test_a_killed_process_is_taken_over_at_once(local: Folder) -> None:
    with _holder(local, "run-1") as process:
        with pytest.raises(SinkHeld, match="run-1"):
            Lease.acquire(local, "run-2", watch_s=0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        began = time.monotonic()
        with Lease.acquire(local, "run-3", beat_s=60) as lease:
            assert (lease.epoch, lease.took_over) == (2, True)
        assert time.monotonic() - began < 2


def test_a_stopped_process_wakes_up_without_the_lease(local: Folder) -> None:
    with _holder(local, "run-1") as process:
        process.send_signal(signal.SIGSTOP)
        with Lease.acquire(local, "run-2", beat_s=60, stale_s=0.5, watch_s=20) as lease:
            assert (lease.epoch, lease.took_over) == (2, True)
            process.send_signal(signal.SIGCONT)
            out, _ = process.communicate("\n")
            assert out.strip() == "LeaseLost"
            lease.check()
    info = read_lease(local)
    assert info is not None
    assert (info.epoch, info.run_id) == (2, "run-2")


def test_an_unsettled_takeover_stays_one(local: Folder) -> None:
    """The run that took over failed before it had recovered: the next one must recover in its place."""
    _elsewhere(local)
    clock = Clock()
    Lease.acquire(local, "run-2", beat_s=60, clock=clock, sleep=clock.sleep).release()
    third = Lease.acquire(local, "run-3", beat_s=60)
    assert third.took_over
    third.settled()
    third.release()
    with Lease.acquire(local, "run-4", beat_s=60) as fourth:
        assert not fourth.took_over


def test_a_run_that_fails_leaves_an_unclean_lease(local: Folder) -> None:
    with pytest.raises(RuntimeError), Lease.acquire(local, "run-1", beat_s=60):
        raise RuntimeError
    with Lease.acquire(local, "run-2", beat_s=60) as lease:
        assert lease.took_over


def test_unlock(state: Folder) -> None:
    assert unlock(state) == "there is no lease to end"
    holder = Lease.acquire(state, "run-1", beat_s=60)
    assert unlock(state).startswith("ended the lease of run run-1 on host")
    with pytest.raises(LeaseLost):
        holder.check()
    holder.release()
    assert "free already" in unlock(state)
    with Lease.acquire(state, "run-2", beat_s=60, watch_s=0) as lease:
        assert (lease.epoch, lease.took_over) == (3, True)


def test_a_lease_file_that_is_rubbish_counts_as_held(local: Folder) -> None:
    for raw in (b"", b"{}", b"[]", b'{"run_id": 1}', b"\xff"):
        local.write(paths.lease(3), raw)
        info = read_lease(local)
        assert info is not None
        assert (info.epoch, info.state, info.clean) == (3, "held", False)
    clock = Clock()
    with Lease.acquire(local, "run-2", beat_s=60, clock=clock, sleep=clock.sleep) as lease:
        assert (lease.epoch, lease.took_over) == (4, True)


def test_a_lease_file_holds_plain_facts(local: Folder) -> None:
    with Lease.acquire(local, "run-1", beat_s=60):
        value = json.loads(local.read(paths.lease(1)))
    assert value["run_id"] == "run-1"
    assert value["owner"]["pid"] == os.getpid()
    assert value["since"] == pytest.approx(time.time(), abs=60)


def test_create_is_probed(state: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_create(state)
    assert state.list() == []

    def ignores_the_condition(self: Folder, key: str, data: bytes) -> bool:
        self.write(key, data)
        return True

    monkeypatch.setattr(Folder, "create", ignores_the_condition)
    with pytest.raises(SinkError, match="create-if-absent") as refused:
        probe_create(state)
    assert refused.value.hint is not None
    assert "sink.unsafe_lease" in refused.value.hint
    probe_create(state, unsafe=True)
    assert state.list() == []
