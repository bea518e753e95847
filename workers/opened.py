"""Opening one source file, pinned to the version that was planned, and telling storage trouble from bad content."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import url_to_fs

from ..artifacts.errors import HeadraceError, SourceChanged, TransientError, one_line
from ..artifacts.storage import file_version
from .shard import FileIdentity

_BUFFER_BYTES = 1 << 20


class UnreadableFile(Exception):
    """``file`` can't be scored, ever: the shard is scored without it. Never leaves a worker."""

    def __init__(self, file: FileIdentity, reason: str) -> None:
        super().__init__(file, reason)
        self.file, self.reason = file, reason


@dataclass
class _Watched:
    """A file that remembers its own error: Arrow raises OSError for corrupt bytes too, so the type tells nothing."""

    raw: BinaryIO
    error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return self.raw.read(size)
        except Exception as error:
            self.error = error
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.raw.seek(offset, whence)

    def tell(self) -> int:
        return self.raw.tell()

    def flush(self) -> None:
        """Arrow asks for it on closing."""

    def close(self) -> None:
        self.raw.close()

    @property
    def closed(self) -> bool:
        return self.raw.closed

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True


@contextlib.contextmanager
def open_parquet(file: FileIdentity, options: Mapping[str, Any]) -> Iterator[pq.ParquetFile]:
    """The Parquet file ``file``, read in small buffers so that memory does not grow with its row groups.

    Raises SourceChanged where it is not the planned version, before or after; TransientError where the storage fails;
    UnreadableFile where Arrow can't read it, which covers everything that Arrow raises in the body.
    """
    fs, path = url_to_fs(file.path, **options)
    _check_version(fs, path, file)
    watched: _Watched | None = None
    try:
        with (
            _opened(fs, path) as watched,
            pq.ParquetFile(watched, buffer_size=_BUFFER_BYTES, pre_buffer=False) as parquet,
        ):
            yield parquet
    except (HeadraceError, UnreadableFile, MemoryError):
        raise
    except Exception as error:
        _check_version(fs, path, file)  # a file that is overwritten while it is read looks corrupt
        if watched is None or watched.error is not None:
            raise _transient(file, error) from error
        if isinstance(error, (pa.ArrowException, OSError, UnicodeDecodeError)):
            raise UnreadableFile(file, one_line(error)) from error
        raise
    _check_version(fs, path, file)


@contextlib.contextmanager
def _opened(fs: Any, path: str) -> Iterator[_Watched]:
    # No read-ahead: Arrow reads each column in buffers of its own, so a shared one would be thrown away each time.
    with fs.open(path, "rb", cache_type="none") as raw:
        yield _Watched(raw)


def _check_version(fs: Any, path: str, file: FileIdentity) -> None:
    fs.invalidate_cache()
    try:
        info = fs.info(path)
    except FileNotFoundError as error:
        raise _changed(file, "it is gone") from error
    except Exception as error:  # clients of object stores raise errors of their own, OSError or not
        raise _transient(file, error) from error
    found = FileIdentity(file.path, int(info.get("size") or 0), file_version(info))
    if found != file:
        raise _changed(file, f"{found.size_bytes} bytes, version {found.version}")


def _changed(file: FileIdentity, now: str) -> SourceChanged:
    message = f"file is not the one that was planned: {file.path}: {now}"
    return SourceChanged(message, "run the job again when nothing writes there any more", file.path)


def _transient(file: FileIdentity, error: Exception) -> TransientError:
    hint = "check the storage, then run the job again"
    return TransientError(f"reading failed: {file.path}: {one_line(error)}", hint)
