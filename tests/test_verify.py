"""Verify finds each fault by name; repair makes the ledger from the parts alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pytest
from parts import piece, publish, record, source
from s3_server import S3

from headrace.artifacts.errors import LedgerFault, SinkHeld, UsageError
from headrace.artifacts.storage import Folder
from headrace.jobs import verify as verifying
from headrace.jobs.groups import load_groups, save_groups
from headrace.jobs.lease import Lease, read_lease
from headrace.jobs.ledger import Ledger, list_segments, read_ledger
from headrace.jobs.records import FileRecord, Group, Intent, PartRecord
from headrace.jobs.scan import Scan, scan
from headrace.jobs.verify import VerifyReport, repair, verify
from headrace.workers import paths
from headrace.workers.quarantine import write_bad_file
from headrace.workers.shard import BadRow, Counts

BAD = FileRecord(source("bad.parquet"), "read", "not a whole Parquet file", "run-1", 1.5e9)


@dataclass(frozen=True)
class Lake:
    sink: Folder
    state: Folder

    def commit(self, *records: PartRecord) -> list[PartRecord]:
        ledger = Ledger(self.state, 1)
        made = [publish(self.sink, self.state, one) for one in records]
        for one in made:
            ledger.append_part(one)
        ledger.flush()
        return made

    def verify(self) -> VerifyReport:
        before = [(e.key, e.version) for folder in (self.sink, self.state) for e in folder.list()]
        report = verify(self.sink, self.state)
        assert [(e.key, e.version) for folder in (self.sink, self.state) for e in folder.list()] == before
        return report

    def faults(self) -> list[tuple[str, str]]:
        return [(fault.kind, fault.subject) for fault in self.verify().faults]


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "local":
        return Lake(Folder(str(tmp_path / "scores")), Folder(str(tmp_path / "_headrace" / "scores")))
    s3: S3 = request.getfixturevalue("s3")
    base = s3.url("lake")
    return Lake(Folder(f"{base}/scores", s3.options), Folder(f"{base}/_headrace/scores", s3.options))


@pytest.fixture
def local(tmp_path: Path) -> Lake:
    return Lake(Folder(str(tmp_path / "scores")), Folder(str(tmp_path / "_headrace" / "scores")))


def _some(lake: Lake) -> list[PartRecord]:
    return lake.commit(
        record(piece("a", 0, 4), partition="m=1"),
        record(piece("a", 4, 6), partition="m=1", quarantined=2),
        record(piece("s1", 0, 3), piece("s2", 0, 2), partition="m=2"),
    )


@pytest.mark.parametrize("command", [verify, repair])
def test_what_was_never_a_sink(lake: Lake, command: Callable[[Folder, Folder], object]) -> None:
    """A folder that is not there, one with another's data, and a file."""
    for key in ("", "month=1/data.parquet"):
        if key:
            lake.sink.write(key, b"?")
        for sink in {lake.sink.url, lake.sink.url + f"/{key}"}:
            with pytest.raises(UsageError, match="no run has used this sink") as caught:
                command(Folder(sink, lake.sink.options), lake.state)
            assert lake.state.url in str(caught.value) and "--state" in str(caught.value.hint)
    assert lake.state.list() == []
    assert not lake.state.is_local or not Path(lake.state.root).parent.exists()


def test_parts_without_a_state(lake: Lake) -> None:
    [a, *_] = _some(lake)
    lake.state.delete_many([entry.key for entry in lake.state.list()])
    assert ("unknown-part", a.key) in lake.faults()
    assert repair(lake.sink, lake.state).parts == 2


def test_a_lease_that_can_not_be_read_is_a_fault(local: Lake) -> None:
    _some(local)
    local.state.write(paths.lease(1), b"")
    assert local.faults() == [("unreadable-lease", paths.lease(1))]
    assert local.verify().running is None
    local.state.delete(paths.lease(1))
    assert local.faults() == []


def test_an_empty_sink(lake: Lake) -> None:
    Lease.acquire(lake.state, "run-1").release()
    report = lake.verify()
    assert report.ok
    assert (report.parts, report.rows) == (0, 0)


def test_all_is_well(lake: Lake) -> None:
    _some(lake)
    ledger = Ledger(lake.state, 1)
    ledger.append_file(BAD)
    ledger.flush()
    lake.sink.write("notes.txt", b"?")
    report = lake.verify()
    assert report.faults == ()
    assert (report.parts, report.rows, report.duplicate_rows, report.bad_files) == (3, 13, 0, 1)
    assert report.counts == Counts(15, 13, 2, 0)
    assert report.rows_by_partition == {"m=1": 8, "m=2": 5}
    assert report.foreign == ("notes.txt",)
    if lake.sink.is_local:
        rows = duckdb.sql(f"select count(*) from read_parquet('{lake.sink.root}/**/*.parquet')").fetchall()
        assert rows == [(report.rows,)]


def test_missing_unknown_torn_and_misplaced_parts(lake: Lake) -> None:
    a, b, c = _some(lake)
    lake.sink.delete(a.key)
    lake.sink.write(b.key, lake.sink.read(b.key)[:-9])
    lake.sink.delete(c.key)
    publish(lake.sink, lake.state, replace(c, partition="m=7"))
    unknown = publish(lake.sink, lake.state, record(piece("u")))
    assert sorted(lake.faults()) == [
        ("misplaced-part", paths.part("m=7", c.shard_id)),
        ("missing-part", a.key),
        ("missing-part", c.key),
        ("quarantine-orphan", paths.quarantine_rows(b.shard_id)),
        ("torn-part", b.key),
        ("unknown-part", unknown.key),
    ]


def test_parts_that_are_not_what_the_ledger_says(lake: Lake) -> None:
    a, b, c = _some(lake)
    publish(lake.sink, lake.state, replace(a, pieces=(piece("a", 0, 4, "v2"),)))
    publish(lake.sink, lake.state, replace(b, counts=Counts(6, 3, 2, 1)))
    publish(lake.sink, lake.state, replace(c, fingerprint="another"))
    assert sorted(lake.faults()) == sorted([("other-pieces", a.key), ("other-counts", b.key), ("other-pieces", c.key)])


def test_rows_that_do_not_add_up(lake: Lake) -> None:
    """Ten rows in and nine out; eleven rows in of ten; a part that holds fewer rows than its footer says."""
    off, more = record(piece("a", 0, 10)), record(piece("c", 0, 10))
    lake.commit(replace(off, counts=Counts(10, 9, 0, 0)), replace(more, counts=Counts(11, 11, 0, 0)))
    short = record(piece("b", 0, 4))
    ledger = Ledger(lake.state, 1)
    ledger.append_part(publish(lake.sink, lake.state, short, rows=3))
    ledger.flush()
    assert sorted(lake.faults()) == sorted(
        [("row-equation", off.key), ("row-equation", more.key), ("row-count", short.key)]
    )


def test_quarantine_that_does_not_add_up(lake: Lake) -> None:
    [a, b, c] = lake.commit(*(record(piece(name, 0, 9), quarantined=2) for name in "abc"))
    lake.state.delete(paths.quarantine_rows(a.shard_id))
    lake.state.write(paths.quarantine_rows(b.shard_id), b"torn")
    publish(lake.sink, lake.state, replace(c, counts=Counts(9, 8, 1, 0)))
    publish(Folder(lake.sink.url + "-2", lake.sink.options), lake.state, c)
    assert sorted(lake.faults()) == sorted(
        [
            ("quarantine-missing", a.key),
            ("quarantine-count", b.key),
            ("quarantine-count", c.key),
            ("other-counts", c.key),
        ]
    )


def test_rows_that_are_there_twice(lake: Lake) -> None:
    lake.commit(
        record(piece("a", 0, 10)),
        record(piece("a", 8, 4, "v2")),
        record(piece("a", 12, 4)),
        record(piece("a", 2, 3), piece("b", 0, 2)),
    )
    report = lake.verify()
    assert report.duplicate_rows == 2 + 3
    assert {fault.subject for fault in report.faults} == {"/lake/a"}
    assert sorted(fault.detail.split(" are in")[0] for fault in report.faults) == [
        "2 rows from row 8",
        "3 rows from row 2",
    ]


def test_while_a_run_is_under_way(local: Lake) -> None:
    a, b, _ = _some(local)
    with Lease.acquire(local.state, "run-2", beat_s=60) as lease:
        new = publish(local.sink, local.state, record(piece("new"), quarantined=1))
        local.state.write(paths.quarantine_rows("0" * 20), local.state.read(paths.quarantine_rows(b.shard_id)))
        ledger = Ledger(local.state, lease.epoch)
        ledger.append_intent(Intent("2-0", (a.shard_id,), ()))
        ledger.flush()
        local.sink.delete(a.key)
        report = local.verify()
        assert report.running is not None
        assert report.running.run_id == "run-2"
        assert (report.faults, report.uncommitted) == ((), 1)
        local.sink.delete(b.key)  # nothing explains this one
        assert [(fault.kind, fault.subject) for fault in local.verify().faults] == [("missing-part", b.key)]
    kinds = [kind for kind, _ in local.faults()]
    assert sorted(kinds) == ["missing-part", "missing-part", "quarantine-orphan", "quarantine-orphan", "unknown-part"]
    assert ("unknown-part", new.key) in local.faults()


def test_parts_written_over_by_a_run_under_way(local: Lake) -> None:
    """Published under their old ids, with other rows in quarantine, and not yet in the ledger."""
    a, b, c = _some(local)
    with Lease.acquire(local.state, "run-2", beat_s=60):
        publish(local.sink, local.state, replace(a, pieces=(piece("a", 0, 4, "v2"),)))
        publish(local.sink, local.state, replace(c, counts=Counts(5, 4, 1, 0)))
        local.state.delete(paths.quarantine_rows(b.shard_id))  # no bad rows any more; its part comes a moment later
        report = local.verify()
        assert (report.faults, report.uncommitted) == ((), 2)
        local.sink.write(a.key, b"torn")  # no run does that
        assert local.faults() == [("torn-part", a.key)]
    assert {kind for kind, _ in local.faults()} == {"torn-part", "other-counts", "quarantine-missing"}


def test_a_part_replaced_between_ledger_and_scan(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger was read before the run wrote its intent, the folder was listed after the old part went."""
    a, *_ = _some(local)
    with Lease.acquire(local.state, "run-2", beat_s=60) as lease:

        def late(sink: Folder) -> Scan:
            ledger = Ledger(local.state, lease.epoch)
            ledger.append_intent(Intent("2-0", (a.shard_id,), ()))
            ledger.flush()
            sink.delete(a.key)
            return scan(sink)

        monkeypatch.setattr(verifying, "scan", late)
        assert verify(local.sink, local.state).faults == ()


def test_a_ledger_that_can_not_be_read_is_a_fault(local: Lake) -> None:
    _some(local)
    [segment] = list_segments(local.state)
    local.state.write(segment.key, b"?")
    with pytest.raises(LedgerFault, match=segment.key):
        verify(local.sink, local.state)


def test_repair_from_the_parts_alone(lake: Lake) -> None:
    """Nothing of the state is left: all but run, attempt and time comes back, groups too."""
    a, b, group = _some(lake)
    lake.state.delete_many(entry.key for entry in lake.state.list() if not entry.key.startswith(paths.QUARANTINE))
    done = repair(lake.sink, lake.state)
    assert (done.parts, done.rows, done.learned, done.groups) == (3, 13, 3, 1)
    assert lake.verify().ok
    view = read_ledger(lake.state)
    for one in (a, b, group):
        found = view.parts[one.shard_id]
        assert replace(found, run_id=one.run_id, attempt=1, committed_at=one.committed_at) == one
    assert load_groups(lake.state) == [Group(group.shard_id, "m=2", ("/lake/s1", "/lake/s2"))]
    lease = read_lease(lake.state)
    assert lease is not None
    assert (lease.state, lease.clean) == ("released", True)


def test_repair_keeps_what_is_right(lake: Lake) -> None:
    made = _some(lake)
    save_groups(lake.state, 1, [Group(made[2].shard_id, "m=2", ("/lake/s1", "/lake/s2", "/lake/gone"))])
    ledger = Ledger(lake.state, 1)
    ledger.append_file(BAD)
    ledger.append_intent(Intent("1-0", (made[0].shard_id,), ()))
    ledger.flush()
    done = repair(lake.sink, lake.state)
    assert (done.parts, done.learned, done.groups, done.bad_files) == (3, 0, 0, 1)
    assert (done.forgotten, done.dropped, done.torn, done.unreadable) == ((), (), (), ())
    view = read_ledger(lake.state)
    assert view.parts == {one.shard_id: one for one in made}
    assert view.bad_files == {"/lake/bad.parquet": BAD}
    assert view.intents == {}


def test_repair_after_everything_at_once(lake: Lake) -> None:
    a, b, c = _some(lake)
    lake.sink.delete(a.key)
    lake.sink.write(b.key, b"torn")
    lake.sink.write("month=1/part-of-another.parquet", b"?")
    [segment] = list_segments(lake.state)
    lake.state.write(paths.segment(1, 1), b"?")
    lake.state.write(paths.groups(7), b"?")
    done = repair(lake.sink, lake.state)
    assert set(done.forgotten) == {a.shard_id, b.shard_id}
    assert (done.torn, done.unreadable) == ((b.key,), (paths.segment(1, 1),))
    assert done.foreign == ("month=1/part-of-another.parquet",)
    assert segment not in list_segments(lake.state)
    assert lake.verify().ok
    assert read_ledger(lake.state).parts == {c.shard_id: c}
    assert not lake.state.exists(paths.quarantine_rows(b.shard_id))


def test_of_overlapping_parts_the_last_published_stays(lake: Lake) -> None:
    """Old parts of a file, then the new ones, one of them of rows that no old part had."""
    old = lake.commit(record(piece("a", 0, 5, "v1")), record(piece("a", 5, 5, "v1"), quarantined=1))
    beside = lake.commit(record(piece("b", 0, 5)))
    _tick(lake)
    new = lake.commit(record(piece("a", 0, 7, "v2")), record(piece("a", 7, 7, "v2")))
    assert lake.verify().duplicate_rows == 10
    done = repair(lake.sink, lake.state)
    assert set(done.dropped) == {one.key for one in old}
    assert set(read_ledger(lake.state).parts) == {one.shard_id for one in (*new, *beside)}
    assert lake.verify().ok


def _tick(lake: Lake) -> None:
    """S3 tells when an object was written in whole seconds, a disk in far less: lets the store's clock move on."""
    import os
    import time

    if not lake.sink.is_local:
        time.sleep(1.1)
        return
    for entry in lake.sink.list():
        os.utime(lake.sink.path(entry.key), (1.6e9, 1.6e9))


def test_repair_of_one_shard_in_two_partitions(local: Lake) -> None:
    [a] = local.commit(record(piece("a"), partition="m=1"))
    _tick(local)
    publish(local.sink, local.state, replace(a, partition="m=2"))
    done = repair(local.sink, local.state)
    assert done.dropped == (a.key,)
    assert read_ledger(local.state).parts[a.shard_id].partition == "m=2"
    assert local.verify().ok


def test_repair_needs_the_lease(local: Lake) -> None:
    _some(local)
    with Lease.acquire(local.state, "run-2", beat_s=60) as lease:
        with pytest.raises(SinkHeld):
            repair(local.sink, local.state, watch_s=0)
        assert repair(local.sink, local.state, lease).parts == 3
        lease.check()


def test_repair_of_a_copied_sink(local: Lake, tmp_path: Path) -> None:
    """A sink that was copied elsewhere without its state: quarantined rows can't be made up, their shard is redone."""
    _, with_bad_rows, _ = _some(local)
    shutil.copytree(local.sink.root, tmp_path / "copy" / "scores")
    copy = Lake(Folder(str(tmp_path / "copy" / "scores")), Folder(str(tmp_path / "copy" / "_headrace" / "scores")))
    done = repair(copy.sink, copy.state)
    assert (done.parts, done.partial) == (2, (with_bad_rows.key,))
    assert copy.verify().ok


def test_bad_files_come_back_from_the_quarantine(local: Lake) -> None:
    _some(local)
    for name in ("bad", "worse"):
        write_bad_file(local.state, BadRow(source(f"{name}.parquet"), None, "read", f"a {name} file"))
    local.state.write(paths.quarantine_file("/lake/torn.parquet"), b"?")
    ledger = Ledger(local.state, 1)
    ledger.append_file(BAD)
    ledger.flush()
    local.state.write(list_segments(local.state)[0].key, b"?")
    assert repair(local.sink, local.state).bad_files == 2
    view = read_ledger(local.state)
    assert view.bad_files["/lake/bad.parquet"] == BAD
    worse = view.bad_files["/lake/worse.parquet"]
    assert (worse.file, worse.stage, worse.reason) == (source("worse.parquet"), "read", "a worse file")
