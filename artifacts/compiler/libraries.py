"""The heavy libraries of the ``compile`` extra: whether they are there, their versions, and keeping them quiet."""

from __future__ import annotations

import importlib
import logging
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from ..errors import UsageError
from ..hardware import this_cpu

_MODULES = ("torch", "transformers", "optimum.exporters.onnx", "onnx", "onnxruntime.quantization", "huggingface_hub")
_RECORDED = (
    "headrace", "torch", "transformers", "tokenizers", "optimum", "optimum-onnx", "onnx", "onnxruntime", "numpy",
)  # fmt: skip


def require_libraries() -> None:
    """Imports what compiling needs, telemetry off. Raises UsageError where the extra is not installed."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        with quiet():
            for name in _MODULES:
                importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"compiling needs a library that is missing: {error}", _INSTALL) from error
    _stop_progress_bars()


_INSTALL = "pip install 'headrace[compile]'"


@contextmanager
def quiet() -> Iterator[None]:
    """Other libraries' warnings and log lines stay away from the user; errors are exceptions anyway.

    quantize_dynamic logs through the root logger, the exporter warns about its own tracing on every model.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def versions() -> dict[str, str]:
    """Of python and each package that has a hand in the artifact; ``absent`` where it has no metadata."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _RECORDED}


def machine() -> dict[str, str]:
    cpu = this_cpu()
    return {"cpu": cpu.model, "architecture": cpu.architecture, "instruction_set": cpu.instruction_set}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _stop_progress_bars() -> None:
    importlib.import_module("transformers.utils.logging").disable_progress_bar()
    importlib.import_module("huggingface_hub.utils").disable_progress_bars()
