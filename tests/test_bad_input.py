"""Rubbish in: a clear message, the right exit code, nothing lost. Through the command line, on real Ray."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import JobFile, headrace, write_source

pytestmark = pytest.mark.ray


def error_of(job: JobFile, *arguments: str, command: str = "run") -> tuple[int, str]:
    done = headrace(command, str(job.path), *arguments)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "in", [300, 40])


def quarantine(job: JobFile) -> list[tuple[object, ...]]:
    found = f"select source_file, source_row, stage, reason from '{job.state}/quarantine/*.parquet' order by all"
    return duckdb.sql(found).fetchall()


def test_an_unknown_key_suggests_the_nearest(classifier_artifact: Path, source: Path, tmp_path: Path) -> None:
    code, said = error_of(JobFile.write(tmp_path, classifier_artifact, source, limits__max_bad_row="1%"))
    assert code == 2 and "limits.max_bad_row" in said and "max_bad_rows" in said.split("hint:")[1]


def test_a_missing_column_lists_those_present(classifier_artifact: Path, source: Path, tmp_path: Path) -> None:
    code, said = error_of(JobFile.write(tmp_path, classifier_artifact, source, source__text="subject"))
    assert code == 2 and "subject" in said and "id" in said and "body" in said


def test_a_misspelt_column_on_a_sink_that_is_in_use(classifier_artifact: Path, source: Path, tmp_path: Path) -> None:
    """It is told as what it is, not as another job, and nothing goes to quarantine for it."""
    job = JobFile.write(tmp_path, classifier_artifact, source)
    assert error_of(job)[0] == 0
    before = job.part_hashes()
    typos = [{"source__text": "boddy"}, {"sink__keep": ["id", "lable"]}, {"source__where": "idd > 3"}]
    for typo in typos:
        for on_change in ({}, {"on_change": "replace"}):
            code, said = error_of(JobFile.write(tmp_path, classifier_artifact, source, **typo, **on_change))
            assert code == 2 and "no such column" in said and "body" in said
    assert job.part_hashes() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source__path": "no/such/folder"}, "no/such/folder"),
        ({"artifact": "no/such/artifact"}, "no/such/artifact"),
        ({"source__where": "id >"}, "where"),
        ({"variant": "cpu-tpu-int4"}, "cpu-fp32"),
        ({"sink__path": "/proc/nowhere/scores"}, "/proc/nowhere"),
        ({"shard_rows": "many"}, "shard_rows"),
    ],
)
def test_what_is_not_there_or_not_possible(
    change: dict[str, object], words: str, classifier_artifact: Path, source: Path, tmp_path: Path
) -> None:
    code, said = error_of(JobFile.write(tmp_path, classifier_artifact, source, **change))
    assert code == 2 and words in said and "hint:" in said


def test_an_empty_source(classifier_artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "_temporary.parquet").write_bytes(b"")
    code, said = error_of(JobFile.write(tmp_path, classifier_artifact, tmp_path / "in"))
    assert code == 2 and "in" in said


@pytest.mark.parametrize("kind", ["_delta_log/00000000000000000000.json", "metadata/v1.metadata.json"])
def test_a_tables_folder(kind: str, classifier_artifact: Path, source: Path, tmp_path: Path) -> None:
    (source / kind).parent.mkdir()
    (source / kind).write_text("{}")
    code, said = error_of(JobFile.write(tmp_path, classifier_artifact, source))
    assert code == 2 and ("Delta" in said or "Iceberg" in said)


def test_an_artifact_with_one_changed_byte(classifier_artifact: Path, source: Path, tmp_path: Path) -> None:
    shutil.copytree(classifier_artifact, tmp_path / "artifact")
    job = JobFile.write(tmp_path, tmp_path / "artifact", source, variant="cpu-fp32")
    for name in ("manifest.json", "tokenizer.json", "cpu-fp32/model.onnx"):
        victim = tmp_path / "artifact" / name
        good = victim.read_bytes()
        bad = bytearray(good)
        bad[len(bad) // 2] ^= 1
        victim.write_bytes(bytes(bad))
        code, said = error_of(job)
        assert code == 1 and name in said
        victim.write_bytes(good)
    assert error_of(job)[0] == 0
    assert duckdb.sql(f"select count(*) from '{job.sink}/*.parquet'").fetchall() == [(340,)]


def test_a_sink_that_holds_something_else(classifier_artifact: Path, source: Path, tmp_path: Path) -> None:
    job = JobFile.write(tmp_path, classifier_artifact, source)
    write_source(job.sink, [10])
    code, said = error_of(job)
    assert code == 2 and str(job.sink) in said
    assert len(list(job.sink.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_sink(classifier_artifact: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    job = JobFile.write(tmp_path, classifier_artifact, source, sink__path=str(tmp_path / "closed" / "scores"))
    assert error_of(job)[0] == 2


def test_a_sink_below_a_file_is_unwritable(classifier_artifact: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    job = JobFile.write(tmp_path, classifier_artifact, source, sink__path=str(tmp_path / "file" / "scores"))
    code, said = error_of(job)
    assert code == 2 and "scores" in said


def test_files_that_are_not_parquet_go_to_quarantine_and_the_rest_is_scored(
    classifier_artifact: Path, source: Path, tmp_path: Path
) -> None:
    whole = (source / "0000.parquet").read_bytes()
    (source / "text.parquet").write_text("this is no Parquet file")
    (source / "empty.parquet").write_bytes(b"")
    (source / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (source / "notes.txt").write_text("not a data file: ignored")
    job = JobFile.write(tmp_path, classifier_artifact, source)
    done = headrace("run", str(job.path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bad_files"] == 3
    assert duckdb.sql(f"select count(distinct id) from '{job.sink}/*.parquet'").fetchall() == [(340,)]
    found = quarantine(job)
    assert [Path(str(row[0])).name for row in found] == ["cut.parquet", "empty.parquet", "text.parquet"]
    assert all(row[1] is None and row[2] == "read" and row[3] for row in found)
    # Unchanged, they are not tried again; repaired, one is scored.
    again = headrace("run", str(job.path), "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["rows"] == 0
    shutil.copy(write_source(tmp_path / "more", [25], seed=3) / "0000.parquet", source / "cut.parquet")
    assert error_of(job)[0] == 0
    assert len(quarantine(job)) == 2
    assert duckdb.sql(f"select count(*) from '{job.sink}/*.parquet'").fetchall() == [(365,)]


def test_data_damaged_in_the_middle_of_a_file(classifier_artifact: Path, source: Path, tmp_path: Path) -> None:
    """Its footer is fine: only reading finds it."""
    victim = source / "0000.parquet"
    raw = bytearray(victim.read_bytes())
    raw[200:2000] = b"\xff" * 1800
    victim.write_bytes(bytes(raw))
    job = JobFile.write(tmp_path, classifier_artifact, source)
    code, said = error_of(job)
    assert code == 0, said
    assert [Path(str(row[0])).name for row in quarantine(job)] == ["0000.parquet"]
    assert duckdb.sql(f"select count(*) from '{job.sink}/*.parquet'").fetchall() == [(40,)]


def test_null_empty_blank_and_invalid_texts(classifier_artifact: Path, tmp_path: Path) -> None:
    texts = [b"river water", None, b"", b"   ", b"\xff\xfe bad", b"lake", "naïve 水 🌊".encode()]
    bodies = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": list(range(7)), "body": bodies}), tmp_path / "in" / "a.parquet")
    job = JobFile.write(tmp_path, classifier_artifact, tmp_path / "in")
    code, said = error_of(job)
    assert code == 0, said
    got = dict(duckdb.sql(f"select id, label from '{job.sink}/*.parquet'").fetchall())
    assert sorted(got) == [0, 1, 2, 3, 5, 6]
    assert [got[i] for i in (1, 2, 3)] == [None] * 3
    assert all(got[i] is not None for i in (0, 5, 6))
    ((file, row, stage, reason),) = quarantine(job)
    assert (Path(str(file)).name, row, stage) == ("a.parquet", 4, "text")
    assert "UTF-8" in str(reason)


def test_a_run_that_quarantines_exits_3_when_asked(classifier_artifact: Path, source: Path, tmp_path: Path) -> None:
    (source / "bad.parquet").write_text("no")
    job = JobFile.write(tmp_path, classifier_artifact, source)
    assert error_of(job, "--fail-on-quarantine")[0] == 3


def test_too_many_bad_rows_stop_the_job(classifier_artifact: Path, tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [3000])
    table = pq.read_table(source / "0000.parquet")
    texts = [b"\xff" if i % 10 == 0 else str(t).encode() for i, t in enumerate(table["body"])]
    bodies = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())
    pq.write_table(table.set_column(1, "body", bodies), source / "0000.parquet")
    job = JobFile.write(tmp_path, classifier_artifact, source)
    code, said = error_of(job)
    assert code == 1 and "bad rows" in said
    assert error_of(job, "--set", "limits.max_bad_rows=20%")[0] == 0
    got = duckdb.sql(f"select count(*), count(distinct id) from '{job.sink}/*.parquet'").fetchall()
    assert got == [(2700, 2700)]


def test_where_that_selects_nothing_is_fine(classifier_artifact: Path, source: Path, tmp_path: Path) -> None:
    job = JobFile.write(tmp_path, classifier_artifact, source)
    assert error_of(job, "--where", "id < 0")[0] == 0
