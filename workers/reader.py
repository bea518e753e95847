"""A shard's rows in windows: always the same consecutive rows, whatever row groups and files they lie in.

Memory is bounded by the window: Arrow decodes ``window_rows`` rows at a time, from buffers of 1 MiB per column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from .columns import Source, UnfitColumn, columns_of, file_columns, partition_keys
from .opened import UnreadableFile, open_parquet
from .schema import kept_type
from .shard import FileIdentity, Piece, ScoreSpec
from .text import Mask, Texts, texts_of


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of one piece."""

    piece: Piece
    first_row: int  #: in the file
    kept: list[pa.Array]
    texts: Texts
    selected: Mask  # (rows,) passed ``where``
    unreadable: Mapping[int, str]  #: by row, the column whose value is not UTF-8

    def __len__(self) -> int:
        return len(self.selected)


@dataclass(frozen=True)
class Window:
    """At most ``window_rows`` consecutive rows of a shard, of one or more pieces."""

    runs: list[Rows]

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def kept(self, score: ScoreSpec) -> list[pa.ChunkedArray]:
        names = enumerate(score.keep)
        return [pa.chunked_array([run.kept[i] for run in self.runs], kept_type(score, name)) for i, name in names]

    @property
    def texts(self) -> list[str]:
        return [text for run in self.runs for text in run.texts.values]

    @property
    def selected(self) -> Mask:
        return np.concatenate([run.selected for run in self.runs])

    @property
    def empty(self) -> Mask:
        return np.concatenate([run.texts.empty for run in self.runs])

    def locate(self, row: int) -> tuple[Rows, int]:
        """The run that row ``row`` of the window is in, and its place in there."""
        for run in self.runs:
            if row < len(run):
                return run, row
            row -= len(run)
        raise IndexError(row)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """The window's row at which each run begins, (runs,)."""
        return np.cumsum([0, *map(len, self.runs)])[:-1]


def read_windows(
    pieces: Sequence[Piece], partition: str, score: ScoreSpec, options: Mapping[str, Any]
) -> Iterator[Window]:
    """``options`` are the source's fsspec options. Rows that ``where`` drops are in their window, not selected.

    Raises UnreadableFile, SourceChanged, TransientError.
    """
    keys = partition_keys(partition, score.partition_types)
    runs: list[Rows] = []
    room = score.window_rows
    for piece in pieces:
        for batch, first_row in _batches(piece, score, keys, options):
            start = 0
            while start < len(batch):
                taken = batch.slice(start, room)
                runs.append(_rows(taken, piece, first_row + start, keys, score))
                start += len(taken)
                room -= len(taken)
                if not room:
                    yield Window(runs)
                    runs, room = [], score.window_rows
    if runs:
        yield Window(runs)


def _rows(batch: pa.RecordBatch, piece: Piece, first_row: int, keys: Mapping[str, pa.Scalar], score: ScoreSpec) -> Rows:
    try:
        found = columns_of(batch, Source(piece.file.path, first_row, keys), score)
    except UnfitColumn as error:
        raise UnreadableFile(piece.file, str(error)) from error
    return Rows(piece, first_row, found.kept, texts_of(found.texts, score.text), found.selected, found.unreadable)


def _batches(
    piece: Piece, score: ScoreSpec, keys: Mapping[str, pa.Scalar], options: Mapping[str, Any]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The piece's rows with the number of the first one in the file."""
    with open_parquet(piece.file, options) as parquet:
        names = _names(parquet, piece.file, score, keys)
        starts = np.cumsum([0, *(parquet.metadata.row_group(g).num_rows for g in range(parquet.num_row_groups))])
        first, last = piece.first_row, piece.first_row + piece.rows
        if last > starts[-1]:
            raise UnreadableFile(piece.file, f"file has fewer rows than planned: {starts[-1]}, not {last}")
        groups = np.flatnonzero((starts[:-1] < last) & (starts[1:] > first)).tolist()
        at = int(starts[groups[0]]) if groups else last
        for batch in parquet.iter_batches(score.window_rows, groups, columns=names, use_threads=False):
            wanted = batch.slice(max(0, first - at), max(0, last - max(first, at)))
            if len(wanted):
                yield wanted, max(first, at)
            at += len(batch)
            if at >= last:
                break
        if at < last:
            raise UnreadableFile(piece.file, f"file has fewer rows than its footer says: {at}, not {last}")


def _names(parquet: pq.ParquetFile, file: FileIdentity, score: ScoreSpec, keys: Mapping[str, pa.Scalar]) -> list[str]:
    try:
        return file_columns(score, parquet.schema_arrow.names, keys)
    except UnfitColumn as error:
        raise UnreadableFile(file, str(error)) from error
