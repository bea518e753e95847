"""What is in the fingerprint and what is not, and the contract that a sink keeps of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.artifacts.errors import LedgerFault, UsageError
from headrace.artifacts.manifest import Content, Variant
from headrace.artifacts.storage import Folder
from headrace.jobs.contract import (
    Contract,
    difference,
    load_contract,
    refuse_other_sink,
    refuse_other_terms,
    save_contract,
)
from headrace.jobs.fingerprint import fingerprint_of, terms_of
from headrace.jobs.known_files import FileFacts, KnownFiles
from headrace.jobs.spec import make_job
from headrace.jobs.where import parse_where
from headrace.workers import paths
from headrace.workers.shard import FileIdentity


def variant(name: str, batch_tokens: int = 512) -> Variant:
    return Variant(
        name=name, target="cpu", precision="x", recipe="", files=(), batch_tokens=batch_tokens, batch_invariant=True
    )


def content(*variants: Variant) -> Content:
    found = variants or (variant("cpu-fp32"), variant("cpu-vnni-int8"))
    return Content(name="m", task="text-classification", labels=("a",), max_length=128, variants=found, files=())


def terms(digest: str = "d", of: Content | None = None, **changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"artifact": "m", "source": {"path": "in", "text": "body"}, "sink": {"path": "out/x"}}
    for key, value in changes.items():
        *parents, last = key.split("__")
        target = spec
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    job = make_job(spec)
    rows = parse_where(job.source.where).split(["ds"])[1]
    return terms_of(job, of or content(), digest, job.sink.keep, rows)


def fingerprint(*args: Any, **changes: Any) -> str:
    return fingerprint_of(terms(*args, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": "e"},
        {"source__text": "subject"},
        {"source__text": {"columns": ["body"], "separator": "-"}},
        {"source__text": {"template": "{body}"}},
        {"source__where": "id > 3"},
        {"task__max_length": 64},
        {"task__top_k": 1},
        {"task__score_of": "a"},
        {"empty": "score"},
        {"shard_rows": 8192},
        {"window_rows": 1024},
        {"batching": "row"},
        {"batch_tokens": 256},
        {"variant": "cpu-fp32"},
        {"pools__cpu__variant": "cpu-fp32"},
        {"sink__keep": ["id"]},
        {"sink__column_prefix": "p_"},
        {"source__partition_types": {"ds": "date"}},
        {"limit": 10},
    ],
)
def test_what_changes_predictions_or_parts_is_in_it(changes: dict[str, Any]) -> None:
    assert fingerprint(**changes) != fingerprint()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"artifact": "elsewhere"},
        {"source__path": "other"},
        {"source__where": "ds = '2026-12-01'"},
        {"source__on_source_deleted": "replace"},
        {"sink__path": "other/x"},
        {"sink__state": "s"},
        {"sink__success_files": True},
        {"sink__keep_text": True},
        {"sink__storage_options": {"a": 1}},
        {"pools__cpu__workers": 3},
        {"pools__cpu__num_cpus": 2},
        {"limits__max_attempts": 9},
        {"on_change": "replace"},
        {"task__max_length": 128},
        {"batch_tokens": 512},
    ],
)
def test_what_only_selects_or_runs_is_not(changes: dict[str, Any]) -> None:
    """Nor is naming what is the artifact's default anyway."""
    assert fingerprint(**changes) == fingerprint()


def test_where_counts_as_what_it_means() -> None:
    one = fingerprint(source__where="ds > '3' and Id >= 3 and lang in ('a','b') -- why")
    assert fingerprint(source__where="(lang IN ('a', 'b')) AND \"Id\">=3") == one
    assert fingerprint(source__where="id >= 3 and lang in ('a','b')") != one


def test_the_budget_is_the_artifacts_where_the_job_names_none() -> None:
    mixed = content(variant("a", 512), variant("b", 1024))
    assert terms(of=mixed)["batch_tokens"] == {"a": 512, "b": 1024}
    assert terms(of=mixed, variant="b")["batch_tokens"] == 1024
    assert terms(of=mixed, batch_tokens=9)["batch_tokens"] == 9
    assert terms(of=mixed, batching="row")["batch_tokens"] is None


def test_a_fingerprint_is_stable_over_versions() -> None:
    """A hash that changes with a release would refuse every sink there is: change FORMAT on purpose instead."""
    assert fingerprint("d" * 64, shard_rows=16384) == "6d5bb46af8666381f07167e5ffa5ac66a2267626e14385580111f4d7054f55ea"


def test_differences_are_told_in_words() -> None:
    old, new = terms("d" * 64), terms("e" * 64, task__max_length=192, source__text="subject")
    assert difference(old, new) == [
        "artifact: eeeeeeeeeeee, was dddddddddddd",
        "text.columns: ['subject'], was ['body']",
        "task.max_length: 192, was 128",
    ]
    assert difference(old, old) == []
    assert difference(terms(limit=3), terms()) == ["limit: not set, was 3"]
    assert difference({"a": {"b": 1}}, {}) == ["a.b: not set, was 1"]


def test_other_terms_are_refused() -> None:
    contract = Contract("f", {"x": 1}, {}, earlier={"old": {"x": 0}})
    refuse_other_terms(contract, {"x": 1}, "f", [], "sink")
    refuse_other_terms(None, {"x": 1}, "f", [], "sink")
    with pytest.raises(UsageError, match="sink: x: 2, was 1"):
        refuse_other_terms(contract, {"x": 2}, "g", [], "sink")
    with pytest.raises(UsageError, match="sink: x: 1, was 0"):
        refuse_other_terms(contract, {"x": 1}, "f", ["unknown", "old"], "sink")
    with pytest.raises(UsageError, match="not known"):
        refuse_other_terms(None, {"x": 1}, "f", ["unknown"], "sink")


def test_where_the_limit_differs_on_change_is_no_advice() -> None:
    with pytest.raises(UsageError) as caught:
        refuse_other_terms(Contract("f", {"x": 1, "limit": 3}, {}), {"x": 1, "limit": None}, "g", [], "sink")
    assert caught.value.hint == "give --limit a sink of its own: --set sink.path=…"


def test_a_contract_of_before_sinks_were_written_down(tmp_path: Path) -> None:
    state = Folder(str(tmp_path / "state"))
    save_contract(state, Contract("f", {}, {}, sink="/out/a"))
    value = json.loads(state.read(paths.contract()))
    assert value.pop("sink") == "/out/a"
    state.write(paths.contract(), json.dumps(value).encode())
    refuse_other_sink(load_contract(state), "/out/b", state.url)
    refuse_other_sink(None, "/out/b", state.url)


def test_a_sink_is_the_same_however_it_is_spelled(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    refuse_other_sink(Contract("f", {}, {}, sink=str(tmp_path / "real")), str(tmp_path / "link"), "/state")
    refuse_other_sink(Contract("f", {}, {}, sink="s3://b/x"), "s3://b/x/", "s3://b/state")
    with pytest.raises(UsageError, match="s3://b/x, not of s3://b/y"):
        refuse_other_sink(Contract("f", {}, {}, sink="s3://b/x"), "s3://b/y", "s3://b/state")


def test_the_contract_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    state = Folder(str(tmp_path))
    assert load_contract(state) is None
    types = {
        "a": pa.list_(pa.struct([("x", pa.decimal128(9, 2))])),
        "b": pa.timestamp("us", "Europe/Berlin"),
        "c": pa.dictionary(pa.int8(), pa.string()),
        "d": pa.null(),
    }
    known = KnownFiles(
        "f", {FileIdentity("/ä", 3, "v"): FileFacts((1, 2), (1,)), FileIdentity("/b", 0, ""): FileFacts(())}
    )
    contract = Contract("f", terms(), types, {"a": pa.int32()}, "0.1.0", {"g": {"x": 1}}, known, "/out")
    save_contract(state, contract)
    loaded = load_contract(state)
    assert loaded == contract and loaded is not None
    assert loaded.keep_types == types and loaded.known == known
    assert loaded.known.under("f") == known.facts and loaded.known.under("other") == {}


def test_a_damaged_memory_of_files_is_no_loss_but_a_damaged_contract_is(tmp_path: Path) -> None:
    state = Folder(str(tmp_path))
    save_contract(state, Contract("f", {}, {}, known=KnownFiles("f", {FileIdentity("a", 1, "x"): FileFacts((1,))})))
    for rubbish in (b"", b"rubbish", state.read(paths.files())[:-20]):
        state.write(paths.files(), rubbish)
        loaded = load_contract(state)
        assert loaded is not None and loaded.known == KnownFiles()
    for rubbish in (b"", b"{}", b'{"format": 99}'):
        state.write(paths.contract(), rubbish)
        with pytest.raises(LedgerFault, match="contract") as caught:
            load_contract(state)
        assert caught.value.hint


def test_dead_files_and_row_groups() -> None:
    assert FileFacts((5, 5), (0, 1)).is_dead and FileFacts(()).is_dead and FileFacts((0, 5), (1,)).is_dead
    assert not FileFacts((5, 5), (1,)).is_dead and not FileFacts((5,)).is_dead
    assert FileFacts((5, 6), (1,)).rows == 11
