"""Every path name below a sink and its state. Nothing else builds one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

PART_PREFIX = "part-"
PART_SUFFIX = ".parquet"
PLANS, LEDGER, LEASE, TMP, QUARANTINE, DONE, RUNS = "plans", "ledger", "lease", "tmp", "quarantine", "done", "runs"


def shard_id(source_path: str, first_row: int, rows: int) -> str:
    """A shard of one file: a hash of what it covers, never of its position in a plan."""
    return _hash(["rows", source_path, first_row, rows])


def group_id(source_paths: Iterable[str]) -> str:
    """A group of small files: made once, then recorded in the state and reused."""
    return _hash(["group", *sorted(source_paths)])


def file_id(source_path: str) -> str:
    return _hash(["file", source_path])


def part(partition: str, shard: str) -> str:
    """Below the sink."""
    name = f"{PART_PREFIX}{shard}{PART_SUFFIX}"
    return f"{partition}/{name}" if partition else name


def shard_of_part(key: str) -> str | None:
    """The shard id in a part's key, None for a file that is not a part."""
    name = key.rsplit("/", 1)[-1]
    if not (name.startswith(PART_PREFIX) and name.endswith(PART_SUFFIX)):
        return None
    return name.removeprefix(PART_PREFIX).removesuffix(PART_SUFFIX)


def staged(epoch: int, shard: str, attempt: int) -> str:
    """Below the state, like all that follow."""
    return f"{staged_of(epoch)}{shard}-{attempt}.parquet"


def staged_of(epoch: int) -> str:
    """What every staged file of one epoch starts with."""
    return f"{TMP}/{epoch:08d}-"


def quarantine_rows(shard: str) -> str:
    """The quarantined rows of one shard."""
    return f"{QUARANTINE}/rows-{shard}.parquet"


def shard_of_quarantine(key: str) -> str | None:
    """The shard id in the key of a shard's quarantined rows, None for another file."""
    name = key.removeprefix(f"{QUARANTINE}/rows-")
    return name.removesuffix(PART_SUFFIX) if name != key and name.endswith(PART_SUFFIX) else None


def quarantine_file(source_path: str) -> str:
    """A whole file that could not be read."""
    return f"{QUARANTINE}/file-{file_id(source_path)}.parquet"


def lease(epoch: int) -> str:
    return f"{LEASE}/{epoch:08d}.json"


def probe(token: str) -> str:
    """A file made and deleted at once, to see whether the store does what it must."""
    return f"{TMP}/probe-{token}"


def segment(epoch: int, sequence: int, compacted: bool = False) -> str:
    """Segments sort by epoch and sequence; a compacted one stands for all before it."""
    return f"{LEDGER}/{epoch:08d}-{sequence:08d}{'-c' if compacted else ''}.arrow"


def groups(epoch: int) -> str:
    return f"{PLANS}/groups-{epoch:08d}.json"


def contract() -> str:
    """What the sink holds: fingerprint in full, output schema. Written by its first run."""
    return f"{PLANS}/contract.json"


def files() -> str:
    """What was learned of source files' footers, for the next plan."""
    return f"{PLANS}/files.arrow"


def done(partition: str) -> str:
    return f"{DONE}/{partition}/_SUCCESS" if partition else f"{DONE}/_SUCCESS"


def run(run_id: str, name: str) -> str:
    """``job.yaml``, ``workers.parquet``, ``shards.parquet``, ``summary.json``, ``progress.json`` or ``log``."""
    return f"{RUNS}/{run_id}/{name}"


def state_url(sink_url: str) -> str | None:
    """``<parent of sink>/_headrace/<sink name>``; None where the sink has no usable parent (a bucket or mount root)."""
    stripped = sink_url.rstrip("/")
    scheme, mark, rest = stripped.rpartition("://")
    parent, slash, name = rest.rpartition("/")
    if not slash or not name or (mark and not parent) or (not mark and not parent and not rest.startswith("/")):
        return None
    return f"{scheme}{mark}{parent}/_headrace/{name}"


def _hash(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:20]
