"""One folder tree on a local disk or behind any fsspec URL: the only place that writes files atomically.

Keys are ``/``-separated paths relative to the folder's root. Local folders bypass fsspec for writing, because fsspec's
local ``autocommit=False`` stages in the system's temp folder and moves, which is not atomic across file systems.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.core import url_to_fs


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed file: ``key`` relative to the folder, ``version`` the ETag or the mtime in nanoseconds."""

    key: str
    size_bytes: int
    version: str


@dataclass(frozen=True)
class Folder:
    """A folder at ``url``; ``options`` are fsspec's storage options and never shown (they may hold secrets)."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        return ("://" not in self.url and "::" not in self.url) or self.url.startswith(("file://", "local://"))

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        return url_to_fs(self.url, **self.options)[0]

    @property
    def root(self) -> str:
        """The folder's path as its file system names it; absolute on a local disk."""
        return cast("str", url_to_fs(self.url, **self.options)[1]).rstrip("/")

    def path(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

    def read(self, key: str) -> bytes:
        """Raises FileNotFoundError."""
        return cast("bytes", self.fs.cat_file(self.path(key)))

    def open(self, key: str) -> BinaryIO:
        return cast("BinaryIO", self.fs.open(self.path(key), "rb"))

    def exists(self, key: str) -> bool:
        return bool(self.fs.exists(self.path(key)))

    def write(self, key: str, data: bytes) -> None:
        """Replaces ``key``: a reader sees the old bytes or the new ones, also after a crash."""
        if not self.is_local:
            self.fs.pipe_file(self.path(key), data)
            return
        with self._staged(key, data) as (temporary, final):
            os.replace(temporary, final)
        fsync_folder(Path(self.path(key)).parent)

    def create(self, key: str, data: bytes) -> bool:
        """Makes ``key`` with ``data`` if it is absent; False where it was there already."""
        if not self.is_local:
            try:
                self.fs.pipe_file(self.path(key), data, mode="create")
            except FileExistsError:
                return False
            return True
        with self._staged(key, data) as (temporary, final):
            try:
                os.link(temporary, final)
            except FileExistsError:
                return False
        fsync_folder(Path(self.path(key)).parent)
        return True

    def delete(self, key: str) -> None:
        """A missing file is fine: deleting is idempotent."""
        with contextlib.suppress(FileNotFoundError):
            if self.is_local:
                os.unlink(self.path(key))
            else:
                self.fs.rm_file(self.path(key))

    def list(self, prefix: str = "") -> list[Entry]:
        """Every file below ``prefix``, by key; empty where there is no such folder. Never cached."""
        root = self.root
        self.fs.invalidate_cache()
        found = self.fs.find(self.path(prefix), detail=True)
        return [_entry(path, info, root) for path, info in sorted(found.items())]

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
    return Entry(path.removeprefix(root).lstrip("/"), int(info.get("size") or 0), file_version(info))
