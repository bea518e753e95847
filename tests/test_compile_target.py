"""The folder that an artifact is written to: never over anything else, replaced in one step."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simple_scorer
import tiny_models

from headrace.artifacts.bundle import open_bundle
from headrace.artifacts.compiler import compile_model
from headrace.artifacts.compiler.source import same_source
from headrace.artifacts.compiler.target import check_target, move_into_place
from headrace.artifacts.errors import UsageError
from headrace.artifacts.manifest import Manifest


def build(model: Path, out: Path, **options: Any) -> Manifest:
    return compile_model(
        str(model), out, variants=["cpu-fp32"], **{"score": simple_scorer.score, "say": lambda _line: None} | options
    )


def test_an_artifact_is_replaced(tmp_path: Path) -> None:
    """A model that was trained again in its own folder is still the same model."""
    model = tiny_models.classifier(tmp_path / "other", seed=5)
    first = build(model, tmp_path / "out")
    shutil.rmtree(model)
    second = build(tiny_models.classifier(tmp_path / "other", seed=6), tmp_path / "out")
    assert open_bundle(str(tmp_path / "out")).digest == second.digest != first.digest
    open_bundle(str(tmp_path / "out")).verify()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_another_models_artifact_is_replaced_by_force_only(tiny_classifier_model: Path, tmp_path: Path) -> None:
    first = build(tiny_classifier_model, tmp_path / "out", name="spam")
    other = tiny_models.classifier(tmp_path / "other", seed=6)
    for model, name in ((other, None), (other, "spam"), (tiny_classifier_model, "ham")):
        with pytest.raises(UsageError, match=r"another model's artifact: .*: spam, made of ") as caught:
            build(model, tmp_path / "out", name=name)
        assert "--force" in (caught.value.hint or "")
    assert open_bundle(str(tmp_path / "out")).digest == first.digest
    forced = build(other, tmp_path / "out", force=True)
    assert open_bundle(str(tmp_path / "out")).manifest.model == forced.model != first.model


def test_one_folder_spelled_in_two_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert same_source("model", str(tmp_path / "model")) and same_source("./model/", "model")
    assert same_source("owner/name", "owner/name")
    assert not same_source("owner/name", "owner/other") and not same_source("model", "owner/model")


def test_the_old_artifact_survives_a_failure(tiny_classifier_model: Path, tmp_path: Path) -> None:
    first = build(tiny_classifier_model, tmp_path / "out")

    def fails(folder: Path, variant: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tiny_classifier_model, tmp_path / "out", score=fails)
    assert open_bundle(str(tmp_path / "out")).digest == first.digest
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_old_artifact_comes_back_when_the_move_fails(classifier_artifact: Path, tmp_path: Path) -> None:
    shutil.copytree(classifier_artifact, tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        move_into_place(tmp_path / "never-built", tmp_path / "out")
    open_bundle(str(tmp_path / "out")).verify()


def test_new_and_empty_folders_are_made(tiny_classifier_model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "a/b/c", tmp_path / "empty"):
        build(tiny_classifier_model, out)
        open_bundle(str(out)).verify()


def test_other_peoples_files_are_left_alone(tiny_classifier_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not an intact artifact"):
        build(tiny_classifier_model, folder)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="there is a file"):
        build(tiny_classifier_model, tmp_path / "file")
    build(tiny_classifier_model, tmp_path / "out")
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"other files too: .*notes\.txt"):
        build(tiny_classifier_model, tmp_path / "out")
    assert (tmp_path / "out/notes.txt").read_text() == (folder / "notes.txt").read_text() == "mine"


def test_other_peoples_files_in_a_damaged_artifact(classifier_artifact: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(classifier_artifact, out)
    (out / "tokenizer.json").unlink()
    check_target(out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"other files too: .*notes\.txt"):
        check_target(out)


def test_a_parent_that_is_a_file(tiny_classifier_model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't write to the folder"):
        build(tiny_classifier_model, tmp_path / "file" / "out")
