"""Parquet footers, many at once: rows, row groups, columns, and the statistics that ``where`` can use."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import url_to_fs

from ..artifacts.errors import TransientError, one_line
from ..artifacts.storage import is_local
from ..workers.shard import BadRow, FileIdentity
from .where_prune import ColumnStats

#: Read first: holds most footers whole, so that most files cost one request.
_TAIL_BYTES = 64 << 10
_END = struct.Struct("<I4s")  # length of the footer, magic
_LOCAL_THREADS, _REMOTE_THREADS = 4, 32
_TRIES = 3


@dataclass(frozen=True, slots=True)
class FileFooter:
    """``types`` are Arrow's, of the top-level columns by name; ``stats`` one mapping per row group, by column."""

    columns: tuple[str, ...]  #: as they stand, a name that is there twice too
    types: Mapping[str, pa.DataType]
    row_groups: tuple[int, ...]  #: rows of each
    stats: tuple[Mapping[str, ColumnStats], ...]

    @property
    def rows(self) -> int:
        return sum(self.row_groups)


class NotParquet(Exception):
    """The file is no whole Parquet file; the text says why."""


def read_footers(
    files: Sequence[FileIdentity], options: Mapping[str, Any], stats_of: Collection[str] = ()
) -> Iterator[FileFooter | BadRow]:
    """In the order of ``files``; a BadRow (stage ``read``) for one that is no whole Parquet file.

    ``stats_of`` names the columns whose statistics are wanted. Raises TransientError where the storage fails.
    """
    if not files:
        return
    fs = url_to_fs(files[0].path, **options)[0]
    threads = _LOCAL_THREADS if is_local(files[0].path) else _REMOTE_THREADS

    def read(file: FileIdentity) -> FileFooter | BadRow:
        try:
            return parse_footer(_tail(fs, file), stats_of)
        except NotParquet as error:
            return BadRow(file, None, "read", str(error))

    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(read, files)


def parse_footer(tail: bytes, stats_of: Collection[str] = ()) -> FileFooter:
    """``tail`` is the end of the file, or all of it, with the whole footer in it. Raises NotParquet."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail))
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise NotParquet(f"not a whole Parquet file: {one_line(error)}") from error
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return FileFooter(
        tuple(schema.names),
        {field.name: field.type for field in schema},
        tuple(group.num_rows for group in groups),
        tuple(_stats(group, stats_of) for group in groups) if stats_of else ({},) * len(groups),
    )


def _stats(group: Any, wanted: Collection[str]) -> dict[str, ColumnStats]:
    found: dict[str, ColumnStats] = {}
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema in wanted and column.is_stats_set:
            found[column.path_in_schema] = _column(column.statistics, group.num_rows)
    return found


def _column(statistics: Any, rows: int) -> ColumnStats:
    nulls = statistics.null_count if statistics.has_null_count else None
    low, high = None, None
    if statistics.has_min_max:
        try:
            low, high = statistics.min, statistics.max
        except (ValueError, OverflowError, pa.ArrowException):  # text that is not UTF-8, a time that Python has not
            low, high = None, None
    return ColumnStats(low, high, nulls is None or nulls > 0, nulls is None or nulls < rows)


def _tail(fs: Any, file: FileIdentity) -> bytes:
    """The end of the file with the whole footer; all of a file that is too short to have one."""
    path = fs._strip_protocol(file.path)
    size = file.size_bytes
    tail = _read(fs, path, max(0, size - _TAIL_BYTES), size)
    if len(tail) < _END.size:
        raise NotParquet(f"not a whole Parquet file: {len(tail)} bytes")
    length, magic = _END.unpack(tail[-_END.size :])
    needed = length + _END.size
    if magic == b"PARE":
        raise NotParquet("encrypted Parquet is not supported")
    if magic == b"PAR1" and len(tail) < needed <= size:
        tail = _read(fs, path, size - needed, size)
    return tail


def _read(fs: Any, path: str, start: int, end: int) -> bytes:
    if start >= end:
        return b""
    for attempt in range(_TRIES):
        try:
            return bytes(fs.cat_file(path, start=start, end=end))
        except FileNotFoundError as error:
            raise TransientError(f"file is gone since it was listed: {path}", "run the job again") from error
        except Exception as error:  # clients of object stores raise errors of their own
            if attempt + 1 == _TRIES:
                raise TransientError(f"reading failed: {path}: {error}", "check the storage, run again") from error
    return b""
