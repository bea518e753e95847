"""Plans over real Parquet files, with ledgers as runs leave them: every row exactly once, whatever happened before."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from planner_world import World, names, shards, write

from headrace.artifacts.errors import LimitExceeded
from headrace.artifacts.storage import Folder
from headrace.jobs.contract import load_contract, save_contract
from headrace.jobs.known_files import KnownFiles
from headrace.workers import paths


def test_the_first_plan(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/b.parquet", 250, 60)
    write(tmp_path / "in/c.parquet", 20)
    write(tmp_path / "in/a.parquet", 30)
    write(tmp_path / "in/empty.parquet", 0)
    write(tmp_path / "in/m=2/d.parquet", 90)
    planned = world.run()
    plan = planned.plan
    assert names(planned) == [
        [("a.parquet", 0, 30), ("c.parquet", 0, 20)],
        [("b.parquet", 0, 60)], [("b.parquet", 60, 60)], [("b.parquet", 120, 60)], [("b.parquet", 180, 70)],
        [("d.parquet", 0, 90)],
    ]  # fmt: skip
    assert [shard.partition for shard in shards(planned)] == [""] * 5 + ["m=2"]
    source = tmp_path / "in"
    assert plan.shards.ids[1] == paths.shard_id(f"{source}/b.parquet", 0, 60)
    assert plan.shards.ids[0] == paths.group_id([f"{source}/a.parquet", f"{source}/c.parquet"])
    assert [group.files for group in plan.new_groups] == [(f"{source}/a.parquet", f"{source}/c.parquet")]
    assert (plan.files, plan.rows, plan.done_rows, plan.done_shards) == (5, 390, 0, 0)
    assert plan.size_bytes == sum(path.stat().st_size for path in source.rglob("*.parquet"))
    assert plan.unfinished_partitions == {"": 5, "m=2": 1} and plan.partitions == ("", "m=2")
    assert not plan.replacements and not plan.nothing_to_do
    world.assert_complete()
    again = world.plan().plan
    assert again.nothing_to_do and (again.rows, again.done_rows, again.done_shards) == (390, 390, 6)
    assert again.unfinished_partitions == {}


def test_a_second_plan_reads_no_footer(world: World, tmp_path: Path, no_footers: Any) -> None:
    for number, rows in enumerate([250, 20, 30, 0, 100]):
        write(tmp_path / f"in/{number}.parquet", rows, 60)
    world.run()
    state = Folder(str(tmp_path / "state"))
    assert world.contract is not None
    save_contract(state, world.contract)
    world.contract = load_contract(state)  # as the next process finds it
    no_footers()
    assert world.plan().plan.nothing_to_do


def test_without_that_memory_it_reads_them_again(world: World, tmp_path: Path) -> None:
    for number, rows in enumerate([250, 20, 30]):
        write(tmp_path / f"in/{number}.parquet", rows, 60)
    world.run()
    world.contract = None
    assert world.plan().plan.nothing_to_do


@pytest.mark.parametrize("remember", [True, False])
def test_after_a_crash_the_cuts_are_the_same(remember: bool, tmp_path: Path) -> None:
    for number, rows in enumerate([250, 20, 30, 500, 40, 45, 50]):
        write(tmp_path / f"in/{number}.parquet", rows, 60)
    undisturbed = World(str(tmp_path / "in"))
    undisturbed.run()
    for until in range(9):
        crashed = World(str(tmp_path / "in"))
        crashed.run(until)
        if not remember and crashed.contract:
            crashed.contract = dataclasses.replace(crashed.contract, known=KnownFiles())
        crashed.run()
        crashed.assert_complete()
        assert crashed.ledger.parts.keys() == undisturbed.ledger.parts.keys()


def test_new_files_are_added_and_never_join_an_old_group(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 20)
    write(tmp_path / "in/c.parquet", 20)
    write(tmp_path / "in/m=1/x.parquet", 20)
    world.run()
    write(tmp_path / "in/b.parquet", 20)
    write(tmp_path / "in/d.parquet", 20)
    write(tmp_path / "in/m=1/y.parquet", 20)
    planned = world.run()
    assert names(planned) == [[("b.parquet", 0, 20), ("d.parquet", 0, 20)], [("y.parquet", 0, 20)]]
    assert not planned.plan.replacements and planned.plan.done_rows == 60
    world.assert_complete()


def test_a_group_that_was_recorded_but_never_scored_is_used(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 20)
    write(tmp_path / "in/c.parquet", 20)
    world.run(until=0)
    write(tmp_path / "in/b.parquet", 20)
    planned = world.run()
    assert names(planned) == [[("a.parquet", 0, 20), ("c.parquet", 0, 20)], [("b.parquet", 0, 20)]]
    assert not planned.plan.new_groups
    world.assert_complete()


def test_a_changed_file_with_the_same_single_shard_is_overwritten(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 90)
    write(tmp_path / "in/b.parquet", 90)
    world.run()
    write(tmp_path / "in/a.parquet", 90, start=1000)
    planned = world.run()
    assert names(planned) == [[("a.parquet", 0, 90)]] and not planned.plan.replacements
    world.assert_complete()


@pytest.mark.parametrize("rows", [0, 10, 90, 250, 400])
def test_a_changed_file_with_several_parts_is_replaced_as_one_step(rows: int, world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 250, 100)
    write(tmp_path / "in/b.parquet", 90)
    old = set(world.run().plan.shards.ids) - {paths.shard_id(f"{tmp_path}/in/b.parquet", 0, 90)}
    write(tmp_path / "in/a.parquet", rows, 100, start=1000)
    planned = world.run()
    (replacement,) = planned.plan.replacements
    assert set(replacement.remove) == old
    assert list(replacement.shards) == list(range(len(planned.plan.shards)))
    assert planned.plan.shards.rows.sum() == rows and "" in planned.plan.unfinished_partitions
    world.assert_complete()


def test_a_replacement_cut_short_is_done_again(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 250, 100)
    world.run()
    write(tmp_path / "in/a.parquet", 350, 100, start=1000)
    planned = world.plan()
    # Old parts are gone, one new one is there: what a takeover finds after a kill in the middle.
    (replacement,) = planned.plan.replacements
    world._replace(planned, replacement.remove, replacement.shards[:1], 0)
    world.contract = planned.contract
    assert len(world.run().plan.shards) == 3
    world.assert_complete()


def test_a_group_is_replaced_whole_when_a_member_changes(world: World, tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / f"in/{name}.parquet", 20)
    (group,) = world.run().plan.new_groups
    write(tmp_path / "in/b.parquet", 35, start=500)
    planned = world.run()
    assert planned.plan.shards.ids == (group.id,) and not planned.plan.replacements
    assert names(planned) == [[("a.parquet", 0, 20), ("b.parquet", 0, 35), ("c.parquet", 0, 20)]]
    world.assert_complete()


def test_a_group_that_has_outgrown_a_shard_is_taken_apart(world: World, tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / f"in/{name}.parquet", 20)
    (group,) = world.run().plan.new_groups
    write(tmp_path / "in/b.parquet", 1000, 100)
    planned = world.run()
    (replacement,) = planned.plan.replacements
    assert replacement.remove == (group.id,) and len(replacement.shards) == 12
    world.assert_complete()
    assert world.plan().plan.nothing_to_do
    write(tmp_path / "in/b.parquet", 20)  # and back
    world.run()
    world.assert_complete()
    assert set(world.ledger.parts) == {group.id}


def test_vanished_files_are_kept_and_told(world: World, tmp_path: Path) -> None:
    for name, rows in (("a", 20), ("b", 20), ("c", 150), ("d", 30), ("e", 90)):
        write(tmp_path / f"in/{name}.parquet", rows)
    world.run()
    before = world.rows()
    for name in "bc":
        (tmp_path / f"in/{name}.parquet").unlink()
    plan = world.run().plan
    assert plan.vanished == (f"{tmp_path}/in/b.parquet", f"{tmp_path}/in/c.parquet")
    assert plan.nothing_to_do and world.rows() == before


def test_vanished_files_are_removed_when_asked(world: World, tmp_path: Path) -> None:
    for name, rows in (("a", 20), ("b", 20), ("c", 150), ("d", 30), ("e", 90)):
        write(tmp_path / f"in/{name}.parquet", rows)
    (group,) = world.run().plan.new_groups
    for name in "bc":
        (tmp_path / f"in/{name}.parquet").unlink()
    planned = world.run(source__on_source_deleted="replace")
    (removal,) = planned.plan.replacements
    assert removal.shards == () and len(removal.remove) == 2
    assert planned.plan.shards.ids == (group.id,)
    world.assert_complete()
    assert world.plan(source__on_source_deleted="replace").plan.nothing_to_do


def test_a_whole_group_that_vanished_is_removed_when_asked(world: World, tmp_path: Path) -> None:
    for name, rows in (("a", 20), ("b", 20), ("c", 150), ("d", 70), ("e", 90)):
        write(tmp_path / f"in/{name}.parquet", rows)
    world.run()
    for name in "ab":
        (tmp_path / f"in/{name}.parquet").unlink()
    plan = world.run(source__on_source_deleted="replace").plan
    assert [r.shards for r in plan.replacements] == [()] and not len(plan.shards)
    assert plan.unfinished_partitions == {"": 0}
    world.assert_complete()


def test_a_changed_member_beside_a_vanished_one(world: World, tmp_path: Path) -> None:
    for name in "abcd":
        write(tmp_path / f"in/{name}.parquet", 20)
    world.run()
    (tmp_path / "in/b.parquet").unlink()
    write(tmp_path / "in/a.parquet", 25, start=77)
    assert len(world.run().plan.shards) == 1
    world.assert_complete()


def test_a_listing_that_lost_most_of_its_files_stops_the_job(world: World, tmp_path: Path) -> None:
    for name in "abcde":
        write(tmp_path / f"in/{name}.parquet", 90)
    world.run()
    for name in "ab":
        (tmp_path / f"in/{name}.parquet").unlink()
    assert len(world.plan().plan.vanished) == 2
    (tmp_path / "in/c.parquet").unlink()
    write(tmp_path / "in/new.parquet", 400)  # rewritten into one: its rows would be there twice
    for policy in ("keep", "replace"):
        with pytest.raises(LimitExceeded, match="3 of 5") as caught:
            world.plan(source__on_source_deleted=policy)
        assert caught.value.exit_code == 1


def test_another_part_of_the_source_is_not_a_deletion(world: World, tmp_path: Path) -> None:
    """A nightly job whose path or where names the day."""
    for day in (1, 2, 3):
        write(tmp_path / f"in/ds={day}/a.parquet", 20)
        write(tmp_path / f"in/ds={day}/b.parquet", 20)
    for day in (1, 2, 3):
        plan = world.run(source__where=f"ds = '{day}'", source__on_source_deleted="replace").plan
        assert (plan.files, plan.vanished, plan.partitions) == (2, (), (f"ds={day}",))
    world.assert_complete()
    assert len({record.fingerprint for record in world.ledger.parts.values()}) == 1
    shutil.rmtree(tmp_path / "in/ds=1")
    assert world.plan(source__where="ds = '3'").plan.vanished == ()
    assert len(world.plan().plan.vanished) == 2
    nightly = World(str(tmp_path / "in"))
    for day in (2, 3):
        plan = nightly.run(path=f"{tmp_path}/in/ds={day}", source__on_source_deleted="replace").plan
        assert plan.vanished == () and not plan.replacements


def test_a_source_named_by_another_root_moves_its_parts(world: World, tmp_path: Path) -> None:
    """The partition below the sink follows the source's root: the old place has to be cleared."""
    write(tmp_path / "in/ds=1/a.parquet", 90)
    world.run()
    planned = world.run(path=f"{tmp_path}/in/ds=1")
    (replacement,) = planned.plan.replacements
    assert replacement.remove == planned.plan.shards.ids and shards(planned)[0].partition == ""
    world.assert_complete()


def test_members_of_a_group_that_another_listing_does_not_hold(world: World, tmp_path: Path) -> None:
    for name in ("a1", "a2", "b1"):
        write(tmp_path / f"in/{name}.parquet", 20)
    world.run()
    write(tmp_path / "in/a1.parquet", 22, start=9)
    planned = world.run(path=f"{tmp_path}/in/a*.parquet")
    assert names(planned) == [[("a1.parquet", 0, 22), ("a2.parquet", 0, 20), ("b1.parquet", 0, 20)]]
    world.assert_complete()
