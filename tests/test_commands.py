"""What the commands say of what they did."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import results
from parts import piece, publish, record
from runs import JobFile, headrace, sentences
from s3_server import S3

from headrace.artifacts.storage import Folder
from headrace.jobs import commands, driver
from headrace.jobs.ledger import Ledger, read_ledger
from headrace.jobs.output import output_for
from headrace.jobs.progress import RunResult
from headrace.jobs.records import FileRecord
from headrace.jobs.spec import load_job
from headrace.workers import paths
from headrace.workers.quarantine import write_bad_file
from headrace.workers.shard import BadRow, FileIdentity


@pytest.fixture
def job(classifier_artifact: Path, tmp_path: Path) -> JobFile:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": [1, 2], "body": sentences(2)}), tmp_path / "in" / "a.parquet")
    shutil.copytree(classifier_artifact, tmp_path / "artifact")
    return JobFile.write(tmp_path, tmp_path / "artifact", tmp_path / "in", variant="cpu-fp32")


def test_a_run_that_only_takes_a_file_out_of_quarantine_starts_no_ray(job: JobFile, tmp_path: Path) -> None:
    bad = tmp_path / "in" / "b.parquet"
    bad.write_text("half an upload")
    state = Folder(str(job.state))
    file = FileIdentity(str(bad), 14, str(bad.stat().st_mtime_ns))
    ledger = Ledger(state, 1)
    ledger.append_file(FileRecord(file, "read", "not a whole Parquet file", "run-1", 1.5e9))
    ledger.flush()
    write_bad_file(state, BadRow(file, None, "read", "not a whole Parquet file"))
    table = pq.read_table(tmp_path / "in" / "a.parquet")
    (tmp_path / "in" / "a.parquet").unlink()
    pq.write_table(table.slice(0, 0), bad)
    done = headrace("run", str(job.path), "--json")
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["bad_files"], json.loads(done.stdout)["known_bad_files"]) == (0, 0)
    assert "shards on" not in done.stderr  # what a run says that has started one
    assert read_ledger(state).bad_files == {} and not list((job.state / "quarantine").rglob("*.parquet"))


@pytest.mark.parametrize("as_json", [False, True])
def test_an_artifact_that_went_during_the_run(
    job: JobFile, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_job(*_: object) -> RunResult:
        assert load_job(job.path).artifact == str(tmp_path / "artifact")
        shutil.rmtree(tmp_path / "artifact")
        return results.result()

    monkeypatch.setattr(driver, "run_job", run_job)
    assert commands.run_command(output_for(as_json), str(job.path), (), None, None, {}) == 0
    shown = capsys.readouterr().out
    if as_json:
        assert json.loads(shown)["state"] == "done"
    else:
        assert "nightly: done" in shown and "speed" in shown and "\n  model" not in shown


def test_a_run_warns_of_what_it_put_into_quarantine(
    job: JobFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = results.result()
    monkeypatch.setattr(driver, "run_job", lambda *_: made)
    monkeypatch.setattr(commands.LOG, "propagate", True)
    assert commands.run_command(output_for(True), str(job.path), (), None, None, {}) == 0
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "2 rows and 1 file" in warning and f"`headrace status {job.sink}`" in warning
    caplog.clear()
    made = results.result(outcomes=(results.outcome(0),), bad_files=0)
    assert commands.run_command(output_for(True), str(job.path), (), None, None, {}) == 0
    assert not caplog.records


def test_repair_names_the_parts_whose_quarantine_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink, state = Folder(str(tmp_path / "scores")), Folder(str(tmp_path / "_headrace" / "scores"))
    made = publish(sink, state, record(piece("a"), quarantined=1))
    state.delete(paths.quarantine_rows(made.shard_id))  # and no ledger: the part is the first that one hears of
    Ledger(state, 1).flush()
    assert commands.repair_command(output_for(False), str(tmp_path / "scores"), None) == 0
    shown = capsys.readouterr().out
    assert f"removed, its quarantined rows are lost: {made.key}" in shown and "run the job again" in shown
    assert sink.list() == []


def test_json_of_verify_does_not_grow_with_the_sink(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink, state = Folder(str(tmp_path / "scores")), Folder(str(tmp_path / "_headrace" / "scores"))
    ledger = Ledger(state, 1)
    for number in range(50):
        ledger.append_part(publish(sink, state, record(piece(f"file{number}"))))
    ledger.flush()
    assert commands.verify_command(output_for(True), str(tmp_path / "scores"), None) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["ok"], value["parts"], value["rows"]) == (True, 50, 200)
    assert "part-" not in json.dumps(value)


def test_verify_names_the_repair_with_its_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink, state = str(tmp_path / "scores"), str(tmp_path / "elsewhere")
    publish(Folder(sink), Folder(state), record(piece("a")))
    assert commands.verify_command(output_for(False), sink, state) == 1
    told = capsys.readouterr().err
    assert "1 fault\n" in told and f"`headrace repair {sink} --state {state}`" in told


def test_verify_of_an_object_store_takes_all_from_the_environment(s3: S3) -> None:
    url = s3.url("lake/scores")
    sink, state = Folder(url, s3.options), Folder(url.replace("/lake/scores", "/elsewhere"), s3.options)
    ledger = Ledger(state, 1)
    ledger.append_part(publish(sink, state, record(piece("a"))))
    ledger.flush()
    given = {"AWS_ENDPOINT_URL": s3.options["client_kwargs"]["endpoint_url"], "AWS_DEFAULT_REGION": "us-east-1"}
    keys = {"AWS_ACCESS_KEY_ID": s3.options["key"], "AWS_SECRET_ACCESS_KEY": s3.options["secret"]}
    command = [sys.executable, "-m", "headrace", "verify", url, "--state", state.url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **given, **keys}, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 4
