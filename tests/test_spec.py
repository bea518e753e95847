"""The job file: defaults, variables, ``--set``, and what each mistake is answered with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from headrace.artifacts.errors import SinkError, SpecError
from headrace.jobs.spec import Job, job_schema, load_job, make_job, resolved_yaml
from headrace.workers.shard import TaskOptions, TextSpec

REPOSITORY = Path(__file__).parents[1]
FULL = """
name: spam-nightly
vars: {ds: null, table: emails}
artifact: s3://models/spam-minilm
artifact_options: {key: k, secret: s3cr3t}
source:
  path: s3://lake/${table}/
  storage_options: {key: k, secret: s3cr3t}
  where: "month >= '2002-08' AND ds = '${ds}'"
  text: {columns: [subject, body], separator: ": "}
  partition_types: {month: int32}
  on_source_deleted: replace
task: {max_length: 192, top_k: 1, score_of: spam}
sink: {path: s3://lake/scores/spam/, keep: [id], state: s3://lake/state, success_files: true, column_prefix: p_,
  keep_text: true, unsafe_lease: true, storage_options: {secret: s3cr3t}}
pools:
  cpu: {workers: 4, num_cpus: 2}
  other: {workers: auto, variant: cpu-fp32}
limits: {max_bad_rows: 5%, max_attempts: 2}
variant: cpu-fp32
batching: row
batch_tokens: 1024
empty: null
on_change: new_only
shard_rows: 4096
window_rows: 512
"""
LEAST = "artifact: model\nsource: {path: in, text: body}\nsink: {path: out/scores}\n"


def write(folder: Path, text: str, name: str = "nightly.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def refused(folder: Path, text: str, *sets: str, **more: Any) -> tuple[str, str]:
    with pytest.raises(SpecError) as caught:
        load_job(write(folder, text), sets, **more)
    assert caught.value.hint and "pydantic" not in str(caught.value)
    return str(caught.value), caught.value.hint


def changed(**changes: Any) -> str:
    spec = yaml.safe_load(LEAST)
    for dotted, value in changes.items():
        *parents, last = dotted.split("__")
        target = spec
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return yaml.safe_dump(spec)


def test_the_least_there_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, LEAST)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    job = load_job(path)
    assert job.name == "nightly"
    assert job.source.paths() == (f"{tmp_path}/here/in",)  # relative to the current folder
    assert job.artifact == f"{tmp_path}/here/model"
    assert job.sink.path == f"{tmp_path}/here/out/scores"
    assert job.state_url() == f"{tmp_path}/here/out/_headrace/scores"
    assert job.text_spec() == TextSpec(("body",))
    assert job.task_options() == TaskOptions()
    assert (job.shard_rows, job.window_rows, job.batching, job.empty) == (4096, 2048, "budget", "null")
    assert (job.limits.max_bad_rows, job.limits.max_attempts) == (0.01, 3)
    assert {name: (pool.workers, pool.num_cpus) for name, pool in job.pools.items()} == {"cpu": ("auto", 1)}
    assert job.pinned_variant() is None and job.source.where is None and job.limit is None


def test_all_there_can_be(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, FULL), ["ds=2026-12-01", "pools.cpu.workers=8", "batching=budget"], limit=10)
    assert job.source.paths() == ("s3://lake/emails/",)
    assert job.source.where == """("ds" = '2026-12-01') AND ("month" >= '2002-08')"""
    assert job.text_spec() == TextSpec(("subject", "body"), ": ")
    assert job.source.key_types() == {"month": pa.int32()}
    assert job.task_options() == TaskOptions(192, 1, "spam")
    assert job.state_url() == "s3://lake/state"
    assert (job.pools["cpu"].workers, job.pools["cpu"].num_cpus, job.pinned_variant()) == (8, 2, "cpu-fp32")
    assert (job.limits.max_bad_rows, job.batching, job.batch_tokens, job.limit) == (0.05, "budget", 1024, 10)
    assert job.sink.success_files and job.sink.keep_text and job.sink.unsafe_lease and job.on_change == "new_only"


def test_a_job_is_frozen(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, LEAST))
    with pytest.raises(ValueError, match="frozen"):
        job.shard_rows = 3  # type: ignore[misc]


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, FULL), ["ds=x"])
    assert job.sink.storage_options == {"secret": "s3cr3t"}
    assert "s3cr3t" not in resolved_yaml(job) and "s3cr3t" not in repr(job)
    assert yaml.safe_load(resolved_yaml(job))["artifact_options"] == {"key": "***", "secret": "***"}
    message, _ = refused(tmp_path, changed(source__storage_options="s3cr3t"))
    assert "source.storage_options" in message and "s3cr3t" not in message
    job = load_job(write(tmp_path, changed(source__path="s3://key:s3cr3t@bucket/x")))
    assert "s3cr3t" not in resolved_yaml(job)


def test_the_resolved_job_loads_to_itself(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, changed(source__where="id > 3", vars={"x": 1})), where="id < 9")
    assert load_job(write(tmp_path, resolved_yaml(job), "again.yaml")) == job


def test_where_is_added_to_the_jobs_own(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, changed(source__where="a = 1 or b = 2 -- why")), where="c = 3 or d = 4")
    assert job.source.where == '(("a" = 1) OR ("b" = 2)) AND (("c" = 3) OR ("d" = 4))'
    assert load_job(write(tmp_path, LEAST), where="c = 3").source.where == '("c" = 3)'
    assert "can't be read" in refused(tmp_path, changed(source__where="a = 1"), where="1 = 1) or (2 = 2")[0]


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"limits__max_bad_row": "1%"}, "limits.max_bad_row", "limits.max_bad_rows"),
        ({"where": "x"}, "where", "source.where"),
        ({"source__text": {"colums": ["a"]}}, "source.text.colums", "source.text.columns"),
        ({"pools__mine__worker": 1}, "pools.mine.worker", "pools.mine.workers"),
        ({"zzz": 1}, "zzz", "known here: name, vars, artifact"),
        ({"shard_rows": "many"}, "shard_rows: 'many'", "a whole number"),
        ({"shard_rows": 0}, "shard_rows: 0", "from 1"),
        ({"shard_rows": 100}, "shard_rows: 100", "window_rows"),
        ({"source__text": 3}, "source.text: 3", "a column's name"),
        ({"source__text": {"columns": ["a"], "template": "{a}"}}, "source.text", "one of them"),
        ({"source__text": {"template": "no column"}}, "no column", "braces"),
        ({"source__text": {"template": "{a[0]}"}}, "{a[0]}", "{column}"),
        ({"source__path": []}, "source.path: []", "glob"),
        ({"source__path": ["a", 3]}, "source.path", "glob"),
        ({"source__partition_types": {"m": "int3"}}, "source.partition_types.m: 'int3'", "int32"),
        ({"limits__max_bad_rows": "x"}, "limits.max_bad_rows: 'x'", "1%"),
        ({"limits__max_bad_rows": 2}, "limits.max_bad_rows: 2", "1%"),
        ({"pools__cpu__workers": "some"}, "pools.cpu.workers: 'some'", "auto"),
        ({"pools__cpu__workers": -1}, "pools.cpu.workers: -1", "auto"),
        ({"pools__cpu__num_cpus": 0}, "pools.cpu.num_cpus: 0", "more than 0"),
        ({"pools__cpu__num_cpus": float("inf")}, "pools.cpu.num_cpus: inf", "finite"),
        ({"pools__cpu__num_cpus": float("nan")}, "pools.cpu.num_cpus: nan", "more than 0"),
        ({"pools": {}}, "pools: {}", "at least one"),
        ({"pools__gpu__num_gpus": 1}, "GPU pools are not supported yet", "num_cpus"),
        ({"variant": "a", "pools__cpu__variant": "b"}, "several variants", "same one"),
        ({"pools": {"a": {"variant": "x"}, "b": {}}}, "several variants", "same one"),
        ({"consistency": "strict"}, "not supported yet in a job file: consistency", "leave it out"),
        ({"source__text_pair": "b"}, "source.text_pair", "leave it out"),
        ({"sink__keep": ["a", "a"]}, "sink.keep", "once"),
        ({"sink__keep": "id"}, "sink.keep: 'id'", "a list"),
        ({"sink__path": ""}, "sink.path: ''", "not empty"),
        ({"batching": "fast"}, "batching: 'fast'", "budget or row"),
        ({"task": 3}, "task: 3", "keys with values"),
        ({"name": 5}, "name: 5", "text"),
        ({"sink__success_files": "maybe"}, "sink.success_files: 'maybe'", "true or false"),
        ({"source__where": "id >"}, "where can't be read", "SQL"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str, hint: str, tmp_path: Path) -> None:
    said, advised = refused(tmp_path, changed(**changes))
    assert message in said and hint in advised


@pytest.mark.parametrize("key", ["artifact", "source", "sink", "source.path", "source.text", "sink.path"])
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    spec = yaml.safe_load(LEAST)
    target, last = (spec[key.split(".")[0]], key.split(".")[1]) if "." in key else (spec, key)
    del target[last]
    assert refused(tmp_path, yaml.safe_dump(spec))[0] == f"missing key in the job file: {key}"


def test_files_that_are_no_job(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such job file"):
        load_job(tmp_path / "nowhere.yaml")
    assert "line 3" in refused(tmp_path, "name: x\nsource: {path: [\n")[0]
    assert "no mapping" in refused(tmp_path, "- a\n- b\n")[0]
    assert "no mapping" in refused(tmp_path, "")[0]
    said, _ = refused(tmp_path, LEAST + "sink: {path: other}\n")
    assert "twice: sink" in said and "line 4" in said
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="can't be read"):
        load_job(tmp_path / "bytes.yaml")


def test_variables(tmp_path: Path) -> None:
    text = changed(vars={"ds": None, "n": 4096, "on": True}, source__path=["in/${ds}", "$${ds}/${n}"])
    job = load_job(write(tmp_path, text.replace("sink:", "shard_rows: ${n}\nsink:")), ["ds=2026-12-01"])
    assert [path.rsplit("/", 2)[1:] for path in job.source.paths()] == [["in", "2026-12-01"], ["${ds}", "4096"]]
    assert job.shard_rows == 4096
    assert job.vars == {"ds": "2026-12-01", "n": "4096", "on": "true"}
    said, hint = refused(tmp_path, text)
    assert "source.path[0]: ${ds}" in said and "--set ds=" in hint
    said, hint = refused(tmp_path, changed(vars={"day": 1}, artifact="m/${dya}"))
    assert "artifact: ${dya}" in said and "${day}" in hint
    assert "declare it" in refused(tmp_path, changed(artifact="m/${x}"))[1]


def test_set(tmp_path: Path) -> None:
    job = load_job(
        write(tmp_path, LEAST),
        ["sink.path=s3://b/x=y/z", "sink.keep=[id, day]", "task.max_length=64", "source.text=subject", "name=n"],
    )
    assert (job.sink.path, job.sink.keep, job.task.max_length, job.name) == ("s3://b/x=y/z", ("id", "day"), 64, "n")
    assert job.text_spec().columns == ("subject",)
    assert "without a value" in refused(tmp_path, LEAST, "name")[0]
    said, hint = refused(tmp_path, changed(vars={"ds": 1}), "dz=3")
    assert "neither" in said and "ds" in hint
    assert "sink.pth" in refused(tmp_path, LEAST, "sink.pth=x")[0]
    assert "plain value" in refused(tmp_path, LEAST, "artifact.x=1")[0]
    assert "no valid YAML" in refused(tmp_path, LEAST, "sink.keep=[a")[0]


def test_a_sink_without_a_place_for_its_state(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="s3://bucket") as caught:
        load_job(write(tmp_path, changed(sink__path="s3://bucket")))
    assert caught.value.hint and "sink.state" in caught.value.hint
    assert load_job(write(tmp_path, changed(sink__path="s3://bucket", sink__state="s3://other/x"))).state_url()


def test_from_plain_values() -> None:
    job = make_job({"artifact": "m", "source": {"path": "a", "text": "b"}, "sink": {"path": "o/p"}}, limit=3)
    assert isinstance(job, Job) and (job.name, job.limit) == ("job", 3)


def test_the_published_schema_is_this_one() -> None:
    """To make it anew: ``make schema``."""
    published = json.loads((REPOSITORY / "docs" / "job.schema.json").read_text())
    assert published == job_schema()
