"""``headrace compile``: takes the user's rows to texts and hands the workers' own scoring to the compiler."""

from __future__ import annotations

import logging
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ..artifacts.errors import UsageError
from ..artifacts.manifest import Manifest
from ..workers.opened import UnreadableFile, open_parquet
from ..workers.shard import FileIdentity, TextSpec
from ..workers.text import as_text, is_text, text_columns, texts_of

if TYPE_CHECKING:
    from ..artifacts.compiler import EvalTexts

LOG = logging.getLogger("headrace")
#: The choice of evaluation rows is the same for the same files on every machine.
SAMPLE_SEED = 0
_BATCH_ROWS = 2048


@dataclass(frozen=True)
class EvalData:
    """Rows to measure on: Parquet files, folders or globs; ``rows`` of them at most, chosen at random."""

    paths: tuple[str, ...] = ()
    text: tuple[str, ...] = ()  #: columns, joined by a space
    label: str | None = None
    rows: int = 5000


def compile_model(
    model: str,
    out: Path,
    *,
    eval_data: EvalData | None = None,
    say: Callable[[str], None] = LOG.info,
    revision: str | None = None,
    task: str | None = None,
    variants: Sequence[str] = (),
    name: str | None = None,
    max_length: int | None = None,
    force: bool = False,
) -> Manifest:
    """Compiles ``model`` into the artifact ``out``; see ``artifacts.compiler.compile_model`` for what is raised."""
    texts = read_eval_texts(eval_data) if eval_data is not None and _asked_for(eval_data) else None
    from ..artifacts import compiler
    from ..workers.score_texts import score_texts

    return compiler.compile_model(
        model,
        out,
        score=score_texts,
        say=say,
        revision=revision,
        task=task,
        variants=variants,
        eval_texts=texts,
        name=name,
        max_length=max_length,
        force=force,
    )


def _asked_for(data: EvalData) -> bool:
    if data.paths and not data.text:
        raise UsageError("the evaluation data needs a text column", "name it with --text COLUMN")
    if not data.paths and (data.text or data.label):
        raise UsageError("--text and --label need evaluation data", "give it with --eval-data PARQUET")
    return bool(data.paths)


def read_eval_texts(data: EvalData) -> EvalTexts:
    """Rows whose text is empty or not UTF-8, and with ``label`` those without one, are left out.

    Raises SourceError for missing files, UsageError for a missing column or an unreadable file.
    """
    from ..artifacts.compiler import EvalTexts
    from .source import absolute_url, list_source

    listing = list_source([absolute_url(path) for path in data.paths])
    files = [file.identity for file in listing.files]
    counts = [_rows_in(file, data) for file in files]
    total = sum(counts)
    chosen = sorted(random.Random(SAMPLE_SEED).sample(range(total), min(data.rows, total)))
    texts, labels, start = list[str](), list[str](), 0
    for file, count in zip(files, counts, strict=True):
        here = chosen[bisect_left(chosen, start) : bisect_left(chosen, start + count)]
        for text, label in _rows_of(file, data, [row - start for row in here]):
            texts.append(text)
            labels.append(label)
        start += count
    told = f"{len(texts):,} of {total:,} rows of {', '.join(data.paths)}; text: {', '.join(data.text)}"
    return EvalTexts(texts, labels if data.label is not None else None, told)


def _rows_in(file: FileIdentity, data: EvalData) -> int:
    with _opened(file) as parquet:
        present = parquet.schema_arrow.names
        for name in (*data.text, *([data.label] if data.label else [])):
            if name not in present:
                raise UsageError(f"no such column in {file.path}: {name}", f"present are {', '.join(present)}")
        return int(parquet.metadata.num_rows)


def _rows_of(file: FileIdentity, data: EvalData, wanted: list[int]) -> Iterator[tuple[str, str]]:
    """Text and label of the ``wanted`` rows (ascending), a batch at a time: memory does not grow with the file."""
    columns = [*data.text, *([data.label] if data.label else [])]
    with _opened(file) as parquet:
        start = place = 0
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=columns):
            here = place
            while place < len(wanted) and wanted[place] < start + len(batch):
                place += 1
            if place > here:
                yield from _usable(batch.take(pa.array([row - start for row in wanted[here:place]])), data, file)
            start += len(batch)


def _usable(batch: pa.RecordBatch, data: EvalData, file: FileIdentity) -> Iterator[tuple[str, str]]:
    spec = TextSpec(data.text)
    for name in text_columns(spec):
        if not is_text(batch.column(name).type):
            raise UsageError(f"column is no text: {name}, {batch.column(name).type} in {file.path}")
    texts = texts_of({name: as_text(batch.column(name)) for name in text_columns(spec)}, spec)
    labels = batch.column(data.label).to_pylist() if data.label else [""] * len(batch)
    for row, label in enumerate(labels):
        if not texts.empty[row] and not texts.invalid[row] and label is not None:
            yield texts.values[row], str(label)


@contextmanager
def _opened(file: FileIdentity) -> Iterator[pq.ParquetFile]:
    """``open_parquet`` for a user's own file: one that can't be read is the user's to know."""
    try:
        with open_parquet(file, {}) as parquet:
            yield parquet
    except UnreadableFile as error:
        raise UsageError(f"the evaluation data can't be read: {file.path}: {error.reason}") from error
