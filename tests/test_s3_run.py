"""Source, artifact, sink and state on an object store: a real S3 server over HTTP, credentials from the environment."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import s3fs
from runs import JobFile, headrace, start, wait_until, write_source
from s3_server import S3

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


@pytest.fixture
def store(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3fs.S3FileSystem]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.options["client_kwargs"]["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield s3fs.S3FileSystem(**s3.options)
    s3fs.S3FileSystem.clear_instance_cache()


def hashes(store: s3fs.S3FileSystem, sink: str) -> dict[str, str]:
    store.invalidate_cache()
    below = len(sink.removeprefix("s3://"))
    return {key[below:]: hashlib.sha256(store.cat_file(key)).hexdigest() for key in store.find(sink)}


def ids(store: s3fs.S3FileSystem, sink: str) -> list[int]:
    store.invalidate_cache()
    return sorted(value for key in store.find(sink) for value in pq.read_table(key, filesystem=store)["id"].to_pylist())


def test_a_killed_run_on_an_object_store_ends_as_an_undisturbed_one(
    store: s3fs.S3FileSystem, s3: S3, classifier_artifact: Path, tmp_path: Path
) -> None:
    lake = s3.url("lake")
    write_source(tmp_path / "in", [1500, 900, 40, 30])
    store.put(str(tmp_path / "in") + "/", f"{lake}/in/", recursive=True)
    store.put(str(classifier_artifact) + "/", f"{lake}/model/", recursive=True)
    slow: dict[str, Any] = {"batch_tokens": 24, "shard_rows": 128, "window_rows": 64}
    undisturbed, killed = (
        JobFile.write(tmp_path, f"{lake}/model", f"{lake}/in", name=name, sink__path=f"{lake}/{name}/scores", **slow)
        for name in ("undisturbed", "killed")
    )
    done = headrace("run", str(undisturbed.path))
    assert done.returncode == 0, done.stderr
    assert ids(store, f"{lake}/undisturbed/scores") == list(range(2470))

    run = start("run", str(killed.path))
    wait_until(lambda: len(hashes(store, f"{lake}/killed/scores")) >= 4)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    assert len(hashes(store, f"{lake}/killed/scores")) < len(hashes(store, f"{lake}/undisturbed/scores"))
    done = headrace("run", str(killed.path))
    assert done.returncode == 0, done.stderr
    assert hashes(store, f"{lake}/killed/scores") == hashes(store, f"{lake}/undisturbed/scores")

    verified = headrace("verify", f"{lake}/killed/scores")
    assert verified.returncode == 0, verified.stderr
    assert "2,470 rows" in verified.stdout
    status = headrace("status", f"{lake}/killed/scores")
    assert status.returncode == 0 and "done" in status.stdout
    again = headrace("run", str(killed.path))
    assert again.returncode == 0 and "nothing to do" in again.stdout
    for told in (done, verified, status, again):
        assert "secret" not in (told.stdout + told.stderr).lower()


def test_changed_files_are_replaced_on_an_object_store(
    store: s3fs.S3FileSystem, s3: S3, classifier_artifact: Path, tmp_path: Path
) -> None:
    lake = s3.url("lake")
    write_source(tmp_path / "in", [1500, 200])
    store.put(str(tmp_path / "in") + "/", f"{lake}/in/", recursive=True)
    job = JobFile.write(tmp_path, classifier_artifact, f"{lake}/in", sink__path=f"{lake}/out/scores")
    assert headrace("run", str(job.path)).returncode == 0
    table = pq.read_table(tmp_path / "in" / "0000.parquet").slice(300, 700)
    pq.write_table(table, tmp_path / "in" / "0000.parquet")
    store.put_file(str(tmp_path / "in" / "0000.parquet"), f"{lake}/in/0000.parquet")
    done = headrace("run", str(job.path))
    assert done.returncode == 0, done.stderr
    assert ids(store, f"{lake}/out/scores") == [*range(300, 1000), *range(1500, 1700)]
    assert headrace("verify", f"{lake}/out/scores").returncode == 0
