"""A sink that can't be used is a usage error before anything is written; a check alone leaves no trace."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import s3fs
from parts import parquet, piece, publish, record
from s3_server import S3

from headrace.artifacts.errors import SinkError
from headrace.artifacts.storage import Folder
from headrace.jobs.lease import Lease
from headrace.jobs.ledger import Ledger
from headrace.jobs.sink import check, create, state_folder


def _pair(base: Path | str, name: str = "scores") -> tuple[Folder, Folder]:
    sink = Folder(f"{base}/{name}")
    return sink, state_folder(sink)


def test_a_new_sink(tmp_path: Path) -> None:
    sink, state = _pair(tmp_path / "lake" / "deep")
    check(sink, state, [str(tmp_path / "lake" / "emails")])
    assert list(tmp_path.iterdir()) == []  # only read so far
    create(sink, state)
    assert Path(sink.root).is_dir()
    assert Path(state.root).is_dir()
    assert sink.list() == state.list() == []
    check(sink, state)


def test_where_the_state_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert state_folder(Folder("scores")).root == str(tmp_path / "_headrace" / "scores")
    assert state_folder(Folder(f"{tmp_path}/scores/")).root == str(tmp_path / "_headrace" / "scores")
    assert state_folder(Folder("s3://bucket/a/scores")).url == "s3://bucket/a/_headrace/scores"
    assert state_folder(Folder("s3://bucket/scores"), "s3://other/state").url == "s3://other/state"
    with pytest.raises(SinkError, match="no parent folder") as refused:
        state_folder(Folder("s3://bucket"))
    assert refused.value.exit_code == 2
    assert refused.value.hint is not None
    assert "sink.state" in refused.value.hint


def test_a_sink_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    sink, state = _pair(tmp_path / "file")
    with pytest.raises(SinkError, match="is a file"):
        check(sink, state)
    with pytest.raises(SinkError, match="can't be written") as refused:
        create(sink, state)
    assert refused.value.exit_code == 2


def test_a_sink_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "scores").write_text("x")
    with pytest.raises(SinkError, match="is a file"):
        check(*_pair(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_parent(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    with pytest.raises(SinkError, match="no permission to write"):
        check(*_pair(closed))
    with pytest.raises(SinkError, match="can't be written"):
        create(*_pair(closed))


def test_no_permission_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user who is not root."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SinkError, match="no permission to write"):
        check(*_pair(tmp_path))


def test_state_on_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, state = _pair(tmp_path)
    (tmp_path / "scores").mkdir()
    real = Path.stat

    def mounted(self: Path, **options: bool) -> os.stat_result | SimpleNamespace:
        found = real(self, **options)
        return SimpleNamespace(st_dev=found.st_dev + 1, st_mode=found.st_mode) if self.name == "scores" else found

    monkeypatch.setattr(Path, "stat", mounted)
    with pytest.raises(SinkError, match="another file system") as refused:
        check(sink, state)
    assert refused.value.hint is not None
    assert "one folder down" in refused.value.hint


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second file system")
def test_state_in_shared_memory(tmp_path: Path) -> None:
    if Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("one file system")
    with pytest.raises(SinkError, match="another file system"):
        check(Folder(f"{tmp_path}/scores"), Folder("/dev/shm/headrace-not-made"))


def test_a_local_sink_needs_a_local_state(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="on that disk"):
        check(Folder(f"{tmp_path}/scores"), Folder("memory://state"))


@pytest.mark.parametrize("state", ["scores", "scores/_state", ""])
def test_sink_and_state_inside_one_another(tmp_path: Path, state: str) -> None:
    with pytest.raises(SinkError, match="sink and state"):
        check(Folder(f"{tmp_path}/scores"), Folder(f"{tmp_path}/{state}"))


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("emails", False),
        ("scores-old", False),
        ("scores", True),
        ("scores/", True),
        ("scores/month=1", True),
        ("", True),
        ("*.parquet", False),
        ("emails/*", False),
        ("*", True),
        ("*/month=1/*.parquet", True),
        ("**/*.parquet", True),
        ("emails/**/*.parquet", False),
        ("emails/../scores", True),
        ("link", True),
    ],
)
def test_sink_and_source_inside_one_another(tmp_path: Path, source: str, refused: bool) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "scores")
    sink, state = _pair(tmp_path)
    sources = [str(tmp_path / "letters"), f"{tmp_path}/{source}"]
    if refused:
        with pytest.raises(SinkError, match="sink and source"):
            check(sink, state, sources)
    else:
        check(sink, state, sources)


def test_a_state_inside_the_source(tmp_path: Path) -> None:
    sink, source = Folder(f"{tmp_path}/scores"), [f"{tmp_path}/emails"]
    with pytest.raises(SinkError, match="state and source"):
        check(sink, Folder(f"{tmp_path}/emails/state"), source)
    check(sink, Folder(f"{tmp_path}/emails/_state"), source)  # a listing passes it over


def test_another_store_is_never_inside(s3: S3, tmp_path: Path) -> None:
    sink, state = _pair(tmp_path)
    check(sink, state, [s3.url("emails")], s3.options)


def test_foreign_files(tmp_path: Path) -> None:
    sink, state = _pair(tmp_path)
    sink.write("month=1/data.parquet", parquet(pa.table({"x": [1]})))
    with pytest.raises(SinkError, match="holds files that headrace did not write") as refused:
        check(sink, state)
    assert "month=1/data.parquet" in refused.value.message
    Lease.acquire(state, "run-1", beat_s=60).release()
    with pytest.raises(SinkError, match="did not write"):
        check(sink, state)


def test_parts_whose_state_is_gone(tmp_path: Path) -> None:
    sink, state = _pair(tmp_path)
    made = publish(sink, state, record(piece("a")))
    with pytest.raises(SinkError, match="its state is not there") as refused:
        check(sink, state)
    assert refused.value.hint is not None
    assert "headrace repair" in refused.value.hint
    ledger = Ledger(state, 1)
    ledger.append_part(made)
    ledger.flush()
    check(sink, state)
    sink.write("notes.txt", b"?")  # from here on it is for the run to report
    check(sink, state)


def test_parts_of_a_first_run_that_died_at_once(tmp_path: Path) -> None:
    """Published, but its ledger was not flushed yet: the next run takes over."""
    sink, state = _pair(tmp_path)
    publish(sink, state, record(piece("a")))
    Lease.acquire(state, "run-1", beat_s=60)
    check(sink, state)


def test_marks_are_no_foreign_files(tmp_path: Path) -> None:
    sink, state = _pair(tmp_path)
    for key in ("_SUCCESS", "month=1/_SUCCESS", ".keep"):
        sink.write(key, b"")
    check(sink, state)


def test_on_s3(s3: S3) -> None:
    base = s3.url("lake")
    sink = Folder(f"{base}/scores", s3.options)
    state = state_folder(sink)
    check(sink, state, [f"{base}/emails"], s3.options)
    create(sink, state)
    assert Folder(base, s3.options).list() == []
    uploads = s3fs.S3FileSystem(**s3.options).call_s3("list_multipart_uploads", Bucket=sink.root.split("/")[0])
    assert not uploads.get("Uploads")
    with pytest.raises(SinkError, match="sink and source"):
        check(sink, state, [f"{base}/*/"], s3.options)
    sink.write("x.parquet", b"?")
    with pytest.raises(SinkError, match="did not write"):
        check(sink, state)


def test_a_bucket_that_is_not_there(s3: S3) -> None:
    sink = Folder("s3://no-such-bucket/lake/scores", s3.options)
    check(sink, state_folder(sink))
    with pytest.raises(SinkError, match="can't be written") as refused:
        create(sink, state_folder(sink))
    assert refused.value.exit_code == 2
    assert "test" not in str(refused.value.message).split("no-such-bucket")[0]


def test_a_store_that_can_not_be_reached(tmp_path: Path) -> None:
    options = {
        "key": "k",
        "secret": "s",
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:9", "region_name": "us-east-1"},
        "config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 1},
    }
    sink = Folder("s3://bucket/lake/scores", options)
    s3fs.S3FileSystem(**options).retries = 1
    with pytest.raises(SinkError, match="can't be written"):
        create(sink, state_folder(sink))
