"""The command line's manners: exit codes, messages, what goes to stdout and what to stderr."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.artifacts.errors import HeadraceError, SinkHeld, UsageError
from headrace.artifacts.storage import Folder
from headrace.jobs import commands, guard
from headrace.jobs.lease import Lease
from headrace.jobs.output import Output, Shown


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """The log and the settings as they were."""
    log = logging.getLogger("headrace")
    before = log.handlers, log.level, log.propagate
    guard.SETTINGS.reset()
    yield
    guard.SETTINGS.reset()
    log.handlers, log.level, log.propagate = before


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def command(output: Output) -> int:
        raise error

    monkeypatch.setattr(commands, "verify_command", command)
    return guard.run_guarded("verify")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HeadraceError("it broke", "mend it"), 1),
        (UsageError("it broke", "mend it"), 2),
        (SinkHeld("it broke", "mend it"), 75),
    ],
)
def test_an_error_is_two_lines_and_an_exit_code(
    error: HeadraceError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raising(monkeypatch, error) == code
    shown = capsys.readouterr()
    assert shown.err == "error: it broke\nhint: mend it\n" and shown.out == ""


def test_verbose_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    guard.SETTINGS.verbose = True
    assert raising(monkeypatch, UsageError("it broke")) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown and shown.endswith("error: it broke\n")


def test_an_unforeseen_error_says_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raising(monkeypatch, ZeroDivisionError("by zero")) == 1
    shown = capsys.readouterr().err
    assert "error: ZeroDivisionError: by zero" in shown and "--verbose" in shown and "Traceback" not in shown


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(monkeypatch, KeyboardInterrupt()) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_json_tells_errors_on_stdout_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    guard.SETTINGS.as_json = True
    assert raising(monkeypatch, UsageError("it broke", "mend it")) == 2
    assert json.loads(capsys.readouterr().out) == {"error": "it broke", "hint": "mend it", "exit_code": 2}


def test_json_tells_of_ctrl_c_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    guard.SETTINGS.as_json = True
    assert raising(monkeypatch, KeyboardInterrupt()) == 130
    assert json.loads(capsys.readouterr().out) == {"error": "interrupted", "hint": None, "exit_code": 130}


def test_logs_go_to_stderr_and_debug_only_with_verbose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(output: Output) -> int:
        log = logging.getLogger("headrace")
        log.debug("fine detail")
        log.info("a line")
        log.warning("look out")
        output.show(Shown({"a": 1}, ["the answer"]))
        return 0

    monkeypatch.setattr(commands, "verify_command", command)
    assert guard.run_guarded("verify") == 0
    assert capsys.readouterr() == ("the answer\n", "a line\nwarning: look out\n")
    guard.SETTINGS.verbose = guard.SETTINGS.as_json = True
    assert guard.run_guarded("verify") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"a": 1} and "fine detail" in shown.err


def headrace(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.mark.parametrize("arguments", [["run"], ["walk"], ["run", "a.yaml", "--limit", "0"], ["plan", "--colour"]])
def test_wrong_usage_exits_2(arguments: list[str], tmp_path: Path) -> None:
    done = headrace(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr


def test_verbose_is_understood_before_and_after_the_command(tmp_path: Path) -> None:
    for arguments in (["--verbose", "status", "x/y"], ["status", "x/y", "--verbose"]):
        assert "Traceback" in headrace(*arguments, cwd=tmp_path).stderr
    assert "Traceback" not in headrace("status", "x/y", cwd=tmp_path).stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    state = Folder(str(tmp_path / "_headrace" / "y"))
    Lease.acquire(state, "r").release()
    program = f"{sys.executable} -m headrace status y --json | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == "0" and done.stderr == ""


def test_unlock_ends_a_lease(tmp_path: Path) -> None:
    state = Folder(str(tmp_path / "_headrace" / "y"))
    lease = Lease.acquire(state, "r")
    done = headrace("unlock", str(tmp_path / "y"), "--json", cwd=tmp_path)
    assert done.returncode == 0 and "run r" in json.loads(done.stdout)["result"]
    with pytest.raises(HeadraceError):
        lease.check()
    lease.release()


@pytest.mark.parametrize("command", ["status", "verify", "repair"])
def test_a_folder_that_was_never_a_sink(command: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.parquet").write_bytes(b"?")
    for sink in ("nowhere", "source"):
        done = headrace(command, sink, cwd=tmp_path)
        assert done.returncode == 2 and f"no run has used this sink: {sink}" in done.stderr and "hint:" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_file_in_place_of_the_leases(tmp_path: Path) -> None:
    (tmp_path / "_headrace" / "y").mkdir(parents=True)
    (tmp_path / "_headrace" / "y" / "lease").write_text("")
    done = headrace("repair", "y", cwd=tmp_path)
    assert done.returncode == 2 and "_headrace/y/lease" in done.stderr and "in the way" in done.stderr


def test_ctrl_c_while_repair_waits_for_the_lease(tmp_path: Path) -> None:
    with Lease.acquire(Folder(str(tmp_path / "_headrace" / "y")), "r"):
        command = [sys.executable, "-m", "headrace", "repair", "y", "--json"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path) as repair:
            assert repair.stderr is not None and "waiting up to" in repair.stderr.readline()
            repair.send_signal(signal.SIGINT)
            out, err = repair.communicate(timeout=20)
    assert repair.returncode == 130 and json.loads(out)["exit_code"] == 130 and "Traceback" not in err


def test_verify_and_repair_of_a_sink_with_nothing_in_it(tmp_path: Path) -> None:
    (tmp_path / "y").mkdir()
    Lease.acquire(Folder(str(tmp_path / "_headrace" / "y")), "r").release()
    done = headrace("verify", "y", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 0 and json.loads(done.stdout)["ok"]
    assert headrace("repair", "y", cwd=tmp_path).returncode == 0
