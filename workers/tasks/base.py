"""What every task can do: from a graph's raw output to output columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...artifacts.errors import UsageError

Floats = npt.NDArray[np.float32]


class Task(Protocol):
    """``width`` is the length of one answer: classes, or the dimension of an embedding."""

    width: int
    output: str  #: preferred name of the graph's output; the first one where there is none of that name

    def fields(self) -> list[pa.Field]:
        """The task's own output columns, without prefix."""

    def answers(self, raw: Floats, mask: npt.NDArray[np.int64]) -> Floats:
        """``raw`` is the graph's output, ``mask`` (rows, tokens) 1 for a real token. Returns (rows, width)."""

    def columns(self, answers: Floats, given: npt.NDArray[np.bool_]) -> list[pa.Array]:
        """One array per field. ``answers`` (rows, width); rows that are not ``given`` (rows,) become null."""


def refuse(options: dict[str, object], why: str) -> None:
    """Raises UsageError naming the first option of ``options`` that is set."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"task.{name} does not fit this artifact: {value}", why)


def output_name(task: Task, names: Sequence[str]) -> str:
    return task.output if task.output in names else names[0]
