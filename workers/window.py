"""One window: which rows are scored, which are quarantined, which drop out; then the table that goes into the part."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import numpy as np
import pyarrow as pa

from .reader import Window
from .scorer import Scorer, WindowAnswers
from .shard import BadRow, Batching, Counts, ScoreSpec, ShardStats, Timings
from .text import Mask, hash_text

#: Rows that killed their worker: (source path, row in the file).
Excluded = frozenset[tuple[str, int]]


@dataclass
class Tally:
    """Sums over the windows of one try at a shard."""

    rows_in: int = 0
    filtered: int = 0
    empty_rows: int = 0
    truncated: int = 0
    unique_rows: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    batches: int = 0
    bad_rows: list[BadRow] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  #: by the name of a field of Timings

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.spent(step, time.perf_counter() - started)

    def spent(self, step: str, seconds: float) -> None:
        self.seconds[step] = self.seconds.get(step, 0.0) + seconds

    def scored(self, found: WindowAnswers) -> None:
        work = found.work
        self.unique_rows += work.unique_rows
        self.tokens += work.tokens
        self.padded_tokens += work.padded_tokens
        self.batches += work.batches
        for step in ("tokenize_s", "infer_s", "postprocess_s"):
            self.spent(step, getattr(work, step))

    def counts(self, rows_out: int) -> Counts:
        return Counts(self.rows_in, rows_out, len(self.bad_rows), self.filtered)

    def stats(self) -> ShardStats:
        counted = {f.name: getattr(self, f.name) for f in fields(ShardStats) if f.name != "timings"}
        return ShardStats(**counted, timings=Timings(**self.seconds))


def score_window(
    window: Window,
    score: ScoreSpec,
    scorer: Scorer,
    schema: pa.Schema,
    batching: Batching,
    excluded: Excluded,
    tally: Tally,
) -> pa.Table:
    """The output rows of ``window`` with the part's ``schema``, which is ``output_schema``'s. What drops out is told to
    ``tally``.

    Raises BatchFailed in mode ``budget``.
    """
    selected, empty, texts = window.selected, window.empty, window.texts
    bad = _bad_rows(window, score, excluded)
    wanted = selected.copy()
    wanted[list(bad)] = False
    asked = wanted if score.empty == "score" else wanted & ~empty
    rows = np.flatnonzero(asked)
    found = scorer.score_window([texts[row] for row in rows.tolist()], batching, score.batch_tokens)
    bad |= {
        int(rows[place]): _bad(window, int(rows[place]), f.stage, f.reason, score) for place, f in found.failed.items()
    }
    started = time.perf_counter()
    out = wanted.copy()
    out[list(bad)] = False
    columns = _columns(window, score, scorer, _Placed(found, asked), out)
    table = pa.Table.from_arrays(columns, schema=schema)
    tally.scored(found)
    tally.spent("postprocess_s", time.perf_counter() - started)
    tally.rows_in += len(window)
    tally.filtered += int((~selected).sum())
    tally.empty_rows += int((empty & wanted).sum())
    tally.truncated += int(found.truncated.sum())
    tally.bad_rows += [bad[row] for row in sorted(bad)]
    return table


@dataclass(frozen=True)
class _Placed:
    """Answers of the ``asked`` rows of a window."""

    found: WindowAnswers
    asked: Mask


def _columns(window: Window, score: ScoreSpec, scorer: Scorer, placed: _Placed, out: Mask) -> list[pa.Array]:
    """Only the rows that are ``out``; those that were not asked have null predictions."""
    given, answered = placed.asked[out], out[placed.asked]
    answers = np.zeros((len(given), scorer.task.width), dtype=np.float32)
    answers[given] = placed.found.answers[answered]
    n_tokens = np.zeros(len(given), dtype=np.int32)
    n_tokens[given] = placed.found.n_tokens[answered]
    truncated = np.zeros(len(given), dtype=np.bool_)
    truncated[given] = placed.found.truncated[answered]
    return [
        *(column.filter(pa.array(out)) for column in window.kept(score)),
        *scorer.task.columns(answers, given),
        pa.repeat(pa.scalar(score.model), len(given)),
        pa.array(n_tokens, mask=~given),
        pa.array(truncated),
    ]


def _bad_rows(window: Window, score: ScoreSpec, excluded: Excluded) -> dict[int, BadRow]:
    """Rows, by their place in the window, that can't be scored or must not be. Rows not selected are not among them."""
    found: dict[int, BadRow] = {}
    for start, run in zip(window.starts.tolist(), window.runs, strict=True):
        reasons: dict[int, tuple[str, str]] = {}
        if score.empty == "quarantine":
            reasons |= dict.fromkeys(np.flatnonzero(run.texts.empty).tolist(), ("text", "text is empty"))
        reasons |= {row: ("read", f"value is not UTF-8: {name}") for row, name in run.unreadable.items()}
        reasons |= dict.fromkeys(np.flatnonzero(run.texts.invalid).tolist(), ("text", "text is not UTF-8"))
        path, first = run.piece.file.path, run.first_row
        killers = (row for row in range(len(run)) if (path, first + row) in excluded) if excluded else ()
        reasons |= dict.fromkeys(killers, ("infer", "killed its worker"))
        for row, (stage, reason) in reasons.items():
            if run.selected[row]:
                found[start + row] = _bad(window, start + row, stage, reason, score)
    return found


def _bad(window: Window, row: int, stage: str, reason: str, score: ScoreSpec) -> BadRow:
    run, place = window.locate(row)
    data = run.texts.data(place)
    text = data.decode(errors="replace") if score.keep_text else None
    return BadRow(run.piece.file, run.first_row + place, stage, reason, hash_text(data), text)
