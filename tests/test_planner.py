"""Plans over real Parquet files, with ledgers as runs leave them: every row exactly once, whatever happened before."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.artifacts.errors import LimitExceeded, SourceError, SpecError, UsageError
from headrace.artifacts.manifest import Content, Variant
from headrace.artifacts.storage import Folder
from headrace.jobs import facts
from headrace.jobs.contract import Contract, load_contract, save_contract
from headrace.jobs.known_files import FileFacts, KnownFiles
from headrace.jobs.planner import PlannedJob, make_plan
from headrace.jobs.records import FileRecord, Group, LedgerView, PartRecord
from headrace.jobs.source import Listing, SourceFile, list_source
from headrace.jobs.spec import make_job
from headrace.workers import paths
from headrace.workers.reader import read_windows
from headrace.workers.shard import Counts, FileIdentity, Shard

VARIANT = Variant(
    name="cpu-fp32", target="cpu", precision="fp32", recipe="", files=(), batch_tokens=512, batch_invariant=True
)
CONTENT = Content(name="m", task="text-classification", labels=("a",), max_length=128, variants=(VARIANT,), files=())


@dataclass(frozen=True)
class Artifact:
    content: Content = CONTENT
    digest: str = "d" * 64
    model: str = "m@dddddddddddd"


def write(path: Path, rows: int, row_groups: int | None = None, start: int = 0, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = range(start, start + rows)
    table = {"id": pa.array(ids, pa.int64()), "body": pa.array([f"text {n}" for n in ids], pa.string()), **columns}
    pq.write_table(pa.table(table), path, row_group_size=row_groups or max(rows, 1))
    return path


@dataclass
class World:
    """A source folder, and the state of a sink that runs have written to. ``shard_rows`` is 100."""

    source: str
    ledger: LedgerView = field(default_factory=LedgerView)
    groups: list[Group] = field(default_factory=list)
    contract: Contract | None = None
    runs: int = 0
    artifact: Artifact = Artifact()

    def plan(self, retry: bool = False, path: Any = None, **changes: Any) -> PlannedJob:
        spec: dict[str, Any] = {
            "artifact": "m",
            "source": {"path": path or self.source, "text": "body"},
            "sink": {"path": "/out/scores", "keep": ["id"]},
            "shard_rows": 100,
            "window_rows": 10,
        }
        limit = changes.pop("limit", None)
        for key, value in changes.items():
            *parents, last = key.split("__")
            target = spec
            for parent in parents:
                target = target.setdefault(parent, {})
            target[last] = value
        job = make_job(spec, limit=limit)
        listing = list_source(job.source.paths())
        return make_plan(
            job, self.artifact, VARIANT, listing, self.ledger, self.groups, self.contract, retry_quarantined=retry
        )

    def run(self, until: int | None = None, quarantined: int = 0, **changes: Any) -> PlannedJob:
        """Plans, and commits as a driver does; ``until`` so many shards are committed it is killed."""
        planned = self.plan(**changes)
        plan, self.runs = planned.plan, self.runs + 1
        assert not len(plan.shards) or planned.score.keep_types.get("id", pa.int64()) == pa.int64()
        self.contract = planned.contract
        self.groups += plan.new_groups
        for bad in plan.bad_files:
            self.ledger.bad_files[bad.file.path] = FileRecord(bad.file, bad.stage, bad.reason, str(self.runs), 0.0)
        for path in plan.cleared_files:
            self.ledger.bad_files.pop(path)
        replaced = {index: replacement for replacement in plan.replacements for index in replacement.shards}
        for replacement in plan.replacements:
            if until is None or not replacement.shards:
                self._replace(planned, replacement.remove, replacement.shards, quarantined)
        for index in range(len(plan.shards) if until is None else until):
            if index not in replaced:
                self._commit(planned, index, quarantined)
        return planned

    def _replace(self, planned: PlannedJob, remove: tuple[str, ...], shards: tuple[int, ...], quarantined: int) -> None:
        for shard_id in remove:
            del self.ledger.parts[shard_id]
        for index in shards:
            self._commit(planned, index, quarantined)

    def _commit(self, planned: PlannedJob, index: int, quarantined: int) -> None:
        shard = planned.plan.shards.shard(index)
        before = self.ledger.parts.get(shard.id)
        assert before is None or before.partition == shard.partition, "the old part would stay beside the new one"
        self.ledger.parts[shard.id] = PartRecord(
            shard_id=shard.id,
            partition=shard.partition,
            pieces=shard.pieces,
            fingerprint=planned.score.fingerprint,
            artifact=self.artifact.digest,
            variant="cpu-fp32",
            instruction_set="x",
            batching="budget",
            counts=Counts(shard.rows, shard.rows - quarantined, quarantined),
            size_bytes=1,
            run_id=str(self.runs),
            epoch=self.runs,
            attempt=1,
            committed_at=0.0,
        )

    def rows(self) -> Counter[tuple[str, str, int]]:
        """Rows in the sink by path, version and number."""
        return Counter(
            (piece.file.path, piece.file.version, row)
            for record in self.ledger.parts.values()
            for piece in record.pieces
            for row in range(piece.first_row, piece.first_row + piece.rows)
        )

    def rows_of_any_version(self) -> Counter[tuple[str, int]]:
        return Counter((path, row) for (path, _, row), count in self.rows().items() for _ in range(count))

    def assert_complete(self, path: Any = None) -> None:
        """Each row of each listed file is there once, and nothing else; and nothing is left to do."""
        want = Counter(
            (file.identity.path, file.identity.version, row)
            for file in list_source([path or self.source]).files
            for row in range(pq.read_metadata(file.identity.path).num_rows)
        )
        assert self.rows() == want


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(str(tmp_path / "in"))


def shards(planned: PlannedJob) -> list[Shard]:
    return [planned.plan.shards.shard(index) for index in range(len(planned.plan.shards))]


def names(planned: PlannedJob) -> list[list[tuple[str, int, int]]]:
    """Pieces of each shard by file name."""
    return [[(Path(p.file.path).name, p.first_row, p.rows) for p in shard.pieces] for shard in shards(planned)]


@pytest.fixture
def no_footers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes reading a footer fail."""

    def forbid() -> None:
        def read(files: Any, *_: Any) -> Any:
            assert not list(files)
            return iter(())

        monkeypatch.setattr(facts, "read_footers", read)

    return forbid


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


def rows_of(shard: Shard) -> list[tuple[str, int]]:
    return [(p.file.path, row) for p in shard.pieces for row in range(p.first_row, p.first_row + p.rows)]


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


# -- other terms -------------------------------------------------------------------------------------------------------


def test_other_terms_are_refused_by_name(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 90)
    world.run()
    with pytest.raises(UsageError, match=r"task\.max_length: 16, was 128") as caught:
        world.plan(task={"max_length": 16})
    assert caught.value.exit_code == 2 and caught.value.hint and "on_change" in caught.value.hint
    world.artifact = Artifact(digest="e" * 64)
    with pytest.raises(UsageError, match="artifact: eeeeeeeeeeee, was dddddddddddd"):
        world.plan()


def test_a_sink_where_nothing_was_committed_yet_takes_other_terms(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/a.parquet", 90)
    world.run(until=0)
    assert len(world.run(task={"max_length": 16}).plan.shards) == 1


@pytest.mark.parametrize("shard_rows", [100, 70])
def test_replace_scores_everything_anew(shard_rows: int, world: World, tmp_path: Path) -> None:
    for name, rows in (("a", 20), ("b", 20), ("c", 250), ("d", 90)):
        write(tmp_path / f"in/{name}.parquet", rows, 100)
    world.run()
    terms = {"task": {"max_length": 16}, "shard_rows": shard_rows}
    # The same rows under the same names are overwritten one by one; other cuts are replaced file by file.
    replaced = world.run(until=2, **terms, on_change="replace").plan.replacements
    assert len(replaced) == (0 if shard_rows == 100 else 2)
    with pytest.raises(UsageError, match="max_length: 16, was 128"):
        world.plan(**terms)  # half done: the rest is still the other job's
    planned = world.run(**terms, on_change="replace")
    assert {record.fingerprint for record in world.ledger.parts.values()} == {planned.score.fingerprint}
    world.assert_complete()
    assert world.plan(**terms).plan.nothing_to_do


@pytest.mark.parametrize("shard_rows", [100, 70])
def test_new_only_keeps_what_is_there(shard_rows: int, world: World, tmp_path: Path) -> None:
    for name, rows in (("a", 20), ("b", 20), ("c", 250), ("d", 90)):
        write(tmp_path / f"in/{name}.parquet", rows, 100)
    old = world.run().score.fingerprint
    write(tmp_path / "in/e.parquet", 90)
    write(tmp_path / "in/d.parquet", 95)
    terms = {"task": {"max_length": 16}, "shard_rows": shard_rows, "on_change": "new_only"}
    planned = world.run(**terms)
    assert {name for shard in names(planned) for name, _, _ in shard} == {"d.parquet", "e.parquet"}
    assert planned.plan.done_rows == 290
    world.assert_complete()
    by_name = {Path(p.file.path).name: r.fingerprint for r in world.ledger.parts.values() for p in r.pieces}
    assert by_name["a.parquet"] == by_name["c.parquet"] == old
    assert by_name["d.parquet"] == by_name["e.parquet"] == planned.score.fingerprint
    assert world.plan(**terms).plan.nothing_to_do
    assert world.contract is not None and set(world.contract.earlier) == {old}
    with pytest.raises(UsageError, match="max_length: 16, was 128"):
        world.plan(task={"max_length": 16}, shard_rows=shard_rows)


@pytest.mark.parametrize("recorded", [True, False])
def test_new_only_with_a_group_that_lost_a_member(recorded: bool, world: World, tmp_path: Path) -> None:
    """The group's part is overwritten for the repaired member: the other one has to be in it still."""
    for name in "ab":
        write(tmp_path / f"in/{name}.parquet", 20)
    (group,) = world.run().plan.new_groups
    record = world.ledger.parts[group.id]
    bad = record.pieces[1].file
    if recorded:
        world.ledger.parts[group.id] = dataclasses.replace(record, pieces=record.pieces[:1])
        world.ledger.bad_files[bad.path] = FileRecord(bad, "read", "damaged", "1", 0.0)
    else:
        world.groups = []
    write(tmp_path / "in/b.parquet", 21)
    world.run(task={"max_length": 16}, on_change="new_only")
    world.assert_complete()


def test_new_only_scores_files_that_were_half_done(world: World, tmp_path: Path) -> None:
    write(tmp_path / "in/c.parquet", 250, 100)
    world.run(until=2)
    world.run(task={"max_length": 16}, on_change="new_only")
    world.assert_complete()


# -- any history -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_any_history_ends_with_every_row_once(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    world = World(str(tmp_path / "in"))
    names = [f"m={number % 2}/{number:02d}.parquet" for number in range(12)]
    for name in names[:6]:
        write(tmp_path / "in" / name, choose.randint(0, 260), 60)
    for step in range(8):
        for _ in range(choose.randint(0, 3)):
            victim = tmp_path / "in" / choose.choice(names)
            if victim.exists() and choose.random() < 0.2 and len(list((tmp_path / "in").rglob("*.parquet"))) > 4:
                victim.unlink()
            else:
                rows = choose.choice([0, 5, 20, 40, 60, 120, 260])
                os.utime(write(victim, rows, 60, start=step * 1000), ns=(0, 10**9 * (step + 1)))
        terms = {"on_change": "replace", "shard_rows": choose.choice([100, 70]), "source__on_source_deleted": "replace"}
        if choose.random() < 0.3 and world.contract:
            world.contract = dataclasses.replace(world.contract, known=KnownFiles())
        try:
            planned = world.plan(**terms)
        except LimitExceeded:
            return
        world.run(until=choose.randint(0, len(planned.plan.shards)), **terms)
        assert all(count == 1 for count in world.rows_of_any_version().values())
        world.run(**terms)
        world.assert_complete()
        assert world.plan(**terms).plan.nothing_to_do


def test_a_listing_behind_a_url(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    write(tmp_path / "a.parquet", 150, 100)
    for name in ("m=1/a.parquet", "m=2/b.parquet"):
        memory.pipe(f"/planned/{name}", (tmp_path / "a.parquet").read_bytes())
    memory.pipe("/planned/m=2/bad.parquet", b"PAR1 no PAR1")
    world = World("memory://planned")
    planned = world.run(source__where="id < 100 and m > '0'")
    assert names(planned) == [[("a.parquet", 0, 100)], [("b.parquet", 0, 100)]]
    assert [Path(bad.file.path).name for bad in planned.plan.bad_files] == ["bad.parquet"]
    assert world.plan(source__where="id < 100 and m > '0'").plan.nothing_to_do


def test_a_large_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 files with three row groups each: columns, not objects."""
    files = tuple(
        SourceFile(FileIdentity(f"/lake/day={n % 50}/{n:06d}.parquet", 10**6, str(n)), f"day={n % 50}")
        for n in range(100_000)
    )
    listing = Listing(tuple(sorted(files, key=lambda file: file.identity.path)), ("/lake",))
    spec = {"artifact": "m", "source": {"path": "/lake", "text": "body"}, "sink": {"path": "/out/x"}}
    job = make_job({**spec, "shard_rows": 16384})
    known = KnownFiles("", {file.identity: FileFacts((9000, 9000, 9000)) for file in files})
    monkeypatch.setattr(KnownFiles, "under", lambda self, _: self.facts)
    contract = Contract("", {}, {}, known=known)
    planned = make_plan(job, Artifact(), VARIANT, listing, LedgerView(), (), contract)
    assert len(planned.plan.shards) == 300_000 and planned.plan.rows == 2_700_000_000
    assert planned.plan.partitions == tuple(sorted(f"day={n}" for n in range(50)))
