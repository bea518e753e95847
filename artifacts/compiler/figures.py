"""What a variant's answers cost against fp32's, as plain floats for the report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..manifest import Content

Array = npt.NDArray[np.float32]
Figures = dict[str, float]


def compare(content: Content, base: Array, other: Array) -> Figures:
    """``base`` and ``other`` are final answers to the same rows, (rows, classes) or (rows, dimension).

    Embeddings: ``cosine_mean``, ``cosine_p1``, ``cosine_min``. Classes: ``score_drift_mean``, ``_p99``, ``_max`` of the
    absolute difference of scores; ``agreement``, the share of rows (multi-label: of decisions at 0.5) that are equal,
    and ``flips``, the rest.
    """
    if content.task == "feature-extraction":
        return _cosines(base, other)
    drift = np.abs(base.astype(np.float64) - other)
    found = {
        "score_drift_mean": float(drift.mean()),
        "score_drift_p99": float(np.quantile(drift, 0.99)),
        "score_drift_max": float(drift.max()),
    }
    if content.problem_type == "regression":
        return found
    same = (base >= 0.5) == (other >= 0.5)
    if content.problem_type == "single_label_classification":
        same = base.argmax(axis=1) == other.argmax(axis=1)
    return {"agreement": float(same.mean()), "flips": float(1.0 - same.mean())} | found


def _cosines(base: Array, other: Array) -> Figures:
    a, b = base.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine = (a * b).sum(axis=1) / np.maximum(lengths, np.finfo(np.float64).tiny)  # (rows,)
    return {
        "cosine_mean": float(cosine.mean()),
        "cosine_p1": float(np.quantile(cosine, 0.01)),
        "cosine_min": float(cosine.min()),
    }


def quality(content: Content, answers: Array, truth: Sequence[str]) -> Figures:
    """``accuracy`` of single-label classes, ``mean_absolute_error`` of a regression; nothing for other tasks.

    Raises UsageError like ``truth_of``.
    """
    expected = truth_of(content, truth)
    if expected is None:
        return {}
    if content.problem_type == "regression":
        return {"mean_absolute_error": float(np.abs(answers[:, 0] - expected).mean())}
    return {"accuracy": float((answers.argmax(axis=1) == expected).mean())}


def truth_of(content: Content, truth: Sequence[str]) -> npt.NDArray[np.float64] | None:
    """Numbers of a regression, class indices (-1: no such class) of single labels, (rows,); None for other tasks.

    Raises UsageError where a regression's label is no number, or no label is one of the model's.
    """
    if content.problem_type == "regression":
        return _numbers(truth)
    if content.problem_type != "single_label_classification":
        return None
    known = {label: index for index, label in enumerate(content.labels)}
    if not any(label in known for label in truth):
        hint = f"the model's labels: {', '.join(content.labels[:10])}"
        raise UsageError(f"none of the evaluation labels is one of the model's: {truth[0]}", hint)
    return np.array([float(known.get(label, -1)) for label in truth])


def _numbers(truth: Sequence[str]) -> npt.NDArray[np.float64]:
    try:
        return np.array([float(value) for value in truth])
    except ValueError as error:
        raise UsageError(f"an evaluation label of a regression is not a number: {error}") from error
