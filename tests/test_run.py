"""The main job on real Ray, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from runs import JobFile, headrace, parts, start, wait_until, write_source

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three large files and seven small ones, which are grouped: 3,590 rows."""
    folder = tmp_path_factory.mktemp("lake") / "mails"
    return write_source(folder, [1200, 900, 1100, 50, 60, 40, 70, 30, 80, 60])


@pytest.fixture(scope="module")
def reference(source: Path, classifier_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> JobFile:
    """An undisturbed run with two workers."""
    job = JobFile.write(tmp_path_factory.mktemp("reference"), classifier_artifact, source)
    done = headrace("run", str(job.path))
    assert done.returncode == 0, done.stderr
    return job


def test_every_row_once_with_the_answers_of_transformers(
    reference: JobFile, source: Path, tiny_classifier_model: Path, classifier_artifact: Path, tmp_path: Path
) -> None:
    from transformers import pipeline

    job = JobFile.write(tmp_path, classifier_artifact, source, variant="cpu-fp32")
    assert headrace("run", str(job.path)).returncode == 0
    got = duckdb.sql(f"select id, label, score from '{job.sink}/*.parquet' order by id").fetchall()
    want = duckdb.sql(f"select id, body from '{source}/*.parquet' order by id").fetchall()
    assert [row[0] for row in got] == [row[0] for row in want] == list(range(3590))
    model = pipeline("text-classification", model=str(tiny_classifier_model), device="cpu")
    answers = model([row[1] for row in want[:300]], truncation=True, max_length=128)
    assert [row[1] for row in got[:300]] == [answer["label"] for answer in answers]
    assert np.allclose([row[2] for row in got[:300]], [answer["score"] for answer in answers], atol=1e-4)


def test_a_second_run_does_nothing_and_starts_no_ray(reference: JobFile) -> None:
    before = {path: path.stat().st_mtime_ns for path in parts(reference.sink)}
    runs = set((reference.state / "runs").iterdir())
    done = headrace("run", str(reference.path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 0
    assert {path: path.stat().st_mtime_ns for path in parts(reference.sink)} == before
    assert set((reference.state / "runs").iterdir()) == runs


@pytest.mark.parametrize("changes", [{"pools__cpu__workers": 1}, {"pools__cpu": {"workers": 1, "num_cpus": 2}}])
def test_the_bytes_do_not_depend_on_workers_or_threads(
    changes: dict[str, object], reference: JobFile, source: Path, classifier_artifact: Path, tmp_path: Path
) -> None:
    job = JobFile.write(tmp_path, classifier_artifact, source, **changes)
    assert headrace("run", str(job.path)).returncode == 0
    assert job.part_hashes() == reference.part_hashes()


def test_readers_agree_on_the_sink(reference: JobFile) -> None:
    folder = str(reference.sink)
    by_duckdb = duckdb.sql(f"select id, label, score, n_tokens from '{folder}/*.parquet' order by id").fetchall()
    assert (
        by_duckdb
        == duckdb.sql(f"select id, label, score, n_tokens from '{folder}/**/*.parquet' order by id").fetchall()
    )
    columns = ["id", "label", "score", "n_tokens"]
    by_polars = pl.read_parquet(folder).select(columns).sort("id").rows()
    by_pandas = pd.read_parquet(folder)[columns].sort_values("id").itertuples(index=False, name=None)
    by_pyarrow = ds.dataset(folder).to_table(columns).sort_by("id").to_pylist()
    assert by_duckdb == by_polars == list(by_pandas) == [tuple(row[name] for name in columns) for row in by_pyarrow]


def test_readers_agree_in_the_middle_of_a_run(source: Path, classifier_artifact: Path, tmp_path: Path) -> None:
    job = JobFile.write(tmp_path, classifier_artifact, source, shard_rows=256)
    run = start("run", str(job.path))
    polls = 0
    try:
        wait_until(lambda: parts(job.sink))
        while run.poll() is None:
            folder = str(job.sink)
            ids = [row[0] for row in duckdb.sql(f"select id from '{folder}/*.parquet'").fetchall()]
            assert len(ids) == len(set(ids))
            assert set(ids) <= set(pl.read_parquet(folder)["id"].to_list())
            assert (
                set(ids)
                <= set(pd.read_parquet(folder)["id"])
                <= set(ds.dataset(folder).to_table(["id"])["id"].to_pylist())
            )
            polls += 1
    finally:
        run.kill()
    assert polls and run.wait() == 0


def test_the_report_adds_up(reference: JobFile) -> None:
    (run,) = (reference.state / "runs").iterdir()
    summary = reference.newest_summary()
    workers = pq.read_table(run / "workers.parquet").to_pylist()
    shards = pq.read_table(run / "shards.parquet").to_pylist()
    assert summary["exit_code"] == 0 and summary["rows"] == 3590
    assert sum(row["rows"] for row in workers) == sum(row["rows_in"] for row in shards) == 3590
    assert sum(row["shards"] for row in workers) == len(shards) == len(parts(reference.sink))
    assert {row["variant"] for row in workers} <= {"cpu-vnni-int8", "cpu-avx2-int8", "cpu-arm64-int8"}
    assert all(row["peak_rss_bytes"] > 10_000_000 and 0 < row["padding_efficiency"] <= 1 for row in workers)
    tokens = duckdb.sql(f"select sum(n_tokens) from '{reference.sink}/*.parquet'").fetchall()[0][0]
    assert sum(row["tokens"] for row in workers) <= tokens  # equal texts of a window are scored once


def test_a_worker_of_an_encoder_job_never_imports_torch(classifier_artifact: Path, tmp_path: Path) -> None:
    """In a run through the Python interface, where the workers' last words can be looked at."""
    code = """
import json, sys
from headrace.jobs.driver import run_job
from headrace.jobs.loop import Loop
from headrace.jobs.spec import load_job
seen = []
original = Loop._ask_vitals
def asked(self):
    original(self)
    seen.extend(self.vitals.values())
Loop._ask_vitals = asked
result = run_job(load_job(sys.argv[1]))
print(json.dumps([result.exit_code, [list(v.modules) for v in seen], "torch" in sys.modules]))
"""
    import subprocess
    import sys

    from runs import environment

    job = JobFile.write(tmp_path, classifier_artifact, write_source(tmp_path / "in", [600]))
    done = subprocess.run(
        [sys.executable, "-c", code, str(job.path)], capture_output=True, text=True, env=environment(), check=True
    )
    exit_code, modules, driver_has_torch = json.loads(done.stdout)
    assert exit_code == 0 and modules and all(not names for names in modules)
    assert not driver_has_torch


def test_a_driver_beside_a_package_named_jobs(classifier_artifact: Path, tmp_path: Path) -> None:
    for name in ("jobs", "workers", "artifacts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong package')\n")
    job = JobFile.write(tmp_path, classifier_artifact, write_source(tmp_path / "in", [100]))
    done = headrace("run", str(job.path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_new_files_are_scored_and_changed_ones_replaced(classifier_artifact: Path, tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [1500, 300, 700])
    job = JobFile.write(tmp_path, classifier_artifact, source)
    assert headrace("run", str(job.path)).returncode == 0
    first = job.part_hashes()
    # One new file, and one of several parts rewritten with other rows and another number of parts.
    write_source(source, [400], seed=7, prefix="new-")
    table = pq.read_table(source / "0000.parquet").slice(100, 600)
    pq.write_table(table, source / "0000.parquet")
    done = headrace("run", str(job.path))
    assert done.returncode == 0, done.stderr
    got = sorted(row[0] for row in duckdb.sql(f"select id from '{job.sink}/*.parquet'").fetchall())
    want = sorted(row[0] for row in duckdb.sql(f"select id from '{source}/*.parquet'").fetchall())
    assert got == want
    kept = {name for name, digest in job.part_hashes().items() if first.get(name) == digest}
    assert 0 < len(kept) < len(first)
    fresh = JobFile.write(tmp_path / "fresh", classifier_artifact, source)
    assert headrace("run", str(fresh.path)).returncode == 0
    assert headrace("verify", str(job.sink)).returncode == 0


def test_another_fingerprint_is_refused_and_named(reference: JobFile) -> None:
    done = headrace("run", str(reference.path), "--set", "task.max_length=16")
    assert done.returncode == 2
    assert "max_length" in done.stderr and "hint:" in done.stderr and "on_change" in done.stderr
