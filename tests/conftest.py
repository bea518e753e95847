"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """Larger models and rows that are not part of the project; tests that want them are skipped without."""
    folder = Path(os.environ.get("HEADRACE_TEST_DATA", REPOSITORY.parent / "shared"))
    if not (folder / "models").is_dir():
        pytest.skip("needs HEADRACE_TEST_DATA")
    return folder
