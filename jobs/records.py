"""Values that planner, ledger, dispatcher and reports exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..workers import paths
from ..workers.shard import BadRow, Batching, Counts, FileIdentity, Piece, Shard


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A committed shard: one ledger row, rebuildable from the part's footer (but for run, attempt and time)."""

    shard_id: str
    partition: str
    pieces: tuple[Piece, ...]
    fingerprint: str
    artifact: str  #: digest
    variant: str
    instruction_set: str
    batching: Batching
    counts: Counts
    size_bytes: int
    run_id: str
    epoch: int
    attempt: int
    committed_at: float  #: seconds since the epoch

    @property
    def key(self) -> str:
        return paths.part(self.partition, self.shard_id)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A source file in quarantine as a whole."""

    file: FileIdentity
    stage: str
    reason: str
    run_id: str
    committed_at: float


@dataclass(frozen=True, slots=True)
class Intent:
    """A replacement under way: ``remove`` are the old shards' ids, ``publish`` the new ones'.

    Written after every new shard was staged and before the first old part is removed. Found open on takeover: the old
    parts are removed for good, new shards that were not published are scored again.
    """

    id: str
    remove: tuple[str, ...]
    publish: tuple[str, ...]


@dataclass
class LedgerView:
    """The ledger's present state, folded from all segments in order."""

    parts: dict[str, PartRecord] = field(default_factory=dict)  #: by shard id
    bad_files: dict[str, FileRecord] = field(default_factory=dict)  #: by source path
    intents: dict[str, Intent] = field(default_factory=dict)  #: open ones by id


@dataclass(frozen=True, slots=True)
class Group:
    """Small files of one partition scored as one shard; recorded before the first shard runs, never extended."""

    id: str
    partition: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replacement:
    """Committed parts that give way to shards of the plan, as one step. ``shards`` may be empty: a plain removal.

    Where exactly one old part and one new shard share an id there is no Replacement: publishing overwrites it.
    """

    remove: tuple[str, ...]  #: shard ids in the ledger
    shards: tuple[int, ...]  #: positions in the plan


@dataclass(frozen=True)
class ShardColumns:
    """Shards as columns: 28 bytes and an id each, so a million fit. Pieces of shard ``i`` are
    ``piece_file[offsets[i]:offsets[i + 1]]`` and so on; ``piece_file`` points into ``files``."""

    ids: tuple[str, ...]
    partitions: tuple[str, ...]  #: distinct ones
    partition: npt.NDArray[np.int32]  # (shards,) into ``partitions``
    offsets: npt.NDArray[np.int64]  # (shards + 1,)
    files: tuple[FileIdentity, ...]
    piece_file: npt.NDArray[np.int32]  # (pieces,)
    first_row: npt.NDArray[np.int64]  # (pieces,)
    piece_rows: npt.NDArray[np.int64]  # (pieces,)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Rows of each shard, (shards,)."""
        ends = np.concatenate(([0], np.cumsum(self.piece_rows)))
        return np.asarray(ends[self.offsets[1:]] - ends[self.offsets[:-1]], dtype=np.int64)

    def shard(self, index: int) -> Shard:
        span = range(int(self.offsets[index]), int(self.offsets[index + 1]))
        pieces = tuple(
            Piece(self.files[int(self.piece_file[k])], int(self.first_row[k]), int(self.piece_rows[k])) for k in span
        )
        return Shard(self.ids[index], self.partitions[int(self.partition[index])], pieces)


@dataclass(frozen=True)
class Plan:
    """What a job has to do. Printing, counting and running use this one value."""

    shards: ShardColumns  #: to score, in order
    files: int  #: source files selected
    rows: int  #: rows of the selected files that are not pruned
    size_bytes: int
    done_rows: int  #: rows already committed and current
    done_shards: int
    replacements: tuple[Replacement, ...] = ()
    bad_files: tuple[BadRow, ...] = ()  #: newly found unreadable or unusable ones
    known_bad_files: int = 0  #: already in quarantine and unchanged
    cleared_files: tuple[str, ...] = ()  #: source paths whose quarantine no longer stands: changed, tried again
    new_groups: tuple[Group, ...] = ()  #: to be recorded before the first shard runs
    vanished: tuple[str, ...] = ()  #: source paths in the ledger that are no longer listed
    unfinished_partitions: Mapping[str, int] = field(default_factory=dict)  #: shards to do, by partition
    partitions: tuple[str, ...] = ()  #: all selected ones

    @property
    def nothing_to_do(self) -> bool:
        booked = self.replacements or self.bad_files or self.cleared_files
        return not len(self.shards) and not booked
