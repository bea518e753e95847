"""The files of a run's report, held against sums by hand; the summary that a person reads."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import results

from headrace.artifacts.storage import Folder
from headrace.jobs.report import summary_of, write_progress, write_report
from headrace.jobs.summary import Places, quarantine_warning, summary_lines

RUN = "runs/20240102T030405Z-abc"
#: The design's words for workers.parquet, in its order.
WORKER_COLUMNS = """
    run worker node host pid pool variant provider threads cpu_model cpu_flags shards rows unique_rows tokens
    padded_tokens truncated quarantined batches load_s read_s tokenize_s infer_s postprocess_s write_s wait_s wall_s
    rows_per_s tokens_per_s padding_efficiency peak_rss_bytes
"""
PLACES = Places("lake/scores", "lake/_headrace/scores", "headrace run job.yaml", "m@123, cpu-vnni-int8", "cosine 0.99")


@pytest.fixture
def state(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "state"))


def read(state: Folder, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(state.read(f"{RUN}/{name}"))).to_pylist()
    return rows


def test_workers(state: Folder) -> None:
    write_report(state, results.result())
    rows = read(state, "workers.parquet")
    assert list(rows[0]) == WORKER_COLUMNS.split()
    first, second = rows
    assert (first["worker"], first["shards"], first["rows"], first["quarantined"]) == ("cpu-0", 2, 200, 0)
    assert (second["worker"], second["shards"], second["quarantined"]) == ("cpu-1", 1, 2)
    # 200 rows and 1,800 tokens in 4 s of scoring; 900 of every 1,000 tokens are no padding.
    assert first["rows_per_s"] == pytest.approx(50) and first["tokens_per_s"] == pytest.approx(450)
    assert first["padding_efficiency"] == pytest.approx(0.9)
    assert first["infer_s"] == pytest.approx(2.0) and first["wait_s"] == 1.0 and first["wall_s"] == 5.0


def test_a_worker_that_came_too_late_has_no_rates(state: Folder) -> None:
    write_report(state, results.result(workers=(results.worker("cpu-0", 0),)))
    (row,) = read(state, "workers.parquet")
    assert row["rows"] == 0
    assert row["rows_per_s"] is row["tokens_per_s"] is row["padding_efficiency"] is None


def test_shards(state: Folder) -> None:
    write_report(state, results.result())
    rows = read(state, "shards.parquet")
    assert [row["shard"] for row in rows] == ["shard0", "shard1", "shard2"]
    row = rows[1]
    assert (row["source_file"], row["first_row"], row["partition"]) == ("/lake/1.parquet", 50, "day=1")
    assert row["rows_in"] == row["rows_out"] + row["quarantined"] + row["filtered"] == 100
    assert row["rows_per_s"] == pytest.approx(50)
    assert row["committed_at"].isoformat() == "2024-01-02T03:04:05+00:00"


def test_summary(state: Folder) -> None:
    write_report(state, results.result())
    summary = json.loads(state.read(f"{RUN}/summary.json"))
    assert summary == json.loads(json.dumps(summary_of(results.result())))
    expected = {
        "job": "nightly", "state": "done", "exit_code": 0, "started_at": "2024-01-02T03:04:05+00:00",
        "rows": 300, "rows_written": 268, "bad_rows": 2, "rows_filtered": 30, "rows_before": 700,
        "rows_per_s": 75.0, "tokens": 2700, "tokens_per_s": 675.0, "padded_tokens": 300, "padding_efficiency": 0.9,
        "shards": 3, "shards_planned": 3, "size_bytes": 15000, "unique_rows": 240, "empty_rows": 15,
        "truncated_rows": 9, "batches": 21, "bad_files": 1, "known_bad_files": 4, "vanished_files": 1,
        "limits": {"max_bad_rows": 0.01}, "failed_shards": [], "error": None,
    }  # fmt: skip
    assert {name: summary[name] for name in expected} == expected
    assert summary["rows"] == summary["rows_written"] + summary["bad_rows"] + summary["rows_filtered"]
    assert summary["pools"]["cpu"] | {"wait_s": 2.0} == {
        "variant": "cpu-vnni-int8", "workers": 2, "hosts": 1, "shards": 3, "rows": 300, "rows_per_s": 75.0,
        "tokens_per_s": 675.0, "wait_s": 2.0, "peak_rss_bytes": 123_000_000,
    }  # fmt: skip


def test_a_run_with_nothing_to_do_has_the_same_keys() -> None:
    nothing = summary_of(results.result(run_id="", outcomes=(), workers=(), rows_total=0, shards_total=0, score_s=0.0))
    assert nothing.keys() == summary_of(results.result()).keys()
    assert nothing["rows"] == 0 and nothing["run"] is None
    assert nothing["rows_per_s"] is nothing["padding_efficiency"] is None


def test_progress_is_written_whole(state: Folder) -> None:
    write_progress(state, results.progress())
    found = json.loads(state.read(f"{RUN}/progress.json"))
    assert found["rows_done"] == 250 and found["in_flight"][0]["pid"] == 777 and found["pools"][0]["ready"] == 2


def test_what_a_person_reads() -> None:
    text = "\n".join(summary_lines(summary_of(results.result()), PLACES))
    for words in (
        "nightly: done", "268 scored, 30 filtered out by where, 2 in quarantine; 700 done before\n",
        "75 rows/s, 675 tokens/s",
        "2,700 of 240 texts in 21 batches, 10.0% padding", "2 rows and 1 file", "lake/_headrace/scores/quarantine/",
        "2 workers, cpu-vnni-int8", "cosine 0.99", "lake/scores (15.0 kB written)", "headrace run job.yaml",
        "1 source file gone",
    ):  # fmt: skip
        assert words in text


def test_a_failed_run_says_what_is_left() -> None:
    made = results.result(
        state="failed", exit_code=1, outcomes=(results.outcome(0),), failed=(("shard9", "RuntimeError: no"),)
    )
    text = "\n".join(summary_lines(summary_of(made), PLACES))
    assert (
        "FAILED" in text
        and "90 scored, 10 filtered out by where; 700 done before; 200 left" in text
        and "shard shard9: RuntimeError: no" in text
    )
    assert "again:" not in text


def test_nothing_to_do_is_short() -> None:
    made = results.result(
        run_id="", outcomes=(), workers=(), shards_total=0, rows_total=0, rows_before=1000, bad_files=0, vanished=()
    )
    lines = summary_lines(summary_of(made), PLACES)
    assert "nothing to do" in lines[0] and len(lines) < 10
    assert "1,000 in 10 files, done before and unchanged" in "\n".join(lines)


def test_no_file_matches() -> None:
    made = results.result(
        run_id="", outcomes=(), workers=(), shards_total=0, rows_total=0, rows_before=0, files=0, bad_files=0
    )
    assert summary_lines(summary_of(made), PLACES)[0] == "nightly: nothing to do, no file matches where"


def test_the_memory_of_a_killed_worker_is_not_known(state: Folder) -> None:
    killed = dataclasses.replace(results.worker("cpu-0", 3), peak_rss_bytes=0)
    made = results.result(workers=(killed,))
    write_report(state, made)
    assert read(state, "workers.parquet")[0]["peak_rss_bytes"] is None
    assert summary_of(made)["pools"]["cpu"]["peak_rss_bytes"] is None
    text = "\n".join(summary_lines(summary_of(made), PLACES))
    assert "1 worker, cpu-vnni-int8\n" in text and "peak memory" not in text
    other = results.result(workers=(killed, results.worker("cpu-1", 1)))
    assert "peak memory of one 123 MB" in "\n".join(summary_lines(summary_of(other), PLACES))


def test_the_warning_of_a_quarantine() -> None:
    summary = summary_of(results.result())
    assert quarantine_warning(summary, "lake/my scores", "/state", False) == (
        "put into quarantine: 2 rows and 1 file, see /state/quarantine/; "
        "`headrace status 'lake/my scores'` lists them by reason"
    )
    rows_only = quarantine_warning({**summary, "bad_files": 0}, "s", "/state", True)
    assert rows_only is not None and "2 rows, see" in rows_only and "status s --state /state`" in rows_only
    assert quarantine_warning({**summary, "bad_rows": 0, "bad_files": 0}, "s", "/state", True) is None
