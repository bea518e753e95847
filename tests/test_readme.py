"""Every command block of the README, run in its order on the files it names."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
import yaml
from runs import environment

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str

    @property
    def commands(self) -> list[list[str]]:
        return [shlex.split(line) for line in self.text.splitlines() if line.strip()]


BLOCKS = [Block(*found) for found in _BLOCK.findall(README)]
JOB, BACKFILL = (block for block in BLOCKS if block.language == "yaml")


def test_no_command_block_is_left_out() -> None:
    assert {block.language for block in BLOCKS} <= {"sh", "yaml", "python", "text"}
    assert README.count("\n```\n") == len(BLOCKS)
    programs = {command[0] for block in BLOCKS if block.language == "sh" for command in block.commands}
    assert programs == {"make", "headrace", "."}


def test_make_targets_exist() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [
        command for block in BLOCKS if block.language == "sh" for command in block.commands if command[0] == "make"
    ]
    assert named and all(target in targets for _, target in named)
    assert all(target in targets for target in re.findall(r"`make (\w+)`", README))


@pytest.mark.ray
def test_the_blocks_run_one_after_the_other(tiny_embedder_model: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(tiny_embedder_model, tmp_path / "my-model")
    said = {}
    for block in BLOCKS:
        if block is JOB:
            (tmp_path / "job.yaml").write_text(block.text)
        elif block.language == "python":
            run([sys.executable, "-c", block.text], tmp_path)
        elif block.language == "sh":
            for command in block.commands:
                if command[0] == "headrace":
                    said[" ".join(command[1:])] = run([sys.executable, "-m", *command], tmp_path)
    count = "SELECT count(*), count(DISTINCT id)"
    sink, source = tmp_path / "lake/scores/glosses/*.parquet", tmp_path / "examples/glosses/glosses.parquet"
    wanted = duckdb.sql(f"{count} FROM '{source}' WHERE label <> 'adj.ppl'").fetchall()
    assert duckdb.sql(f"{count} FROM '{sink}'").fetchall() == wanted
    assert f"{wanted[0][0]:,}" in said["verify lake/scores/glosses"]
    assert '"rows": 0' in said["run job.yaml --json --fail-on-quarantine"]
    assert len(said["preview job.yaml --rows 5"].splitlines()) == 6


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment(), check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_options_in_the_prose_exist() -> None:
    shown = "".join(
        subprocess.run(
            [sys.executable, "-m", "headrace", name, "--help"], capture_output=True, text=True, check=True
        ).stdout
        for name in ("run", "compile", "preview", "status")
    )
    for option in set(re.findall(r"--[a-z][a-z-]+", README)):
        assert option in shown, option


def test_the_exit_codes_are_the_errors() -> None:
    from headrace.artifacts import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    codes = {str(kind.exit_code) for kind in kinds if issubclass(kind, errors.HeadraceError)}
    told = set(re.findall(r"^\| ([\d, ]+) \|", README, re.MULTILINE))
    listed = {code for entry in told for code in entry.split(", ")}
    assert codes <= listed and listed == {"0", "1", "2", "3", "75", "130", "143"}


def test_the_job_files_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.jobs.spec import load_job

    monkeypatch.chdir(ROOT)
    job = load_job("examples/glosses/job.yaml")
    assert job.name == "glosses"
    (tmp_path / "job.yaml").write_text(JOB.text)
    assert load_job(str(tmp_path / "job.yaml")).name == yaml.safe_load(JOB.text)["name"]


def test_the_backfill_loads_and_only_selects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.jobs.spec import load_job
    from headrace.jobs.where import parse_where

    monkeypatch.chdir(ROOT)
    job, addition = yaml.safe_load(JOB.text), yaml.safe_load(BACKFILL.text)
    merged = {**job, **addition, "source": {**job["source"], **addition["source"]}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(merged))
    loaded = load_job(tmp_path / "job.yaml", ["ds=2026-12-01"])
    files, rows = parse_where(loaded.source.where).split(["ds"])
    assert files.text is not None and "'2026-12-01'" in files.text and rows.text is None
