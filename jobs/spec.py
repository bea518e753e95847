"""The job: what a YAML job file says, frozen and checked.

Relative local paths start at the current folder, as on any command line, and are made absolute on loading, so that
workers, which run elsewhere, mean the same files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from ..artifacts.errors import SpecError
from ..artifacts.storage import Folder, is_local
from ..workers.shard import Batching, EmptyPolicy, TaskOptions, TextSpec
from ..workers.text import text_columns
from .settings import read_job_file, settle
from .sink import state_folder
from .source import absolute_url
from .spec_errors import refuse_unsupported, translated
from .where import parse_where

HIDDEN = "***"
_OPTIONS = ("storage_options", "artifact_options")
#: Types that a partition key may be declared as.
KEY_TYPES = {
    "string": pa.string(),
    "bool": pa.bool_(),
    **{f"int{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
}


def _paths(value: Any) -> Any:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not found or not all(isinstance(one, str) and one for one in found):
        raise ValueError("a file, folder, glob or URL, or a list of these")
    return tuple(map(absolute_url, found))


def _share(value: Any) -> Any:
    """``1%`` or 0.01."""
    percent = re.fullmatch(r"\s*([0-9.]+)\s*%\s*", value) if isinstance(value, str) else None
    try:
        share = float(percent.group(1)) / 100 if percent else float(value)
    except (TypeError, ValueError):
        share = -1.0
    if isinstance(value, bool) or not 0 <= share <= 1:
        raise ValueError("a share such as 1% or 0.01")
    return share


def _workers(value: Any) -> Any:
    if value == "auto":
        return value
    number = int(value) if isinstance(value, str) and value.isdigit() else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError("auto, or a whole number from 0")
    return number


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("a finite number, more than 0")
    return value


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return {"columns": (value,)}
    if not isinstance(value, Mapping | Text):
        raise ValueError("a column's name, {columns: […], separator: …} or {template: …}")
    return value


def _empty(value: Any) -> Any:
    """YAML reads a bare ``null`` as none."""
    return "null" if value is None else value


_EMPTY = {"enum": [None, "null", "score", "quarantine"]}
Path_ = Annotated[str, Field(min_length=1), AfterValidator(absolute_url)]
Options = Annotated[Mapping[str, Any], Field(default_factory=dict, repr=False)]
Name = Annotated[str, Field(min_length=1)]


class Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Text(Spec):
    """How a row becomes one text; nulls are left out."""

    columns: tuple[Name, ...] = ()
    separator: str = " "
    template: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Text:
        if bool(self.columns) == (self.template is not None):
            raise ValueError("columns or template, one of them")
        if self.template is not None and "separator" in self.model_fields_set:
            raise ValueError("separator with columns, not with template")
        return self


class Source(Spec):
    """Where the rows are and which of them are scored."""

    path: Annotated[
        tuple[str, ...],
        BeforeValidator(_paths),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
    ]
    text: Annotated[
        Text,
        BeforeValidator(_text),
        Field(json_schema_extra=lambda schema: _or_string(schema)),
    ]
    storage_options: Options
    where: str | None = None
    partition_types: Mapping[str, Literal[tuple(KEY_TYPES)]] = Field(default_factory=dict)  # type: ignore[valid-type]
    on_source_deleted: Literal["keep", "replace"] = "keep"

    def paths(self) -> tuple[str, ...]:
        return self.path

    def key_types(self) -> dict[str, pa.DataType]:
        """Declared types of partition keys; the others are strings."""
        return {name: KEY_TYPES[type_] for name, type_ in self.partition_types.items()}


class Task(Spec):
    """``null`` means the artifact's own."""

    max_length: Annotated[int, Field(ge=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    score_of: str | None = None


class Sink(Spec):
    """Where the predictions go, and what stands beside them."""

    path: Path_
    state: Path_ | None = None
    keep: tuple[Name, ...] = ()
    storage_options: Options
    success_files: bool = False
    column_prefix: str = ""
    keep_text: bool = False
    unsafe_lease: bool = False

    @field_validator("keep")
    @classmethod
    def _once(cls, keep: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(keep)) < len(keep):
            raise ValueError("each column once")
        return keep


class Pool(Spec):
    """Workers of one shape. ``num_cpus`` are of one worker, and its threads."""

    workers: Annotated[
        int | Literal["auto"],
        BeforeValidator(_workers),
        WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0}]}),
    ] = "auto"
    num_cpus: Annotated[float, Field(gt=0), AfterValidator(_finite)] = 1
    num_gpus: Annotated[float, Field(ge=0, le=0)] = 0
    variant: str | None = None


class Limits(Spec):
    max_bad_rows: Annotated[
        float,
        BeforeValidator(_share),
        WithJsonSchema({"anyOf": [{"type": "string", "pattern": "^[0-9.]+ *%$"}, {"type": "number"}]}),
    ] = 0.01
    max_attempts: Annotated[int, Field(ge=1)] = 3


class Job(Spec):
    """A job file. ``limit`` is what ``--limit`` sets: only so many rows, in the order of the plan."""

    name: Name = "job"
    vars: Mapping[str, str | None] = Field(default_factory=dict)
    artifact: Path_
    artifact_options: Options
    source: Source
    task: Task = Task()
    sink: Sink
    pools: Annotated[Mapping[Name, Pool], Field(min_length=1)] = Field(default_factory=lambda: {"cpu": Pool()})
    limits: Limits = Limits()
    variant: str | None = None
    batching: Batching = "budget"
    batch_tokens: Annotated[int, Field(ge=1)] | None = None
    empty: Annotated[EmptyPolicy, BeforeValidator(_empty), WithJsonSchema(_EMPTY)] = "null"
    on_change: Literal["new_only", "replace"] | None = None
    shard_rows: Annotated[int, Field(ge=1)] = 4096
    window_rows: Annotated[int, Field(ge=1)] = 2048
    limit: Annotated[int, Field(ge=1)] | None = None

    def text_spec(self) -> TextSpec:
        text = self.source.text
        return TextSpec(text.columns, text.separator, text.template)

    def task_options(self) -> TaskOptions:
        return TaskOptions(self.task.max_length, self.task.top_k, self.task.score_of)

    def pinned_variant(self) -> str | None:
        """The variant that the job, or every one of its pools, names."""
        return self.variant or next((pool.variant for pool in self.pools.values() if pool.variant), None)

    def state_url(self) -> str:
        """Raises SinkError where the sink has no parent folder for it and ``sink.state`` is not set."""
        return state_folder(Folder(self.sink.path), self.sink.state).url


def load_job(path: str | Path, sets: Sequence[str] = (), where: str | None = None, limit: int | None = None) -> Job:
    """The job in a YAML file. ``sets`` are ``name=value``; ``where`` is added to the job's own; see ``Job.limit``.

    Raises SpecError, which names the key, its value and what is allowed.
    """
    raw = settle(read_job_file(Path(path)), sets, Job.model_fields)
    raw.setdefault("name", Path(path).stem)
    return make_job(raw, where, limit)


def make_job(raw: Mapping[str, Any], where: str | None = None, limit: int | None = None) -> Job:
    """A job from plain values, as a job file holds them. Raises SpecError."""
    refuse_unsupported(raw)
    given = {**raw, "limit": limit} if limit is not None else raw
    try:
        job = Job.model_validate(given)
    except ValidationError as error:
        raise translated(error, Job, given) from error
    return _checked(_with_where(job, where))


def resolved_yaml(job: Job) -> str:
    """The job as it runs, defaults and all. Storage options, which may hold secrets, show their names only."""
    value = _hidden(job.model_dump(mode="json", exclude_none=True))
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def job_schema() -> dict[str, Any]:
    """JSON Schema of the job file, for editors."""
    schema = Job.model_json_schema()
    schema["$schema"], schema["title"] = "https://json-schema.org/draft/2020-12/schema", "headrace job"
    return schema


def _checked(job: Job) -> Job:
    """What no single key can tell."""
    if job.window_rows > job.shard_rows:
        message = f"bad value in the job file: shard_rows: {job.shard_rows}, window_rows is {job.window_rows}"
        raise SpecError(message, "allowed: shard_rows of at least window_rows")
    named = {pool.variant or job.variant for pool in job.pools.values()} | ({job.variant} if job.variant else set())
    if len(named) > 1:
        found = ", ".join(sorted(str(name or "none") for name in named))
        raise SpecError(f"pools of several variants are not supported yet: {found}", "give all pools the same one")
    text_columns(job.text_spec())
    job.state_url()
    return job


def _with_where(job: Job, extra: str | None) -> Job:
    if job.source.where is None and extra is None:
        return job
    both = parse_where(job.source.where) & parse_where(extra)
    return job.model_copy(update={"source": job.source.model_copy(update={"where": both.text})})


def _or_string(schema: dict[str, Any]) -> None:
    reference = schema.pop("$ref", None)
    if reference is not None:
        schema["anyOf"] = [{"type": "string"}, {"$ref": reference}]


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: dict.fromkeys(item, HIDDEN) if key in _OPTIONS else _hidden(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    return (
        re.sub(r"(?<=://)[^/@]*:[^/@]*@", f"{HIDDEN}@", value)
        if isinstance(value, str) and not is_local(value)
        else value
    )
