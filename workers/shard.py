"""What the driver hands to a worker and what comes back: plain frozen values that pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

Batching = Literal["budget", "row"]
EmptyPolicy = Literal["null", "score", "quarantine"]


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """One version of one source file. ``path`` is absolute or a URL; ``version`` the ETag or the mtime in ns."""

    path: str
    size_bytes: int
    version: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows ``first_row`` to ``first_row + rows`` of one source file."""

    file: FileIdentity
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class Shard:
    """The unit of work, of retry and of commit. ``partition`` is the hive folder, ``month=2002-08`` or empty."""

    id: str
    partition: str
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class TextSpec:
    """How a row becomes one text. One of ``columns`` and ``template``; nulls are left out of a join.

    A row is empty when every named column is null, empty or blank.
    """

    columns: tuple[str, ...]
    separator: str = " "
    template: str | None = None


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """``None`` means the artifact's own default."""

    max_length: int | None = None
    top_k: int | None = None
    score_of: str | None = None


@dataclass(frozen=True)
class ScoreSpec:
    """All that a part's bytes depend on besides the shard and the artifact. Built once by the driver.

    ``where`` is the row-level predicate (a ``pyarrow.compute.Expression``) over ``where_columns`` (file columns and
    partition keys). ``keep`` are the kept input columns in output order, with their frozen Arrow types in
    ``keep_types``; the pseudo columns ``source_file`` and ``source_row`` may stand in it. ``partition_types`` are the
    declared types of partition keys (strings otherwise). ``fingerprint`` is opaque here.
    """

    text: TextSpec
    keep: tuple[str, ...]
    keep_types: Mapping[str, pa.DataType]
    fingerprint: str
    partition_types: Mapping[str, pa.DataType] = field(default_factory=dict)
    task: TaskOptions = TaskOptions()
    empty: EmptyPolicy = "null"
    where: Any = None
    where_columns: tuple[str, ...] = ()
    batching: Batching = "budget"
    batch_tokens: int = 512
    window_rows: int = 2048
    column_prefix: str = ""
    keep_text: bool = False
    model: str = ""  #: ``name@digest``, written to the ``model`` column


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker needs before its first shard. Folders are URL plus fsspec options."""

    score: ScoreSpec
    variant: str
    threads: int
    sink_url: str
    state_url: str
    sink_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    source_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    last_try: bool = False  #: a file that changed under the reader is bad; otherwise it is planned again


@dataclass(frozen=True, slots=True)
class Counts:
    """``rows_in == rows_out + quarantined + filtered`` always holds."""

    rows_in: int = 0
    rows_out: int = 0
    quarantined: int = 0
    filtered: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of wall time spent in each step of one shard."""

    read_s: float = 0.0
    tokenize_s: float = 0.0
    infer_s: float = 0.0
    postprocess_s: float = 0.0
    write_s: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ShardStats:
    """Work done for one shard. ``padded_tokens`` counts padding only, so efficiency is tokens / (tokens + padded)."""

    unique_rows: int = 0
    empty_rows: int = 0
    truncated: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    batches: int = 0
    timings: Timings = Timings()


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row, or a whole file when ``row`` is None, that could not be scored. ``text`` only with ``keep_text``."""

    file: FileIdentity
    row: int | None
    stage: str  #: read, text, tokenize, infer
    reason: str
    text_hash: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class Staged:
    """An attempt whose bytes are all written but not visible. ``clock_s`` is the worker's monotonic clock at return.

    ``bad_files`` are pieces whose file could not be read (their rows are in no count); ``batching`` is what was really
    used: ``row`` after the fallback. A part exists even with no rows left in it (its footer carries the pieces); only
    when no piece could be read is there none, and ``size_bytes`` is 0.
    """

    shard_id: str
    attempt: int
    size_bytes: int
    counts: Counts
    stats: ShardStats
    batching: Batching
    clock_s: float
    bad_rows: int = 0
    bad_files: tuple[BadRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to publish one attempt. ``deadline_s`` is on the worker's own monotonic clock."""

    shard_id: str
    attempt: int
    epoch: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Who a worker is; one row of ``workers.parquet`` starts from it."""

    worker: str
    node: str
    host: str
    pid: int
    variant: str
    precision: str
    provider: str
    threads: int
    cpu_model: str
    cpu_flags: str
    instruction_set: str
    load_s: float
    clock_s: float
    versions: Mapping[str, str] = field(default_factory=dict)
