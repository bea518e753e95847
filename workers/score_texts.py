"""Scoring texts outside of a job, with the very code that a job runs: for the compiler's checks and for preview."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..artifacts.bundle import open_bundle
from ..artifacts.errors import HeadraceError
from ..artifacts.hardware import available_cpus
from .scorer import BatchFailed, Scorer
from .shard import ScoreSpec, TaskOptions


def score_texts(folder: Path, variant: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Answers (rows, classes or dimension) float32 of ``texts`` in windows and batches as a job would make them.

    Raises ArtifactNotFound, ArtifactCorrupt, and HeadraceError where the model raises or an answer is not finite.
    """
    content = open_bundle(str(folder)).content
    scorer = Scorer(folder, content, variant, available_cpus(), TaskOptions())
    windows = range(0, len(texts), ScoreSpec.window_rows)
    try:
        found = [_window(scorer, texts[start : start + ScoreSpec.window_rows]) for start in windows]
    except BatchFailed as error:
        raise HeadraceError(f"scoring failed: {variant}: {error}", "this variant can't be used here") from error
    return np.concatenate([np.zeros((0, scorer.task.width), dtype=np.float32), *found])


def _window(scorer: Scorer, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    return scorer.score_window(texts, "budget", scorer.variant.batch_tokens).answers
