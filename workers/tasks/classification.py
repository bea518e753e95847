"""text-classification: labels and scores as the transformers pipeline gives them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...artifacts.errors import ArtifactCorrupt, UsageError
from ...artifacts.manifest import Content
from ..shard import TaskOptions
from .base import Floats, refuse

_SCORES = pa.list_(pa.struct([("label", pa.string()), ("score", pa.float32())]))


class Classification:
    """Single label: softmax; multi-label (or one lone label): sigmoid; regression: the number itself.

    The choice is the one of transformers 4.57, pipelines/text_classification.py.
    """

    output = "logits"

    def __init__(self, content: Content, options: TaskOptions) -> None:
        if not content.labels:
            raise ArtifactCorrupt("manifest has no labels", "compile the model again")
        self.width = len(content.labels)
        self._labels = pa.array(content.labels, pa.string())
        self._regression = content.problem_type == "regression"
        self._sigmoid = content.problem_type == "multi_label_classification" or self.width == 1
        self._scored = self._index(content.labels, options.score_of)
        everything = self.width if content.problem_type == "multi_label_classification" else None
        self._k = _checked_k(options.top_k, self.width) or everything
        if self._regression:
            self._check_regression(options)

    def _index(self, labels: tuple[str, ...], name: str | None) -> int | None:
        if name is None:
            return None
        if name not in labels:
            raise UsageError(f"task.score_of is not a label: {name}", f"labels are {', '.join(labels)}")
        return labels.index(name)

    def _check_regression(self, options: TaskOptions) -> None:
        refuse({"top_k": options.top_k, "score_of": options.score_of}, "a regression has one number and no labels")
        if self.width != 1:
            raise UsageError(f"regression with several outputs is not supported: {self.width}", "one output is")

    def fields(self) -> list[pa.Field]:
        fields = [] if self._regression else [pa.field("label", pa.string())]
        fields.append(pa.field("score", pa.float32()))
        if self._k:
            fields.append(pa.field("scores", _SCORES))
        return fields

    def answers(self, raw: Floats, mask: npt.NDArray[np.int64]) -> Floats:
        """Logits (rows, classes) to probabilities, float32; the mask plays no part.

        A row with a logit that is not finite is NaN throughout: a sigmoid would hide it.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            answers = raw if self._regression else _sigmoid(raw) if self._sigmoid else _softmax(raw)
        finite = np.isfinite(raw).all(axis=1, keepdims=True)
        return np.where(finite, answers, np.float32(np.nan)).astype(np.float32)

    def columns(self, answers: Floats, given: npt.NDArray[np.bool_]) -> list[pa.Array]:
        best = np.argmax(answers, axis=1) if len(answers) else np.zeros(0, dtype=np.int64)
        scored = best if self._scored is None else np.full_like(best, self._scored)
        score = pa.array(answers[np.arange(len(answers)), scored], pa.float32(), mask=~given)
        columns = [] if self._regression else [self._labels.take(pa.array(best, pa.int64(), mask=~given))]
        columns.append(score)
        if self._k:
            columns.append(self._best(answers, given, self._k))
        return columns

    def _best(self, answers: Floats, given: npt.NDArray[np.bool_], k: int) -> pa.Array:
        """The ``k`` best labels per row, best first, ties in label order."""
        order = np.argsort(-answers[given], axis=1, kind="stable")[:, :k]
        scores = np.take_along_axis(answers[given], order, axis=1)
        labels = self._labels.take(pa.array(order.ravel(), pa.int64()))
        pairs = pa.StructArray.from_arrays(
            [labels, pa.array(scores.ravel(), pa.float32())], fields=list(_SCORES.value_type)
        )
        offsets = np.concatenate(([0], np.cumsum(np.where(given, k, 0)))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=_SCORES, mask=pa.array(~given))


def _checked_k(top_k: int | None, classes: int) -> int | None:
    if top_k is not None and not 1 <= top_k <= classes:
        raise UsageError(f"task.top_k is out of range: {top_k}", f"1 to {classes}, the number of labels")
    return top_k


def _softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True), dtype=np.float32)


def _sigmoid(logits: Floats) -> Floats:
    """``exp`` may overflow to infinity, which gives the right limit."""
    return np.asarray(1.0 / (1.0 + np.exp(-logits)), dtype=np.float32)
