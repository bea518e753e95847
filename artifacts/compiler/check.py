"""Holds the fp32 graph against PyTorch, and every other variant against fp32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CompileError, UsageError, one_line
from ..hardware import available_cpus
from ..manifest import Content
from .figures import Array, Figures, compare, quality
from .probes import probe_texts
from .pytorch import OUTPUTS, Feed, TorchModel

#: Largest difference of an fp32 answer to PyTorch's, absolute, relative where the row's largest value is above 1. Other
#: kernels add in another order, which moves fp32 by about 1e-6 per layer; a real fault (a lost input, wrong pooling, a
#: shape frozen by the export) moves it by 1e-2 and more. 1e-4 is also what predictions are promised to agree within.
PARITY_TOLERANCE = 1e-4

#: Final answers of a bundle's variant to texts, (rows, classes) or (rows, dimension), made by the worker's own code.
ScoreFunction = Callable[[Path, str, Sequence[str]], Array]


@dataclass(frozen=True)
class EvalTexts:
    """Rows of the user's own to measure on. ``labels`` are names as in the model's labels, one for each text."""

    texts: Sequence[str]
    labels: Sequence[str] | None = None
    description: str = ""

    def __post_init__(self) -> None:
        if not self.texts:
            raise UsageError(f"the evaluation data has no rows: {self.description}")
        if self.labels is not None and len(self.labels) != len(self.texts):
            raise UsageError(f"evaluation texts and labels differ in number: {len(self.texts)}, {len(self.labels)}")


def check_graph(reference: TorchModel, graph: Path, max_length: int) -> float:
    """Runs the graph and PyTorch on the same tensors of several shapes. Returns the largest difference.

    Raises CompileError beyond PARITY_TOLERANCE, naming the shape.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = available_cpus()  # its own default ignores a container's quota
    session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    names = {declared.name for declared in session.get_inputs()}
    differences = [_at_shape(reference, session, names, rows, length) for rows, length in _shapes(max_length)]
    return max(differences)


def _shapes(max_length: int) -> list[tuple[int, int]]:
    """(rows, tokens): others than the exporter's example of 2 x 16, odd ones, and the longest that is allowed."""
    shapes = [(1, 3), (1, 33), (3, 17), (5, 64), (16, 8), (2, 256), (1, max_length)]
    return sorted({(rows, min(tokens, max_length)) for rows, tokens in shapes})


def _at_shape(reference: TorchModel, session: Any, names: set[str], rows: int, length: int) -> float:
    feed = _feed(reference, rows, length)
    expected = reference.forward(feed)
    wanted = {name: value for name, value in feed.items() if name in names}
    found = _run(session, OUTPUTS[reference.task], wanted, f"at {rows} rows x {length} tokens")
    if found.shape == expected.shape and expected.ndim == 3:
        # What stands at padded positions is nobody's answer.
        mask = feed["attention_mask"][:, :, None]
        expected, found = expected * mask, found * mask
    return _difference(expected, found, f"at {rows} rows x {length} tokens")


def _run(session: Any, output: str, feed: Feed, where: str) -> Array:
    try:
        return np.asarray(session.run([output], dict(feed))[0], dtype=np.float32)
    except Exception as error:  # onnxruntime's exceptions share no public base class
        raise CompileError(f"the exported graph fails {where}: {one_line(error)}") from error


def _feed(reference: TorchModel, rows: int, length: int) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """Probe texts as (rows, length) tensors: the first row is full, each further one has more padding."""
    tokenizer = reference.tokenizer
    long = reference.tokens(probe_texts(length)[-1], length)
    ids = np.full((rows, length), tokenizer.pad_token_id or 0, dtype=np.int64)
    mask = np.zeros((rows, length), dtype=np.int64)
    for row in range(rows):
        kept = max(1, min(len(long), length - row * length // (rows + 1)))
        ids[row, :kept] = np.roll(long, row)[:kept]
        mask[row, :kept] = 1
    feed = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in tokenizer.model_input_names:
        feed["token_type_ids"] = np.zeros_like(ids)
    return feed


def check_answers(reference: TorchModel, content: Content, found: Array, probes: Sequence[str]) -> float:
    """fp32 answers of the whole pipeline against PyTorch's: finds wrong pooling, softmax or tokens.

    Returns the largest difference; raises CompileError beyond PARITY_TOLERANCE.
    """
    return _difference(reference.answers(probes, content), found, "in the final answers")


def require_finite(found: Array, variant: str, shape: tuple[int, int]) -> None:
    """Raises CompileError for NaN, infinity or another shape."""
    if found.shape != shape:
        raise CompileError(f"{variant} gave answers of another shape: expected {shape}, found {found.shape}")
    if not np.isfinite(found).all():
        raise CompileError(f"{variant} gave answers that are not finite numbers")


def usable_probes(reference: TorchModel, max_length: int) -> list[str]:
    """Those that have at least one token: some tokenizers add no special ones and make nothing of a blank text.

    Where lower-casing was built into the tokenizer, those that spell a special token are left out: a tokenizer finds
    ``[SEP]`` first, sentence-transformers would have lower-cased it to plain text.
    """
    special = reference.tokenizer.all_special_tokens if reference.lower else []
    texts = [text for text in probe_texts(max_length) if not any(token in text for token in special)]
    return [text for text in texts if reference.tokens(text, max_length)]


def probe_figures(content: Content, base: Array, other: Array) -> Figures:
    return {"rows": float(len(base))} | compare(content, base, other)


def eval_figures(content: Content, answers: Array, base: Array | None, data: EvalTexts) -> Figures:
    """``base`` holds fp32's answers, None when ``answers`` are those."""
    found = {"rows": float(len(answers))}
    if data.labels is not None:
        found |= quality(content, answers, data.labels)
        if base is not None:
            found |= {f"{name}_fp32": value for name, value in quality(content, base, data.labels).items()}
    return found | (compare(content, base, answers) if base is not None else {})


def _difference(expected: Array, found: Array, where: str) -> float:
    if expected.shape != found.shape:
        raise CompileError(f"shapes {where} differ: PyTorch {expected.shape}, ONNX Runtime {found.shape}")
    flat = expected.reshape(len(expected), -1)
    scale = np.maximum(1.0, np.abs(flat).max(axis=1, keepdims=True))  # (rows, 1)
    worst = float((np.abs(flat - found.reshape(flat.shape)) / scale).max())
    if not worst <= PARITY_TOLERANCE:  # also NaN
        hint = "the model does not survive its export: try another version of optimum-onnx or torch"
        raise CompileError(f"the graph and PyTorch differ {where}: {worst:.3g}, allowed {PARITY_TOLERANCE:g}", hint)
    return worst
