"""Embedding models: pooling, normalization and length from the files of sentence-transformers."""

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

from headrace.artifacts.bundle import open_bundle
from headrace.artifacts.compiler import EvalTexts, compile_model
from headrace.artifacts.compiler.sentence import read_sentence_files
from headrace.artifacts.errors import CompileError, UsageError
from headrace.artifacts.manifest import Manifest

TEXTS = ["good water", "the old lake was very cold and dark", "", "people walk by the river " * 20]


def build(model: Path, out: Path, **options: Any) -> Manifest:
    return compile_model(str(model), out, **{"score": simple_scorer.score, "say": lambda _line: None} | options)


def vectors(
    model: Path, texts: Sequence[str], max_length: int, pooling: str, normalize: bool
) -> npt.NDArray[np.float32]:
    """(rows, width): token vectors from PyTorch in one padded batch, pooled by hand under the mask."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    encoded = tokenizer(list(texts), truncation=True, max_length=max_length, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = AutoModel.from_pretrained(model).eval()(**encoded).last_hidden_state  # (rows, tokens, width)
    mask = encoded["attention_mask"].unsqueeze(-1).bool()
    pooled = {
        "mean_tokens": hidden.masked_fill(~mask, 0).sum(1) / mask.sum(1),
        "cls_token": hidden[:, 0],
        "max_tokens": hidden.masked_fill(~mask, -torch.inf).max(1).values,
    }[pooling]
    if normalize:
        pooled = pooled / pooled.norm(dim=1, keepdim=True)
    return pooled.numpy()


def test_what_is_in_an_embedder(embedder_artifact: Path, tiny_embedder_model: Path) -> None:
    bundle = open_bundle(str(embedder_artifact))
    bundle.verify()
    content = bundle.content
    assert (content.task, content.labels, content.problem_type) == ("feature-extraction", (), None)
    assert (content.pooling, content.normalize, content.dimension, content.max_length) == ("mean", True, 32, 48)
    found = simple_scorer.score(embedder_artifact, "cpu-fp32", TEXTS)
    np.testing.assert_allclose(found, vectors(tiny_embedder_model, TEXTS, 48, "mean_tokens", True), atol=1e-5)
    assert bundle.manifest.report.warnings == ()


@pytest.mark.parametrize(
    ("mode", "normalize", "pooling"),
    [("cls_token", False, "cls"), ("max_tokens", True, "max"), ("mean_tokens", False, "mean")],
)
def test_poolings(tmp_path: Path, mode: str, normalize: bool, pooling: str) -> None:
    from headrace.workers.score_texts import score_texts

    model = tiny_models.embedder(tmp_path / "model", mode, normalize=normalize, max_seq_length=20)
    manifest = build(model, tmp_path / "out", score=score_texts, eval_texts=EvalTexts(TEXTS))
    content = manifest.content
    assert (content.pooling, content.normalize, content.max_length) == (pooling, normalize, 20)
    found = score_texts(tmp_path / "out", "cpu-fp32", TEXTS)
    np.testing.assert_allclose(found, vectors(model, TEXTS, 20, mode, normalize), atol=1e-4)
    for name, figures in manifest.report.checks.items():
        if name != "cpu-fp32":
            assert 0.9 < figures["eval"]["cosine_min"] <= figures["eval"]["cosine_mean"] <= 1.0


def test_wrong_pooling_in_the_scoring_code_is_an_error(tiny_embedder_model: Path, tmp_path: Path) -> None:
    """What a mean over padding gives: right only for rows that have none."""

    def careless(folder: Path, variant: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        right = simple_scorer.score(folder, variant, texts)
        right[0] = right[1]
        return right

    with pytest.raises(CompileError, match="in the final answers"):
        build(tiny_embedder_model, tmp_path / "out", score=careless)


def test_a_plain_encoder_is_mean_pooled_with_a_warning(tmp_path: Path) -> None:
    model = tiny_models.encoder(tmp_path / "model")
    manifest = build(model, tmp_path / "out", variants=["cpu-fp32"])
    content = manifest.content
    assert (content.task, content.pooling, content.normalize, content.max_length) == (
        "feature-extraction", "mean", False, 128,
    )  # fmt: skip
    assert manifest.report.warnings == ("no sentence-transformers files: mean pooling, not normalized",)


def test_an_encoder_without_a_pooler_will_do(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = tiny_models.embedder(tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    assert len(kept) < len(weights)
    save_file(kept, model / "model.safetensors", {"format": "pt"})
    first = build(model, tmp_path / "first", variants=["cpu-fp32"])
    assert build(model, tmp_path / "second", variants=["cpu-fp32"]).digest == first.digest


def test_lower_casing_is_built_into_the_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, normalizers

    model = tiny_models.embedder(tmp_path / "model", lower=True)
    cased = Tokenizer.from_file(str(model / "tokenizer.json"))
    cased.normalizer = normalizers.BertNormalizer(lowercase=False)
    cased.save(str(model / "tokenizer.json"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"do_lower_case": False}))
    build(model, tmp_path / "out", variants=["cpu-fp32"])
    written = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    assert cased.encode("Good WATER").ids != cased.encode("good water").ids
    assert written.encode("Good WATER").ids == cased.encode("good water").ids


def test_a_dense_module_is_refused(tmp_path: Path) -> None:
    model = tiny_models.embedder(tmp_path / "model", extra_module="Dense")
    with pytest.raises(UsageError, match="can't be compiled: Dense"):
        build(model, tmp_path / "out")


def test_the_transformer_may_lie_in_a_folder_of_its_own(tmp_path: Path) -> None:
    model = tiny_models.embedder(tmp_path / "model")
    inner = model / "0_Transformer"
    inner.mkdir()
    for path in [*model.iterdir()]:
        if path.is_file() and path.name != "modules.json":
            path.rename(inner / path.name)
    modules = json.loads((model / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (model / "modules.json").write_text(json.dumps(modules))
    content = build(model, tmp_path / "out", variants=["cpu-fp32"]).content
    assert (content.pooling, content.max_length, content.name) == ("mean", 48, "model")


def sentence_folder(
    tmp_path: Path, pooling: dict[str, object], modules: Sequence[str] = ("Transformer", "Pooling")
) -> Path:
    listed = [{"path": "" if kind == "Transformer" else kind, "type": f"a.b.{kind}"} for kind in modules]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "Pooling").mkdir()
    (tmp_path / "Pooling/config.json").write_text(json.dumps(pooling))
    return tmp_path


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({}, "mean"),
    ],
)
def test_pooling_files(tmp_path: Path, config: dict[str, object], pooling: str) -> None:
    assert read_sentence_files(sentence_folder(tmp_path, config)).pooling == pooling


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"pooling_mode_lasttoken": True}, "unsupported pooling: lasttoken"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, r"unsupported pooling: cls \+ mean"),
    ],
)
def test_poolings_that_are_refused(tmp_path: Path, config: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_sentence_files(sentence_folder(tmp_path, config))


def test_modules_in_an_unknown_order(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, {}, ("Transformer", "Normalize", "Pooling"))
    with pytest.raises(UsageError, match="unknown order"):
        read_sentence_files(folder)


def test_broken_files(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, {})
    (folder / "Pooling/config.json").write_text("[]")
    with pytest.raises(CompileError, match="JSON dict"):
        read_sentence_files(folder)
    (folder / "modules.json").write_text("[")
    with pytest.raises(CompileError, match=r"modules\.json is not JSON"):
        read_sentence_files(folder)


def test_a_default_prompt_is_warned_of(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, {})
    config = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    (warning,) = read_sentence_files(folder).warnings
    assert "'query: '" in warning
