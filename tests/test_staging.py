"""Staged is not visible, published is whole, discarded leaves nothing: on a local disk and on S3 over HTTP."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.artifacts.errors import SinkError
from headrace.artifacts.storage import Folder
from headrace.workers import paths
from headrace.workers.footer import Footer, runtime_versions
from headrace.workers.part import PartWriter
from headrace.workers.quarantine import decode
from headrace.workers.shard import BadRow, Counts, FileIdentity, Grant, Piece
from headrace.workers.staging import Stager

SHARD = "a" * 20
PARTITION = "month=2002-08"
KEY = paths.part(PARTITION, SHARD)
FILE = FileIdentity("/lake/a.parquet", 10, "v1")
FOOTER = Footer(
    versions=runtime_versions(), artifact="a", variant="cpu-fp32", precision="fp32", instruction_set="avx2",
    fingerprint="f", batching="budget", pieces=(Piece(FILE, 0, 3),), counts=Counts(3, 3),
)  # fmt: skip
BAD = BadRow(FILE, 2, "text", "text is not UTF-8", "0" * 32)


class Place:
    """A sink and its state, and the workers that stage there."""

    def __init__(self, folder: Callable[[str], Folder]) -> None:
        self.sink, self.state = folder("scores"), folder("_headrace/scores")

    def worker(self) -> Stager:
        return Stager(self.sink, self.state)

    def keys(self) -> list[str]:
        return [entry.key for entry in self.sink.list()]

    def rows(self) -> list[int]:
        with self.sink.open(KEY) as file:
            return list(pq.read_table(file).column("id").to_pylist())

    def quarantined(self) -> list[BadRow]:
        key = paths.quarantine_rows(SHARD)
        return decode(self.state.read(key)) if self.state.exists(key) else []

    def leftovers(self) -> list[str]:
        """Staged files, uploads that were never completed."""
        found = [entry.key for entry in self.state.list(paths.TMP)]
        if not self.sink.is_local:
            bucket = self.sink.root.split("/")[0]
            found += [
                u["Key"] for u in self.sink.fs.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads", [])
            ]
        return found


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(lambda name: Folder(str(tmp_path / name)))
    s3 = request.getfixturevalue("s3")
    root = s3.url("lake")
    return Place(lambda name: Folder(f"{root}/{name}", s3.options))


def stage(
    worker: Stager,
    rows: int = 3,
    attempt: int = 1,
    footer: Footer = FOOTER,
    bad: tuple[BadRow, ...] = (),
    epoch: int = 1,
) -> int:
    writer = PartWriter(
        worker.begin(SHARD, PARTITION, epoch, attempt), pa.schema([("id", pa.int64()), ("x", pa.binary())])
    )
    payload = [os.urandom(2000) for _ in range(rows)]
    writer.write(pa.table({"id": pa.array(range(rows), pa.int64()), "x": pa.array(payload, pa.binary())}))
    writer.close(footer)
    return worker.finish(SHARD, attempt, footer, bad)


def grant(attempt: int = 1, epoch: int = 1, in_s: float = 10.0) -> Grant:
    return Grant(SHARD, attempt, epoch, time.monotonic() + in_s)


def test_staged_is_invisible_and_published_is_whole(place: Place) -> None:
    worker = place.worker()
    size_bytes = stage(worker)
    assert place.keys() == []
    assert worker.publish(grant())
    (entry,) = place.sink.list()
    assert (entry.key, entry.size_bytes) == (KEY, size_bytes)
    assert place.rows() == [0, 1, 2]
    assert place.leftovers() == []
    assert not worker.publish(grant()), "a grant holds once"


def test_a_part_of_several_upload_blocks(place: Place) -> None:
    """More than two blocks of 8 MiB: on S3 a multipart upload that is completed at once."""
    worker = place.worker()
    size_bytes = stage(worker, rows=9000)
    assert size_bytes > 17_000_000
    assert place.keys() == []
    assert worker.publish(grant())
    assert place.sink.list()[0].size_bytes == size_bytes
    assert place.leftovers() == []


@pytest.mark.parametrize("rows", [3, 9000])
def test_discarded_leaves_nothing(place: Place, rows: int) -> None:
    worker = place.worker()
    stage(worker, rows)
    worker.discard(SHARD, 1)
    worker.discard(SHARD, 1)
    worker.discard("unknown", 7)
    assert not worker.publish(grant())
    assert (place.keys(), place.leftovers()) == ([], [])


def test_a_half_written_attempt_can_be_thrown_away_and_begun_again(place: Place) -> None:
    worker = place.worker()
    worker.begin(SHARD, PARTITION, 1, 1).write(b"half" * 3_000_000)
    stage(worker, rows=2)
    assert worker.publish(grant())
    assert place.rows() == [0, 1]
    assert place.leftovers() == []


def test_a_late_grant_publishes_nothing(place: Place) -> None:
    worker = place.worker()
    stage(worker, bad=(BAD,))
    assert not worker.publish(grant(in_s=-0.001))
    assert (place.keys(), place.leftovers(), place.quarantined()) == ([], [], [])


def test_a_later_epoch_publishes_instead(place: Place) -> None:
    """A worker that was frozen wakes up after another run has taken over."""
    frozen, successor = place.worker(), place.worker()
    stage(frozen, rows=1)
    place.state.write(paths.lease(1), json.dumps({"epoch": 1}).encode())
    place.state.write(paths.lease(2), json.dumps({"epoch": 2}).encode())
    stage(successor, rows=3, epoch=2)
    assert successor.publish(grant(epoch=2))
    assert not frozen.publish(grant(epoch=1))
    assert place.rows() == [0, 1, 2]


def test_the_own_epoch_and_older_ones_do_not_stop_it(place: Place) -> None:
    for epoch in (1, 2, 3):
        place.state.write(paths.lease(epoch), b"{}")
    worker = place.worker()
    stage(worker, epoch=3)
    assert worker.publish(grant(epoch=3))


def test_a_part_that_is_there_is_replaced(place: Place) -> None:
    worker = place.worker()
    stage(worker, rows=3)
    assert worker.publish(grant())
    stage(worker, rows=5, attempt=2)
    assert place.rows() == [0, 1, 2]
    assert worker.publish(grant(attempt=2))
    assert place.rows() == [0, 1, 2, 3, 4]


def test_quarantined_rows_come_with_the_part_and_go_with_it(place: Place) -> None:
    worker = place.worker()
    stage(worker, bad=(BAD,))
    assert place.quarantined() == []
    assert worker.publish(grant())
    assert place.quarantined() == [BAD]
    stage(worker, attempt=2)
    assert worker.publish(grant(attempt=2))
    assert place.quarantined() == []


@pytest.fixture
def strict_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 answers 404 NoSuchUpload for an upload that was aborted; moto has an internal error."""
    from moto.s3.exceptions import NoSuchUpload
    from moto.s3.models import S3Backend

    original = S3Backend.complete_multipart_upload

    def complete(self: S3Backend, bucket_name: str, multipart_id: str, body: Any) -> Any:
        if multipart_id not in self.get_bucket(bucket_name).multiparts:
            raise NoSuchUpload(upload_id=multipart_id)
        return original(self, bucket_name, multipart_id, body)

    monkeypatch.setattr(S3Backend, "complete_multipart_upload", complete)


@pytest.mark.usefixtures("strict_completion")
def test_staged_bytes_that_were_cleaned_up(place: Place) -> None:
    worker = place.worker()
    stage(worker, rows=9000)
    for entry in place.state.list(paths.TMP):
        place.state.delete(entry.key)
    place.sink.abort_uploads()
    assert not worker.publish(grant())
    assert place.keys() == []


def test_no_folder_is_made_on_an_object_store(s3: Any) -> None:
    root = s3.url("lake")
    place = Place(lambda name: Folder(f"{root}/{name}", s3.options))
    stage(place.worker())
    bucket = place.sink.root.split("/")[0]
    assert "Contents" not in place.sink.fs.call_s3("list_objects_v2", Bucket=bucket)


@pytest.mark.parametrize("rows", [3, 9000])
def test_two_first_publications_on_an_object_store(s3: Any, rows: int) -> None:
    """Created only if absent: the second meets the first. The same work counts as published, another's stays."""
    root = s3.url("lake")
    place = Place(lambda name: Folder(f"{root}/{name}", s3.options))
    first, same, other = place.worker(), place.worker(), place.worker()
    stage(first, rows)
    stage(same, rows + 1, attempt=2)
    stage(other, rows + 2, attempt=3, footer=replace(FOOTER, fingerprint="other"))
    assert first.publish(grant())
    assert same.publish(grant(attempt=2))
    assert not other.publish(grant(attempt=3))
    assert place.rows() == list(range(rows))
    assert place.leftovers() == []


def test_published_from_another_thread(place: Place) -> None:
    worker = place.worker()
    stage(worker)
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(worker.publish(grant()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False, False, False, True]
    assert place.rows() == [0, 1, 2]


def test_a_local_sink_wants_a_local_state(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="state must be on the sink's own file system") as caught:
        Stager(Folder(str(tmp_path)), Folder("memory://state"))
    assert caught.value.hint


def test_another_file_system(tmp_path: Path) -> None:
    """Renaming across file systems is not atomic: it is refused."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    state = shm / f"headrace-test-{os.getpid()}"
    worker = Stager(Folder(str(tmp_path / "scores")), Folder(str(state)))
    stage(worker)
    try:
        with pytest.raises(SinkError, match="different file systems"):
            worker.publish(grant())
        assert list(state.rglob("*.parquet")) == []
    finally:
        for path in sorted(state.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        state.rmdir()
