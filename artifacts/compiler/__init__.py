"""Model in, artifact out: export, quantize, check against PyTorch, seal. Needs the ``compile`` extra."""

from __future__ import annotations

from .check import EvalTexts, ScoreFunction
from .compile import compile_model

__all__ = ["EvalTexts", "ScoreFunction", "compile_model"]
