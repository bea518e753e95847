"""The source's listing: one snapshot of files, each with its identity and hive partition."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

from fsspec.core import url_to_fs

from ..artifacts.errors import SourceError, TransientError, UsageError, one_line
from ..artifacts.storage import file_version, is_local
from ..artifacts.storage_errors import accessing
from ..workers.shard import FileIdentity

_SUFFIXES = (".parquet", ".parq", ".pq")
_MAGIC = re.compile(r"[*?[]")
_TABLES = {"_delta_log": "Delta", ".hoodie": "Hudi"}
_ICEBERG_SUFFIX = ".metadata.json"
#: Packages of storage clients that raise errors which are no OSError.
_CLIENTS = frozenset({"aiohttp", "azure", "botocore", "gcsfs", "google"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """``partition`` is the hive part of the folders below the source's root, as it stands: ``month=2002-08``."""

    identity: FileIdentity
    partition: str


@dataclass(frozen=True)
class Listing:
    """Every data file, once, by path. ``paths`` is what was listed, absolute and spelled as the files' paths are;
    ``globs`` are those of them that were no file or folder of that very name."""

    files: tuple[SourceFile, ...]
    paths: tuple[str, ...]
    globs: frozenset[str] = frozenset()

    @cached_property
    def partition_keys(self) -> tuple[str, ...]:
        """Names of all partition keys, decoded, in the order of appearance."""
        partitions = dict.fromkeys(file.partition for file in self.files)
        segments = (segment for partition in partitions for segment in partition.split("/") if segment)
        return tuple(dict.fromkeys(unquote(segment.partition("=")[0]) for segment in segments))

    @cached_property
    def by_path(self) -> dict[str, FileIdentity]:
        return {file.identity.path: file.identity for file in self.files}

    def covers(self, path: str) -> bool:
        """Whether a file at ``path`` would have been listed, were it there. What lies elsewhere has not vanished."""
        return any(scope.match(path) for scope in self._scopes)

    @cached_property
    def _scopes(self) -> list[re.Pattern[str]]:
        patterns = [_pattern(path) if path in self.globs else re.escape(path.rstrip("/")) for path in self.paths]
        return [re.compile(pattern + r"(/.*)?\Z", re.DOTALL) for pattern in patterns]


def absolute_url(url: str) -> str:
    """A local path made absolute (from the current folder; ``~`` and ``file://`` understood), any other URL as it is.

    Links are kept: a path is part of a shard's id.
    """
    url = re.sub(r"^(file|local)://", "", url)
    return os.path.abspath(os.path.expanduser(url)) if is_local(url) else url  # noqa: PTH100, PTH111


def is_data_file(name: str) -> bool:
    """By the end of its name; ``part-0.snappy.parquet`` is one."""
    return name.lower().endswith(_SUFFIXES)


def list_source(paths: Sequence[str], options: Mapping[str, Any] | None = None) -> Listing:
    """Files, folders and globs, local (absolute) or behind any fsspec URL; ``options`` are fsspec's.

    Names that start with ``_`` or ``.``, and names that are not data files, are passed over below a folder or a glob;
    a file that is named itself is taken whatever it is called. Raises SourceError for a path that is not there, that
    has no data files, or that is a Delta, Hudi or Iceberg table: its folder holds rows that were deleted.
    """
    found: dict[str, SourceFile] = {}
    scopes: list[str] = []
    globs = set[str]()
    for path in map(absolute_url, paths):
        some = list(_local(path) if is_local(path) else _remote(path, options or {}))
        if not some:
            hint = "data files end in .parquet, .parq or .pq; names that start with _ or . are passed over"
            raise SourceError(f"no data files there: {path}", hint)
        for file in some:
            found.setdefault(file.identity.path, file)
        scopes.append(path if is_local(path) else _canonical(path, options or {}))
        if not all(_is_below(file.identity.path, scopes[-1]) for file in some):
            globs.add(scopes[-1])
    return Listing(tuple(found[path] for path in sorted(found)), tuple(scopes), frozenset(globs))


# -- local ---------------------------------------------------------------------------------------------------------


def _local(path: str) -> Iterator[SourceFile]:
    try:
        yield from _local_files(path)
    except PermissionError as error:
        raise SourceError(f"no permission to read: {error.filename or path}", "check its permissions") from error


def _local_files(path: str) -> Iterator[SourceFile]:
    if Path(path).is_dir():
        yield from _walk(path, "")
    elif Path(path).exists():
        yield SourceFile(_identity(path, os.stat(path)), "")
    elif _MAGIC.search(path):
        yield from _local_glob(path)
    else:
        _missing(path)


def _local_glob(pattern: str) -> Iterator[SourceFile]:
    root = _root(pattern)
    for folder in (Path(root), Path(root) / "metadata"):
        _refuse_table(str(folder), [found.name for found in folder.iterdir()] if folder.is_dir() else [])
    # Not pathlib's glob: it follows no links to folders.
    for path in glob.iglob(pattern, recursive=True):  # noqa: PTH207
        below = path[len(root) :].strip("/").split("/")
        if any(_hidden(segment) for segment in below):
            continue
        if Path(path).is_dir():
            yield from _walk(path, _hive(below))
        elif is_data_file(path) or _names_suffix(pattern):
            yield SourceFile(_identity(path, os.stat(path)), _hive(below[:-1]))


def _walk(folder: str, partition: str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[SourceFile]:
    """Links to folders are followed, but never in a circle."""
    here = os.stat(folder)
    identity = (here.st_dev, here.st_ino)
    if identity in above:
        return
    with os.scandir(folder) as scan:
        items = list(scan)
    _refuse_table(folder, [item.name for item in items])
    for item in items:
        name = item.name
        if _hidden(name):
            continue
        if item.is_dir():
            yield from _walk(item.path, _joined(partition, name), (*above, identity))
        elif is_data_file(name):
            try:
                yield SourceFile(_identity(item.path, item.stat()), partition)
            except FileNotFoundError:  # deleted since, or a link to nothing
                continue


def _identity(path: str, info: os.stat_result) -> FileIdentity:
    return FileIdentity(path, info.st_size, str(info.st_mtime_ns))


# -- behind a URL ----------------------------------------------------------------------------------------------------


def _remote(url: str, options: Mapping[str, Any]) -> Iterator[SourceFile]:
    try:
        with accessing(url):
            fs, path = url_to_fs(url, **options)
            fs.invalidate_cache()
            yield from _remote_files(fs, path, url)
    except SourceError:
        raise
    except UsageError as error:  # no credentials
        raise SourceError(error.message, error.hint) from error
    except ImportError as error:
        raise SourceError(f"no support for this kind of URL: {url}", str(error)) from error
    except FileNotFoundError as error:  # no such bucket
        raise SourceError(f"no such file or folder: {url}: {error}", "check source.path") from error
    except PermissionError as error:
        raise SourceError(f"no permission to list: {url}", "check the credentials") from error
    except ValueError as error:
        raise SourceError(f"this URL can't be listed: {url}: {error}", "any URL that fsspec knows will do") from error
    except OSError as error:
        raise _failed(url, error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLIENTS:
            raise
        raise _failed(url, error) from error


def _failed(url: str, error: Exception) -> TransientError:
    return TransientError(
        f"listing failed: {url}: {one_line(error)}", "check the address and the storage, then run again"
    )


def _remote_files(fs: Any, path: str, url: str) -> Iterator[SourceFile]:
    path = path.rstrip("/")
    info = _info(fs, path)
    if info is not None and info["type"] != "directory":
        yield _remote_file(fs, path, info, "")
        return
    if info is not None or not _MAGIC.search(path):
        found = fs.find(path, detail=True)
        if not found and info is None:
            _missing(url)
        yield from _below(fs, path, found, lambda _path: False)
        return
    root = _root(path)
    for folder in (root, f"{root}/metadata"):
        _refuse_table(folder, [name.rstrip("/").rsplit("/", 1)[-1] for name in _names(fs, folder)])
    matched = fs.glob(path, detail=True)
    named = {name for name, entry in matched.items() if entry["type"] != "directory"} if _names_suffix(path) else set()
    folders = [name for name, entry in matched.items() if entry["type"] == "directory"]
    found = {name: entry for name, entry in matched.items() if entry["type"] != "directory"}
    for folder in folders:
        found.update(fs.find(folder, detail=True))
    yield from _below(fs, root, found, named.__contains__)


def _below(fs: Any, root: str, found: Mapping[str, Mapping[str, Any]], named: Any) -> Iterator[SourceFile]:
    for path, info in found.items():
        segments = path[len(root) :].strip("/").split("/")
        _refuse_table("/".join([root, *segments[:-1]]), segments)
        if info["type"] == "directory" or path.endswith("/") or any(_hidden(segment) for segment in segments):
            continue
        if is_data_file(path) or named(path):
            yield _remote_file(fs, path, info, _hive(segments[:-1]))


def _remote_file(fs: Any, path: str, info: Mapping[str, Any], partition: str) -> SourceFile:
    identity = FileIdentity(fs.unstrip_protocol(path), int(info.get("size") or 0), file_version(info))
    return SourceFile(identity, partition)


def _info(fs: Any, path: str) -> dict[str, Any] | None:
    """None for what is not there. fsspec's HTTP calls it so too when the server can't be reached, or is in trouble."""
    try:
        return dict(fs.info(path))
    except FileNotFoundError as error:
        cause = error.__cause__
        status = getattr(cause, "status", None)
        if status in (401, 403):
            raise PermissionError(f"HTTP status {status}") from error
        unreachable = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
        if cause is not None and (unreachable or (isinstance(status, int) and status >= 500)):
            raise ConnectionError(one_line(cause)) from cause
        return None


def _names(fs: Any, folder: str) -> list[str]:
    try:
        return list(fs.ls(folder, detail=False))
    except FileNotFoundError:
        return []


# -- names -----------------------------------------------------------------------------------------------------------


def _hidden(segment: str) -> bool:
    return segment.startswith(("_", "."))


def _hive(folders: Sequence[str]) -> str:
    return "/".join(segment for segment in folders if _is_hive(segment))


def _joined(partition: str, folder: str) -> str:
    if not _is_hive(folder):
        return partition
    return f"{partition}/{folder}" if partition else folder


def _is_hive(segment: str) -> bool:
    return segment.find("=") > 0


def _root(pattern: str) -> str:
    """The folder above the first component that is a pattern."""
    fixed = []
    for segment in pattern.split("/"):
        if _MAGIC.search(segment):
            break
        fixed.append(segment)
    return "/".join(fixed) or "/"


def _names_suffix(pattern: str) -> bool:
    """Whether a glob says itself how its files end, as ``*.dat`` does and ``*`` does not."""
    return "." in _MAGIC.split(pattern.rsplit("/", 1)[-1])[-1]


def _is_below(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or below it, by name: no file is so of the glob that found it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _pattern(path: str) -> str:
    """A glob as a regular expression over whole paths."""
    out, position = [], 0
    text = path.rstrip("/")
    for found in re.finditer(r"\*\*/?|\*|\?|\[[^\]]+\]", text):
        out.append(re.escape(text[position : found.start()]))
        sign = found.group()
        if sign.startswith("**"):
            out.append("(.*/)?" if sign.endswith("/") else ".*")
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(sign, sign.replace("[!", "[^")))
        position = found.end()
    return "".join(out) + re.escape(text[position:])


def _canonical(url: str, options: Mapping[str, Any]) -> str:
    fs, path = url_to_fs(url, **options)
    return str(fs.unstrip_protocol(path.rstrip("/")))


def _refuse_table(folder: str, names: Sequence[str]) -> None:
    metadata = folder.endswith("/metadata")
    for name in names:
        kind = _TABLES.get(name) or ("Iceberg" if metadata and name.endswith(_ICEBERG_SUFFIX) else None)
        if kind is not None:
            hint = "its folder holds rows that were deleted: export the rows to a folder of Parquet files first"
            raise SourceError(f"this is a {kind} table, not plain Parquet: {folder}", hint)


def _missing(path: str) -> NoReturn:
    raise SourceError(
        f"no such file or folder: {path}", "check source.path; a relative one starts at the current folder"
    )
