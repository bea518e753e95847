"""The ledger: what was appended is what is read, after any crash, and nothing written late wins."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import Crash, Mortal, piece, record, source
from s3_server import S3

from headrace.artifacts.errors import LedgerFault, TransientError
from headrace.artifacts.storage import Folder
from headrace.jobs.groups import delete_unreadable_groups, load_groups, save_groups
from headrace.jobs.ledger import Ledger, list_segments, read_ledger, read_what_is_readable
from headrace.jobs.records import FileRecord, Group, Intent, LedgerView
from headrace.workers import paths

A, B, C = (record(piece(name)) for name in ("a.parquet", "b.parquet", "c.parquet"))
BAD = FileRecord(source("bad.parquet"), "read", "not a whole Parquet file", "run-1", 1.5e9)
INTENT = Intent("1-0", (A.shard_id,), (B.shard_id, C.shard_id))


@pytest.fixture(params=["local", "s3"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "local":
        return Folder(str(tmp_path / "state"))
    s3: S3 = request.getfixturevalue("s3")
    return Folder(s3.url("state"), s3.options)


@pytest.fixture
def local(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "state"))


def _keys(state: Folder) -> list[str]:
    return [entry.key for entry in state.list()]


def test_nothing_yet(state: Folder) -> None:
    assert read_ledger(state) == LedgerView()
    ledger = Ledger(state, 1)
    ledger.flush()
    ledger.compact()
    assert _keys(state) == []


def test_what_is_appended_is_read(state: Folder) -> None:
    ledger = Ledger(state, 1)
    group = record(
        piece("s1.parquet", 0, 3), piece("s2.parquet", 0, 5), partition="month=2002-08/lang=en", quarantined=2
    )
    row_by_row = replace(B, batching="row", variant="cpu-avx2-int8", attempt=3, size_bytes=7)
    for one in (A, group, row_by_row):
        ledger.append_part(one)
    ledger.append_file(BAD)
    ledger.append_intent(INTENT)
    assert read_ledger(state) == LedgerView()  # not before it is flushed
    ledger.flush()
    assert read_ledger(state) == LedgerView(
        {one.shard_id: one for one in (A, group, row_by_row)}, {"/lake/bad.parquet": BAD}, {"1-0": INTENT}
    )


def test_what_ends_a_record(state: Folder) -> None:
    ledger = Ledger(state, 1)
    ledger.append_part(A)
    ledger.append_file(BAD)
    ledger.append_intent(INTENT)
    ledger.flush()
    ledger.append_removed(A.shard_id)
    ledger.clear_file("/lake/bad.parquet")
    ledger.append_intent_done("1-0")
    ledger.append_removed("never there")
    ledger.flush()
    assert read_ledger(state) == LedgerView()
    newer = replace(A, run_id="run-2")
    ledger.append_part(newer)
    ledger.flush()
    assert read_ledger(state).parts == {A.shard_id: newer}


def test_sequence_goes_on_after_a_restart_under_the_same_epoch(local: Folder) -> None:
    for one in (A, B):
        ledger = Ledger(local, 1)
        ledger.append_part(one)
        ledger.flush()
    assert set(read_ledger(local).parts) == {A.shard_id, B.shard_id}


def test_flush_is_due_every_few_seconds(local: Folder) -> None:
    ledger = Ledger(local, 1)
    now = time.monotonic()
    assert not ledger.flush_due(now + 60)  # nothing to write
    ledger.append_part(A)
    assert not ledger.flush_due(now)
    assert ledger.flush_due(now + 60)
    ledger.flush()
    assert not ledger.flush_due(now + 60)


def test_rows_survive_a_failed_flush(local: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(local, 1)
    ledger.append_part(A)

    def fail(self: Folder, key: str, data: bytes) -> None:
        raise TransientError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", fail)
        with pytest.raises(TransientError, match="No space left"):
            ledger.flush()
    ledger.append_part(B)
    ledger.flush()
    assert set(read_ledger(local).parts) == {A.shard_id, B.shard_id}


def test_compaction_changes_nothing_that_is_read(state: Folder) -> None:
    ledger = Ledger(state, 1)
    for one in (A, B):
        ledger.append_part(one)
        ledger.flush()
    ledger.append_removed(A.shard_id)
    ledger.append_file(BAD)
    ledger.append_intent(INTENT)
    ledger.compact()
    expected = LedgerView({B.shard_id: B}, {"/lake/bad.parquet": BAD}, {"1-0": INTENT})
    assert read_ledger(state) == expected
    assert [segment.compacted for segment in list_segments(state)] == [True]
    keys = _keys(state)
    ledger.compact()
    assert _keys(state) == keys  # nothing new, nothing to do
    later = Ledger(state, 2)
    later.append_part(C)
    later.flush()
    assert read_ledger(state).parts == {B.shard_id: B, C.shard_id: C}


@pytest.mark.parametrize("finish", [Ledger.compact, lambda ledger: ledger.replace(read_ledger(ledger.state))])
@pytest.mark.parametrize("dies_at", range(8))
def test_a_crash_anywhere_in_compaction(tmp_path: Path, dies_at: int, finish: Callable[[Ledger], None]) -> None:
    url = str(tmp_path / "state")
    first = Ledger(Folder(url), 1)
    first.append_part(A)
    first.compact()
    for one in (B, C):
        first.append_part(one)
        first.flush()
    first.append_removed(B.shard_id)
    first.flush()
    expected = {A.shard_id: A, C.shard_id: C}
    died = False
    try:
        finish(Ledger(Mortal(url, [dies_at]), 2))
    except Crash:
        died = True
    assert died == (dies_at < 5)  # one segment written, four deleted
    assert read_ledger(Folder(url)).parts == expected
    again = Ledger(Folder(url), 3)
    again.append_part(B)
    again.compact()
    assert read_ledger(Folder(url)).parts == {**expected, B.shard_id: B}
    assert len(list_segments(Folder(url))) == 1


def test_a_zombie_that_flushes_late_does_not_win(local: Folder) -> None:
    old, new = Ledger(local, 1), Ledger(local, 2)
    old.append_part(A)
    old.flush()
    newer = replace(A, run_id="run-2", epoch=2)
    new.append_part(newer)
    new.flush()
    old.append_part(replace(A, run_id="zombie"))
    old.append_removed(A.shard_id)
    old.flush()
    assert read_ledger(local).parts == {A.shard_id: newer}
    new.compact()
    old.append_part(B)
    old.append_intent(INTENT)
    old.flush()
    assert read_ledger(local) == LedgerView({A.shard_id: newer})  # before the compacted one: never read
    new.append_part(C)
    new.compact()
    assert read_ledger(local).parts == {A.shard_id: newer, C.shard_id: C}


def test_a_zombie_that_compacts_late_loses_nothing(local: Folder) -> None:
    old, new = Ledger(local, 1), Ledger(local, 2)
    for one in (A, B):
        old.append_part(one)
        old.flush()
    new.append_part(C)
    new.flush()
    old.compact()
    assert set(read_ledger(local).parts) == {A.shard_id, B.shard_id, C.shard_id}
    new.append_removed(A.shard_id)
    new.compact()
    old.compact()
    assert set(read_ledger(local).parts) == {B.shard_id, C.shard_id}


def test_reading_while_another_compacts(local: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(local, 1)
    for one in (A, B):
        ledger.append_part(one)
        ledger.flush()
    read_many, looks = Folder.read_many, []

    def compacted_meanwhile(self: Folder, keys: object) -> object:
        looks.append(keys)
        if len(looks) == 1:
            ledger.compact()
        return read_many(self, keys)  # type: ignore[arg-type]

    monkeypatch.setattr(Folder, "read_many", compacted_meanwhile)
    assert set(read_ledger(local).parts) == {A.shard_id, B.shard_id}
    assert len(looks) == 3


def test_a_torn_segment_is_a_fault(local: Folder) -> None:
    ledger = Ledger(local, 1)
    for one in (A, B):
        ledger.append_part(one)
        ledger.flush()
    first, second = (segment.key for segment in list_segments(local))
    local.write(first, local.read(first)[:100])
    with pytest.raises(LedgerFault, match=first) as fault:
        read_ledger(local)
    assert fault.value.hint == f"Run 'headrace repair' on the sink, with --state {local.url}"
    view, broken = read_what_is_readable(local)
    assert (set(view.parts), broken) == ({B.shard_id}, [first])
    local.write(second, b"")
    assert read_what_is_readable(local) == (LedgerView(), [first, second])


def test_files_that_are_no_segments_are_passed_over(local: Folder) -> None:
    ledger = Ledger(local, 1)
    ledger.append_part(A)
    ledger.flush()
    for name in ("README.txt", "notes.arrow", "00000001.arrow", "1-2-3.arrow"):
        local.write(f"{paths.LEDGER}/{name}", b"?")
    assert set(read_ledger(local).parts) == {A.shard_id}


def test_segments_are_plain_arrow_files(local: Folder) -> None:
    """Anybody can look: this reads one with pyarrow alone."""
    ledger = Ledger(local, 4)
    ledger.append_part(A)
    ledger.flush()
    table = pa.ipc.open_file(f"{local.root}/ledger/00000004-00000000.arrow").read_all()
    [row] = table.to_pylist()
    assert (row["kind"], row["id"], row["rows_out"]) == ("part", A.shard_id, 4)
    assert row["pieces"] == [
        {"path": "/lake/a.parquet", "size_bytes": 1000, "version": "v1", "first_row": 0, "rows": 4}
    ]


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["part", "removed", "file", "clear", "intent", "done", "flush", "compact", "takeover"]),
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(_EVENTS)
def test_any_history_reads_as_a_dictionary_would(events: list[tuple[str, int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        state = Folder(folder)
        ledger, expected = Ledger(state, 1), LedgerView()
        for step, (event, n) in enumerate(events):
            one = replace(record(piece(f"{n}.parquet")), attempt=step)
            bad = replace(BAD, file=source(f"{n}.parquet"), reason=str(step))
            intent = Intent(str(n), (str(step),), ())
            if event == "part":
                ledger.append_part(one)
                expected.parts[one.shard_id] = one
            elif event == "removed":
                ledger.append_removed(one.shard_id)
                expected.parts.pop(one.shard_id, None)
            elif event == "file":
                ledger.append_file(bad)
                expected.bad_files[bad.file.path] = bad
            elif event == "clear":
                ledger.clear_file(bad.file.path)
                expected.bad_files.pop(bad.file.path, None)
            elif event == "intent":
                ledger.append_intent(intent)
                expected.intents[str(n)] = intent
            elif event == "done":
                ledger.append_intent_done(str(n))
                expected.intents.pop(str(n), None)
            elif event == "flush":
                ledger.flush()
            elif event == "compact":
                ledger.compact()
            else:
                ledger.flush()
                ledger = Ledger(state, ledger.epoch + 1)
        ledger.flush()
        assert read_ledger(state) == expected


def test_a_hundred_thousand_rows_are_read_quickly(local: Folder) -> None:
    """About a second; the bound leaves room for a busy machine."""
    ledger = Ledger(local, 1)
    for n in range(100_000):
        ledger.append_part(replace(A, shard_id=f"{n:020x}", pieces=(piece(f"file-{n // 10}.parquet", n % 10 * 4),)))
    ledger.flush()
    began = time.process_time()
    view = read_ledger(local)
    took_s = time.process_time() - began
    assert len(view.parts) == 100_000
    assert view.parts[f"{99_999:020x}"].pieces == (piece("file-9999.parquet", 36),)
    assert took_s < 4


def test_groups_are_recorded_once_and_in_order(state: Folder) -> None:
    assert load_groups(state) == []
    save_groups(state, 1, [])
    assert _keys(state) == []
    one, two, three = (Group(f"g{n}", "m=1", (f"/lake/{n}a.parquet", f"/lake/{n}b.parquet")) for n in range(3))
    save_groups(state, 1, [one])
    save_groups(state, 1, [two])
    save_groups(state, 2, [three])
    assert load_groups(state) == [one, two, three]


def test_groups_that_are_rubbish(local: Folder) -> None:
    save_groups(local, 1, [Group("g", "", ("/lake/ü.parquet",))])
    local.write(paths.groups(2), b'[{"id": "h"}]')
    local.write(paths.contract(), b"not a group")
    with pytest.raises(LedgerFault, match="groups-00000002") as fault:
        load_groups(local)
    assert f"--state {local.url}" in str(fault.value.hint)
    delete_unreadable_groups(local)
    assert load_groups(local) == [Group("g", "", ("/lake/ü.parquet",))]
    assert local.exists(paths.contract())
