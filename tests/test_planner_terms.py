"""Plans under other terms than before, over any history, and large ones."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path

import fsspec
import pytest
from planner_world import VARIANT, Artifact, World, names, write

from headrace.artifacts.errors import LimitExceeded, UsageError
from headrace.jobs.contract import Contract
from headrace.jobs.known_files import FileFacts, KnownFiles
from headrace.jobs.planner import make_plan
from headrace.jobs.records import FileRecord, LedgerView
from headrace.jobs.source import Listing, SourceFile
from headrace.jobs.spec import make_job
from headrace.workers.shard import FileIdentity

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
