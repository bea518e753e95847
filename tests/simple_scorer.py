"""Texts to final answers with plain ONNX Runtime and numpy: the smallest thing that fits the compiler's ``score``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.artifacts.bundle import open_bundle
from headrace.artifacts.manifest import Content

BATCH_ROWS = 8


def score(folder: Path, variant: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    import onnxruntime
    from tokenizers import Tokenizer

    bundle = open_bundle(str(folder))
    bundle.verify()
    content = bundle.content
    tokenizer = Tokenizer.from_str(bundle.read("tokenizer.json").decode())
    tokenizer.enable_truncation(content.max_length)
    tokenizer.enable_padding(pad_id=content.pad_id, pad_type_id=content.pad_type_id)
    session = onnxruntime.InferenceSession(str(folder / bundle.variant(variant).files[0]))
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    found = np.concatenate([
        _batch(session, tokenizer, content, [texts[row] for row in order[start : start + BATCH_ROWS]])
        for start in range(0, len(order), BATCH_ROWS)
    ])  # fmt: skip
    back = np.empty_like(found)
    back[order] = found
    return back


def _batch(session: Any, tokenizer: Any, content: Content, texts: list[str]) -> npt.NDArray[np.float32]:
    encoded = tokenizer.encode_batch(texts)
    feed = {
        "input_ids": np.array([e.ids for e in encoded]),
        "attention_mask": np.array([e.attention_mask for e in encoded]),
        "token_type_ids": np.array([e.type_ids for e in encoded]),
    }
    names = {declared.name for declared in session.get_inputs()}
    (output,) = session.run(None, {name: value for name, value in feed.items() if name in names})
    answers = finish(output, feed["attention_mask"], content)
    return np.asarray(answers, dtype=np.float32)


def finish(output: npt.NDArray[Any], mask: npt.NDArray[Any], content: Content) -> npt.NDArray[Any]:
    if content.task == "text-classification":
        if content.problem_type == "regression":
            return output
        if content.problem_type == "multi_label_classification":
            return np.asarray(1 / (1 + np.exp(-output)))
        powers = np.exp(output - output.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))
    wide = mask[:, :, None]
    pooled = {
        "mean": (output * wide).sum(axis=1) / wide.sum(axis=1),
        "cls": output[:, 0],
        "max": np.where(wide == 1, output, -np.inf).max(axis=1),
    }[content.pooling]
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True) if content.normalize else pooled
