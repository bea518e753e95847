"""A takeover: whatever the run before left, sink and ledger agree afterwards, and what is done stays done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
import s3fs
from parts import FINGERPRINT, Crash, Mortal, parquet, piece, publish, record
from s3_server import S3

from headrace.artifacts.storage import Folder
from headrace.jobs.ledger import Ledger, list_segments, read_ledger
from headrace.jobs.records import Intent, LedgerView, PartRecord
from headrace.jobs.recovery import Recovered, recover
from headrace.jobs.replacing import remove_parts
from headrace.workers import paths
from headrace.workers.footer import Footer


@dataclass(frozen=True)
class Lake:
    """Sink and state, and the versions of the source files as they are now: all else is not current."""

    sink: Folder
    state: Folder
    versions: Mapping[str, str]

    def is_current(self, footer: Footer) -> bool:
        return footer.fingerprint == FINGERPRINT and all(
            self.versions.get(one.file.path, "v1") == one.file.version for one in footer.pieces
        )

    def recover(self, epoch: int = 2) -> tuple[Recovered, LedgerView]:
        view = LedgerView()
        done = recover(self.sink, self.state, Ledger(self.state, epoch), view, self.is_current)
        assert read_ledger(self.state) == view
        return done, view

    def parts(self) -> list[str]:
        return [entry.key for entry in self.sink.list()]


def _committed(lake: Lake, *records: PartRecord, publishing: bool = True) -> list[PartRecord]:
    ledger = Ledger(lake.state, 1)
    made = [publish(lake.sink, lake.state, one) if publishing else one for one in records]
    for one in made:
        ledger.append_part(one)
    ledger.flush()
    return made


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "local":
        return Lake(Folder(str(tmp_path / "scores")), Folder(str(tmp_path / "_headrace" / "scores")), {})
    s3: S3 = request.getfixturevalue("s3")
    base = s3.url("lake")
    return Lake(Folder(f"{base}/scores", s3.options), Folder(f"{base}/_headrace/scores", s3.options), {})


@pytest.fixture
def local(tmp_path: Path) -> Lake:
    return Lake(Folder(str(tmp_path / "scores")), Folder(str(tmp_path / "_headrace" / "scores")), {})


def test_nothing_was_written_yet(lake: Lake) -> None:
    done, view = lake.recover()
    assert done == Recovered((), (), (), (), ())
    assert view == LedgerView()


def test_published_but_not_in_the_ledger(lake: Lake) -> None:
    [a] = _committed(lake, record(piece("a"), partition="month=1"))
    b = publish(lake.sink, lake.state, record(piece("b"), partition="month=2", quarantined=1))
    done, view = lake.recover()
    [adopted] = done.adopted
    assert view.parts == {a.shard_id: a, b.shard_id: adopted}
    # all but who, when and which attempt stands in the footer
    assert replace(adopted, run_id=b.run_id, epoch=1, attempt=1, committed_at=b.committed_at) == b
    assert adopted.epoch == 2
    assert adopted.committed_at > 1.6e9
    assert done.removed == ()
    assert lake.state.exists(paths.quarantine_rows(b.shard_id))


def test_published_but_no_longer_current(lake: Lake) -> None:
    old = publish(lake.sink, lake.state, record(piece("a", version="v0"), partition="month=1", quarantined=1))
    other = publish(lake.sink, lake.state, record(piece("b"), fingerprint="another"))
    done, view = lake.recover()
    assert set(done.removed) == {old.key, other.key}
    assert lake.parts() == []
    assert view == LedgerView()
    assert not lake.state.exists(paths.quarantine_rows(old.shard_id))


def test_a_part_that_the_ledger_knows_stays_current_or_not(lake: Lake) -> None:
    """The source changed since: replacing it is a matter of the plan, with an intent."""
    [old] = _committed(lake, record(piece("a", version="v0")))
    done, view = lake.recover()
    assert (done.removed, done.adopted) == ((), ())
    assert view.parts == {old.shard_id: old}


def test_overwritten_but_the_ledger_tells_of_the_part_before(lake: Lake) -> None:
    """One old part, one new shard, the same id: published over it, died before the flush."""
    [old] = _committed(lake, record(piece("a", version="v0")))
    new = publish(lake.sink, lake.state, record(piece("a", version="v1")))
    assert old.key == new.key
    done, view = lake.recover()
    assert [one.pieces for one in done.adopted] == [new.pieces]
    assert view.parts[new.shard_id].pieces == new.pieces


def test_overwritten_by_something_that_is_not_current_either(local: Lake) -> None:
    [old] = _committed(local, record(piece("a", version="v0")))
    publish(local.sink, local.state, record(piece("a", version="v0.5")))
    done, view = local.recover()
    assert done.removed == (old.key,)
    assert done.missing == ()
    assert view.parts == {}


def test_the_same_rows_by_another_variant(local: Lake) -> None:
    """Which variant scores a shard can be a race: the part is right, the ledger row told of the loser."""
    [said] = _committed(local, record(piece("a", version="v0")))
    publish(local.sink, local.state, replace(said, variant="cpu-avx2-int8", batching="row"))
    done, view = local.recover()
    assert done.removed == ()
    assert (view.parts[said.shard_id].variant, view.parts[said.shard_id].batching) == ("cpu-avx2-int8", "row")
    assert view.parts[said.shard_id].run_id == said.run_id


def test_a_ledger_row_without_its_part(lake: Lake) -> None:
    [a, b] = _committed(lake, record(piece("a")), record(piece("b")), publishing=False)
    publish(lake.sink, lake.state, a)
    done, view = lake.recover()
    assert done.missing == (b.shard_id,)
    assert set(view.parts) == {a.shard_id}


def test_torn_and_foreign_files(lake: Lake) -> None:
    [a, torn] = _committed(lake, record(piece("a")), record(piece("b")))
    lake.sink.write(torn.key, lake.sink.read(torn.key)[:-20])
    lake.sink.write(paths.part("month=9", "0" * 20), b"")
    others = {
        "notes.txt": b"?",
        "part-00000-spark.snappy.parquet": parquet(pa.table({"x": [1]})),
        "part-broken-of-another.parquet": b"PAR1",
        f"part-{'1' * 20}.parquet": parquet(pa.table({"x": [1]})),
    }
    for key, data in others.items():
        lake.sink.write(key, data)
    lake.sink.write("month=1/_SUCCESS", b"")
    done, view = lake.recover()
    assert set(done.removed) == {torn.key, paths.part("month=9", "0" * 20)}
    assert set(done.foreign) == set(others)
    assert set(lake.parts()) == {a.key, "month=1/_SUCCESS", *others}
    assert set(view.parts) == {a.shard_id}


@pytest.mark.parametrize("removed", [0, 1, 2])
@pytest.mark.parametrize("published", [False, True])
def test_half_a_replacement(lake: Lake, removed: int, published: bool) -> None:
    """Two old parts give way to two new ones of other rows; one of the old ids is also a new one."""
    old = _committed(lake, record(piece("a", 0, 4, "v0")), record(piece("a", 4, 3, "v0")), record(piece("other")))
    new = [record(piece("a", 0, 4)), record(piece("a", 4, 5))]
    ledger = Ledger(lake.state, 1)
    ledger.append_intent(Intent("1-0", (old[0].shard_id, old[1].shard_id), tuple(one.shard_id for one in new)))
    ledger.flush()
    for one in old[:removed]:
        lake.sink.delete(one.key)
    if published and removed == 2:
        publish(lake.sink, lake.state, new[0])
    done, view = lake.recover()
    assert done.intents == ("1-0",)
    assert view.intents == {}
    expected = {old[2].key} | ({new[0].key} if published and removed == 2 else set())
    assert set(lake.parts()) == expected
    assert {one.key for one in view.parts.values()} == expected
    assert view.parts[old[2].shard_id] == old[2]


def test_a_replacement_whose_old_version_came_back(local: Lake) -> None:
    [old] = _committed(local, record(piece("a")))
    ledger = Ledger(local.state, 1)
    ledger.append_intent(Intent("1-0", (old.shard_id,), ()))
    ledger.flush()
    _, view = local.recover()
    assert view == LedgerView({old.shard_id: old})
    assert local.parts() == [old.key]


def test_leftovers_in_the_state(lake: Lake) -> None:
    [a] = _committed(lake, record(piece("a"), quarantined=1))
    orphan = paths.quarantine_rows("0" * 20)
    bad_file = paths.quarantine_file("/lake/bad.parquet")
    old, own = paths.staged(1, a.shard_id, 1), paths.staged(2, a.shard_id, 1)
    for key in (orphan, bad_file, old, own):
        lake.state.write(key, b"?")
    lake.recover(epoch=2)
    assert not lake.state.exists(orphan)
    assert not lake.state.exists(old)
    for key in (bad_file, own, paths.quarantine_rows(a.shard_id)):
        assert lake.state.exists(key), key


@pytest.mark.parametrize("rows", [None, b"torn"])
def test_a_part_whose_quarantined_rows_are_gone(lake: Lake, rows: bytes | None) -> None:
    """Rows that are neither in the part nor in quarantine would be lost without a word: its shard is scored again."""
    [a, b] = _committed(lake, record(piece("a"), quarantined=1), record(piece("b"), quarantined=1))
    if rows is None:
        lake.state.delete(paths.quarantine_rows(a.shard_id))
    else:
        lake.state.write(paths.quarantine_rows(a.shard_id), rows)
    done, view = lake.recover()
    assert done.removed == (a.key,)
    assert set(view.parts) == {b.shard_id}
    assert [entry.key for entry in lake.state.list(paths.QUARANTINE)] == [paths.quarantine_rows(b.shard_id)]


def test_the_same_shard_in_two_partitions(local: Lake) -> None:
    [a] = _committed(local, record(piece("a"), partition="m=2"))
    publish(local.sink, local.state, replace(a, partition="m=1"))
    publish(local.sink, local.state, replace(a, partition="m=3"))
    done, view = local.recover()
    assert set(done.removed) == {paths.part("m=1", a.shard_id), paths.part("m=3", a.shard_id)}
    assert view.parts == {a.shard_id: a}
    assert sorted(path.name for path in Path(local.sink.root).iterdir()) == ["m=2"]


def test_the_view_is_read_anew(local: Lake) -> None:
    """It was read before the lease was taken, and the earlier holder went on writing."""
    stale = LedgerView(intents={"0-0": Intent("0-0", (), ())})
    [old] = _committed(local, record(piece("a", version="v0")))
    recover(local.sink, local.state, Ledger(local.state, 2), stale, local.is_current)
    assert stale == LedgerView({old.shard_id: old})


def test_nothing_the_earlier_holder_writes_late_is_read(local: Lake) -> None:
    [a] = _committed(local, record(piece("a")))
    zombie = Ledger(local.state, 1)
    zombie.append_removed(a.shard_id)
    zombie.append_intent(Intent("1-9", (a.shard_id,), ()))
    _, view = local.recover()
    zombie.flush()
    assert read_ledger(local.state) == view == LedgerView({a.shard_id: a})


def test_unfinished_uploads_never_become_parts(s3: S3) -> None:
    base = s3.url("lake")
    lake = Lake(Folder(f"{base}/scores", s3.options), Folder(f"{base}/_headrace/scores", s3.options), {})
    fs = s3fs.S3FileSystem(**s3.options)
    bucket, _, prefix = lake.sink.root.partition("/")
    key = f"{prefix}/{record(piece('a')).key}"
    fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    lake.recover()
    assert not fs.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads")
    assert lake.parts() == []


def _wreck(url: Path) -> tuple[Lake, list[PartRecord], list[PartRecord]]:
    """Some of everything; also what has to stand and what has to go."""
    lake = Lake(Folder(str(url / "scores")), Folder(str(url / "_headrace" / "scores")), {})
    kept = _committed(lake, record(piece("a"), partition="m=1", quarantined=1), record(piece("b", version="v0")))
    gone = _committed(lake, record(piece("r", 0, 4, "v0")), record(piece("r", 4, 4, "v0"), quarantined=2))
    lost = _committed(lake, record(piece("lost")), publishing=False)
    ledger = Ledger(lake.state, 1)
    ledger.append_intent(Intent("1-0", tuple(one.shard_id for one in gone), ()))
    ledger.flush()
    kept.append(publish(lake.sink, lake.state, record(piece("c"), partition="m=2")))
    gone.append(publish(lake.sink, lake.state, record(piece("d", version="v0"), partition="m=3", quarantined=1)))
    lake.sink.write(paths.part("m=4", "0" * 20), b"torn")
    lake.state.write(paths.staged(1, "0" * 20, 1), b"?")
    return lake, kept, [*gone, *lost]


@pytest.mark.parametrize("dies_at", range(16))
def test_a_crash_anywhere_in_recovery(tmp_path: Path, dies_at: int) -> None:
    lake, kept, gone = _wreck(tmp_path)
    left = [dies_at]
    mortal = Lake(Mortal(lake.sink.url, left), Mortal(lake.state.url, left), {})
    died = False
    try:
        mortal.recover(epoch=2)
    except Crash:
        died = True
    assert died == (dies_at < 12)
    done, view = lake.recover(epoch=3)
    assert set(lake.parts()) == {one.key for one in kept}
    assert set(view.parts) == {one.shard_id for one in kept}
    assert view.intents == {}
    assert not any(lake.state.exists(paths.quarantine_rows(one.shard_id)) for one in gone)
    assert lake.state.exists(paths.quarantine_rows(kept[0].shard_id))
    assert len(list_segments(lake.state)) == 1
    assert done.foreign == ()
    again, _ = lake.recover(epoch=4)
    assert again == Recovered((), (), (), (), ())


def test_removing_parts(lake: Lake) -> None:
    [a, b, c] = _committed(
        lake,
        record(piece("a"), partition="y=1/m=1", quarantined=1),
        record(piece("b"), partition="y=1/m=2"),
        record(piece("c"), partition="y=2/m=1"),
    )
    view, ledger = read_ledger(lake.state), Ledger(lake.state, 2)
    for _ in range(2):  # again: nothing more happens
        remove_parts(lake.sink, lake.state, ledger, view, [a.shard_id, c.shard_id, "unknown"])
    ledger.flush()
    assert lake.parts() == [b.key]
    assert view.parts == read_ledger(lake.state).parts == {b.shard_id: b}
    assert not lake.state.exists(paths.quarantine_rows(a.shard_id))
    if lake.sink.is_local:
        folders = sorted(str(p.relative_to(lake.sink.root)) for p in Path(lake.sink.root).rglob("*") if p.is_dir())
        assert folders == ["y=1", "y=1/m=2"]
    remove_parts(lake.sink, lake.state, ledger, view, [b.shard_id])
    assert lake.parts() == []
    if lake.sink.is_local:
        assert list(Path(lake.sink.root).iterdir()) == []
