"""Which of the listed files a job scores, and which files of the sink are no longer there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ..artifacts.errors import LimitExceeded, SpecError
from ..workers.columns import partition_keys
from .source import Listing, SourceFile
from .spec import Job
from .subtract import Committed
from .where import Where


@dataclass(frozen=True)
class Selection:
    """``where`` names partition keys alone; each partition is looked at once. ``key_types`` are those of all keys."""

    where: Where
    key_types: Mapping[str, pa.DataType]
    _seen: dict[str, bool] = field(default_factory=dict)

    def __contains__(self, partition: str) -> bool:
        if partition not in self._seen:
            keys = partition_keys(partition, self.key_types)
            self._seen[partition] = self.where.matches(keys, self.key_types)
        return self._seen[partition]

    def files(self, listing: Listing) -> list[SourceFile]:
        """By partition, then path: the order of the plan."""
        chosen = (file for file in listing.files if file.partition in self)
        return sorted(chosen, key=lambda file: (file.partition, file.identity.path))


def key_types_of(job: Job, listing: Listing) -> dict[str, pa.DataType]:
    """Of every partition key: as declared, else text. Raises SpecError for a declared one that is none."""
    declared = job.source.key_types()
    for name in declared:
        if name not in listing.partition_keys:
            keys = ", ".join(listing.partition_keys) or "none"
            raise SpecError(f"source.partition_types names no partition key: {name}", f"partition keys are: {keys}")
    return {name: declared.get(name, pa.string()) for name in listing.partition_keys}


def vanished_files(listing: Listing, committed: Committed, selection: Selection) -> list[str]:
    """Paths with parts in the sink that this listing would hold were the files still there.

    Raises LimitExceeded where that is more than half of them: rather a mistake than a deletion.
    """
    gone: list[str] = []
    inside = 0
    for path, shard_ids in committed.by_path.items():
        if path in listing.by_path:
            inside += 1
        elif listing.covers(path) and committed.parts[shard_ids[0]].partition in selection:
            inside += 1
            gone.append(path)
    if 2 * len(gone) > inside:
        raise LimitExceeded(
            f"most source files of this sink are gone: {len(gone):,} of {inside:,}, as {min(gone)}",
            "restore them; if they were deleted or rewritten on purpose, score into a new sink",
        )
    return sorted(gone)
