"""Scores one shard into a staged attempt. Pure of Ray: a function of the shard, the job and the artifact."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..artifacts.errors import HeadraceError, SourceChanged
from ..artifacts.hardware import this_cpu
from ..artifacts.manifest import digest_of
from .footer import Footer, runtime_versions
from .opened import UnreadableFile
from .part import PartWriter
from .reader import Window, read_windows
from .schema import output_schema
from .scorer import BatchFailed, Scorer
from .shard import BadRow, Batching, Counts, FileIdentity, Piece, Shard, ShardStats, Staged, Timings, WorkerSpec
from .staging import Stager
from .window import Excluded, Tally, score_window


@dataclass(frozen=True)
class _Job:
    """What stays the same while the shard is tried again, in another batching or without a file."""

    shard: Shard
    attempt: int
    epoch: int
    spec: WorkerSpec
    scorer: Scorer
    stager: Stager
    excluded: Excluded


def score_shard(
    shard: Shard,
    attempt: int,
    epoch: int,
    spec: WorkerSpec,
    scorer: Scorer,
    stager: Stager,
    excluded: Excluded = frozenset(),
) -> Staged:
    """Stages one attempt at ``shard``; nothing is visible before ``stager.publish``.

    ``excluded`` rows, as (source path, row in the file), go to quarantine unscored. A file that can't be read is left
    out and told in ``bad_files``: the part is the one of a shard without it. A batch that the model can't do sends the
    whole shard through again row by row.

    Raises SourceChanged unless this is the last try, TransientError, and HeadraceError where the rows do not add up.
    """
    started = time.perf_counter()
    job = _Job(shard, attempt, epoch, spec, scorer, stager, excluded)
    pieces, bad_files = shard.pieces, list[BadRow]()
    batching: Batching = spec.score.batching
    while pieces:
        try:
            staged = _stage(job, pieces, batching)
        except BatchFailed:
            batching = "row"
        except UnreadableFile as error:
            bad_files.append(BadRow(error.file, None, "read", error.reason))
            pieces = tuple(piece for piece in pieces if piece.file != error.file)
            batching = spec.score.batching  # the batch that failed may have been that file's
        except SourceChanged as error:
            if not spec.last_try:
                raise
            bad_files += [BadRow(f, None, "read", "it changed while it was read, twice") for f in _files(pieces, error)]
            pieces = tuple(piece for piece in pieces if piece.file.path != error.path)
            batching = spec.score.batching
        else:
            timings = replace(staged.stats.timings, wall_s=time.perf_counter() - started)
            return replace(staged, bad_files=tuple(bad_files), stats=replace(staged.stats, timings=timings))
    wall = Timings(wall_s=time.perf_counter() - started)
    return Staged(
        shard.id, attempt, 0, Counts(), ShardStats(timings=wall), batching, time.monotonic(), bad_files=tuple(bad_files)
    )


def _files(pieces: tuple[Piece, ...], error: SourceChanged) -> list[FileIdentity]:
    return list(dict.fromkeys(piece.file for piece in pieces if piece.file.path == error.path))


def probe_rows(
    shard: Shard, spec: WorkerSpec, scorer: Scorer, first: int, last: int, excluded: Excluded = frozenset()
) -> int:
    """Scores rows ``first`` to ``last`` of the shard one by one and writes nothing; returns how many went in.

    It narrows down a shard that kills its worker: coming back at all is the answer, so a file that can't be read is
    fine here.
    """
    tally, schema = Tally(), output_schema(spec.score, scorer.content)
    try:
        for window in read_windows(_cut(shard.pieces, first, last), shard.partition, spec.score, spec.source_options):
            score_window(window, spec.score, scorer, schema, "row", excluded, tally)
    except UnreadableFile:
        return tally.rows_in
    return tally.rows_in


def _cut(pieces: tuple[Piece, ...], first: int, last: int) -> list[Piece]:
    """The pieces of rows ``first`` to ``last``, counted over all of them."""
    found, start = [], 0
    for piece in pieces:
        begin, end = max(first - start, 0), min(last - start, piece.rows)
        if begin < end:
            found.append(Piece(piece.file, piece.first_row + begin, end - begin))
        start += piece.rows
    return found


def _stage(job: _Job, pieces: tuple[Piece, ...], batching: Batching) -> Staged:
    shard, attempt = job.shard, job.attempt
    file = job.stager.begin(shard.id, shard.partition, job.epoch, attempt)
    writer = PartWriter(file, output_schema(job.spec.score, job.scorer.content))
    try:
        return _fill(job, pieces, batching, writer)
    except BaseException:  # a stopped actor too must not leave an upload behind
        writer.abort()
        job.stager.discard(shard.id, attempt)
        raise


def _fill(job: _Job, pieces: tuple[Piece, ...], batching: Batching, writer: PartWriter) -> Staged:
    tally = Tally()
    for window in _timed(read_windows(pieces, job.shard.partition, job.spec.score, job.spec.source_options), tally):
        table = score_window(window, job.spec.score, job.scorer, writer.schema, batching, job.excluded, tally)
        with tally.timed("write_s"):
            writer.write(table)
    counts = tally.counts(writer.rows)
    _check(counts, pieces, job.shard)
    with tally.timed("write_s"):
        footer = _footer(job, pieces, batching, counts)
        writer.close(footer)
        size_bytes = job.stager.finish(job.shard.id, job.attempt, footer, tally.bad_rows)
    return Staged(
        job.shard.id,
        job.attempt,
        size_bytes,
        counts,
        tally.stats(),
        batching,
        time.monotonic(),
        bad_rows=len(tally.bad_rows),
    )


def _timed(windows: Iterator[Window], tally: Tally) -> Iterator[Window]:
    while True:
        with tally.timed("read_s"):
            window = next(windows, None)
        if window is None:
            return
        yield window


def _check(counts: Counts, pieces: tuple[Piece, ...], shard: Shard) -> None:
    told = counts.rows_out + counts.quarantined + counts.filtered
    planned = sum(piece.rows for piece in pieces)
    if not counts.rows_in == told == planned:
        message = f"rows of a shard do not add up: {shard.id}: {planned} planned, {counts.rows_in} in, {told} out"
        raise HeadraceError(message, "this is a bug: please report it")


def _footer(job: _Job, pieces: tuple[Piece, ...], batching: Batching, counts: Counts) -> Footer:
    variant = job.scorer.variant
    return Footer(
        versions=runtime_versions(),
        artifact=digest_of(job.scorer.content),
        variant=variant.name,
        precision=variant.precision,
        instruction_set=this_cpu().instruction_set,
        fingerprint=job.spec.score.fingerprint,
        batching=batching,
        pieces=pieces,
        counts=counts,
    )
