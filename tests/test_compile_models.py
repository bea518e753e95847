"""Kinds of classifiers and tokenizers: multi-label, regression, RoBERTa positions, published padding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simple_scorer
import tiny_models
from tokenizers import Tokenizer

from headrace.artifacts.bundle import open_bundle
from headrace.artifacts.compiler import EvalTexts, compile_model
from headrace.artifacts.compiler.figures import compare, quality
from headrace.artifacts.compiler.probes import probe_texts
from headrace.artifacts.compiler.task import read_classes, resolve_task
from headrace.artifacts.errors import CompileError, UsageError
from headrace.artifacts.manifest import Content, Manifest
from headrace.artifacts.store import ship, unpack
from headrace.workers.score_texts import score_texts

TEXTS = ["good water", "the old lake was very cold and dark", "free money prize", "people walk by the river " * 9]


def build(model: Path, out: Path, **options: Any) -> Manifest:
    return compile_model(str(model), out, **{"score": simple_scorer.score, "say": lambda _line: None} | options)


def logits(model: Path, texts: Sequence[str], max_length: int) -> npt.NDArray[np.float32]:
    """(rows, classes) from PyTorch, one text at a time."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        rows = [
            network(**tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")).logits
            for text in texts
        ]
    return torch.cat(rows).numpy()


def test_multi_label(tmp_path: Path) -> None:
    model = tiny_models.classifier(tmp_path / "model", problem_type="multi_label_classification")
    manifest = build(model, tmp_path / "out", eval_texts=EvalTexts(TEXTS, ["a"] * 4))
    assert manifest.content.problem_type == "multi_label_classification"
    expected = 1 / (1 + np.exp(-logits(model, TEXTS, 128)))
    np.testing.assert_allclose(simple_scorer.score(tmp_path / "out", "cpu-fp32", TEXTS), expected, atol=1e-4)
    assert manifest.report.checks["cpu-fp32"]["eval"] == {"rows": 4.0}


def test_one_lone_class_gets_a_sigmoid(tmp_path: Path) -> None:
    """As in transformers' pipeline, whatever the problem type says: under softmax every score would be 1."""
    from transformers import pipeline

    model = tiny_models.classifier(tmp_path / "model", ["spam"])
    manifest = build(model, tmp_path / "out", score=score_texts)
    assert (manifest.content.problem_type, manifest.report.warnings) == ("single_label_classification", ())
    answers = pipeline("text-classification", model=str(model), device="cpu")(TEXTS)
    expected = [[answer["score"]] for answer in answers]
    np.testing.assert_allclose(score_texts(tmp_path / "out", "cpu-fp32", TEXTS), expected, atol=1e-4)
    assert len({round(score, 6) for [score] in expected}) > 1


@pytest.mark.parametrize("problem_type", ["regression", None])
def test_regression(tmp_path: Path, problem_type: str | None) -> None:
    model = tiny_models.classifier(tmp_path / "model", ["LABEL_0"], problem_type)
    expected = logits(model, TEXTS, 128)
    truth = [str(float(value) + 0.5) for value in expected[:, 0]]
    manifest = build(model, tmp_path / "out", eval_texts=EvalTexts(TEXTS, truth))
    assert manifest.content.problem_type == "regression"
    np.testing.assert_allclose(simple_scorer.score(tmp_path / "out", "cpu-fp32", TEXTS), expected, atol=1e-4, rtol=1e-4)
    assert manifest.report.checks["cpu-fp32"]["eval"]["mean_absolute_error"] == pytest.approx(0.5, abs=1e-3)
    assert manifest.report.warnings == ()
    with pytest.raises(UsageError, match="is not a number"):
        quality(manifest.content, expected, ["spam"] * 4)


def test_labels_without_names_are_warned_of(tmp_path: Path) -> None:
    lines: list[str] = []
    model = tiny_models.classifier(tmp_path / "model", ["LABEL_0", "LABEL_1"])
    manifest = build(model, tmp_path / "out", variants=["cpu-fp32"], say=lines.append)
    (warning,) = manifest.report.warnings
    assert warning.startswith("the labels are only LABEL_0, LABEL_1")
    assert f"warning: {warning}" in lines


def test_roberta_keeps_positions_for_itself(tmp_path: Path) -> None:
    """40 positions of which padding_idx + 1 = 2 are never used: a 39th token would be out of the table."""
    model = tiny_models.roberta_classifier(tmp_path / "model")
    manifest = build(model, tmp_path / "out")
    content = manifest.content
    assert (content.max_length, content.pad_id) == (38, 1)
    found = simple_scorer.score(tmp_path / "out", "cpu-fp32", TEXTS)
    powers = np.exp(logits(model, TEXTS, 38))
    np.testing.assert_allclose(found, powers / powers.sum(axis=1, keepdims=True), atol=1e-4)


def test_published_padding_and_truncation_are_removed(tmp_path: Path) -> None:
    model = tiny_models.classifier(tmp_path / "model")
    published = Tokenizer.from_file(str(model / "tokenizer.json"))
    published.enable_padding(length=64)
    published.enable_truncation(8)
    published.save(str(model / "tokenizer.json"))
    build(model, tmp_path / "out", variants=["cpu-fp32"])
    written = json.loads((tmp_path / "out/tokenizer.json").read_text())
    assert (written["padding"], written["truncation"]) == (None, None)
    assert open_bundle(str(tmp_path / "out")).content.max_length == 128
    plain = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    assert len(plain.encode("good water").ids) == 4
    assert len(plain.encode("good " * 50).ids) == 52


def test_a_tokenizer_that_knows_no_length_leaves_the_positions(tmp_path: Path) -> None:
    model = tiny_models.classifier(tmp_path / "model", max_positions=64, model_max_length=int(1e30))
    assert build(model, tmp_path / "out", variants=["cpu-fp32"]).content.max_length == 64


def test_a_shorter_tokenizer_wins(tmp_path: Path) -> None:
    model = tiny_models.classifier(tmp_path / "model", model_max_length=24)
    assert build(model, tmp_path / "out", variants=["cpu-fp32"]).content.max_length == 24


def test_external_data_is_shipped_and_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs over 2 GB keep their weights in files beside them; here the limit is lowered instead."""
    import onnx
    import onnxruntime

    from headrace.artifacts.compiler import export

    real = export.export_graph

    def external(model: Path, task: Any, into: Path) -> Path:
        graph = real(model, task, into)
        loaded = onnx.load(str(graph))
        graph.unlink()
        onnx.save(loaded, str(graph), save_as_external_data=True, location=f"{graph.name}_data", size_threshold=0)
        return graph

    monkeypatch.setattr(export, "export_graph", external)
    monkeypatch.setattr(export, "_EXTERNAL_DATA_BYTES", 1)
    model = tiny_models.classifier(tmp_path / "model")
    manifest = build(model, tmp_path / "out", variants=["cpu-vnni-int8"])
    fp32, int8 = manifest.content.variants
    assert fp32.files == ("cpu-fp32/model.onnx", "cpu-fp32/model.onnx_data")
    assert int8.files == ("cpu-vnni-int8/model.onnx", "cpu-vnni-int8/model.onnx.data")
    bundle = open_bundle(str(tmp_path / "out"))
    for variant in (fp32, int8):
        folder = unpack(ship(bundle, variant.name, np.asarray), np.asarray, tmp_path / "cache")
        onnxruntime.InferenceSession(str(folder / variant.files[0]))


def test_a_flipped_byte_in_any_file_of_a_real_artifact_is_found(classifier_artifact: Path, tmp_path: Path) -> None:
    import shutil

    from headrace.artifacts.errors import ArtifactCorrupt

    copy = Path(shutil.copytree(classifier_artifact, tmp_path / "copy"))
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    assert len(files) >= 3
    for path in files:
        raw = path.read_bytes()
        for position in range(0, len(raw), max(1, len(raw) // 7)):
            path.write_bytes(raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :])
            with pytest.raises(ArtifactCorrupt, match=path.relative_to(copy).as_posix()):
                open_bundle(str(copy)).verify()
        path.write_bytes(raw)
    open_bundle(str(copy)).verify()


class Config:
    """What transformers' config objects offer of what is read."""

    def __init__(self, **values: Any) -> None:
        self.architectures: list[str] | None = None
        self.problem_type: str | None = None
        self.__dict__.update(values)


@pytest.mark.parametrize(
    ("given", "architecture", "task"),
    [
        (None, "BertForSequenceClassification", "text-classification"),
        (None, "BertModel", "feature-extraction"),
        ("sentiment-analysis", "BertModel", "text-classification"),
        ("sentence-similarity", "BertForMaskedLM", "feature-extraction"),
        ("default", "BertForMaskedLM", "feature-extraction"),
    ],
)
def test_tasks(given: str | None, architecture: str, task: str, tmp_path: Path) -> None:
    assert resolve_task(given, Config(architectures=[architecture]), tmp_path) == task


def test_a_task_that_can_not_be_told(tmp_path: Path) -> None:
    for architectures in (["BertForMaskedLM"], None):
        with pytest.raises(UsageError) as refused:
            resolve_task(None, Config(architectures=architectures), tmp_path)
        assert refused.value.hint == "name it: --task text-classification | feature-extraction"


def test_sentence_files_tell_the_task(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[]")
    assert resolve_task(None, Config(architectures=["BertForMaskedLM"]), tmp_path) == "feature-extraction"


def test_labels_come_in_index_order() -> None:
    classes = read_classes(Config(id2label={2: "c", 0: "a", 1: "b"}, num_labels=3))
    assert (classes.labels, classes.problem_type) == (("a", "b", "c"), "single_label_classification")
    with pytest.raises(CompileError, match="id2label"):
        read_classes(Config(id2label={0: "a", 2: "c"}, num_labels=2))
    with pytest.raises(CompileError, match="unknown problem_type"):
        read_classes(Config(id2label={0: "a", 1: "c"}, num_labels=2, problem_type="ranking"))


def test_odd_labels_are_warned_of() -> None:
    twice = read_classes(Config(id2label={0: "a", 1: "a"}, num_labels=2))
    single = read_classes(Config(id2label={0: "a"}, num_labels=1, problem_type="single_label_classification"))
    assert "same label" in twice.warnings[0]
    assert single.warnings == ()


def content(problem_type: str) -> Content:
    return Content.model_validate(
        {"name": "x", "task": "text-classification", "problem_type": problem_type, "labels": ("a", "b"),
         "max_length": 8, "variants": (), "files": ()}
    )  # fmt: skip


def test_figures_by_hand() -> None:
    base = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.4, 0.6]], dtype=np.float32)
    other = np.array([[0.8, 0.2], [0.4, 0.6], [0.2, 0.8], [0.4, 0.6]], dtype=np.float32)
    single = compare(content("single_label_classification"), base, other)
    assert single["agreement"] == 0.75
    assert single["flips"] == 0.25
    assert single["score_drift_mean"] == pytest.approx((0.1 * 2 + 0.2 * 2) / 8)
    assert single["score_drift_max"] == pytest.approx(0.2)
    assert compare(content("multi_label_classification"), base, other)["agreement"] == 0.75
    assert "agreement" not in compare(content("regression"), base, other)
    assert quality(content("single_label_classification"), base, ["a", "b", "b", "unknown"]) == {"accuracy": 0.5}


def test_embedding_figures_by_hand() -> None:
    embedding = Content(name="x", task="feature-extraction", max_length=8, variants=(), files=())
    base = np.array([[1, 0], [0, 2]], dtype=np.float32)
    other = np.array([[2, 0], [1, 1]], dtype=np.float32)
    found = compare(embedding, base, other)
    assert found["cosine_mean"] == pytest.approx((1 + 0.5**0.5) / 2)
    assert found["cosine_min"] == pytest.approx(0.5**0.5)
    assert found["cosine_min"] < found["cosine_p1"] < found["cosine_mean"]


def test_probes_cover_what_columns_hold() -> None:
    probes = probe_texts(64)
    assert 30 <= len(probes) <= 60
    lengths = [len(text.split()) for text in probes]
    assert max(lengths) == 128
    assert min(lengths) == 0
    assert any(not text.isascii() for text in probes)
