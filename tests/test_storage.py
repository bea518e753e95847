"""Folders on a local disk and on S3: the same promises."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import s3fs
from s3_server import S3

from headrace.artifacts.errors import HeadraceError, TransientError, UsageError
from headrace.artifacts.storage import Folder, is_local


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "local":
        return Folder(str(tmp_path / "store"))
    s3: S3 = request.getfixturevalue("s3")
    return Folder(s3.url("store"), s3.options)


@pytest.fixture
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Not in the environment, not in this machine's files, and no instance to ask."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    yield
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_missing_folder_lists_as_empty(folder: Folder) -> None:
    assert folder.list() == []
    assert folder.list("lease") == []
    assert not folder.exists("lease/1.json")
    with pytest.raises(FileNotFoundError):
        folder.read("lease/1.json")
    with pytest.raises(FileNotFoundError):
        folder.open("lease/1.json")
    folder.delete("lease/1.json")


def test_write_replaces(folder: Folder) -> None:
    folder.write("a/b.txt", b"one")
    first = folder.list()
    folder.write("a/b.txt", b"three")
    assert folder.read("a/b.txt") == b"three"
    with folder.open("a/b.txt") as file:
        assert file.read() == b"three"
    [entry] = folder.list()
    assert (entry.key, entry.size_bytes) == ("a/b.txt", 5)
    assert entry.version != first[0].version
    assert entry.modified_s >= first[0].modified_s > 1.6e9


def test_create_only_where_absent(folder: Folder) -> None:
    assert folder.create("lease/1.json", b"mine")
    assert not folder.create("lease/1.json", b"theirs")
    assert folder.read("lease/1.json") == b"mine"
    folder.delete("lease/1.json")
    assert folder.create("lease/1.json", b"theirs")
    assert [entry.key for entry in folder.list()] == ["lease/1.json"]


def test_of_many_creators_one_wins(folder: Folder) -> None:
    start = threading.Barrier(8)

    def create(number: int) -> bool:
        start.wait()
        return folder.create("lease/7.json", str(number).encode())

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert sum(won) == 1
    assert folder.read("lease/7.json") == str(won.index(True)).encode()


def test_listing_sees_what_another_wrote(folder: Folder) -> None:
    """Nothing is remembered from one look to the next, not even that there was nothing."""
    other = pickle.loads(pickle.dumps(folder))
    assert other.list("x") == []
    assert not other.exists("x/1")
    folder.write("x/1", b"1")
    assert other.exists("x/1")
    assert [entry.key for entry in other.list("x")] == ["x/1"]
    folder.write("x/1", b"longer now")
    with other.open("x/1") as file:
        assert file.read() == b"longer now"
    folder.delete("x/1")
    assert other.list("x") == []
    assert not other.exists("x/1")


def test_list_is_sorted_and_below_the_prefix(folder: Folder) -> None:
    for key in ("b/2", "b/1", "a/9", "bb/3", "b/c/4"):
        folder.write(key, key.encode())
    assert [entry.key for entry in folder.list("b")] == ["b/1", "b/2", "b/c/4"]
    assert [entry.key for entry in folder.list()] == ["a/9", "b/1", "b/2", "b/c/4", "bb/3"]
    assert folder.read_many(["b/2", "a/9", "b/1"]) == {"b/2": b"b/2", "a/9": b"a/9", "b/1": b"b/1"}
    with pytest.raises(FileNotFoundError):
        folder.read_many(["b/1", "b/0"])
    folder.delete_many(["b/1", "b/0", "b/c/4"])
    assert [entry.key for entry in folder.list("b")] == ["b/2"]


def test_what_a_crash_left_is_not_listed(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.write("ledger/1.arrow", b"x")
    (tmp_path / "ledger" / f".2.arrow.{'0' * 32}").write_bytes(b"half")
    (tmp_path / "ledger" / ".hidden").write_bytes(b"a person's own")
    assert [entry.key for entry in folder.list()] == ["ledger/.hidden", "ledger/1.arrow"]


def test_writing_leaves_no_temporary_file(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.write("a", b"1")
    folder.create("b", b"1")
    folder.create("b", b"2")
    (tmp_path / "c").mkdir()
    with pytest.raises(HeadraceError, match=str(tmp_path / "c")):  # a folder is in the way; how is the system's affair
        folder.write("c", b"1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_create_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    folder = Folder(str(tmp_path))
    assert folder.create("a", b"1")
    assert not folder.create("a", b"2")
    assert folder.read("a") == b"1"


def test_links_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.parquet").write_bytes(b"1")
    top = tmp_path / "top"
    top.mkdir()
    (top / "linked").symlink_to(tmp_path / "real")
    (top / "circle").symlink_to(top)
    (top / "nothing").symlink_to(tmp_path / "missing")
    assert [entry.key for entry in Folder(str(top)).list()] == ["linked/a.parquet"]


def test_a_file_lists_as_itself(folder: Folder) -> None:
    folder.write("a/b", b"12")
    assert [(entry.key, entry.size_bytes) for entry in folder.list("a/b")] == [("a/b", 2)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_an_unreadable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o000)
    with pytest.raises(PermissionError):
        Folder(str(tmp_path)).list()


def test_local_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relative, url = Folder("store"), Folder(f"file://{tmp_path}/store")
    assert relative.is_local
    assert url.is_local
    relative.write("a", b"1")
    assert url.read("a") == b"1"
    assert relative.root == url.root == str(tmp_path / "store")


@pytest.mark.parametrize(
    ("url", "local"),
    [("a/b", True), ("/a/b", True), ("file:///a", True), ("local:///a", True), ("s3://a/b", False),
     ("memory://a", False), ("zip://x.parquet::/a/b.zip", False), ("simplecache::s3://a/b", False)],
)  # fmt: skip
def test_which_urls_are_local(url: str, local: bool) -> None:
    assert is_local(url) is Folder(url).is_local is local


def test_options_are_not_shown(s3: S3) -> None:
    assert "secret" not in repr(Folder("s3://bucket/x", s3.options))


def test_directory_markers_are_not_files(s3: S3) -> None:
    folder = Folder(s3.url("store"), s3.options)
    folder.write("a/b", b"1")
    s3fs.S3FileSystem(**s3.options).call_s3("put_object", Bucket=folder.root.split("/")[0], Key="store/a/", Body=b"")
    assert [entry.key for entry in folder.list()] == ["a/b"]


def test_a_missing_bucket_lists_as_empty(s3: S3) -> None:
    assert Folder("s3://no-such-bucket/x", s3.options).list() == []


def test_unfinished_uploads_are_aborted(s3: S3) -> None:
    folder = Folder(s3.url("sink"), s3.options)
    bucket = folder.root.split("/")[0]
    fs = s3fs.S3FileSystem(**s3.options)
    for key in ("sink/part-1.parquet", "sink/m=1/part-2.parquet", "sink-of-another/part-3.parquet"):
        fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    assert folder.abort_uploads() == 2
    left = fs.call_s3("list_multipart_uploads", Bucket=bucket)["Uploads"]
    assert [upload["Key"] for upload in left] == ["sink-of-another/part-3.parquet"]
    assert folder.abort_uploads() == 0


def test_uploads_on_a_local_disk(tmp_path: Path) -> None:
    assert Folder(str(tmp_path)).abort_uploads() == 0


class _BusyStore:
    """Answers as S3 does while another conditional write of the same key is under way."""

    def __init__(self, code: str, times: int) -> None:
        self.code, self.times = code, times

    def pipe_file(self, *_: object, **__: object) -> None:
        if self.times:
            self.times -= 1
            cause = RuntimeError()
            cause.response = {"Error": {"Code": self.code}}  # type: ignore[attr-defined]
            raise OSError("refused") from cause


@pytest.mark.parametrize(
    ("code", "times", "made"),
    [("ConditionalRequestConflict", 2, True), ("PreconditionFailed", 1, False), ("412", 1, False)],
)
def test_conflicting_creations(code: str, times: int, made: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Folder, "fs", _BusyStore(code, times))
    monkeypatch.setattr(Folder, "root", "bucket")
    assert Folder("s3://bucket").create("a", b"1") is made


def test_a_conflict_that_does_not_end_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Folder, "fs", _BusyStore("ConditionalRequestConflict", 99))
    monkeypatch.setattr(Folder, "root", "bucket")
    with pytest.raises(TransientError):
        Folder("s3://bucket").create("a", b"1")
    monkeypatch.setattr(Folder, "fs", _BusyStore("InternalError", 99))
    with pytest.raises(TransientError, match="can't write bucket/a: OSError: refused"):
        Folder("s3://bucket").create("a", b"1")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device of a full disk")
@pytest.mark.parametrize("method", [Folder.write, Folder.create])
def test_a_full_disk_is_told_with_the_path(method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda _path, mode: opened(Path("/dev/full"), mode))
    with pytest.raises(TransientError, match=f"can't write {tmp_path}/a: No space left on device") as caught:
        method(Folder(str(tmp_path)), "a", b"1")
    assert "Free some space" in str(caught.value.hint)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.message, again.hint) == (caught.value.message, caught.value.hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", [Folder.write, Folder.create])
def test_a_file_where_a_folder_belongs_is_a_usage_error(method: Any, tmp_path: Path) -> None:
    (tmp_path / "lease").write_text("")
    for key in ("lease/1.json", "lease/deeper/1.json"):
        with pytest.raises(UsageError, match=key) as caught:
            method(Folder(str(tmp_path)), key, b"1")
        assert "in the way" in str(caught.value.hint)


@pytest.mark.parametrize(
    "call",
    [
        Folder.list, Folder.abort_uploads, lambda folder: folder.read("a"), lambda folder: folder.open("a"),
        lambda folder: folder.exists("a"), lambda folder: folder.write("a", b"1"),
        lambda folder: folder.create("a", b"1"), lambda folder: folder.delete("a"),
        lambda folder: folder.read_many(["a", "b"]), lambda folder: folder.delete_many(["a", "b"]),
    ],
    ids=["list", "abort", "read", "open", "exists", "write", "create", "delete", "read_many", "delete_many"],
)  # fmt: skip
def test_no_credentials(call: Callable[[Folder], object], no_credentials: None) -> None:
    with pytest.raises(UsageError, match=r"no credentials for .*no-such-bucket.*: NoCredentialsError") as caught:
        call(Folder("s3://no-such-bucket/x"))
    assert "AWS_ACCESS_KEY_ID" in str(caught.value.hint)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), UsageError)
