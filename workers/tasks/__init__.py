"""One module per task; ``task_of`` picks by what the artifact says of itself."""

from __future__ import annotations

from ...artifacts.manifest import Content
from ..shard import TaskOptions
from .base import Task
from .classification import Classification
from .embedding import Embedding

__all__ = ["Task", "task_of"]


def task_of(content: Content, options: TaskOptions) -> Task:
    """Raises UsageError where an option does not fit the task, ArtifactCorrupt where the manifest lacks something."""
    if content.task == "feature-extraction":
        return Embedding(content, options)
    return Classification(content, options)
