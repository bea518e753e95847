"""What the dispatcher tells its shell to do. Shards are positions in the plan; workers are names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartWorker:
    worker: str
    pool: str


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End a worker that does not answer; the dispatcher has already taken its shards back."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class Score:
    """``excluded`` are rows of the shard (counted from its first) that go to quarantine unseen: they kill workers."""

    worker: str
    shard: int
    attempt: int
    excluded: tuple[int, ...] = ()
    row_by_row: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """Score rows ``first`` to ``last`` of the shard and write nothing: does this range kill its worker."""

    worker: str
    shard: int
    first: int
    last: int
    excluded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Publish:
    """``deadline_s`` is on the worker's clock."""

    worker: str
    shard: int
    attempt: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Discard:
    worker: str
    shard: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The part is visible: put it in the ledger."""

    worker: str
    shard: int
    attempt: int


@dataclass(frozen=True, slots=True)
class CheckPart:
    """A grant ended without an answer: look whether the part was published."""

    shard: int


@dataclass(frozen=True, slots=True)
class BeginReplacement:
    """Every new shard is staged: write the intent, remove the old parts, then answer ``replacement_begun``."""

    replacement: int


@dataclass(frozen=True, slots=True)
class EndReplacement:
    replacement: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A shard used up its attempts; the others go on."""

    shard: int
    error: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Nothing can go on."""

    error: str
    hint: str


Instruction = (
    StartWorker
    | KillWorker
    | Score
    | Probe
    | Publish
    | Discard
    | Commit
    | CheckPart
    | BeginReplacement
    | EndReplacement
    | GiveUp
    | Abort
)
