"""Kills at random moments on real Ray: nothing lost, nothing twice, the bytes of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest
from runs import JobFile, environment, headrace, parts, start, wait_until, write_source

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
#: Printed on failure by pytest's own report of locals; set HEADRACE_SEED to repeat a run.
SEED = int(os.environ.get("HEADRACE_SEED", random.SystemRandom().randrange(10_000)))
#: Small batches: slow enough to be killed in the middle, and int8 answers that depend on their batch.
SLOW: dict[str, Any] = {"batch_tokens": 24, "shard_rows": 128, "window_rows": 64}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """70 shards of large files, and 12 small files in groups."""
    folder = tmp_path_factory.mktemp("lake") / "mails"
    return write_source(folder, [2500, 3000, 3500, *range(20, 44, 2)], row_group_rows=500)


@pytest.fixture(scope="module")
def undisturbed(source: Path, classifier_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    job = JobFile.write(tmp_path_factory.mktemp("undisturbed"), classifier_artifact, source, **SLOW)
    done = headrace("run", str(job.path))
    assert done.returncode == 0, done.stderr
    hashes = job.part_hashes()
    assert len(hashes) >= 50
    return hashes


def check(job: JobFile, source: Path, undisturbed: dict[str, str]) -> None:
    got = duckdb.sql(f"select count(*), count(distinct id) from '{job.sink}/*.parquet'").fetchall()
    want = duckdb.sql(f"select count(*), count(distinct id) from '{source}/*.parquet'").fetchall()
    assert got == want
    assert job.part_hashes() == undisturbed
    verified = headrace("verify", str(job.sink))
    assert verified.returncode == 0, verified.stderr
    assert not list((job.state / "tmp").glob("*"))


def ray_workers(driver: int) -> list[psutil.Process]:
    """Processes of the scoring actors below a driver."""
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        try:
            if any("ray::Worker" in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_kill_the_driver_again_and_again(
    source: Path, undisturbed: dict[str, str], classifier_artifact: Path, tmp_path: Path
) -> None:
    choose = random.Random(SEED)
    job = JobFile.write(tmp_path, classifier_artifact, source, **SLOW)
    seen = 0
    for _ in range(3):
        run = start("run", str(job.path))
        target = seen + choose.randint(1, 15)
        wait_until(lambda target=target, run=run: len(parts(job.sink)) >= target or run.poll() is not None)
        os.kill(run.pid, signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL, f"seed {SEED}: it ended before it could be killed"
        seen = len(parts(job.sink))
    done = headrace("run", str(job.path))
    assert done.returncode == 0, f"seed {SEED}: {done.stderr}"
    check(job, source, undisturbed)


def test_kill_workers_at_random_moments(
    source: Path, undisturbed: dict[str, str], classifier_artifact: Path, tmp_path: Path
) -> None:
    choose = random.Random(SEED)
    job = JobFile.write(tmp_path, classifier_artifact, source, **SLOW)
    run = start("run", str(job.path))
    kills = 0
    for target in sorted(choose.sample(range(2, 50), 4)):
        wait_until(lambda target=target: len(parts(job.sink)) >= target or run.poll() is not None)
        workers = ray_workers(run.pid) if run.poll() is None else []
        if workers:
            choose.choice(workers).kill()
            kills += 1
    assert run.wait(timeout=240) == 0, f"seed {SEED}"
    assert kills >= 2, f"seed {SEED}: the run was over too soon"
    check(job, source, undisturbed)


FROZEN = """
import os, signal, sys, time
from headrace.jobs.cluster import Cluster
from headrace.jobs.driver import run_job
from headrace.jobs.loop import Loop
from headrace.jobs.spec import load_job

frozen = []
infos = {}
take, call, kill, vitals = Cluster._take, Cluster.call, Cluster.kill, Loop._ask_vitals

def remember(self, reference):
    answer = take(self, reference)
    if answer.call.kind == "ready" and answer.value is not None:
        infos[answer.call.worker] = answer.value
    return answer

def freeze_before_the_grant(self, one, method, *arguments):
    if one.kind == "publish" and not frozen:
        frozen.append(infos[one.worker].pid)
        os.kill(frozen[0], signal.SIGSTOP)
    call(self, one, method, *arguments)

def leave_it_frozen(self, worker):
    if frozen and infos[worker].pid == frozen[0]:
        self._calls = {ref: c for ref, c in self._calls.items() if c.worker != worker}
        self.graveyard = self.actors.pop(worker, None)
    else:
        kill(self, worker)

def wake_it_at_the_end(self):
    assert frozen
    os.kill(frozen[0], signal.SIGCONT)
    time.sleep(3)
    vitals(self)

Cluster._take, Cluster.call, Cluster.kill, Loop._ask_vitals = (
    remember, freeze_before_the_grant, leave_it_frozen, wake_it_at_the_end)
sys.exit(run_job(load_job(sys.argv[1])).exit_code)
"""


def test_a_worker_frozen_between_staging_and_publishing_harms_nothing(
    source: Path, undisturbed: dict[str, str], classifier_artifact: Path, tmp_path: Path
) -> None:
    """It holds a grant when it is stopped; another worker does its shards; then it wakes up and must discard."""
    job = JobFile.write(tmp_path, classifier_artifact, source, **SLOW, pools__cpu={"workers": 2, "num_cpus": 0.5})
    command = [sys.executable, "-c", FROZEN, str(job.path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    check(job, source, undisturbed)


def test_sigterm_drains_and_the_next_run_goes_on(
    source: Path, undisturbed: dict[str, str], classifier_artifact: Path, tmp_path: Path
) -> None:
    job = JobFile.write(tmp_path, classifier_artifact, source, **SLOW)
    run = start("run", str(job.path))
    wait_until(lambda: len(parts(job.sink)) >= 5)
    run.terminate()
    assert run.wait(timeout=60) == 143
    left = len(parts(job.sink))
    assert 5 <= left < len(undisturbed)
    assert headrace("verify", str(job.sink)).returncode == 0
    done = headrace("run", str(job.path))
    assert done.returncode == 0, done.stderr
    assert "taking over" not in done.stderr  # the lease was released
    check(job, source, undisturbed)


def test_two_runs_at_once_one_waits_and_is_told_so(source: Path, classifier_artifact: Path, tmp_path: Path) -> None:
    job = JobFile.write(tmp_path, classifier_artifact, source, **SLOW)
    first = start("run", str(job.path))
    try:
        wait_until(lambda: parts(job.sink))
        second = headrace("run", str(job.path))
        assert first.wait(timeout=120) == 0
        assert second.returncode in (0, 75), second.stderr
        if second.returncode == 75:
            assert str(first.pid) in second.stderr
    finally:
        first.kill()
    ids = [row[0] for row in duckdb.sql(f"select id from '{job.sink}/*.parquet'").fetchall()]
    assert len(ids) == len(set(ids)) == 9372
