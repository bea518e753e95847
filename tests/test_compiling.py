"""The user's rows on their way to the compiler, and an artifact as a person reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.artifacts.bundle import open_bundle
from headrace.artifacts.errors import ArtifactCorrupt, ArtifactNotFound, SourceError, UsageError
from headrace.jobs.compiling import EvalData, compile_model, read_eval_texts
from headrace.jobs.inspecting import compiled_artifact, cost_line, inspect_artifact


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Two files: 30 rows, and 6 of which two are empty, one is not UTF-8 and one has no label."""
    folder = tmp_path / "rows"
    folder.mkdir()
    first = {"subject": [f"subject {i}" for i in range(30)], "body": [f"body {i}" for i in range(30)]}
    pq.write_table(pa.table({**first, "label": ["neutral"] * 30}), folder / "a.parquet", row_group_size=7)
    texts = [b"fine", b"", None, b"\xff\xfe", b"no label", b"fine too"]
    bad = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())
    labels = ["positive", "neutral", "neutral", "neutral", None, "negative"]
    nothing = pa.nulls(6, pa.string())
    pq.write_table(pa.table({"subject": bad, "body": nothing, "label": labels}), folder / "b.parquet")
    return folder


def test_every_usable_row_in_order(rows: Path) -> None:
    found = read_eval_texts(EvalData((str(rows),), ("subject", "body"), "label", 1000))
    assert found.texts == [*(f"subject {i} body {i}" for i in range(30)), "fine", "fine too"]
    assert found.labels == ["neutral"] * 30 + ["positive", "negative"]
    assert "32 of 36 rows" in found.description and "subject, body" in found.description


def test_without_a_label_column_there_are_no_labels(rows: Path) -> None:
    found = read_eval_texts(EvalData((str(rows / "b.parquet"),), ("subject",)))
    assert found.labels is None and found.texts == ["fine", "no label", "fine too"]


def test_a_choice_is_the_same_each_time_and_keeps_text_and_label_together(tmp_path: Path) -> None:
    for number in range(3):
        texts = [f"{number}-{row}" for row in range(1000)]
        pq.write_table(pa.table({"t": texts, "l": [f"L{text}" for text in texts]}), tmp_path / f"{number}.parquet")
    data = EvalData((str(tmp_path / "*.parquet"),), ("t",), "l", 200)
    found = read_eval_texts(data)
    assert len(found.texts) == 200 == len(set(found.texts))
    assert {text[0] for text in found.texts} == {"0", "1", "2"}
    assert found.labels == [f"L{text}" for text in found.texts]
    assert read_eval_texts(data) == found


@pytest.mark.parametrize(
    ("paths", "text", "label", "words"),
    [
        (("rows",), (), None, "--text"),
        ((), ("body",), None, "--eval-data"),
        (("rows",), ("boddy",), None, "boddy"),
        (("rows",), ("body",), "lable", "lable"),
    ],
)
def test_what_is_missing_is_named(
    paths: tuple[str, ...], text: tuple[str, ...], label: str | None, words: str, rows: Path, tmp_path: Path
) -> None:
    data = EvalData(tuple(str(rows) for _ in paths), text, label)
    with pytest.raises(UsageError) as caught:
        compile_model("no/model", tmp_path / "out", eval_data=data, say=print)
    assert words in f"{caught.value} {caught.value.hint}"


def test_files_that_are_not_there_or_no_parquet(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nowhere"):
        read_eval_texts(EvalData((str(tmp_path / "nowhere.parquet"),), ("t",)))
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(UsageError, match="can't be read"):
        read_eval_texts(EvalData((str(tmp_path),), ("t",)))
    pq.write_table(pa.table({"t": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="no text"):
        read_eval_texts(EvalData((str(tmp_path),), ("t",)))


def test_compiled_with_the_workers_own_scoring(rows: Path, tiny_classifier_model: Path, tmp_path: Path) -> None:
    """The accuracy in the report is the one that transformers finds on the same rows."""
    from transformers import pipeline

    lines: list[str] = []
    data = EvalData((str(rows),), ("subject", "body"), "label")
    manifest = compile_model(str(tiny_classifier_model), tmp_path / "out", eval_data=data, say=lines.append)
    found = read_eval_texts(data)
    answers = pipeline("text-classification", model=str(tiny_classifier_model), device="cpu")(list(found.texts))
    right = sum(answer["label"] == label for answer, label in zip(answers, found.labels or (), strict=True))
    assert manifest.report.checks["cpu-fp32"]["eval"]["accuracy"] == pytest.approx(right / len(found.texts))
    assert any("evaluation rows" in line for line in lines) and not any("_" in line.split(":")[0] for line in lines)
    (int8,) = (variant.name for variant in manifest.content.variants if variant.precision == "int8")
    cost = cost_line(manifest, int8)
    assert cost is not None and "same answer as fp32" in cost and "on 32 evaluation rows" in cost
    assert cost_line(manifest, "cpu-fp32") is None
    assert not any("--verify" in line for line in compiled_artifact(str(tmp_path / "out")).lines)
    text = "\n".join(inspect_artifact(str(tmp_path / "out")).lines)
    assert "hashes not checked, see --verify" in text
    for words in (manifest.model, "negative, neutral, positive", int8, "accuracy", "32 of 36 rows", manifest.digest):
        assert words in text


def test_inspect(embedder_artifact: Path, tmp_path: Path) -> None:
    shown = inspect_artifact(str(embedder_artifact), verify=True)
    text = "\n".join(shown.lines)
    assert "32 float32, mean pooling, normalized" in text and "48 tokens" in text and "hashes right" in text
    assert "mean cosine to fp32" in text
    assert json.loads(json.dumps(shown.value))["digest"] == open_bundle(str(embedder_artifact)).digest
    with pytest.raises(ArtifactNotFound):
        inspect_artifact(str(tmp_path))


def test_inspect_finds_a_changed_byte(embedder_artifact: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(embedder_artifact, tmp_path / "copy")
    victim = tmp_path / "copy" / "cpu-fp32" / "model.onnx"
    victim.write_bytes(victim.read_bytes()[:-1] + b"\0")
    inspect_artifact(str(tmp_path / "copy"))
    with pytest.raises(ArtifactCorrupt, match=r"model\.onnx"):
        inspect_artifact(str(tmp_path / "copy"), verify=True)
