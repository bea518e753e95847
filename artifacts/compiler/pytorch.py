"""The model as PyTorch runs it: the reference that every graph is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CompileError, UsageError, one_line
from ..manifest import Content, TaskName
from .libraries import quiet

Array = npt.NDArray[np.float32]
Feed = Mapping[str, npt.NDArray[np.int64]]
OUTPUTS: Mapping[TaskName, str] = {"text-classification": "logits", "feature-extraction": "last_hidden_state"}


@dataclass(frozen=True)
class TorchModel:
    """``model`` is a transformers model in fp32 and eval mode, ``tokenizer`` its own fast tokenizer."""

    task: TaskName
    model: Any
    tokenizer: Any
    lower: bool = False  #: texts are lower-cased first (sentence-transformers)

    def forward(self, feed: Feed) -> Array:
        """The raw output: logits (rows, classes) or last_hidden_state (rows, tokens, width)."""
        import torch

        tensors = {name: torch.from_numpy(value) for name, value in feed.items()}
        with torch.inference_mode():
            output = getattr(self.model(**tensors), OUTPUTS[self.task])
        return np.asarray(output.numpy(), dtype=np.float32)

    def tokens(self, text: str, max_length: int) -> list[int]:
        """Ids with the special ones, cut to ``max_length``; may be empty for a blank text."""
        text = text.lower() if self.lower else text
        with quiet():
            return list(self.tokenizer(text, truncation=True, max_length=max_length)["input_ids"])

    def answers(self, texts: Sequence[str], content: Content) -> Array:
        """Final answers, one text at a time and so without padding: (rows, classes) or (rows, dimension)."""
        import torch

        with quiet(), torch.inference_mode():
            return np.concatenate([self._answer(text, content).numpy() for text in texts]).astype(np.float32)

    def _answer(self, text: str, content: Content) -> Any:
        text = text.lower() if self.lower else text
        encoded = self.tokenizer(text, truncation=True, max_length=content.max_length, return_tensors="pt")
        output = self.model(**encoded)
        if self.task == "feature-extraction":
            return _pooled(output.last_hidden_state, content)
        logits = output.logits
        if content.problem_type == "regression":
            return logits
        one_of_many = content.problem_type == "single_label_classification" and logits.shape[-1] > 1
        return logits.softmax(dim=-1) if one_of_many else logits.sigmoid()


def _pooled(hidden: Any, content: Content) -> Any:
    """``hidden`` is (1, tokens, width) with no padding."""
    import torch

    vector = {"mean": hidden.mean(dim=1), "cls": hidden[:, 0], "max": hidden.amax(dim=1)}[content.pooling or "mean"]
    return torch.nn.functional.normalize(vector, dim=-1) if content.normalize else vector


def load_config(folder: Path) -> Any:
    """Raises UsageError for an architecture that transformers does not know or that needs code of its own."""
    from transformers import AutoConfig

    try:
        with quiet():
            return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (ValueError, OSError, KeyError) as error:
        raise UsageError(f"can't read the model's config.json: {folder}: {one_line(error)}") from error


def load_model(folder: Path, task: TaskName, lower: bool = False) -> TorchModel:
    """Weights stored in half precision become fp32.

    Raises CompileError where weights are missing (transformers would fill them in at random) or can't be loaded.
    """
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification

    kind: Any = AutoModel if task == "feature-extraction" else AutoModelForSequenceClassification
    try:
        with quiet():
            model, loading = kind.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
            )
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        raise CompileError(f"transformers can't load the model for {task}: {one_line(error)}") from error
    _refuse_new_weights(loading["missing_keys"], task)
    return TorchModel(task, model.eval(), load_tokenizer(folder), lower)


def load_tokenizer(folder: Path) -> Any:
    """A fast tokenizer: only those can be written as one tokenizer.json. Raises CompileError for others."""
    from transformers import AutoTokenizer

    kind: Any = AutoTokenizer
    try:
        with quiet():
            tokenizer = kind.from_pretrained(folder, use_fast=True, trust_remote_code=False)
    except (ValueError, OSError, ImportError, KeyError) as error:
        raise CompileError(f"transformers can't load the tokenizer: {one_line(error)}") from error
    if not tokenizer.is_fast:
        raise CompileError(f"the tokenizer has no fast version: {type(tokenizer).__name__}")
    return tokenizer


def _refuse_new_weights(missing: Sequence[str], task: TaskName) -> None:
    # Token vectors do not pass through the pooler, and many encoders are published without one.
    unused = task == "feature-extraction"
    new = sorted(name for name in missing if not (unused and "pooler." in name))
    if new:
        hint = "the checkpoint was not trained for this task: give one that was, or another --task"
        raise CompileError(f"weights missing from the checkpoint for {task}: {', '.join(new)}", hint)
