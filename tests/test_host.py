"""Who is gone: only ever said of a process of this host."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

import psutil
import pytest

from headrace.jobs.host import Owner, is_gone, same_host, this_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is known, so nobody is gone")

_TELL = (
    "import json, sys, time; from headrace.jobs.host import this_process;"
    "print(json.dumps(this_process().to_json()), flush=True); time.sleep(60)"
)


def _child() -> tuple[subprocess.Popen[str], Owner]:
    import json

    process = subprocess.Popen([sys.executable, "-c", _TELL], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as out:
        return process, Owner.from_json(json.loads(out.readline()))


def test_this_process_is_there() -> None:
    me = this_process()
    assert me.pid == os.getpid()
    assert not is_gone(me)
    # psutil reads the same field by its own means: seconds since the epoch, from ticks since boot
    ticks = psutil.Process().create_time() - psutil.boot_time()
    assert int(me.started) / os.sysconf("SC_CLK_TCK") == pytest.approx(ticks, abs=1.0)


def test_a_killed_process_is_gone_reaped_or_not() -> None:
    process, owner = _child()
    assert owner.pid == process.pid
    assert not is_gone(owner)
    process.send_signal(signal.SIGSTOP)
    assert not is_gone(owner)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, a zombie until somebody reaps it
    assert is_gone(owner)
    process.wait()
    assert is_gone(owner)


def test_a_reused_pid_is_another_process() -> None:
    assert is_gone(dataclasses.replace(this_process(), started="1"))


@pytest.mark.parametrize("change", [{"host": "other"}, {"boot": "other"}, {"pid_namespace": "pid:[1]"}])
def test_elsewhere_nobody_is_gone(change: dict[str, str]) -> None:
    elsewhere = dataclasses.replace(this_process(), pid=2**22 - 1, started="1", **change)
    assert not same_host(elsewhere, this_process())
    assert not is_gone(elsewhere)


@pytest.mark.parametrize("field", ["host", "boot", "pid_namespace"])
def test_unknown_is_not_the_same(field: str) -> None:
    unknown = dataclasses.replace(this_process(), **{field: ""})
    assert not same_host(unknown, unknown)
    assert not is_gone(dataclasses.replace(unknown, pid=2**22 - 1))


def test_an_owner_survives_json() -> None:
    me = this_process()
    assert Owner.from_json(me.to_json()) == me
    assert Owner.from_json({}) == Owner("", 0)
    assert not is_gone(Owner("", 0))
