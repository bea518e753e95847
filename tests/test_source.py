"""Listing a source: files, folders, globs, lists, local and remote; what is passed over and what is refused."""

from __future__ import annotations

import http.server
import os
import socket
import threading
from pathlib import Path

import fsspec
import pytest

from headrace.artifacts.errors import HeadraceError, SourceError, TransientError
from headrace.jobs.source import Listing, list_source


def make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def below(listing: Listing, root: Path | str) -> list[str]:
    return [file.identity.path.removeprefix(f"{root}/") for file in listing.files]


DATA = ["b.parquet", "a.snappy.parquet", "month=2002-08/c.PQ", "month=2002-08/lang=e%20n/d.parq", "deep/er/e.parquet"]
PASSED_OVER = [
    "_SUCCESS", "_temporary/0/x.parquet", ".hidden/x.parquet", ".part.parquet.crc", "month=2002-08/_x.parquet", "a.csv",
    "b.parquet.tmp",
]  # fmt: skip


def test_a_folder(tmp_path: Path) -> None:
    listing = list_source([str(make(tmp_path, *DATA, *PASSED_OVER))])
    assert below(listing, tmp_path) == sorted(DATA)
    partitions = {file.identity.path.removeprefix(f"{tmp_path}/"): file.partition for file in listing.files}
    assert partitions["month=2002-08/c.PQ"] == "month=2002-08"
    assert partitions["month=2002-08/lang=e%20n/d.parq"] == "month=2002-08/lang=e%20n"
    assert partitions["deep/er/e.parquet"] == partitions["b.parquet"] == ""
    assert set(listing.partition_keys) == {"month", "lang"}


def test_the_identity_is_size_and_mtime(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet")
    os.utime(tmp_path / "a.parquet", ns=(5, 1234567890123456789))
    (file,) = list_source([str(tmp_path)]).files
    assert (file.identity.size_bytes, file.identity.version) == (9, "1234567890123456789")


def test_a_named_file_is_taken_whatever_it_is_called(tmp_path: Path) -> None:
    make(tmp_path, "month=1/_odd.data")
    (file,) = list_source([str(tmp_path / "month=1/_odd.data")]).files
    assert file.partition == ""


def test_globs(tmp_path: Path) -> None:
    make(
        tmp_path, "x/month=1/a.parquet", "x/month=2/b.parquet", "x/month=2/_c.parquet", "x/month=3/d.parquet", "x/e.txt"
    )
    found = list_source([f"{tmp_path}/x/month=[12]/*.parquet"])
    assert below(found, tmp_path) == ["x/month=1/a.parquet", "x/month=2/b.parquet"]
    assert [file.partition for file in found.files] == ["month=1", "month=2"]
    folders = list_source([f"{tmp_path}/x/month=*"])
    assert [file.partition for file in folders.files] == ["month=1", "month=2", "month=3"]
    assert len(list_source([f"{tmp_path}/**/*.parquet"]).files) == 3
    make(tmp_path, "x/f.dat", "x/[odd].parquet")
    assert below(list_source([f"{tmp_path}/x/*.dat"]), tmp_path) == ["x/f.dat"]
    assert below(list_source([f"{tmp_path}/x/*"]), tmp_path)[0] == "x/[odd].parquet"
    assert below(list_source([f"{tmp_path}/x/[odd].parquet"]), tmp_path) == ["x/[odd].parquet"]


def test_a_list_holds_each_file_once_and_sorted(tmp_path: Path) -> None:
    make(tmp_path, "b/x.parquet", "a/y.parquet")
    listing = list_source([f"{tmp_path}/b", f"{tmp_path}/a", f"{tmp_path}/a/y.parquet", f"{tmp_path}/*/x.parquet"])
    assert below(listing, tmp_path) == ["a/y.parquet", "b/x.parquet"]


def test_what_a_listing_covers(tmp_path: Path) -> None:
    make(tmp_path, "m=1/a.parquet", "n.parquet")
    folder = list_source([str(tmp_path / "m=1")])
    assert folder.covers(f"{tmp_path}/m=1/gone.parquet")
    assert not folder.covers(f"{tmp_path}/m=10/gone.parquet") and not folder.covers(f"{tmp_path}/n.parquet")
    assert list_source([f"{tmp_path}/m=*"]).covers(f"{tmp_path}/m=2/x/gone.parquet")
    files = list_source([f"{tmp_path}/m=?/*.parquet"])
    assert files.covers(f"{tmp_path}/m=2/gone.parquet") and not files.covers(f"{tmp_path}/m=22/gone.parquet")
    assert list_source([f"{tmp_path}/**/*.parquet"]).covers(f"{tmp_path}/x/y/gone.parquet")
    assert list_source([f"{tmp_path}/**/*.parquet"]).covers(f"{tmp_path}/gone.parquet")
    assert not list_source([f"{tmp_path}/n.parquet"]).covers(f"{tmp_path}/m=1/a.parquet")


def test_a_folder_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    make(tmp_path, "data[1]/a.parquet", "data?/*.parquet", "data1/b.parquet")
    memory = fsspec.filesystem("memory")
    memory.pipe("/odd/data[1]/a.parquet", b"x")
    for root, listing in (
        (str(tmp_path), list_source([f"{tmp_path}/data[1]/"])),
        ("memory:///odd", list_source(["memory://odd/data[1]/"])),
    ):
        assert below(listing, root) == ["data[1]/a.parquet"]
        assert listing.covers(f"{root}/data[1]/gone.parquet") and not listing.covers(f"{root}/data1/gone.parquet")
    named = list_source([f"{tmp_path}/data?/*.parquet"])
    assert below(named, tmp_path) == ["data?/*.parquet"] and not named.covers(f"{tmp_path}/data1/b.parquet")
    glob = list_source([f"{tmp_path}/data[0-9]/*"])
    assert below(glob, tmp_path) == ["data1/b.parquet"] and glob.covers(f"{tmp_path}/data2/gone.parquet")


@pytest.mark.parametrize(
    ("names", "path", "words"),
    [
        (["a.parquet"], "nowhere", "no such file"),
        (["a.parquet"], "b*.parquet", "no data files"),
        (["a.txt", "_x.parquet"], "", "no data files"),
        (["a.parquet", "_delta_log/0.json"], "", "Delta"),
        (["a.parquet", "_delta_log/0.json"], "*.parquet", "Delta"),
        (["below/a.parquet", "below/_delta_log/0.json"], "", "Delta"),
        (["data/a.parquet", "metadata/v1.metadata.json"], "", "Iceberg"),
        (["data/a.parquet", "metadata/v1.metadata.json"], "d*/*.parquet", "Iceberg"),
        (["a.parquet", ".hoodie/x"], "", "Hudi"),
    ],
)
def test_what_is_refused(names: list[str], path: str, words: str, tmp_path: Path) -> None:
    make(tmp_path, *names)
    with pytest.raises(SourceError, match=words) as caught:
        list_source([str(tmp_path / path)])
    assert caught.value.hint and str(tmp_path) in str(caught.value)
    remote = fsspec.filesystem("memory")
    root = f"/refused{tmp_path}"
    for name in names:
        remote.pipe(f"{root}/{name}", b"x")
    with pytest.raises(SourceError, match=words):
        list_source([f"memory:/{root}/{path}"])


def test_behind_a_url_it_is_the_same(tmp_path: Path) -> None:
    make(tmp_path, *DATA, *PASSED_OVER)
    memory = fsspec.filesystem("memory")
    for name in (*DATA, *PASSED_OVER):
        memory.pipe(f"/listed/x/{name}", name.encode())
    for pattern in ("", "*", "month=*", "month=*/*.PQ", "**/*.parquet", "b.parquet"):
        ours = list_source([f"memory://listed/x/{pattern}"])
        local = list_source([f"{tmp_path}/{pattern}"])
        assert below(ours, "memory:///listed/x") == below(local, tmp_path)
        assert [file.partition for file in ours.files] == [file.partition for file in local.files]
        assert all(ours.covers(file.identity.path) and file.identity.size_bytes for file in ours.files)


def test_unknown_kinds_of_url() -> None:
    with pytest.raises(SourceError, match="nosuch"):
        list_source(["nosuch://bucket/x"])


class _Answer(http.server.BaseHTTPRequestHandler):
    """Answers with the status that the path names."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [(404, SourceError, "no such file"), (403, SourceError, "no permission"), (503, TransientError, "503")],
)
def test_what_a_web_server_answers(status: int, kind: type[HeadraceError], words: str) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(kind, match=words):
                list_source([f"http://127.0.0.1:{server.server_port}/{status}/x.parquet"])
        finally:
            server.shutdown()


@pytest.mark.parametrize("name", ["x.parquet", "d/*.parquet", "d/"])
def test_a_server_that_is_not_there(name: str) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(TransientError, match=r"listing failed: http.*(refused|onnect)") as caught:
            list_source([f"http://127.0.0.1:{port}/{name}"])
        assert caught.value.exit_code == 1
        store = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}", "skip_instance_cache": True}
        with pytest.raises(TransientError, match="onnect"):
            list_source([f"s3://b/{name}"], {**store, "config_kwargs": {"retries": {"max_attempts": 1}}})


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(SourceError, match="credentials for s3://nobkt/x") as caught:
        list_source(["s3://nobkt/x"], {"skip_instance_cache": True})
    assert caught.value.exit_code == 2 and "AWS_" in str(caught.value.hint)


def test_no_permission(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet", "locked/b.parquet")
    (tmp_path / "locked").chmod(0)
    if os.access(tmp_path / "locked", os.R_OK):
        pytest.skip("root may read everything")
    try:
        with pytest.raises(SourceError, match="locked"):
            list_source([str(tmp_path)])
    finally:
        (tmp_path / "locked").chmod(0o755)


def test_links_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    make(tmp_path, "in/a.parquet", "elsewhere/b.parquet")
    (tmp_path / "in/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/loop").symlink_to(tmp_path / "in")
    (tmp_path / "in/dead.parquet").symlink_to(tmp_path / "nowhere")
    assert below(list_source([f"{tmp_path}/in"]), tmp_path / "in") == ["a.parquet", "link/b.parquet"]


def test_many_files_are_listed_quickly(tmp_path: Path) -> None:
    for day in range(20):
        (tmp_path / f"day={day}").mkdir()
        for number in range(500):
            (tmp_path / f"day={day}" / f"{number:04d}.parquet").touch()
    assert len(list_source([str(tmp_path)]).files) == 10_000
