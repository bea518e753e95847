"""Compiling classifiers: answers against transformers, checks, digest, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simple_scorer
import tiny_models

from headrace.artifacts.bundle import open_bundle
from headrace.artifacts.compiler import EvalTexts, compile_model
from headrace.artifacts.errors import CompileError, UsageError
from headrace.artifacts.hardware import choose_variant, this_cpu
from headrace.artifacts.manifest import Manifest

TEXTS = [
    "good water", "the old lake was very cold and dark", "free money prize send letter now", "x", "a 1 b 2 ?!",
    "people talk and walk by the river " * 12,
]  # fmt: skip


def build(model: Path, out: Path, **options: Any) -> Manifest:
    return compile_model(str(model), out, **{"score": simple_scorer.score, "say": lambda _line: None} | options)


def pipeline_scores(model: Path, texts: Sequence[str], **options: Any) -> npt.NDArray[np.float64]:
    """(rows, classes) in index order, from transformers' own pipeline, one text at a time."""
    from transformers import AutoConfig, pipeline

    labels = AutoConfig.from_pretrained(model).id2label
    run = pipeline("text-classification", model=str(model), top_k=None, device="cpu", **options)
    answers = [{entry["label"]: entry["score"] for entry in run([text], truncation=True)[0]} for text in texts]
    return np.array([[answer[labels[index]] for index in range(len(labels))] for answer in answers])


def test_what_is_in_a_classifier(classifier_artifact: Path) -> None:
    bundle = open_bundle(str(classifier_artifact))
    bundle.verify()
    content, report = bundle.content, bundle.manifest.report
    assert (content.name, content.task) == ("tiny-classifier", "text-classification")
    assert (content.labels, content.problem_type) == (tiny_models.LABELS, "single_label_classification")
    assert (content.max_length, content.pad_id, content.pad_type_id) == (128, 0, 0)
    assert (content.pooling, content.dimension, content.normalize) == (None, None, False)
    fp32, *rest = content.variants
    assert (fp32.name, fp32.recipe, fp32.batch_invariant) == ("cpu-fp32", "export", True)
    assert all(not int8.batch_invariant and int8.precision == "int8" for int8 in rest)
    assert choose_variant(content.variants, this_cpu()).target == this_cpu().targets[0]
    assert report.warnings == ()
    assert {"headrace", "python", "torch", "transformers", "tokenizers", "optimum", "optimum-onnx", "onnx",
            "onnxruntime", "numpy"} == set(report.tools)  # fmt: skip
    assert report.machine["instruction_set"] == this_cpu().instruction_set


def test_fp32_equals_the_transformers_pipeline(classifier_artifact: Path, tiny_classifier_model: Path) -> None:
    found = simple_scorer.score(classifier_artifact, "cpu-fp32", TEXTS)
    expected = pipeline_scores(tiny_classifier_model, TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert len(set(expected.argmax(axis=1))) > 1


def test_the_workers_own_scoring_passes_the_check(tiny_classifier_model: Path, tmp_path: Path) -> None:
    from headrace.workers.score_texts import score_texts

    manifest = build(tiny_classifier_model, tmp_path / "out", score=score_texts)
    probes = manifest.report.checks["cpu-fp32"]["probes"]
    assert probes["difference_to_pytorch"] < 1e-5
    assert probes["graph_difference_to_pytorch"] < 1e-5


def test_figures_of_every_variant(tiny_classifier_model: Path, tmp_path: Path) -> None:
    expected = pipeline_scores(tiny_classifier_model, TEXTS)
    truth = [tiny_models.LABELS[index] for index in expected.argmax(axis=1)]
    truth[0] = "neutral" if truth[0] != "neutral" else "positive"
    lines: list[str] = []
    manifest = build(
        tiny_classifier_model, tmp_path / "out", variants=["cpu-vnni-int8", "cpu-avx2-int8"], say=lines.append,
        eval_texts=EvalTexts(TEXTS, truth, "six rows"),
    )  # fmt: skip
    checks = manifest.report.checks
    assert list(checks) == ["cpu-fp32", "cpu-vnni-int8", "cpu-avx2-int8"]
    assert checks["cpu-fp32"]["eval"] == {"rows": 6.0, "accuracy": pytest.approx(5 / 6)}
    for name in ("cpu-vnni-int8", "cpu-avx2-int8"):
        base, int8 = (simple_scorer.score(tmp_path / "out", variant, TEXTS) for variant in ("cpu-fp32", name))
        found = checks[name]["eval"]
        assert found["accuracy_fp32"] == pytest.approx(5 / 6)
        assert found["score_drift_max"] == pytest.approx(float(np.abs(base - int8).max()))
        assert found["agreement"] == 1.0 - found["flips"] == np.mean(base.argmax(1) == int8.argmax(1))
        assert 0 < found["score_drift_mean"] < found["score_drift_p99"] <= found["score_drift_max"]
        assert checks[name]["eval_data"] == "six rows"
        assert any(name in line and "evaluation rows" in line for line in lines)
    recipes = {variant.name: variant.recipe for variant in manifest.content.variants}
    assert recipes["cpu-avx2-int8"] == "dynamic-int8-per-channel-reduced-range"
    assert all(isinstance(value, float) for figures in checks.values() for value in figures["probes"].values())


def test_reduced_range_keeps_weights_within_seven_bits(tiny_classifier_model: Path, tmp_path: Path) -> None:
    import onnx

    build(tiny_classifier_model, tmp_path / "out", variants=["cpu-vnni-int8", "cpu-avx2-int8"])
    largest = {}
    for name in ("cpu-vnni-int8", "cpu-avx2-int8"):
        graph = onnx.load(str(tmp_path / "out" / name / "model.onnx")).graph
        weights = [
            onnx.numpy_helper.to_array(tensor).astype(int)
            for tensor in graph.initializer
            if tensor.data_type == onnx.TensorProto.INT8 and tensor.name.endswith("_quantized")
        ]
        largest[name] = max(int(np.abs(array).max()) for array in weights)
    assert largest == {"cpu-vnni-int8": 127, "cpu-avx2-int8": 64}


def test_two_compiles_have_one_digest(classifier_artifact: Path, tiny_classifier_model: Path, tmp_path: Path) -> None:
    """In another process with another hash seed: sets and dicts must not decide an order."""
    code = (
        "import sys; from pathlib import Path; import simple_scorer\n"
        "from headrace.artifacts.compiler import compile_model\n"
        "compile_model(sys.argv[1], Path(sys.argv[2]), score=simple_scorer.score, say=lambda line: None)"
    )
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", code, str(tiny_classifier_model), str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert open_bundle(str(tmp_path / "out")).digest == open_bundle(str(classifier_artifact)).digest
    assert (done.stdout, done.stderr) == ("", ""), "other libraries' chatter reaches the user"


def test_half_precision_weights_become_fp32(tmp_path: Path) -> None:
    import onnx
    from transformers import BertForSequenceClassification

    model = tiny_models.classifier(tmp_path / "model")
    BertForSequenceClassification.from_pretrained(model).half().save_pretrained(model)
    build(model, tmp_path / "out", variants=["cpu-fp32"])
    graph = onnx.load(str(tmp_path / "out/cpu-fp32/model.onnx")).graph
    assert onnx.TensorProto.FLOAT16 not in {tensor.data_type for tensor in graph.initializer}
    found = simple_scorer.score(tmp_path / "out", "cpu-fp32", TEXTS)
    np.testing.assert_allclose(found, pipeline_scores(model, TEXTS, dtype="float32"), atol=1e-4)


def test_a_head_that_is_not_in_the_checkpoint_is_refused(tmp_path: Path) -> None:
    model = tiny_models.encoder(tmp_path / "model")
    with pytest.raises(CompileError) as refused:
        build(model, tmp_path / "out", task="text-classification")
    assert "classifier.bias, classifier.weight" in refused.value.message
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "the workspace is left behind"


def test_an_encoder_with_missing_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = tiny_models.encoder(tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    name = "encoder.layer.1.attention.self.query.weight"
    save_file(
        {key: value for key, value in weights.items() if key != name}, model / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(CompileError, match=name.replace(".", r"\.")):
        build(model, tmp_path / "out")


def test_wrong_answers_are_an_error(tiny_classifier_model: Path, tmp_path: Path) -> None:
    def off(folder: Path, variant: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return simple_scorer.score(folder, variant, texts) + np.float32(1e-3)

    with pytest.raises(CompileError, match=r"differ in the final answers: 0\.001"):
        build(tiny_classifier_model, tmp_path / "out", score=off)
    assert not (tmp_path / "out").exists()


def test_answers_that_are_no_numbers_are_an_error(tiny_classifier_model: Path, tmp_path: Path) -> None:
    def broken(folder: Path, variant: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        found = simple_scorer.score(folder, variant, texts)
        return found if variant == "cpu-fp32" else found * np.float32("nan")

    with pytest.raises(CompileError, match="cpu-vnni-int8 gave answers that are not finite"):
        build(tiny_classifier_model, tmp_path / "out", score=broken, variants=["cpu-vnni-int8"])


def test_a_graph_that_is_not_the_model_is_an_error(
    tiny_classifier_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.artifacts.compiler import export

    other, real = tiny_models.classifier(tmp_path / "other", seed=6), export.export_graph
    monkeypatch.setattr(export, "export_graph", lambda _model, task, into: real(other, task, into))
    with pytest.raises(CompileError, match=r"the graph and PyTorch differ at \d+ rows x \d+ tokens"):
        build(tiny_classifier_model, tmp_path / "out")


def test_eval_labels(tiny_classifier_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        build(tiny_classifier_model, tmp_path / "out", eval_texts=EvalTexts(["a"], ["spam"]))
    assert refused.value.hint == "the model's labels: negative, neutral, positive"
    with pytest.raises(UsageError, match="differ in number: 2, 1"):
        EvalTexts(["a", "b"], ["spam"])
    with pytest.raises(UsageError, match=r"no rows: eval\.parquet"):
        EvalTexts([], None, "eval.parquet")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"task": "summarization"}, "unsupported task: summarization"),
        ({"variants": ["gpu-int8"]}, "unknown variant: gpu-int8"),
        ({"name": "a/b"}, "a name holds letters"),
        ({"max_length": 129}, "what the model allows, 128: 129"),
        ({"revision": "main"}, "a revision is for models of the hub"),
    ],
)
def test_bad_options(tiny_classifier_model: Path, tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        build(tiny_classifier_model, tmp_path / "out", **options)


def test_unknown_tasks_list_the_supported_ones(tiny_classifier_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        build(tiny_classifier_model, tmp_path / "out", task="summarization")
    assert refused.value.hint == "supported: text-classification, feature-extraction"


def test_options_that_shape_the_content(tiny_classifier_model: Path, tmp_path: Path) -> None:
    manifest = build(
        tiny_classifier_model, tmp_path / "out", task="Sentiment_Analysis", name="mood", max_length=16,
        variants=["cpu-fp32"],
    )  # fmt: skip
    assert (manifest.content.name, manifest.content.max_length) == ("mood", 16)
    assert [variant.name for variant in manifest.content.variants] == ["cpu-fp32"]


@pytest.mark.parametrize("model", ["./absent", "/absent/model", "no-such/model-anywhere", "absent"])
def test_models_that_are_not_there(model: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        compile_model(model, tmp_path / "out", score=simple_scorer.score, say=lambda _line: None)
    assert model in refused.value.message
    assert refused.value.hint


def test_a_hub_model_from_the_cache(
    tiny_classifier_model: Path, classifier_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout of huggingface_hub's cache: refs name commits, snapshots hold their files."""
    cached = tmp_path / "cache/models--acme--tiny-classifier"
    shutil.copytree(tiny_classifier_model, cached / "snapshots" / ("c0ffee" * 7)[:40])
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(("c0ffee" * 7)[:40])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    options: dict[str, Any] = {"score": simple_scorer.score, "say": lambda _line: None}
    manifest = compile_model("acme/tiny-classifier", tmp_path / "out", **options)
    assert (manifest.report.source, manifest.report.revision) == ("acme/tiny-classifier", ("c0ffee" * 7)[:40])
    assert manifest.digest == open_bundle(str(classifier_artifact)).digest
    with pytest.raises(UsageError, match="acme/tiny-classifier"):
        compile_model("acme/tiny-classifier", tmp_path / "out", revision="v2", **options)


def test_folders_and_files_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no config\.json"):
        build(tmp_path / "empty", tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="this is a file"):
        build(tmp_path / "file", tmp_path / "out")
    (tmp_path / "empty/config.json").write_text(json.dumps({"model_type": "nothing-known"}))
    with pytest.raises(UsageError, match="nothing-known"):
        build(tmp_path / "empty", tmp_path / "out")


def test_a_missing_extra_says_how_to_install_it(
    tiny_classifier_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optimum.exporters.onnx", None)
    with pytest.raises(UsageError) as refused:
        build(tiny_classifier_model, tmp_path / "out")
    assert refused.value.hint == "pip install 'headrace[compile]'"


def test_a_real_model_keeps_its_accuracy(shared: Path, tmp_path: Path) -> None:
    """Against the accuracy that its training wrote down; int8 within a point of it."""
    import pyarrow.parquet as pq

    from headrace.workers.score_texts import score_texts

    training = json.loads((shared / "models/gloss-tiny/training.json").read_text())
    rows = pq.read_table(shared / "data/glosses.parquet", columns=["gloss", "label"], filters=[("split", "=", "test")])
    assert rows.num_rows == training["test_rows"]
    data = EvalTexts(rows["gloss"].to_pylist(), rows["label"].to_pylist(), "test split")
    manifest = build(
        shared / "models/gloss-tiny", tmp_path / "out", score=score_texts, eval_texts=data,
        max_length=training["max_length"],
    )  # fmt: skip
    expected = training["test_accuracy_fp32"]
    assert manifest.report.checks["cpu-fp32"]["eval"]["accuracy"] == pytest.approx(expected, abs=0.001)
    for variant in manifest.content.variants:
        assert manifest.report.checks[variant.name]["eval"]["accuracy"] == pytest.approx(expected, abs=0.01)
