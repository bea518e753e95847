"""What lies in a sink: every part with its footer, read in parallel, and every file that is not a part."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from ..artifacts.storage import Entry, Folder
from ..workers import paths
from ..workers.footer import KEY, Footer, parse
from .records import PartRecord

_OWN_ID = re.compile(r"[0-9a-f]{20}")
_LOCAL_THREADS, _REMOTE_THREADS = 4, 32


@dataclass(frozen=True, slots=True)
class FoundPart:
    """One part. ``rows`` are those that Parquet counts; ``modified_s`` is on the store's clock."""

    key: str
    shard_id: str
    partition: str
    size_bytes: int
    modified_s: float
    footer: Footer
    rows: int


@dataclass(frozen=True)
class Scan:
    parts: tuple[FoundPart, ...]
    torn: tuple[str, ...]  #: keys named like our parts that hold no whole Parquet file
    foreign: tuple[str, ...]  #: keys of files that headrace did not write


def is_own_name(key: str) -> bool:
    """Whether only headrace names a file so: Spark's ``part-00000-….parquet`` is another's."""
    return _OWN_ID.fullmatch(paths.shard_of_part(key) or "") is not None


def scan(sink: Folder) -> Scan:
    """Lists once. Files whose name starts with ``_`` or ``.`` are marks, not data, and left out."""
    entries = [entry for entry in sink.list() if entry.key.rsplit("/", 1)[-1][0] not in "_."]
    named = [entry for entry in entries if paths.shard_of_part(entry.key) is not None]
    with ThreadPoolExecutor(_LOCAL_THREADS if sink.is_local else _REMOTE_THREADS) as pool:
        looked = list(pool.map(lambda entry: _look(sink, entry), named))
    torn = {entry.key for entry, found in zip(named, looked, strict=True) if found == "torn" and is_own_name(entry.key)}
    parts = tuple(found for found in looked if isinstance(found, FoundPart))
    gone = {entry.key for entry, found in zip(named, looked, strict=True) if found == "gone"}
    known = torn | gone | {part.key for part in parts}
    return Scan(parts, tuple(sorted(torn)), tuple(entry.key for entry in entries if entry.key not in known))


def _look(sink: Folder, entry: Entry) -> FoundPart | Literal["torn", "foreign", "gone"]:
    try:
        with sink.open(entry.key) as file:
            metadata = pq.read_metadata(file)
    except FileNotFoundError:
        return "gone"
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, TimeoutError) or getattr(error, "errno", None) is not None:
            raise  # the storage's own error: Arrow's has no number
        return "torn"
    footer = parse((metadata.metadata or {}).get(KEY, b""))
    if footer is None:
        return "foreign"
    shard_id = paths.shard_of_part(entry.key) or ""
    partition = entry.key.rpartition("/")[0]
    return FoundPart(entry.key, shard_id, partition, entry.size_bytes, entry.modified_s, footer, int(metadata.num_rows))


def quarantined_rows(state: Folder) -> dict[str, int]:
    """Rows in quarantine by shard id, counted from the files; -1 where a file can't be read."""
    found = ((entry.key, paths.shard_of_quarantine(entry.key)) for entry in state.list(paths.QUARANTINE))
    keys = {shard_id: key for key, shard_id in found if shard_id is not None}
    with ThreadPoolExecutor(_LOCAL_THREADS if state.is_local else _REMOTE_THREADS) as pool:
        return dict(zip(keys, pool.map(lambda key: _rows_in(state, key), keys.values()), strict=True))


def _rows_in(state: Folder, key: str) -> int:
    try:
        with state.open(key) as file:
            return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowInvalid, FileNotFoundError):
        return -1


def is_whole(part: FoundPart, quarantined: Mapping[str, int]) -> bool:
    """Whether every row is in the part or in quarantine. A crash between the two publications can leave it not so."""
    return quarantined.get(part.shard_id, 0) == part.footer.counts.quarantined


def same_work(record: PartRecord, part: FoundPart) -> bool:
    """Whether ledger and footer speak of the same rows, scored the same way."""
    footer = part.footer
    return (record.partition, record.pieces, record.fingerprint) == (part.partition, footer.pieces, footer.fingerprint)


def record_of(part: FoundPart, epoch: int, before: PartRecord | None = None) -> PartRecord:
    """A ledger row from a footer. Who committed it and when is known only from ``before``, its former row."""
    footer = part.footer
    return PartRecord(
        shard_id=part.shard_id,
        partition=part.partition,
        pieces=footer.pieces,
        fingerprint=footer.fingerprint,
        artifact=footer.artifact,
        variant=footer.variant,
        instruction_set=footer.instruction_set,
        batching=footer.batching,
        counts=footer.counts,
        size_bytes=part.size_bytes,
        run_id=before.run_id if before else "",
        epoch=before.epoch if before else epoch,
        attempt=before.attempt if before else 0,
        committed_at=before.committed_at if before else part.modified_s or time.time(),
    )
