"""Plans where files are bad, predicates select, a limit cuts, types are frozen, sinks and states are mixed up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planner_world import World, names, rows_of, shards, write

from headrace.artifacts.errors import SourceError, SpecError, UsageError
from headrace.artifacts.storage import Folder
from headrace.jobs import facts
from headrace.jobs.contract import load_contract, save_contract
from headrace.jobs.records import FileRecord
from headrace.workers import paths
from headrace.workers.reader import read_windows
from headrace.workers.shard import FileIdentity

# -- files that can't be used ------------------------------------------------------------------------------------------


def test_bad_files_are_set_aside_and_known_next_time(world: World, tmp_path: Path) -> None:
    source = tmp_path / "in"
    for name in "abcdef":
        write(source / f"{name}.parquet", 40)
    (source / "bad1.parquet").write_text("no parquet")
    (source / "bad2.parquet").write_bytes((source / "a.parquet").read_bytes()[:-5])
    (source / "bad3.parquet").write_bytes(b"")
    pq.write_table(pa.table({"id": [1], "text": ["x"]}), source / "bad4.parquet")
    pq.write_table(pa.table({"id": [1], "body": [5]}), source / "bad5.parquet")
    table = pa.Table.from_arrays([pa.array([1]), pa.array(["x"]), pa.array(["y"])], ["id", "body", "body"])
    pq.write_table(table, source / "bad6.parquet")
    plan = world.run().plan
    assert {Path(bad.file.path).name: bad.reason.split(":")[0] for bad in plan.bad_files} == {
        "bad1.parquet": "not a whole Parquet file",
        "bad2.parquet": "not a whole Parquet file",
        "bad3.parquet": "not a whole Parquet file",
        "bad4.parquet": "no such column",
        "bad5.parquet": "column is no text",
        "bad6.parquet": "column is there more than once",
    }
    assert all(bad.row is None and bad.stage == "read" for bad in plan.bad_files)
    assert (plan.files, plan.rows) == (12, 240)
    again = world.plan().plan
    assert again.nothing_to_do and again.known_bad_files == 6 and not again.cleared_files
    retried = world.plan(retry=True).plan
    assert len(retried.bad_files) == 6 and retried.known_bad_files == 0 and not retried.cleared_files
    write(source / "bad1.parquet", 30)
    repaired = world.run().plan
    assert names(world.plan()) == []
    assert repaired.cleared_files == (f"{source}/bad1.parquet",) and repaired.known_bad_files == 5
    assert len(repaired.shards) == 1


def test_a_bad_file_that_is_fine_and_empty_now_leaves_the_quarantine(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 20)
    (tmp_path / "in/b.parquet").write_text("half an upload")
    world.run()
    write(tmp_path / "in/b.parquet", 0)
    plan = world.run().plan
    assert plan.cleared_files == (f"{tmp_path}/in/b.parquet",) and not len(plan.shards) and not plan.nothing_to_do
    assert world.plan().plan.nothing_to_do and not world.ledger.bad_files


def test_a_file_that_goes_bad_keeps_what_was_scored_of_it(world: World, tmp_path: Path) -> None:
    for name, rows in (("a", 20), ("b", 20), ("c", 150)):
        write(tmp_path / f"in/{name}.parquet", rows)
    world.run()
    before = world.rows()
    for name in "ac":
        (tmp_path / f"in/{name}.parquet").write_text("half an upload")
    plan = world.run().plan
    assert len(plan.bad_files) == 2 and not len(plan.shards) and not plan.replacements
    assert world.rows() == before
    assert world.plan().plan.nothing_to_do
    for name, rows in (("a", 20), ("c", 160)):
        write(tmp_path / f"in/{name}.parquet", rows)
    world.run()
    world.assert_complete()


def test_a_file_found_bad_while_it_was_read(world: World, tmp_path: Path) -> None:
    """One shard of a file, one member of a group: the rest stays, and nothing is tried again until asked."""
    for name, rows in (("a", 20), ("b", 20), ("c", 150)):
        write(tmp_path / f"in/{name}.parquet", rows, 100)
    (group,) = world.run().plan.new_groups
    lost = paths.shard_id(f"{tmp_path}/in/c.parquet", 100, 50)
    (bad_c,) = (piece.file for piece in world.ledger.parts.pop(lost).pieces)
    record = world.ledger.parts[group.id]
    bad_b = record.pieces[1].file
    world.ledger.parts[group.id] = dataclasses.replace(record, pieces=record.pieces[:1])
    for file in (bad_b, bad_c):
        world.ledger.bad_files[file.path] = FileRecord(file, "read", "damaged", "1", 0.0)
    plan = world.plan().plan
    assert plan.nothing_to_do and plan.known_bad_files == 2
    retried = world.run(retry=True).plan
    assert set(retried.shards.ids) == {lost, group.id} and not retried.replacements
    assert set(retried.cleared_files) == {bad_b.path, bad_c.path}
    world.assert_complete()


def test_quarantined_rows_are_tried_again_when_asked(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 150, 100)
    world.run(quarantined=1)
    assert world.plan().plan.nothing_to_do
    planned = world.run(retry=True)
    assert [(r.remove, r.shards) for r in planned.plan.replacements] == [
        ((shard_id,), (index,)) for index, shard_id in enumerate(planned.plan.shards.ids)
    ]
    assert world.plan(retry=True).plan.nothing_to_do
    world.assert_complete()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source__text": "subject"}, "subject"),
        ({"sink__keep": ["id", "day"]}, "day"),
        ({"source__where": "lang = 'en'"}, "lang"),
        ({"source__text": "id"}, "no text in any source file: id, int64"),
    ],
)
def test_a_column_that_no_file_has(changes: dict[str, Any], words: str, world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/m=1/a.parquet", 10)
    write(tmp_path / "in/m=1/b.parquet", 10)
    (tmp_path / "in/m=1/bad.parquet").write_text("x")
    with pytest.raises(SourceError, match=words) as caught:
        world.plan(**changes)
    assert caught.value.hint and "id, body" in caught.value.hint and "partition keys: m" in caught.value.hint


def test_a_source_of_bad_files_alone(world: World, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / f"in/{name}.parquet").write_text("x")
    with pytest.raises(SourceError, match="no source file can be used"):
        world.plan()


def test_a_new_file_without_the_column_beside_scored_ones_is_set_aside(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 90)
    world.run()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "in/b.parquet")
    assert len(world.run().plan.bad_files) == 1


# -- where, limit, types -----------------------------------------------------------------------------------------------


def test_where_selects_partitions_files_and_row_groups(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/m=1/a.parquet", 300, 50)
    write(tmp_path / "in/m=2/b.parquet", 300, 50)
    write(tmp_path / "in/m=2/c.parquet", 20, start=1000)
    planned = world.run(source__where="m = '2' and id between 120 and 140")
    assert names(planned) == [[("b.parquet", 100, 100)]]
    plan = planned.plan
    assert (plan.files, plan.rows, plan.partitions) == (2, 100, ("m=2",))
    assert planned.score.where_columns == ("id",)
    table = pa.table({"id": pa.array([100, 120, None, 140])})
    assert table.filter(planned.score.where)["id"].to_pylist() == [120, 140]
    assert world.plan(source__where="id <= 140 and id >= 120 and m = '2'").plan.nothing_to_do
    assert not world.plan(source__where="m = '3' and id between 120 and 140").plan.files


def test_where_over_a_key_and_a_column_together(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/m=1/a.parquet", 90)
    write(tmp_path / "in/m=2/b.parquet", 90, start=1000)
    planned = world.plan(source__where="m = 2 or id >= 1050", source__partition_types={"m": "int32"})
    assert names(planned) == [[("b.parquet", 0, 90)]]  # the other has no such id and another key
    assert planned.score.partition_types == {"m": pa.int32()}
    with pytest.raises(SpecError, match="m"):
        world.plan(source__where="m = 2")  # a key is text until it is declared
    with pytest.raises(SpecError, match="names no partition key: month"):
        world.plan(source__partition_types={"month": "int32"})
    with pytest.raises(SourceError, match="does not fit"):
        world.plan(source__where="m = date '2024-01-01'", source__partition_types={"m": "date"})


def test_where_that_matches_nothing_is_fine(world: World, tmp_path: Path, no_footers: Any) -> None:
    write(tmp_path / "in/a.parquet", 90)
    planned = world.run(source__where="id < 0")
    assert planned.plan.nothing_to_do and planned.plan.rows == 0


def test_a_null_partition(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/m=__HIVE_DEFAULT_PARTITION__/a.parquet", 90)
    write(tmp_path / "in/m=a%20b/b.parquet", 90)
    assert names(world.plan(source__where="m is null")) == [[("a.parquet", 0, 90)]]
    assert names(world.plan(source__where="m = 'a b'")) == [[("b.parquet", 0, 90)]]


@pytest.mark.parametrize("limit", [1, 60, 75, 130, 290, 10_000])
def test_limit_takes_the_first_rows_of_the_plan(limit: int, tmp_path: Path) -> None:
    for number, rows in enumerate([120, 20, 30, 150]):
        write(tmp_path / f"in/{number}.parquet", rows, 60)
    full = [row for shard in shards(World(str(tmp_path / "in")).plan()) for row in rows_of(shard)]
    world = World(str(tmp_path / "in"))
    planned = world.run(limit=limit, until=1)
    assert [row for shard in shards(planned) for row in rows_of(shard)] == full[:limit]
    world.run(limit=limit)
    assert sum(world.rows().values()) == min(limit, 320)
    assert world.plan(limit=limit).plan.nothing_to_do
    with pytest.raises(UsageError, match=f"limit: not set, was {limit}"):
        world.plan()


@pytest.mark.parametrize("on_change", [None, "new_only", "replace"])
def test_limit_needs_a_sink_of_its_own(on_change: str | None, world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 300, 100)
    world.run(until=2)
    for limit in (1, 50):
        with pytest.raises(UsageError, match=f"limit: {limit}, was not set") as caught:
            world.plan(limit=limit, on_change=on_change)
        assert caught.value.hint == "give --limit a sink of its own: --set sink.path=…"
    world.contract = None
    with pytest.raises(UsageError, match="limit: 50, was not known"):
        world.plan(limit=50, on_change=on_change)


@pytest.mark.parametrize("on_change", [None, "new_only", "replace"])
def test_a_sink_made_with_a_limit_goes_on_with_replace_only(
    on_change: str | None, world: World, tmp_path: Path
) -> None:
    write(tmp_path / "in/m=1/a.parquet", 300, 100)
    write(tmp_path / "in/m=2/b.parquet", 150, 100)
    world.run(limit=50)
    with pytest.raises(UsageError, match="limit: 20, was 50") as caught:
        world.plan(limit=20, on_change=on_change)
    assert "on_change" not in str(caught.value.hint)
    assert world.plan(limit=50, on_change=on_change).plan.nothing_to_do
    assert len(world.plan(limit=50, on_change="replace", task={"max_length": 16}).plan.shards) == 1
    if on_change != "replace":
        for where in (None, "m = '2'"):  # of the other file nothing is there yet
            with pytest.raises(UsageError, match="limit: not set, was 50") as caught:
                world.plan(on_change=on_change, source__where=where)
            assert "on_change" not in str(caught.value.hint)
        return
    world.run(on_change=on_change, until=4)
    with pytest.raises(UsageError, match="limit: 50, was not set"):
        world.plan(limit=50, on_change=on_change)  # half done
    world.run(on_change=on_change)
    world.assert_complete()
    assert world.plan().plan.nothing_to_do


def test_two_sinks_with_one_state(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 90)
    world.run(sink__state="/state")
    assert world.plan(sink__state="/state", sink__path="/out/x/../scores/").plan.nothing_to_do
    with pytest.raises(UsageError, match="/state: it is of /out/scores, not of /out/others") as caught:
        world.plan(sink__state="/state", sink__path="/out/others")
    assert caught.value.exit_code == 2 and "sink.state" in str(caught.value.hint)
    assert "/state/plans/contract.json" in str(caught.value.hint)
    with pytest.raises(UsageError, match="not of s3://b/scores"):
        world.plan(sink__state="s3://b/state", sink__path="s3://b/scores/")


def test_a_sink_that_was_moved(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 90)
    world.run()
    # Together with the state beside it: nothing else can be meant.
    assert world.plan(sink__path="/moved/scores").plan.nothing_to_do
    # To another name: its new path is to be written down, as the hint says.
    with pytest.raises(UsageError, match="not of /out/renamed"):
        world.plan(sink__path="/out/renamed")
    assert world.contract is not None
    state = Folder(str(tmp_path / "state"))
    save_contract(state, world.contract)
    told = state.read(paths.contract()).replace(b'"/out/scores"', b'"/out/renamed"')
    state.write(paths.contract(), told)
    world.contract = load_contract(state)
    assert world.plan(sink__path="/out/renamed").plan.nothing_to_do


def test_where_a_row_came_from(world: World, tmp_path: Path) -> None:
    """Such columns are made up; a file's own of that name, and its statistics, are hidden."""
    own = pa.array(range(1000, 1300), pa.int64())
    first = write(tmp_path / "in/source_file=x/a.parquet", 300, 100, source_row=own)
    write(tmp_path / "in/source_file=x/b.parquet", 300, 100)
    where = f"source_file = '{first}' and source_row between 120 and 140"
    planned = world.run(source__where=where)
    assert names(planned) == [[("a.parquet", 100, 100)]]
    (shard,) = shards(planned)
    windows = list(read_windows(shard.pieces, shard.partition, planned.score, {}))
    assert [int(window.selected.sum()) for window in windows] == [0, 0, *[10] * 2, 1, 0, 0, 0, 0, 0]
    assert world.plan(source__where=where).plan.nothing_to_do
    fresh = World(world.source)
    assert len(fresh.plan(source__where="source_row + id >= 0").plan.shards) == 6
    with pytest.raises(SpecError, match="source_row"):
        fresh.plan(source__where="source_row = 'x'")


def test_limit_reads_few_footers(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        write(tmp_path / f"in/{number:03d}.parquet", 10)
    read: list[FileIdentity] = []
    original = facts.read_footers
    monkeypatch.setattr(facts, "read_footers", lambda files, *more: (read.extend(files), original(files, *more))[1])
    assert world.plan(limit=15).plan.rows == 15
    assert len(read) == 64


def test_kept_types_are_frozen_by_the_first_plan(world: World, tmp_path: Path) -> None:
    def columns(rows: int, **arrays: pa.Array) -> dict[str, pa.Array]:
        return {name: pa.array(values[:rows], type_) for name, (values, type_) in arrays.items()}

    nothing = {"x": pa.nulls(90), "y": pa.nulls(90), "z": pa.array(["a"] * 90).dictionary_encode()}
    write(tmp_path / "in/a.parquet", 90, **nothing, n=pa.array([1] * 90, pa.int16()))
    later = {"x": pa.array([1.5] * 90, pa.float32()), "y": pa.nulls(90), "z": pa.array(["b"] * 90, pa.large_string())}
    write(tmp_path / "in/b.parquet", 90, **later, n=pa.array([1] * 90, pa.int32()))
    keep = ["source_row", "z", "x", "y", "n", "m"]
    world.source = f"{tmp_path}/in"
    for name in "ab":
        (tmp_path / "in/m=1").mkdir(exist_ok=True)
        (tmp_path / f"in/{name}.parquet").rename(tmp_path / f"in/m=1/{name}.parquet")
    planned = world.run(sink__keep=keep)
    want = {"z": pa.string(), "x": pa.float32(), "y": pa.string(), "n": pa.int32(), "m": pa.string()}
    assert planned.score.keep_types == want and planned.score.keep == tuple(keep)
    write(tmp_path / "in/m=1/c.parquet", 90, **{**later, "y": pa.array([3] * 90)}, n=pa.array([1] * 90, pa.int64()))
    assert world.plan(sink__keep=keep).score.keep_types == want


def test_types_outlive_a_run_that_committed_nothing(world: World, tmp_path: Path, no_footers: Any) -> None:
    write(tmp_path / "in/m=1/a.parquet", 90)
    first = world.run(until=0, source__where="id > 3 and m = '1' or id = 0", sink__keep=["id", "m"])
    no_footers()
    again = world.plan(source__where="id > 3 and m = '1' or id = 0", sink__keep=["id", "m"])
    assert again.score.keep_types == first.score.keep_types == {"id": pa.int64(), "m": pa.string()}
    assert again.score.where.equals(first.score.where) and len(again.plan.shards) == 1


def test_what_is_kept_where_nothing_is_named(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 9)
    planned = world.plan(sink__keep=[])
    assert planned.score.keep == ("source_file", "source_row") and planned.score.keep_types == {}
    assert len(planned.notices) == 1 and "source_file" in planned.notices[0]


def test_the_score_spec(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 9)
    score = world.plan(
        source__text={"template": "{body}!"}, task={"top_k": 1}, batching="row", empty="score",
        sink__column_prefix="p_", sink__keep_text=True,
    ).score  # fmt: skip
    assert (score.text.template, score.task.top_k, score.batching, score.empty) == ("{body}!", 1, "row", "score")
    assert (score.column_prefix, score.keep_text, score.window_rows, score.model) == ("p_", True, 10, "m@dddddddddddd")
    assert score.batch_tokens == 512 and world.plan(batch_tokens=99).score.batch_tokens == 99
