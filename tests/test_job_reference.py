"""docs/job.md: every key of the job file, its default, and whether another value makes another job."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from headrace.artifacts.bundle import open_bundle
from headrace.jobs.fingerprint import fingerprint_of, terms_of
from headrace.jobs.spec import Job, make_job
from headrace.jobs.where import parse_where

TEXT = (Path(__file__).parents[1] / "docs" / "job.md").read_text()
_ROW = re.compile(r"^\| `([\w.<>]+)`( ●)? \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
#: Key: (marked, default as written).
KEYS = {key: (bool(mark), default) for key, mark, _, default, _ in _ROW.findall(TEXT)}
BASE = {
    "name": "n",
    "artifact": "/models/m",
    "source": {"path": "/lake/in", "text": {"columns": ["body"]}},
    "sink": {"path": "/lake/out"},
}
#: Another value than the default, for every key that has one.
OTHERS: dict[str, Any] = {
    "name": "other", "vars": {"ds": "1"}, "artifact_options": {"anon": True}, "variant": "cpu-fp32", "batching": "row",
    "batch_tokens": 64, "empty": "score", "on_change": "replace", "shard_rows": 9999, "window_rows": 999, "limit": 9,
    "source.path": "/lake/other", "source.storage_options": {"anon": True}, "source.text": "subject",
    "source.text.columns": ["subject"], "source.text.separator": "-", "source.where": "id > 1",
    "source.partition_types": {"ds": "date"}, "source.on_source_deleted": "replace", "task.max_length": 7,
    "task.top_k": 2, "task.score_of": "spam", "sink.path": "/lake/other", "sink.state": "/lake/state",
    "sink.keep": ["id"], "sink.storage_options": {"anon": True}, "sink.success_files": True, "sink.column_prefix": "p_",
    "sink.keep_text": True, "sink.unsafe_lease": True, "pools": {"big": {"num_cpus": 4}},
    "pools.<name>.workers": 3, "pools.<name>.num_cpus": 2, "pools.<name>.variant": "cpu-fp32",
    "limits.max_bad_rows": "2%", "limits.max_attempts": 5,
}  # fmt: skip
#: Those that have no other value, or one that only goes with another change.
ALONE = {"artifact", "source.text.template", "pools.<name>.num_gpus"}


def model_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = prefix + name
        inner, below = nested(field.annotation)
        if inner is None or name in ("pools", "text"):
            yield key
        if inner is not None:
            yield from model_keys(inner, f"{key}.{below}")


def nested(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model that a key holds, plain or by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    if typing.get_origin(annotation) is Mapping:
        value = typing.get_args(annotation)[1]
        if isinstance(value, type) and not isinstance(value, types.GenericAlias) and issubclass(value, BaseModel):
            return value, "<name>."
    return None, ""


def with_key(key: str, value: Any) -> dict[str, Any]:
    changed: dict[str, Any] = yaml.safe_load(yaml.safe_dump(BASE))
    *parents, last = key.replace("<name>", "cpu").split(".")
    target = changed
    for parent in parents:
        target = target.setdefault(parent, {})
    target[last] = value
    return changed


def test_every_key_is_there() -> None:
    assert sorted(KEYS) == sorted(model_keys(Job))
    assert set(OTHERS) | ALONE == set(KEYS)


@pytest.mark.parametrize("key", sorted(KEYS))
def test_the_default_is_right(key: str) -> None:
    written = KEYS[key][1]
    if key == "source.text.columns":
        return  # one of columns and template has to be there: the default of one is the other's presence
    if written.startswith("`"):
        given = with_key(key, yaml.safe_load(written.strip("`")))
        assert make_job(given) == make_job(BASE)
        return
    assert written == {"name": "the file's name"}.get(key, "required")
    *parents, last = key.split(".")
    without = yaml.safe_load(yaml.safe_dump(BASE))
    target = without
    for parent in parents:
        target = target[parent]
    del target[last]
    if written == "required":
        with pytest.raises(Exception, match=re.escape(key)):
            make_job(without)


@pytest.mark.parametrize("key", sorted(OTHERS))
def test_the_mark_tells_another_job(key: str, classifier_artifact: Path) -> None:
    content = open_bundle(str(classifier_artifact)).content

    def fingerprint(raw: Mapping[str, Any]) -> str:
        job = make_job(raw)
        _, rows = parse_where(job.source.where).split(["ds"])
        return fingerprint_of(terms_of(job, content, "d", job.sink.keep, rows))

    base: dict[str, Any] = with_key("source.text.columns", ["body", "title"]) if "separator" in key else BASE
    changed = with_key(key, OTHERS[key])
    if "separator" in key:
        changed["source"]["text"]["columns"] = ["body", "title"]
    assert (fingerprint(changed) != fingerprint(base)) is KEYS[key][0]
