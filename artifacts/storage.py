"""One folder tree on a local disk or behind any fsspec URL: the only place that writes files atomically.

Keys are ``/``-separated paths relative to the folder's root. Local folders bypass fsspec for writing, because fsspec's
local ``autocommit=False`` stages in the system's temp folder and moves, which is not atomic across file systems.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.core import url_to_fs

from .errors import TransientError
from .storage_errors import accessing, writing

#: what a crash in the middle of a local write leaves behind: ``.name.<uuid>``
_LEFTOVER = re.compile(r"^\..+\.[0-9a-f]{32}$")
_CREATE_TRIES = 5
_THREADS = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed file: ``key`` relative to the folder, ``version`` the ETag or the mtime in nanoseconds.

    ``modified_s`` is on the store's own clock, seconds since the epoch; 0 where it does not tell.
    """

    key: str
    size_bytes: int
    version: str
    modified_s: float = 0.0


def is_local(url: str) -> bool:
    """Whether ``url`` is a path on this machine's disks; chained URLs (``zip://a::b``) are not."""
    return ("://" not in url and "::" not in url) or url.startswith(("file://", "local://"))


@dataclass(frozen=True)
class Folder:
    """A folder at ``url``; ``options`` are fsspec's storage options and never shown (they may hold secrets).

    Everything here raises UsageError where the store's client finds no credentials.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        return is_local(self.url)

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        return url_to_fs(self.url, **self.options)[0]

    @cached_property
    def root(self) -> str:
        """The folder's path as its file system names it; absolute on a local disk."""
        return cast("str", url_to_fs(self.url, **self.options)[1]).rstrip("/")

    def path(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

    def read(self, key: str) -> bytes:
        """Raises FileNotFoundError."""
        with accessing(self.url):
            return cast("bytes", self._fresh().cat_file(self.path(key)))

    def read_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Several files at once, in the order given; raises FileNotFoundError when one is missing."""
        wanted = list(keys)
        if self.is_local or len(wanted) < 2:
            return {key: self.read(key) for key in wanted}
        with ThreadPoolExecutor(_THREADS) as pool:
            return dict(zip(wanted, pool.map(self.read, wanted), strict=True))

    def open(self, key: str) -> BinaryIO:
        with accessing(self.url):
            return cast("BinaryIO", self._fresh().open(self.path(key), "rb"))

    def exists(self, key: str) -> bool:
        with accessing(self.url):
            return bool(self._fresh().exists(self.path(key)))

    def write(self, key: str, data: bytes) -> None:
        """Replaces ``key``: a reader sees the old bytes or the new ones, also after a crash.

        Raises TransientError, on a full disk too, and UsageError where it can't be written at all: never OSError.
        """
        with writing(self.path(key)):
            if not self.is_local:
                self.fs.pipe_file(self.path(key), data)
                return
            with self._staged(key, data) as (temporary, final):
                os.replace(temporary, final)
            fsync_folder(Path(self.path(key)).parent)

    def create(self, key: str, data: bytes) -> bool:
        """Makes ``key`` with ``data`` if it is absent; False where it was there already.

        An object store that answers late may have made it and still say False: put something of your own into
        ``data`` and read it back where that matters. Raises as ``write`` does.
        """
        with writing(self.path(key)):
            if not self.is_local:
                return _create_object(self.fs, self.path(key), data)
            with self._staged(key, data) as (temporary, final):
                try:
                    _link(temporary, final, data)
                except FileExistsError:
                    return False
            fsync_folder(Path(self.path(key)).parent)
            return True

    def delete(self, key: str) -> None:
        """A missing file is fine: deleting is idempotent."""
        with accessing(self.url), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if self.is_local:
                os.unlink(self.path(key))
            else:
                self.fs.rm_file(self.path(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        if self.is_local or len(wanted) < 2:
            for key in wanted:
                self.delete(key)
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(self.delete, wanted))

    def list(self, prefix: str = "") -> list[Entry]:
        """Every file below ``prefix``, by key; empty where there is no such folder. Never cached.

        Directory markers and what a crash left of a half-written file are no files. A folder that may not be read
        raises PermissionError: leaving it out would lose its rows without a word.
        """
        if self.is_local:
            found = _walk(self.path(prefix), self.root)
        else:
            infos: dict[str, dict[str, Any]] = {}
            with accessing(self.url), contextlib.suppress(FileNotFoundError):  # no such bucket
                infos = self._fresh().find(self.path(prefix), detail=True)
            found = (_entry(path, info, self.root) for path, info in infos.items() if _is_file(path, info))
        return sorted((e for e in found if not _LEFTOVER.match(e.key.rsplit("/", 1)[-1])), key=lambda e: e.key)

    def abort_uploads(self, prefix: str = "") -> int:
        """Aborts multipart uploads below ``prefix`` that were begun and never completed; how many.

        Only S3 has them to list. Where listing them is not allowed there is nothing to be done, and 0 is returned.
        """
        if not hasattr(self.fs, "call_s3"):
            return 0
        try:
            with accessing(self.url):
                return _abort_uploads(self.fs, self.path(prefix).rstrip("/") + "/")
        except PermissionError:
            return 0

    def _fresh(self) -> fsspec.AbstractFileSystem:
        """The file system with nothing remembered: another process may have written since."""
        fs = self.fs
        fs.invalidate_cache()
        return fs

    @contextlib.contextmanager
    def _staged(self, key: str, data: bytes) -> Iterator[tuple[Path, Path]]:
        final = Path(self.path(key))
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.parent / f".{final.name}.{uuid.uuid4().hex}"
        try:
            with temporary.open("wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            yield temporary, final
        finally:
            temporary.unlink(missing_ok=True)


def fsync_folder(folder: Path) -> None:
    """Makes a rename in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks can't sync a folder
            raise
    finally:
        os.close(descriptor)


def file_version(info: Mapping[str, Any]) -> str:
    """What changes when a file is rewritten, from fsspec's ``info``: the ETag, else the mtime in nanoseconds."""
    for name in ("ETag", "etag", "md5Hash", "content_md5"):
        if info.get(name):
            return str(info[name]).strip('"')
    if "mtime" in info and isinstance(info.get("ino"), int):
        with contextlib.suppress(FileNotFoundError):
            return str(os.stat(info["name"]).st_mtime_ns)
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        if info.get(name):
            return str(info[name])
    return ""


def _entry(path: str, info: Mapping[str, Any], root: str) -> Entry:
    key = path.removeprefix(root).lstrip("/")
    return Entry(key, int(info.get("size") or 0), file_version(info), _modified_s(info))


def _modified_s(info: Mapping[str, Any]) -> float:
    for name in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = info.get(name)
        if isinstance(value, dt.datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return dt.datetime.fromisoformat(value).timestamp()
    return 0.0


def _is_file(path: str, info: Mapping[str, Any]) -> bool:
    return info.get("type") != "directory" and not path.endswith("/")


def _walk(top: str, root: str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[Entry]:
    """Files below ``top``, which may be a file itself. Links to folders are followed, but never in a circle."""
    try:
        here = os.stat(top)
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISDIR(here.st_mode):
        yield _local_entry(top, here, root)
        return
    identity = (here.st_dev, here.st_ino)
    if identity in above:
        return
    try:
        scan = os.scandir(top)
    except FileNotFoundError:
        return
    with scan:
        for item in scan:
            if item.is_dir():
                yield from _walk(item.path, root, (*above, identity))
                continue
            with contextlib.suppress(FileNotFoundError):  # deleted since, or a link to nothing
                yield _local_entry(item.path, item.stat(), root)


def _local_entry(path: str, info: os.stat_result, root: str) -> Entry:
    key = path.removeprefix(root).lstrip("/")
    return Entry(key, info.st_size, str(info.st_mtime_ns), info.st_mtime)


def _link(temporary: Path, final: Path, data: bytes) -> None:
    """Raises FileExistsError. A disk without hard links gets an exclusive creation: absent or there, but for a
    moment incomplete."""
    try:
        os.link(temporary, final)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        with final.open("xb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())


def _create_object(fs: fsspec.AbstractFileSystem, path: str, data: bytes) -> bool:
    for _ in range(_CREATE_TRIES):
        try:
            fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            code = _error_code(error)
            if code in ("PreconditionFailed", "412"):
                return False
            if code not in ("ConditionalRequestConflict", "409"):  # these two: another creation is under way
                raise
        else:
            return True
    raise TransientError(f"another writer is creating the same object: {path}", hint="Try again")


def _error_code(error: OSError) -> str:
    """The store's own code, which s3fs keeps in the cause only."""
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _abort_uploads(fs: fsspec.AbstractFileSystem, prefix: str) -> int:
    bucket, _, key = prefix.partition("/")
    aborted, marker = 0, dict[str, str]()
    while True:
        page = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key, **marker)
        for upload in page.get("Uploads") or []:
            with contextlib.suppress(FileNotFoundError):
                fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                aborted += 1
        if not page.get("IsTruncated"):
            return aborted
        marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
