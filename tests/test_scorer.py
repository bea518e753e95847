"""Texts to answers: transformers' numbers, each distinct text once, and what happens to a text the model can't do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runs import sentences
from shards import LABELS, lookup_artifact, open_scorer, probabilities

from headrace.artifacts.bundle import open_bundle
from headrace.artifacts.errors import ArtifactCorrupt, ArtifactNotFound, HeadraceError, UsageError
from headrace.workers.score_texts import score_texts
from headrace.workers.scorer import BatchFailed
from headrace.workers.session import CPU, open_session

#: Single precision through two ways of computing the same graph.
PARITY = 1e-4
TEXTS = [*sentences(60, seed=3), "", "the " * 300, "the river", "the river"]


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lookup_artifact(tmp_path_factory.mktemp("lookup") / "artifact")


def test_fp32_equals_the_pipeline_of_transformers(classifier_artifact: Path, tiny_classifier_model: Path) -> None:
    from transformers import pipeline

    reference = pipeline("text-classification", model=str(tiny_classifier_model), device="cpu", top_k=None)
    expected = reference(TEXTS, truncation=True, max_length=128)
    scorer = open_scorer(classifier_artifact)
    for batching in ("budget", "row"):
        found = scorer.score_window(TEXTS, batching, 256)
        for answer, scores in zip(found.answers, expected, strict=True):
            by_label = {pair["label"]: pair["score"] for pair in scores}
            assert answer.tolist() == pytest.approx([by_label[x] for x in scorer.content.labels], abs=PARITY)


def test_fp32_embeddings_equal_pytorch(embedder_artifact: Path, tiny_embedder_model: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_embedder_model)
    model = AutoModel.from_pretrained(tiny_embedder_model).eval()
    inputs = tokenizer(TEXTS, truncation=True, max_length=48, padding=True, return_tensors="pt")
    with torch.no_grad():
        tokens = model(**inputs).last_hidden_state
    wide = inputs["attention_mask"].unsqueeze(-1).float()
    expected = torch.nn.functional.normalize((tokens * wide).sum(1) / wide.sum(1), dim=1).numpy()
    found = open_scorer(embedder_artifact).score_window(TEXTS, "budget", 256)
    np.testing.assert_allclose(found.answers, expected, atol=PARITY)
    assert found.n_tokens.tolist() == inputs["attention_mask"].sum(1).tolist()
    assert found.truncated.tolist() == [len(ids) > 48 for ids in tokenizer(TEXTS)["input_ids"]]


def test_answers_by_hand(lookup: Path) -> None:
    texts = ["red red blue", "green", "red", "nothing known", "blue " * 40]
    found = open_scorer(lookup).score_window(texts, "budget", 32)
    np.testing.assert_allclose(found.answers, [probabilities(text) for text in texts], atol=1e-6)
    assert found.n_tokens.tolist() == [5, 3, 3, 4, 16]
    assert found.truncated.tolist() == [False, False, False, False, True]


def test_each_distinct_text_runs_once_and_every_row_gets_its_answer(lookup: Path) -> None:
    texts = ["red", "green green", "red", "", "red", ""]
    found = open_scorer(lookup).score_window(texts, "budget", 8)
    np.testing.assert_allclose(found.answers, [probabilities(text) for text in texts], atol=1e-6)
    # 4 + 3 + 2 tokens; the first two share a batch of 2 x 4, the last would make it 12
    work = found.work
    assert (work.unique_rows, work.tokens, work.padded_tokens, work.batches) == (3, 9, 1, 2)


def test_no_texts(lookup: Path) -> None:
    found = open_scorer(lookup).score_window([], "budget", 8)
    assert found.answers.shape == (0, 3)
    assert found.work.batches == 0


@pytest.mark.parametrize(("text", "reason"), [("poison", "out of data bounds"), ("nan", "not finite")])
def test_a_text_the_model_cannot_do_fails_its_batch_and_then_only_itself(lookup: Path, text: str, reason: str) -> None:
    texts = ["red", f"red {text} blue", "green", f"red {text} blue"]
    scorer = open_scorer(lookup)
    with pytest.raises(BatchFailed, match=reason):
        scorer.score_window(texts, "budget", 64)
    found = scorer.score_window(texts, "row", 64)
    assert sorted(found.failed) == [1, 3]
    assert found.failed[1].stage == "infer"
    assert reason in found.failed[1].reason
    np.testing.assert_allclose(found.answers[[0, 2]], [probabilities("red"), probabilities("green")], atol=1e-6)


def test_answers_do_not_depend_on_threads(classifier_artifact: Path) -> None:
    for variant in open_bundle(str(classifier_artifact)).content.variants:
        found = [open_scorer(classifier_artifact, variant.name, n).score_window(TEXTS, "budget", 128) for n in (1, 2)]
        np.testing.assert_array_equal(found[0].answers, found[1].answers)


def test_warm_up(lookup: Path, tmp_path: Path) -> None:
    scorer = open_scorer(lookup)
    scorer.warm_up()
    assert scorer.provider == CPU
    sick = lookup_artifact(tmp_path / "sick")
    _spoil(sick / "cpu-fp32" / "model.onnx")
    with pytest.raises(
        HeadraceError, match="warm-up failed: cpu-fp32: the model gave numbers that are not finite"
    ) as caught:
        open_scorer(sick).warm_up()
    assert caught.value.hint


def _spoil(graph: Path) -> None:
    """Every weight NaN."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(graph)
    weights = model.graph.initializer[0]
    weights.CopyFrom(numpy_helper.from_array(np.full_like(numpy_helper.to_array(weights), np.nan), weights.name))
    onnx.save(model, graph)


def test_score_texts_spans_windows_and_raises_what_a_job_would_quarantine(lookup: Path) -> None:
    texts = [f"red{' blue' * (row % 9)}" for row in range(2100)]
    found = score_texts(lookup, "cpu-fp32", texts)
    np.testing.assert_allclose(found, [probabilities(text) for text in texts], atol=1e-6)
    assert score_texts(lookup, "cpu-fp32", []).shape == (0, len(LABELS))
    with pytest.raises(HeadraceError, match="scoring failed: cpu-fp32"):
        score_texts(lookup, "cpu-fp32", ["nan"])


def test_options(lookup: Path) -> None:
    assert open_scorer(lookup, max_length=4).score_window(["red red red"], "row", 1).n_tokens.tolist() == [4]
    with pytest.raises(UsageError, match=r"task\.max_length is more than the model takes: 17") as caught:
        open_scorer(lookup, max_length=17)
    assert caught.value.hint == "the most is 16"
    with pytest.raises(ArtifactNotFound, match="no such variant: cpu-fp64"):
        open_scorer(lookup, "cpu-fp64")


def test_graphs_that_can_not_be_used(tmp_path: Path, lookup: Path) -> None:
    import onnx

    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ArtifactCorrupt, match="graph does not load"):
        open_session(tmp_path / "model.onnx", 1)
    odd = lookup_artifact(tmp_path / "odd")
    model = onnx.load(odd / "cpu-fp32" / "model.onnx")
    model.graph.input.append(onnx.helper.make_tensor_value_info("pixel_values", onnx.TensorProto.INT64, ["rows"]))
    onnx.save(model, odd / "cpu-fp32" / "model.onnx")
    with pytest.raises(ArtifactCorrupt, match="unknown input: pixel_values"):
        open_scorer(odd).warm_up()
