"""A source folder and the state of a sink for tests of plans: ledgers as runs leave them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.artifacts.manifest import Content, Variant
from headrace.jobs.contract import Contract
from headrace.jobs.planner import PlannedJob, make_plan
from headrace.jobs.records import FileRecord, Group, LedgerView, PartRecord
from headrace.jobs.source import list_source
from headrace.jobs.spec import make_job
from headrace.workers.shard import Counts, Shard

VARIANT = Variant(
    name="cpu-fp32", target="cpu", precision="fp32", recipe="", files=(), batch_tokens=512, batch_invariant=True
)
CONTENT = Content(name="m", task="text-classification", labels=("a",), max_length=128, variants=(VARIANT,), files=())


@dataclass(frozen=True)
class Artifact:
    content: Content = CONTENT
    digest: str = "d" * 64
    model: str = "m@dddddddddddd"


def write(path: Path, rows: int, row_groups: int | None = None, start: int = 0, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = range(start, start + rows)
    table = {"id": pa.array(ids, pa.int64()), "body": pa.array([f"text {n}" for n in ids], pa.string()), **columns}
    pq.write_table(pa.table(table), path, row_group_size=row_groups or max(rows, 1))
    return path


@dataclass
class World:
    """A source folder, and the state of a sink that runs have written to. ``shard_rows`` is 100."""

    source: str
    ledger: LedgerView = field(default_factory=LedgerView)
    groups: list[Group] = field(default_factory=list)
    contract: Contract | None = None
    runs: int = 0
    artifact: Artifact = Artifact()

    def plan(self, retry: bool = False, path: Any = None, **changes: Any) -> PlannedJob:
        spec: dict[str, Any] = {
            "artifact": "m",
            "source": {"path": path or self.source, "text": "body"},
            "sink": {"path": "/out/scores", "keep": ["id"]},
            "shard_rows": 100,
            "window_rows": 10,
        }
        limit = changes.pop("limit", None)
        for key, value in changes.items():
            *parents, last = key.split("__")
            target = spec
            for parent in parents:
                target = target.setdefault(parent, {})
            target[last] = value
        job = make_job(spec, limit=limit)
        listing = list_source(job.source.paths())
        return make_plan(
            job, self.artifact, VARIANT, listing, self.ledger, self.groups, self.contract, retry_quarantined=retry
        )

    def run(self, until: int | None = None, quarantined: int = 0, **changes: Any) -> PlannedJob:
        """Plans, and commits as a driver does; ``until`` so many shards are committed it is killed."""
        planned = self.plan(**changes)
        plan, self.runs = planned.plan, self.runs + 1
        assert not len(plan.shards) or planned.score.keep_types.get("id", pa.int64()) == pa.int64()
        self.contract = planned.contract
        self.groups += plan.new_groups
        for bad in plan.bad_files:
            self.ledger.bad_files[bad.file.path] = FileRecord(bad.file, bad.stage, bad.reason, str(self.runs), 0.0)
        for path in plan.cleared_files:
            self.ledger.bad_files.pop(path)
        replaced = {index: replacement for replacement in plan.replacements for index in replacement.shards}
        for replacement in plan.replacements:
            if until is None or not replacement.shards:
                self._replace(planned, replacement.remove, replacement.shards, quarantined)
        for index in range(len(plan.shards) if until is None else until):
            if index not in replaced:
                self._commit(planned, index, quarantined)
        return planned

    def _replace(self, planned: PlannedJob, remove: tuple[str, ...], shards: tuple[int, ...], quarantined: int) -> None:
        for shard_id in remove:
            del self.ledger.parts[shard_id]
        for index in shards:
            self._commit(planned, index, quarantined)

    def _commit(self, planned: PlannedJob, index: int, quarantined: int) -> None:
        shard = planned.plan.shards.shard(index)
        before = self.ledger.parts.get(shard.id)
        assert before is None or before.partition == shard.partition, "the old part would stay beside the new one"
        self.ledger.parts[shard.id] = PartRecord(
            shard_id=shard.id,
            partition=shard.partition,
            pieces=shard.pieces,
            fingerprint=planned.score.fingerprint,
            artifact=self.artifact.digest,
            variant="cpu-fp32",
            instruction_set="x",
            batching="budget",
            counts=Counts(shard.rows, shard.rows - quarantined, quarantined),
            size_bytes=1,
            run_id=str(self.runs),
            epoch=self.runs,
            attempt=1,
            committed_at=0.0,
        )

    def rows(self) -> Counter[tuple[str, str, int]]:
        """Rows in the sink by path, version and number."""
        return Counter(
            (piece.file.path, piece.file.version, row)
            for record in self.ledger.parts.values()
            for piece in record.pieces
            for row in range(piece.first_row, piece.first_row + piece.rows)
        )

    def rows_of_any_version(self) -> Counter[tuple[str, int]]:
        return Counter((path, row) for (path, _, row), count in self.rows().items() for _ in range(count))

    def assert_complete(self, path: Any = None) -> None:
        """Each row of each listed file is there once, and nothing else; and nothing is left to do."""
        want = Counter(
            (file.identity.path, file.identity.version, row)
            for file in list_source([path or self.source]).files
            for row in range(pq.read_metadata(file.identity.path).num_rows)
        )
        assert self.rows() == want


def shards(planned: PlannedJob) -> list[Shard]:
    return [planned.plan.shards.shard(index) for index in range(len(planned.plan.shards))]


def names(planned: PlannedJob) -> list[list[tuple[str, int, int]]]:
    """Pieces of each shard by file name."""
    return [[(Path(p.file.path).name, p.first_row, p.rows) for p in shard.pieces] for shard in shards(planned)]


def rows_of(shard: Shard) -> list[tuple[str, int]]:
    return [(p.file.path, row) for p in shard.pieces for row in range(p.first_row, p.first_row + p.rows)]
