"""From raw output to columns: the numbers of PyTorch, the columns that the options ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.artifacts.errors import ArtifactCorrupt, UsageError
from headrace.artifacts.manifest import Content
from headrace.workers.shard import TaskOptions
from headrace.workers.tasks import task_of

LOGITS = np.array([[2.0, 1.0, -3.0], [-80.0, 90.0, 0.5], [0.25, 0.25, 0.25]], dtype=np.float32)
MASK = np.ones((3, 4), dtype=np.int64)
ALL = np.ones(3, dtype=np.bool_)


def classifier(problem_type: Any = "single_label_classification", labels: tuple[str, ...] = ("a", "b", "c")) -> Content:
    return Content(
        name="m", task="text-classification", problem_type=problem_type, labels=labels, max_length=8, variants=(),
        files=(),
    )  # fmt: skip


def embedder(pooling: Any, normalize: bool, dimension: int | None = 5) -> Content:
    return Content(
        name="m", task="feature-extraction", pooling=pooling, normalize=normalize, dimension=dimension, max_length=8,
        variants=(), files=(),
    )  # fmt: skip


def table(content: Content, raw: np.ndarray, given: np.ndarray = ALL, **options: Any) -> list[dict[str, Any]]:
    task = task_of(content, TaskOptions(**options))
    columns = task.columns(task.answers(raw, MASK[: len(raw)]), given)
    found = pa.Table.from_arrays(columns, schema=pa.schema(task.fields()))
    found.validate(full=True)
    return found.to_pylist()


def test_single_label_is_the_softmax_of_pytorch() -> None:
    import torch

    task = task_of(classifier(), TaskOptions())
    np.testing.assert_allclose(task.answers(LOGITS, MASK), torch.tensor(LOGITS).softmax(-1).numpy(), atol=1e-6)
    rows = table(classifier(), LOGITS)
    assert [row["label"] for row in rows] == ["a", "b", "a"]
    assert rows[0]["score"] == pytest.approx(float(torch.tensor(LOGITS[0]).softmax(-1)[0]), abs=1e-6)
    assert list(rows[0]) == ["label", "score"]


def test_top_k_gives_the_best_in_order_with_ties_in_label_order() -> None:
    rows = table(classifier(), LOGITS, top_k=2)
    assert [[pair["label"] for pair in row["scores"]] for row in rows] == [["a", "b"], ["b", "c"], ["a", "b"]]
    assert all(row["scores"][0] == {"label": row["label"], "score": row["score"]} for row in rows)


def test_score_of_is_the_probability_of_that_label_and_the_label_stays_the_best() -> None:
    import torch

    rows = table(classifier(), LOGITS, score_of="c")
    assert [row["label"] for row in rows] == ["a", "b", "a"]
    expected = torch.tensor(LOGITS).softmax(-1)[:, 2].tolist()
    assert [row["score"] for row in rows] == pytest.approx(expected, abs=1e-6)


def test_multi_label_has_the_sigmoid_of_every_label() -> None:
    import torch

    rows = table(classifier("multi_label_classification"), LOGITS)
    expected = torch.tensor(LOGITS).sigmoid().numpy()
    for row, scores in zip(rows, expected, strict=True):
        found = {pair["label"]: pair["score"] for pair in row["scores"]}
        assert [found[label] for label in "abc"] == pytest.approx(scores.tolist(), abs=1e-6)
        assert row["score"] == max(found.values())
    assert [len(row["scores"]) for row in table(classifier("multi_label_classification"), LOGITS, top_k=1)] == [1, 1, 1]


def test_one_lone_label_is_a_sigmoid_as_in_the_pipeline_of_transformers() -> None:
    rows = table(classifier(labels=("spam",)), np.array([[0.0], [2.0]], dtype=np.float32), ALL[:2])
    assert [row["score"] for row in rows] == pytest.approx([0.5, 1 / (1 + np.exp(-2.0))], abs=1e-6)


def test_regression_is_the_number_itself() -> None:
    rows = table(classifier("regression", ("LABEL_0",)), np.array([[-3.5], [7.25]], dtype=np.float32), ALL[:2])
    assert rows == [{"score": -3.5}, {"score": 7.25}]


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification", "regression"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_not_finite_never_becomes_a_number(problem_type: str, value: float) -> None:
    labels = ("a",) if problem_type == "regression" else ("a", "b")
    raw = np.full((2, len(labels)), 1.0, dtype=np.float32)
    raw[0, 0] = value
    answers = task_of(classifier(problem_type, labels), TaskOptions()).answers(raw, MASK[:2])
    assert np.isnan(answers[0]).all()
    assert np.isfinite(answers[1]).all()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_pooling_is_that_of_sentence_transformers(pooling: str, normalize: bool) -> None:
    """The formulas of sentence_transformers/models/Pooling.py and Normalize.py, in PyTorch."""
    import torch

    tokens = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    wide = mask.unsqueeze(-1).expand(tokens.size()).float()
    expected = {
        "mean": (tokens * wide).sum(1) / wide.sum(1).clamp(min=1e-9),
        "cls": tokens[:, 0],
        "max": tokens.masked_fill(wide == 0, -1e9).max(1).values,
    }[pooling]
    if normalize:
        expected = torch.nn.functional.normalize(expected, p=2, dim=1)
    found = task_of(embedder(pooling, normalize), TaskOptions()).answers(tokens.numpy(), mask.numpy())
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    assert found.dtype == np.float32


def test_rows_without_an_answer_are_null_in_every_column() -> None:
    given = np.array([True, False, True])
    for content, raw, options in (
        (classifier(), LOGITS, {"top_k": 2}),
        (classifier("multi_label_classification"), LOGITS, {}),
        (embedder("cls", True, 3), np.ones((3, 4, 3), dtype=np.float32), {}),
    ):
        rows = table(content, raw, given, **options)
        assert set(rows[1].values()) == {None}
        assert None not in rows[0].values() and None not in rows[2].values()


def test_an_embedding_is_a_fixed_size_list_of_float32() -> None:
    assert task_of(embedder("mean", True), TaskOptions()).fields() == [pa.field("embedding", pa.list_(pa.float32(), 5))]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (classifier(), {"score_of": "spam"}, "task.score_of is not a label: spam"),
        (classifier(), {"top_k": 4}, "task.top_k is out of range: 4"),
        (classifier(), {"top_k": 0}, "task.top_k is out of range: 0"),
        (classifier("regression", ("x",)), {"top_k": 1}, "task.top_k does not fit"),
        (classifier("regression", ("x", "y")), {}, "regression with several outputs"),
        (embedder("mean", True), {"score_of": "a"}, "task.score_of does not fit"),
    ],
)
def test_options_that_do_not_fit(content: Content, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        task_of(content, TaskOptions(**options))
    assert caught.value.hint


def test_an_unknown_label_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        task_of(classifier(), TaskOptions(score_of="spam"))
    assert caught.value.hint == "labels are a, b, c"


def test_manifests_that_lack_something() -> None:
    with pytest.raises(ArtifactCorrupt, match="no labels"):
        task_of(classifier(labels=()), TaskOptions())
    with pytest.raises(ArtifactCorrupt, match="no dimension"):
        task_of(embedder("mean", True, None), TaskOptions())
