"""Texts of a window to answers: each distinct text once, in batches, back in input order. Knows no files and no Ray."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..artifacts.bundle import TOKENIZER_NAME
from ..artifacts.errors import ArtifactCorrupt, HeadraceError, UsageError, one_line
from ..artifacts.hardware import find_variant
from ..artifacts.manifest import Content
from .batching import plan_batches
from .session import feed_for, open_session
from .shard import Batching, TaskOptions
from .tasks import task_of
from .tasks.base import output_name
from .tokenization import Encoded, Tokenizer

_PROBES = ("a probe", "another probe, rather longer than the first one, so that the batch has padding", "")
Floats = npt.NDArray[np.float32]


class BatchFailed(Exception):
    """A batch raised or gave numbers that are not finite: score the shard again row by row. Never leaves a worker."""


@dataclass
class Work:
    """What scoring took, in seconds and tokens; ``padded_tokens`` counts padding only."""

    unique_rows: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    batches: int = 0
    tokenize_s: float = 0.0
    infer_s: float = 0.0
    postprocess_s: float = 0.0

    def count(self, mask: npt.NDArray[np.int64]) -> None:
        """One batch with ``mask`` (rows, tokens)."""
        tokens = int(mask.sum())
        self.tokens += tokens
        self.padded_tokens += mask.size - tokens
        self.batches += 1


@dataclass(frozen=True)
class Failure:
    """Why one row has no answer, even alone."""

    stage: str  #: tokenize or infer
    reason: str


@dataclass(frozen=True)
class WindowAnswers:
    """One answer per text, in input order. Rows in ``failed`` (mode ``row`` only) hold zeros."""

    answers: Floats  # (rows, width)
    n_tokens: npt.NDArray[np.int32]  # (rows,) fed to the model, special ones included
    truncated: npt.NDArray[np.bool_]  # (rows,)
    failed: Mapping[int, Failure]
    work: Work = field(default_factory=Work)


class Scorer:
    """One variant of an artifact, loaded from a local ``folder`` and ready to score.

    Raises UsageError where an option does not fit the artifact, ArtifactCorrupt where a file does not load.
    """

    def __init__(self, folder: Path, content: Content, variant: str, threads: int, options: TaskOptions) -> None:
        self.content = content
        self.variant = find_variant(content.variants, variant)
        self.task = task_of(content, options)
        self._tokenizer = Tokenizer(
            folder / TOKENIZER_NAME, length_limit(content, options), content.pad_id, content.pad_type_id
        )
        self._session = open_session(folder / self.variant.files[0], threads)
        self._output = output_name(self.task, [node.name for node in self._session.get_outputs()])

    @property
    def provider(self) -> str:
        return str(self._session.get_providers()[0])

    def warm_up(self) -> None:
        """Scores a few probes. Raises HeadraceError where that fails or gives numbers that are not finite."""
        hint = "the artifact does not run here: look at it with `headrace inspect`, or compile the model again"
        try:
            self.score_window(_PROBES, "budget", self.variant.batch_tokens)
        except BatchFailed as error:
            raise HeadraceError(f"warm-up failed: {self.variant.name}: {error}", hint) from error

    def score_window(self, texts: Sequence[str], batching: Batching, batch_tokens: int) -> WindowAnswers:
        """Answers for ``texts``; batches are a function of the texts, ``batching`` and ``batch_tokens`` alone.

        Raises BatchFailed in mode ``budget``; in mode ``row`` the rows that fail are told in ``failed``.
        """
        work = Work()
        unique = list(dict.fromkeys(texts))
        failed: dict[int, Failure] = {}  # by position in ``unique``
        encoded = self._encode(unique, batching, failed, work)
        answers = np.zeros((len(unique), self.task.width), dtype=np.float32)
        for batch in plan_batches(encoded.lengths, batch_tokens, batching):
            if int(batch[0]) in failed:
                continue
            try:
                answers[batch] = self._run(encoded, batch, work)
            except BatchFailed as error:
                if batching != "row":
                    raise
                failed[int(batch[0])] = Failure("infer", str(error))
        work.unique_rows = len(unique)
        return _scattered(texts, unique, answers, encoded, failed, work)

    def _encode(self, texts: list[str], batching: Batching, failed: dict[int, Failure], work: Work) -> Encoded:
        started = time.perf_counter()
        try:
            return self._tokenizer.encode(texts)
        except Exception as error:  # tokenizers raises plain Exception
            if batching != "row":
                raise BatchFailed(f"tokenizer: {error}") from error
            failed.update(self._untokenizable(texts))
            return self._tokenizer.encode(["" if row in failed else text for row, text in enumerate(texts)])
        finally:
            work.tokenize_s += time.perf_counter() - started

    def _untokenizable(self, texts: list[str]) -> dict[int, Failure]:
        found = {}
        for row, text in enumerate(texts):
            try:
                self._tokenizer.encode([text])
            except Exception as error:  # noqa: BLE001  the row is told with its cause
                found[row] = Failure("tokenize", one_line(error))
        return found

    def _run(self, encoded: Encoded, batch: npt.NDArray[np.int64], work: Work) -> Floats:
        """Answers (rows of the batch, width), all finite. Raises BatchFailed."""
        started = time.perf_counter()
        try:
            ids, mask, types = encoded.padded(batch)
            (raw,) = self._session.run([self._output], feed_for(self._session, ids, mask, types))
        except HeadraceError:
            raise
        except Exception as error:  # ONNX Runtime's errors share no base of their own; memory may run out as well
            raise BatchFailed(one_line(error)) from error
        inferred = time.perf_counter()
        found = self.task.answers(np.asarray(raw, dtype=np.float32), mask)
        self._check(found, len(batch))
        work.count(mask)
        work.infer_s += inferred - started
        work.postprocess_s += time.perf_counter() - inferred
        return found

    def _check(self, found: Floats, rows: int) -> None:
        if found.shape != (rows, self.task.width):
            message = f"graph gives answers of the wrong shape: {found.shape}, not {(rows, self.task.width)}"
            raise ArtifactCorrupt(message, "compile the model again")
        if not np.isfinite(found).all():
            raise BatchFailed("the model gave numbers that are not finite")


def length_limit(content: Content, options: TaskOptions) -> int:
    """Tokens per row, special ones included. Raises UsageError above what the model takes."""
    if options.max_length is None:
        return content.max_length
    if options.max_length > content.max_length:
        message = f"task.max_length is more than the model takes: {options.max_length}"
        raise UsageError(message, f"the most is {content.max_length}")
    return options.max_length


def _scattered(
    texts: Sequence[str], unique: list[str], answers: Floats, encoded: Encoded, failed: dict[int, Failure], work: Work
) -> WindowAnswers:
    places = {text: place for place, text in enumerate(unique)}
    inverse = np.fromiter((places[text] for text in texts), np.int64, len(texts))
    bad = {row: failed[place] for row, place in enumerate(inverse.tolist()) if place in failed} if failed else {}
    lengths = encoded.lengths.astype(np.int32)
    return WindowAnswers(answers[inverse], lengths[inverse], encoded.truncated[inverse], bad, work)
