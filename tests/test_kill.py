"""Kills at random moments on real Ray: nothing lost, nothing twice, the bytes of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow.parquet as pq
import pytest
from runs import JobFile, environment, headrace, parts, start, wait_until, write_source

from headrace.artifacts.storage import Folder
from headrace.jobs.lease import Lease

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


POISONED = """
import os, sys
import headrace.workers.actor as actor

class Poisoned(actor.Worker):
    def score(self, shard, attempt, excluded, row_by_row):
        self._die_of(shard, 0, shard.rows, excluded)
        return super().score(shard, attempt, excluded, row_by_row)

    def probe(self, shard, first, last, excluded):
        self._die_of(shard, first, last, excluded)
        return super().probe(shard, first, last, excluded)

    def _die_of(self, shard, first, last, excluded):
        start = 0
        for piece in shard.pieces:
            for poison in (5, 300):
                row = start + poison - piece.first_row
                inside = piece.first_row <= poison < piece.first_row + piece.rows
                if piece.file.path.endswith("0001.parquet") and inside and first <= row < last and row not in excluded:
                    os.kill(os.getpid(), 9)
            start += piece.rows

actor.Worker = Poisoned
from headrace.jobs.driver import run_job
from headrace.jobs.spec import load_job
sys.exit(run_job(load_job(sys.argv[1])).exit_code)
"""


def test_rows_that_kill_their_worker_end_in_quarantine(classifier_artifact: Path, tmp_path: Path) -> None:
    """Two such rows in one file, 40 rows in one group of small files: found by bisection, all others are scored."""
    source = write_source(tmp_path / "in", [200, 400, 20, 20])
    job = JobFile.write(tmp_path, classifier_artifact, source, shard_rows=256, window_rows=64)
    command = [sys.executable, "-c", POISONED, str(job.path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    found = duckdb.sql(f"select source_file, source_row, reason from '{job.state}/quarantine/*.parquet' order by 2")
    bad = found.fetchall()
    assert [(Path(file).name, row) for file, row, _ in bad] == [("0001.parquet", 5), ("0001.parquet", 300)]
    assert all("killed its worker" in reason for *_, reason in bad)
    ids = sorted(row[0] for row in duckdb.sql(f"select id from '{job.sink}/*.parquet'").fetchall())
    assert ids == sorted(set(range(640)) - {205, 500})
    assert headrace("verify", str(job.sink)).returncode == 0


def test_a_file_that_changes_while_it_is_read_is_planned_again(classifier_artifact: Path, tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [2000, 1500, 1500])
    job = JobFile.write(tmp_path, classifier_artifact, source, **SLOW)
    run = start("run", str(job.path))
    wait_until(lambda: len(parts(job.sink)) >= 2)
    for name, first in (("0002.parquet", 200), ("0000.parquet", 1000)):
        changed = pq.read_table(source / name).slice(first)
        pq.write_table(changed, tmp_path / "new.parquet")
        os.replace(tmp_path / "new.parquet", source / name)
    assert run.wait(timeout=120) == 0
    got = sorted(row[0] for row in duckdb.sql(f"select id from '{job.sink}/*.parquet'").fetchall())
    want = sorted(row[0] for row in duckdb.sql(f"select id from '{source}/*.parquet'").fetchall())
    assert got == want
    assert headrace("verify", str(job.sink)).returncode == 0


SILENT = """
import os, signal, sys
import headrace.jobs.loop as loop
from headrace.jobs.driver import run_job
from headrace.jobs.spec import load_job

loop.PING_EVERY_S, loop.SILENT_S = 1.0, 5.0
ready = loop.Loop._ready
stopped = []

def stop_the_first(self, worker, answer, now_s):
    out = ready(self, worker, answer, now_s)
    if not stopped:
        stopped.append(answer.value.pid)
        os.kill(stopped[0], signal.SIGSTOP)
    return out

loop.Loop._ready = stop_the_first
sys.exit(run_job(load_job(sys.argv[1])).exit_code)
"""


def test_a_worker_that_stays_frozen_is_replaced(
    source: Path, undisturbed: dict[str, str], classifier_artifact: Path, tmp_path: Path
) -> None:
    job = JobFile.write(tmp_path, classifier_artifact, source, **SLOW)
    command = [sys.executable, "-c", SILENT, str(job.path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    check(job, source, undisturbed)


CRASH_IN_A_REPLACEMENT = """
import os, signal, sys
import headrace.jobs.loop as loop
from headrace.jobs.driver import run_job
from headrace.jobs.session import RunOptions
from headrace.jobs.spec import load_job

remove = loop.remove_parts

def remove_and_die(*arguments):
    remove(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

loop.remove_parts = remove_and_die
run_job(load_job(sys.argv[1]), RunOptions(retry_quarantined=len(sys.argv) > 2))
"""


def test_a_replacement_that_dies_half_way_is_finished_whatever_the_next_run_finds_to_do(
    classifier_artifact: Path, tmp_path: Path
) -> None:
    """The file is put back as it was: by the ledger alone there would be nothing to do, and its parts are gone."""
    source = write_source(tmp_path / "in", [1500, 300])
    job = JobFile.write(tmp_path, classifier_artifact, source)
    assert headrace("run", str(job.path)).returncode == 0
    before = job.part_hashes()
    shutil.copy2(source / "0000.parquet", tmp_path / "kept.parquet")
    pq.write_table(pq.read_table(source / "0000.parquet").slice(0, 900), source / "0000.parquet")
    command = [sys.executable, "-c", CRASH_IN_A_REPLACEMENT, str(job.path)]
    died = subprocess.run(command, capture_output=True, env=environment(), timeout=240, check=False)
    assert died.returncode == -signal.SIGKILL
    assert len(parts(job.sink)) < len(before)
    shutil.copy2(tmp_path / "kept.parquet", source / "0000.parquet")
    done = headrace("run", str(job.path))
    assert done.returncode == 0, done.stderr
    assert job.part_hashes() == before
    assert headrace("verify", str(job.sink)).returncode == 0


def test_a_sink_that_was_deleted_is_not_taken_for_complete(classifier_artifact: Path, tmp_path: Path) -> None:
    job = JobFile.write(tmp_path, classifier_artifact, write_source(tmp_path / "in", [300]))
    assert headrace("run", str(job.path)).returncode == 0
    shutil.rmtree(job.sink)
    done = headrace("run", str(job.path))
    assert done.returncode == 2 and str(job.sink) in done.stderr and str(job.state) in done.stderr
    shutil.rmtree(job.state)
    assert headrace("run", str(job.path)).returncode == 0
    assert parts(job.sink)


def test_sigterm_while_it_waits_for_the_lease(classifier_artifact: Path, tmp_path: Path) -> None:
    job = JobFile.write(tmp_path, classifier_artifact, write_source(tmp_path / "in", [10]))
    holder = Lease.acquire(Folder(str(job.state)), "another-run")
    command = [sys.executable, "-m", "headrace", "run", str(job.path), "--json"]
    pipe = subprocess.PIPE
    with holder, subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment(), text=True) as run:
        assert run.stderr is not None
        while "another-run" not in run.stderr.readline():
            assert run.poll() is None
        run.terminate()
        said, _ = run.communicate(timeout=30)
        assert run.returncode == 143
        assert json.loads(said)["exit_code"] == 143
        holder.check()


def test_a_cluster_that_nobody_answers_for_is_a_usage_error(classifier_artifact: Path, tmp_path: Path) -> None:
    job = JobFile.write(tmp_path, classifier_artifact, write_source(tmp_path / "in", [10]))
    for address in ("127.0.0.1:1", "ray://127.0.0.1:10001", "http://127.0.0.1:8265"):
        done = headrace("run", str(job.path), "--address", address, timeout=60)
        assert done.returncode == 2 and address in done.stderr, done.stderr
