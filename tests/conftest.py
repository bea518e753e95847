"""Fixtures that every test may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from planner_world import World
    from s3_server import S3

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

REPOSITORY = Path(__file__).parents[1]
# ``--import-mode=importlib`` leaves this folder off the path: helpers (tiny_models) are imported from it.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Larger models and rows that are not part of the project; tests that want them are skipped without."""
    folder = Path(os.environ.get("HEADRACE_TEST_DATA", REPOSITORY.parent / "shared"))
    if not (folder / "models").is_dir():
        pytest.skip("needs HEADRACE_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server over HTTP: ``.options`` for fsspec, ``.url(name)`` a folder in a new bucket."""
    from s3_server import S3

    server = S3()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def tiny_classifier_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: BERT with the labels negative, neutral, positive, 128 tokens."""
    import tiny_models

    return tiny_models.classifier(tmp_path_factory.mktemp("models") / "tiny-classifier")


@pytest.fixture(scope="session")
def tiny_embedder_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with the files of sentence-transformers: mean pooling, normalized, 32 wide, 48 tokens."""
    import tiny_models

    return tiny_models.embedder(tmp_path_factory.mktemp("models") / "tiny-embedder")


@pytest.fixture(scope="session")
def classifier_artifact(tiny_classifier_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tiny_classifier_model`` compiled: cpu-fp32 and this machine's int8. Don't write into it."""
    return _compiled(tiny_classifier_model, tmp_path_factory.mktemp("artifacts") / "tiny-classifier")


@pytest.fixture(scope="session")
def embedder_artifact(tiny_embedder_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tiny_embedder_model`` compiled: cpu-fp32 and this machine's int8. Don't write into it."""
    return _compiled(tiny_embedder_model, tmp_path_factory.mktemp("artifacts") / "tiny-embedder")


def _compiled(model: Path, out: Path) -> Path:
    import simple_scorer

    from headrace.artifacts.compiler import compile_model

    compile_model(str(model), out, score=simple_scorer.score, say=lambda _line: None)
    return out


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A source folder with the state of a sink; see ``planner_world.py``."""
    from planner_world import World

    return World(str(tmp_path / "in"))


@pytest.fixture
def no_footers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, it makes reading a footer fail from then on."""
    from headrace.jobs import facts

    def read(files: Iterable[object], *_: object) -> Iterator[object]:
        assert not list(files)
        return iter(())

    return lambda: monkeypatch.setattr(facts, "read_footers", read)
