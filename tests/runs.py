"""Jobs for end-to-end tests: sources, job files, the real command line in a process of its own, sinks by hash."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tiny_models
import yaml


def sentences(count: int, seed: int = 0, longest: int = 20) -> list[str]:
    """Texts of the tiny models' words, of many lengths."""
    choose = random.Random(seed)
    return [" ".join(choose.choices(tiny_models.WORDS, k=choose.randint(1, longest))) for _ in range(count)]


def write_source(
    folder: Path, files: Sequence[int], seed: int = 0, row_group_rows: int = 512, prefix: str = ""
) -> Path:
    """One Parquet file per entry of ``files``, with so many rows: ``id`` (unique over all) and ``body``."""
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for number, rows in enumerate(files):
        table = pa.table(
            {
                "id": pa.array(range(start, start + rows), pa.int64()),
                "body": pa.array(sentences(rows, seed * 1000 + number), pa.string()),
            }
        )
        pq.write_table(table, folder / f"{prefix}{number:04d}.parquet", row_group_size=row_group_rows)
        start += rows
    return folder


@dataclass(frozen=True)
class JobFile:
    """A job on disk. ``sink`` and ``state`` are its folders."""

    path: Path
    sink: Path
    state: Path

    @classmethod
    def write(
        cls, folder: Path, compiled: Path | str, source: Path | str, name: str = "job", **changes: Any
    ) -> JobFile:
        sink = folder / f"{name}-out" / "scores"
        spec: dict[str, Any] = {
            "name": name,
            "artifact": str(compiled),
            "source": {"path": str(source), "text": "body"},
            "sink": {"path": str(sink), "keep": ["id"]},
            "pools": {"cpu": {"workers": 2, "num_cpus": 1}},
            "shard_rows": 512,
            "window_rows": 256,
        }
        for key, value in changes.items():
            target = spec
            *parents, last = key.split("__")
            for parent in parents:
                target = target.setdefault(parent, {})
            target[last] = value
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(spec))
        sink = Path(spec["sink"]["path"])
        return cls(path, sink, sink.parent / "_headrace" / sink.name)

    def part_hashes(self) -> dict[str, str]:
        """SHA-256 by path below the sink, of every file there."""
        files = sorted(path for path in self.sink.rglob("*") if path.is_file())
        return {str(f.relative_to(self.sink)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}

    def newest_summary(self) -> dict[str, Any]:
        newest = max((self.state / "runs").glob("*/summary.json"), key=lambda path: path.stat().st_mtime)
        loaded: dict[str, Any] = json.loads(newest.read_text())
        return loaded


def environment(cache: Path | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "HF_HUB_OFFLINE": "1", **({"HEADRACE_CACHE": str(cache)} if cache else {})}


def headrace(*arguments: str, cwd: Path | None = None, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment(), cwd=cwd, check=False
    )


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """A run in the background, in a session of its own so that a signal meets nobody else."""
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,
    )


def wait_until(ready: Callable[[], object], timeout: float = 90, every: float = 0.05) -> None:
    until = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > until:
            raise TimeoutError("it never happened")
        time.sleep(every)


def parts(sink: Path) -> list[Path]:
    return list(sink.rglob("part-*.parquet"))
