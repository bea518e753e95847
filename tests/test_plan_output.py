"""``headrace plan`` and ``headrace preview`` as a person and a program read them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import results
from runs import JobFile, headrace, sentences

from headrace.artifacts.errors import SpecError
from headrace.artifacts.storage import Folder
from headrace.jobs import facts
from headrace.jobs.footers import FileFooter, read_footers
from headrace.jobs.plan_text import plan_shown
from headrace.jobs.preview import preview, table_lines
from headrace.jobs.records import Plan, Replacement, ShardColumns
from headrace.jobs.report import write_report
from headrace.jobs.spec import load_job
from headrace.workers.shard import BadRow, FileIdentity

FILES = (FileIdentity("/lake/a.parquet", 1000, "1"), FileIdentity("/lake/b.parquet", 500, "1"))


def made(shards: int) -> Plan:
    """``shards`` of 100 rows each."""
    columns = ShardColumns(
        ids=tuple(f"s{i}" for i in range(shards)),
        partitions=("day=1",),
        partition=np.zeros(shards, np.int32),
        offsets=np.arange(shards + 1, dtype=np.int64),
        files=FILES,
        piece_file=np.zeros(shards, np.int32),
        first_row=np.arange(shards, dtype=np.int64) * 100,
        piece_rows=np.full(shards, 100, np.int64),
    )
    return Plan(
        columns, 2, 1000, 1500, 700, 7, unfinished_partitions={"day=1": shards} if shards else {}, partitions=("day=1",)
    )


def test_a_plan_with_an_earlier_run_says_how_long(tmp_path: Path) -> None:
    state = Folder(str(tmp_path))
    write_report(state, results.result())  # 75 rows/s
    shown = plan_shown(made(3), "nightly", "cpu-fp32", state)
    text = "\n".join(shown.lines)
    for words in ("300 rows in 3 shards to score", "2 files, 1,000 rows, 1.5 kB", "700 rows in 7 shards", "cpu-fp32"):
        assert words in text
    assert "about 4.0 s at 75 rows/s" in text and "day=1: 3 shards" in text
    value = json.loads(json.dumps(shown.value))
    assert (value["rows_to_do"], value["shards_to_do"], value["estimated_s"]) == (300, 3, 4.0)


def test_a_first_plan_does_not_guess(tmp_path: Path) -> None:
    shown = plan_shown(made(3), "nightly", "cpu-fp32", Folder(str(tmp_path)))
    assert shown.value["estimated_s"] is None and "unknown" in "\n".join(shown.lines)


def test_nothing_to_do(tmp_path: Path) -> None:
    shown = plan_shown(made(0), "nightly", "cpu-fp32", Folder(str(tmp_path)))
    assert shown.lines[0] == "nightly: nothing to do" and "time" not in "\n".join(shown.lines)


def test_a_where_over_columns_makes_it_at_most(tmp_path: Path) -> None:
    shown = plan_shown(made(3), "nightly", "cpu-fp32", Folder(str(tmp_path)), filtered=True)
    assert shown.lines[0] == "nightly: at most 300 rows to score, before where, in 3 shards"
    assert shown.value["rows_are_before_where"] is True


def test_no_file_matches(tmp_path: Path) -> None:
    none = dataclasses.replace(made(0), files=0, rows=0, size_bytes=0, done_rows=0, done_shards=0, partitions=())
    shown = plan_shown(none, "nightly", "cpu-fp32", Folder(str(tmp_path)))
    assert shown.lines[0] == "nightly: nothing to do, no file matches where"


def test_what_is_unusual_is_named(tmp_path: Path) -> None:
    plan = dataclasses.replace(
        made(1),
        replacements=(Replacement(("s8", "s9"), (0,)),),
        bad_files=(BadRow(FILES[1], None, "read", "not a Parquet file"),),
        known_bad_files=3,
        vanished=("/lake/c.parquet",),
        cleared_files=("/lake/d.parquet",),
    )
    shown = plan_shown(plan, "nightly", "cpu-fp32", Folder(str(tmp_path)))
    text = "\n".join(shown.lines)
    for words in (
        "2 parts of files that changed",
        "1 source file gone",
        "3 unreadable",
        "1 file of the quarantine can be read now",
        "b.parquet: not a Parquet",
    ):
        assert words in text
    assert shown.value["bad_files"] == [{"file": "/lake/b.parquet", "reason": "not a Parquet file"}]


@pytest.fixture
def job(classifier_artifact: Path, tmp_path: Path) -> JobFile:
    (tmp_path / "in").mkdir()
    texts = [*sentences(300), None, ""]
    pq.write_table(pa.table({"id": list(range(302)), "body": texts}), tmp_path / "in" / "a.parquet")
    (tmp_path / "in" / "b.parquet").write_text("no Parquet")
    return JobFile.write(tmp_path, classifier_artifact, tmp_path / "in", variant="cpu-fp32")


def test_a_preview_is_what_a_run_would_write(job: JobFile, tiny_classifier_model: Path) -> None:
    from transformers import pipeline

    table = preview(load_job(job.path), 20)
    assert table.schema.names == ["id", "label", "score", "model", "n_tokens", "truncated"]
    assert table["id"].to_pylist() == list(range(20))
    answers = pipeline("text-classification", model=str(tiny_classifier_model), device="cpu")(sentences(300)[:20])
    assert table["label"].to_pylist() == [answer["label"] for answer in answers]
    assert table["score"].to_pylist() == pytest.approx([answer["score"] for answer in answers], abs=1e-4)
    assert not job.sink.exists() and not job.state.exists()


def test_a_preview_of_more_rows_than_there_are(job: JobFile) -> None:
    table = preview(load_job(job.path), 1000)
    assert len(table) == 302 and table["label"].to_pylist()[-2:] == [None, None]
    assert len(preview(load_job(job.path, where="id < 0"), 10)) == 0


def test_a_preview_refuses_what_a_plan_refuses(job: JobFile, tmp_path: Path) -> None:
    table = pa.table({"id": [1], "label": ["x"], "body": sentences(1)})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    clashing = load_job(job.path, ["sink.keep=[id, label]"])
    with pytest.raises(SpecError, match="two output columns have the same name: label"):
        preview(clashing, 5)
    prefixed = preview(load_job(job.path, ["sink.keep=[id, label]", "sink.column_prefix=p_"]), 5)
    assert prefixed.schema.names[:3] == ["id", "label", "p_label"]


def test_plan_on_the_command_line_says_before_where(job: JobFile) -> None:
    assert "at most 302 rows to score, before where" in headrace("plan", str(job.path), "--where", "id < 99").stdout


def many_files(folder: Path, files: int) -> None:
    """Three rows each, their ids in the order of the names."""
    for number in range(files):
        ids = [3 * number + row for row in range(3)]
        pq.write_table(pa.table({"id": ids, "body": sentences(3, seed=number)}), folder / f"f{number:03}.parquet")


def test_a_preview_looks_at_few_files(job: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many_files(tmp_path / "in", 150)
    looked: list[int] = []

    def counted(files: Sequence[FileIdentity], *rest: Any) -> Iterator[FileFooter | BadRow]:
        looked.append(len(files))
        return read_footers(files, *rest)

    monkeypatch.setattr(facts, "read_footers", counted)
    (tmp_path / "in" / "a.parquet").unlink()
    assert preview(load_job(job.path), 10)["id"].to_pylist() == list(range(10))
    assert sum(looked) == 64  # one chunk
    found = preview(load_job(job.path, where="id IN (7, 107, 207, 307, 407)"), 10)
    assert found["id"].to_pylist() == [7, 107, 207, 307, 407]


def test_preview_and_plan_on_the_command_line(job: JobFile) -> None:
    done = headrace("preview", str(job.path), "--rows", "3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["id", "label", "score", "model", "n_tokens", "truncated"] and len(lines) == 4
    rows = json.loads(headrace("preview", str(job.path), "--rows", "3", "--json").stdout)
    assert [row["id"] for row in rows] == [0, 1, 2]
    plan = json.loads(headrace("plan", str(job.path), "--json").stdout)
    assert plan["rows_to_do"] == 302 and [Path(bad["file"]).name for bad in plan["bad_files"]] == ["b.parquet"]
    assert not job.sink.exists() and not job.state.exists()


def test_cells_are_short() -> None:
    table = pa.table({"text": ["x" * 100, None], "embedding": [[0.5] * 384, [0.25] * 384], "score": [0.123456, 1.0]})
    lines = table_lines(table)
    assert "…" in lines[1] and "[0.500, 0.500, 0.500, 0.500, ...] (384)" in lines[1] and "0.1235" in lines[1]
    assert "null" in lines[2] and table_lines(table.slice(0, 0)) == ["no row to score"]
