"""The columns of a part: kept ones, the task's, then ``model``, ``n_tokens``, ``truncated``."""

from __future__ import annotations

import pyarrow as pa

from ..artifacts.errors import SpecError
from ..artifacts.manifest import Content
from .shard import ScoreSpec
from .tasks import task_of

#: Columns that no file has: where a row came from. A file's own column of such a name can't be had.
PSEUDO_TYPES = {"source_file": pa.string(), "source_row": pa.int64()}


def output_schema(score: ScoreSpec, content: Content) -> pa.Schema:
    """Raises UsageError where a task option does not fit the artifact."""
    added = [*task_of(content, score.task).fields(), *_COMMON]
    return pa.schema(
        [pa.field(name, kept_type(score, name)) for name in score.keep]
        + [pa.field(score.column_prefix + field.name, field.type) for field in added]
    )


_COMMON = (
    pa.field("model", pa.string()),
    pa.field("n_tokens", pa.int32()),
    pa.field("truncated", pa.bool_()),
)


def kept_type(score: ScoreSpec, name: str) -> pa.DataType:
    """The frozen type. Views become plain strings and bytes: few readers, and few of Arrow's kernels, know views."""
    type_ = PSEUDO_TYPES.get(name) or score.keep_types[name]
    if pa.types.is_string_view(type_):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(type_) else type_


def check_names(score: ScoreSpec, content: Content) -> None:
    """Raises SpecError where two output columns would have one name; upper and lower case are one to most readers."""
    seen: dict[str, str] = {}
    for name in output_schema(score, content).names:
        if name.casefold() in seen:
            raise SpecError(_clash(seen[name.casefold()], name), "set sink.column_prefix, or keep other columns")
        seen[name.casefold()] = name


def _clash(first: str, second: str) -> str:
    both = first if first == second else f"{first}, {second}"
    return f"two output columns have the same name: {both}"
