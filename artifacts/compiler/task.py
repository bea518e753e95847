"""Which task a model is compiled for, and what its classes are called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ..errors import CompileError, UsageError
from ..manifest import ProblemType, TaskName

ALIASES: Mapping[str, TaskName] = {
    "text-classification": "text-classification",
    "sentiment-analysis": "text-classification",
    "sequence-classification": "text-classification",
    "classification": "text-classification",
    "feature-extraction": "feature-extraction",
    "embedding": "feature-extraction",
    "embeddings": "feature-extraction",
    "sentence-embedding": "feature-extraction",
    "sentence-embeddings": "feature-extraction",
    "sentence-similarity": "feature-extraction",
    "sentence-transformers": "feature-extraction",
    "default": "feature-extraction",
}
_PLACEHOLDER = re.compile(r"LABEL_\d+")


@dataclass(frozen=True)
class Classes:
    labels: tuple[str, ...]  #: by class index
    problem_type: ProblemType
    warnings: tuple[str, ...] = ()


def resolve_task(given: str | None, config: Any, folder: Path) -> TaskName:
    """From ``given`` (aliases understood), else from the checkpoint's architecture or its sentence-transformers files.

    Raises UsageError for a task that is not supported and where none can be told.
    """
    if given is not None:
        return _named(given)
    architectures = tuple(config.architectures or ())
    if any(name.endswith("ForSequenceClassification") for name in architectures):
        return "text-classification"
    if (folder / "modules.json").is_file() or (architectures and architectures[0].endswith("Model")):
        return "feature-extraction"
    hint = f"name it: --task {' | '.join(get_args(TaskName))}"
    raise UsageError(f"the model does not tell its task: {', '.join(architectures) or 'no architectures'}", hint)


def _named(given: str) -> TaskName:
    task = ALIASES.get(given.strip().lower().replace("_", "-"))
    if task is None:
        raise UsageError(f"unsupported task: {given}", f"supported: {', '.join(get_args(TaskName))}")
    return task


def read_classes(config: Any) -> Classes:
    """Labels in index order, and what turns logits into scores. Raises CompileError where indices have gaps."""
    names = {int(index): str(label) for index, label in config.id2label.items()}
    if sorted(names) != list(range(config.num_labels)):
        raise CompileError(f"id2label does not name the classes 0 to {config.num_labels - 1}: {sorted(names)}")
    labels = tuple(names[index] for index in range(len(names)))
    problem_type = _problem_type(config)
    return Classes(labels, problem_type, tuple(_label_warnings(labels, problem_type)))


def _problem_type(config: Any) -> ProblemType:
    """As transformers' own models decide it where the config is silent: one output is a regression."""
    found = config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
    for known in get_args(ProblemType):
        if found == known:
            return known  # type: ignore[no-any-return]
    raise CompileError(f"unknown problem_type in config.json: {found}", f"known: {', '.join(get_args(ProblemType))}")


def _label_warnings(labels: tuple[str, ...], problem_type: ProblemType) -> list[str]:
    found = []
    if problem_type != "regression" and all(_PLACEHOLDER.fullmatch(label) for label in labels):
        found.append(f"the labels are only {', '.join(labels[:3])}: set id2label in config.json to have names")
    if len(set(labels)) < len(labels):
        found.append("several classes have the same label, predictions can't tell them apart")
    return found
