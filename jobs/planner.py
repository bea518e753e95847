"""The plan: which shards the source should have in the sink, without those that are there. Reads, never writes.

Cut first, subtract after: where files are cut does not depend on what was committed, so a resumed run cuts the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from .. import __version__
from ..artifacts.errors import HeadraceError
from ..artifacts.manifest import Content, Variant
from ..workers.schema import PSEUDO_TYPES
from ..workers.shard import FileIdentity, Piece, ScoreSpec
from ..workers.text import text_columns
from .contract import Contract, refuse_other_limit, refuse_other_sink, refuse_other_terms
from .facts import Findings, Needs, inspect, refuse_unusable
from .fingerprint import fingerprint_of, terms_of
from .known_files import FileFacts, KnownFiles
from .records import Group, LedgerView, PartRecord, Plan
from .selection import Selection, key_types_of, vanished_files
from .source import Listing, SourceFile
from .spec import Job
from .subtract import Committed, Left, Rules, subtract
from .targets import Grouping, Usable, targets
from .where import Where, parse_where

#: What is kept where the job names nothing: enough to find the row again.
DEFAULT_KEEP = tuple(PSEUDO_TYPES)


class Artifact(Protocol):
    """What a plan needs of an artifact."""

    @property
    def content(self) -> Content: ...

    @property
    def digest(self) -> str: ...

    @property
    def model(self) -> str: ...


@dataclass(frozen=True)
class PlannedJob:
    plan: Plan
    score: ScoreSpec
    contract: Contract  #: to be saved before the first shard
    notices: tuple[str, ...] = ()  #: for the user, a line each


def make_plan(
    job: Job,
    artifact: Artifact,
    variant: Variant,
    listing: Listing,
    ledger: LedgerView,
    groups: Sequence[Group],
    contract: Contract | None,
    retry_quarantined: bool = False,
) -> PlannedJob:
    """What ``job`` has to do, given the source's ``listing`` and what the sink's state holds.

    Footers are read of files that neither the state nor the ledger tells enough of. ``retry_quarantined`` tries files
    and shards again of which something is in quarantine.

    Raises SourceError where nothing can be scored, SpecError where ``where`` does not fit the columns, UsageError for a
    sink with other terms or the state of another sink, LimitExceeded for a listing that lost most of its files,
    TransientError from the storage.
    """
    return _Planner(job, artifact, variant, listing, ledger, groups, contract, retry_quarantined).planned()


@dataclass
class _Planner:
    job: Job
    artifact: Artifact
    variant: Variant
    listing: Listing
    ledger: LedgerView
    groups: Sequence[Group]
    contract: Contract | None
    retry: bool
    committed: Committed = field(init=False)
    key_types: dict[str, pa.DataType] = field(init=False)
    rows: Where = field(init=False)  #: the part of ``where`` that is evaluated row by row
    keep: tuple[str, ...] = field(init=False)
    terms: dict[str, Any] = field(init=False)
    fingerprint: str = field(init=False)
    selected: list[SourceFile] = field(init=False)  #: by partition, then path
    vanished: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._refuse_another_sink()
        job = self.job
        self.committed = Committed.of(self.ledger.parts)
        self.key_types = key_types_of(job, self.listing)
        files, self.rows = parse_where(job.source.where).split(self._hive_keys())
        self.keep = job.sink.keep or DEFAULT_KEEP
        self.terms = terms_of(job, self.artifact.content, self.artifact.digest, self.keep, self.rows)
        self.fingerprint = fingerprint_of(self.terms)
        selection = Selection(files, self.key_types)
        self.selected = selection.files(self.listing)
        self.vanished = vanished_files(self.listing, self.committed, selection)

    def _hive_keys(self) -> list[str]:
        """Partition keys that ``where`` can name: pseudo columns hide those of their names."""
        return [name for name in self.listing.partition_keys if name not in PSEUDO_TYPES]

    def planned(self) -> PlannedJob:
        good, known_bad = self._without_known_bad()
        found = self._look(good)
        self._refuse_other_terms()  # last: a misspelt column is told as such, not as another job
        facts = found.facts
        bad = {bad.file.path for bad in found.bad} | {file.identity.path for file in known_bad}
        usable = [(file, facts[file.identity]) for file in good if file.identity in facts]
        grouping = self._grouping(usable)
        settled = self._settled(usable, grouping)
        gone = set(self.vanished)
        replace_gone = self.job.source.on_source_deleted == "replace"
        rules = Rules(
            self.fingerprint,
            planned={file.identity.path for file, _ in usable} | (gone if replace_gone else set()),
            ignored=bad if replace_gone else bad | gone,
            settled=settled,
            any_fingerprint=self.job.on_change == "new_only",
            retry_quarantined=self.retry,
        )
        wanted = [(file, fact) for file, fact in usable if file.identity.path not in settled]
        left = subtract(targets(wanted, grouping, self.job.shard_rows, self.job.limit), self.committed, rules)
        plan = self._plan(left, found, len(known_bad), settled, grouping)
        contract = self._contract(found)
        return PlannedJob(plan, self._score(contract, plan), contract, tuple(self._notices()))

    def _refuse_another_sink(self) -> None:
        """A state that lies beside its sink may be moved with it: only the folder above is another then."""
        before, sink = self.contract, self.job.sink
        together = sink.state is None and before is not None and _name(before.sink) == _name(sink.path)
        if not together:
            refuse_other_sink(before, sink.path, self.job.state_url())

    def _refuse_other_terms(self) -> None:
        """Parts made under other terms are kept, replaced or, by default, a reason to stop; with ``--limit`` always."""
        if not self.ledger.parts:
            return
        job, path = self.job, self.job.sink.path
        records = [r for file in self.selected for r in self._records(file.identity.path)]
        others = dict.fromkeys(r.fingerprint for r in records if r.fingerprint != self.fingerprint)
        present = dict.fromkeys(r.fingerprint for r in self.ledger.parts.values())
        replace = job.on_change == "replace"
        refuse_other_limit(self.contract, self.terms, self.fingerprint, present, others, path, replace)
        if job.on_change is None:
            refuse_other_terms(self.contract, self.terms, self.fingerprint, others, path)

    def _records(self, path: str) -> list[PartRecord]:
        return [self.ledger.parts[shard_id] for shard_id in self.committed.by_path.get(path, ())]

    def _without_known_bad(self) -> tuple[list[SourceFile], list[SourceFile]]:
        good: list[SourceFile] = []
        bad: list[SourceFile] = []
        for file in self.selected:
            record = self.ledger.bad_files.get(file.identity.path)
            known = record is not None and record.file == file.identity and not self.retry
            (bad if known else good).append(file)
        return good, bad

    # -- what the source holds ---------------------------------------------------------------------------------------

    def _look(self, files: list[SourceFile]) -> Findings:
        """Facts about ``files``, of as few footers as possible. Raises SourceError where none can be used."""
        known = self.contract.known.under(self.fingerprint) if self.contract else {}
        unread = {**self._whole_in_groups(files), **known}
        needs = Needs(text_columns(self.job.text_spec()), self.keep, self.rows, self.key_types, self.job.limit)
        found = inspect(files, needs, self.job.source.storage_options, unread)
        records = (record for file in self.selected for record in self._records(file.identity.path))
        if not any(record.fingerprint == self.fingerprint for record in records):
            refuse_unusable(found, needs)
        if self.job.limit is not None:
            seen = {file.identity for file in files[: found.files]}
            self.selected = [file for file in self.selected if file.identity in seen]
        return found

    def _whole_in_groups(self, files: list[SourceFile]) -> dict[FileIdentity, FileFacts]:
        """Rows of unchanged members of a committed group: its pieces are whole files. Their columns' types have to be
        known from elsewhere, though."""
        if self.contract is None or self.contract.fingerprint != self.fingerprint:
            return {}
        found: dict[FileIdentity, FileFacts] = {}
        ids = {group.id for group in self.groups}
        for file in files:
            for record in self._records(file.identity.path):
                if record.shard_id in ids and record.fingerprint == self.fingerprint:
                    found.update({p.file: FileFacts((p.rows,)) for p in record.pieces if p.file == file.identity})
        return found

    def _settled(self, usable: Sequence[Usable], grouping: Grouping) -> dict[str, int]:
        """With ``on_change: new_only``: rows of unchanged files that parts of other terms cover in full.

        Not of a group's members: whether a group is current is for all of them together.
        """
        found: dict[str, int] = {}
        for file, facts in usable if self.job.on_change == "new_only" else ():
            path, records = file.identity.path, self._records(file.identity.path)
            pieces = [piece for record in records for piece in record.pieces]
            other = any(record.fingerprint != self.fingerprint for record in records)
            at_home = all(record.partition == file.partition for record in records)
            if other and at_home and path not in grouping.recorded and _covers(pieces, file.identity, facts.rows):
                found[path] = facts.rows
        return found

    def _grouping(self, usable: Iterable[Usable]) -> Grouping:
        recorded: dict[str, Group] = {}
        kept: dict[str, list[Piece]] = {}
        for group in sorted(self.groups, key=lambda group: group.id not in self.ledger.parts):  # committed ones first
            recorded.update((path, group) for path in group.files if path not in recorded)
            pieces = self.ledger.parts[group.id].pieces if group.id in self.ledger.parts else ()
            kept[group.id] = [piece for piece in pieces if self._is_elsewhere(piece.file.path)]
        placed = {file.identity.path for file, _ in usable if file.identity.path in self.committed.by_path}
        return Grouping(recorded, placed, kept)

    def _is_elsewhere(self, path: str) -> bool:
        """Whether this listing can't tell if the file is still there."""
        return path not in self.listing.by_path and not self.listing.covers(path)

    # -- results -----------------------------------------------------------------------------------------------------

    def _plan(
        self, left: Left, found: Findings, known_bad: int, settled: Mapping[str, int], grouping: Grouping
    ) -> Plan:
        bad = {bad.file.path: bad.file for bad in found.bad}
        settled_parts = {shard_id for path in settled for shard_id in self.committed.by_path[path]}
        done_rows = left.done_rows + sum(settled.values())
        unfinished = dict(left.unfinished)
        for file in self.selected:
            if file.identity.path in bad:
                unfinished.setdefault(file.partition, 0)
        used = set(left.shards.ids) if grouping.new else set()
        return Plan(
            shards=left.shards,
            files=len(self.selected),
            rows=done_rows + int(left.shards.piece_rows.sum()),
            size_bytes=sum(file.identity.size_bytes for file in self.selected),
            done_rows=done_rows,
            done_shards=left.done_shards + len(settled_parts),
            replacements=left.replacements,
            bad_files=tuple(found.bad),
            known_bad_files=known_bad,
            cleared_files=tuple(path for path in self._cleared() if path not in bad),
            new_groups=tuple(group for group in grouping.new if group.id in used),
            vanished=tuple(self.vanished),
            unfinished_partitions=unfinished,
            partitions=tuple(dict.fromkeys(file.partition for file in self.selected)),
        )

    def _cleared(self) -> list[str]:
        selected = {file.identity.path: file.identity for file in self.selected}
        return [
            path
            for path, record in self.ledger.bad_files.items()
            if path in selected and (self.retry or selected[path] != record.file)
        ]

    def _contract(self, found: Findings) -> Contract:
        before = self.contract
        same = before is not None and before.fingerprint == self.fingerprint
        kept = before.keep_types if before and (same or self.job.on_change == "new_only") else {}
        where = before.where_types if before and same else {}
        # Types are frozen by the first part, not by a first run that wrote none.
        sources = (kept, found.types) if self.ledger.parts else (found.types, kept)
        keep_types = {name: _written(type_) for name, type_ in _known_types(self.keep, *sources).items()}
        where_types = _known_types(self.rows.columns, PSEUDO_TYPES, where, found.types, self.key_types)
        earlier = dict(before.earlier) if before else {}
        if before and before.fingerprint != self.fingerprint:
            earlier[before.fingerprint] = before.terms
        present = {record.fingerprint for record in self.ledger.parts.values()} - {self.fingerprint}
        return Contract(
            fingerprint=self.fingerprint,
            terms=self.terms,
            keep_types=keep_types,
            where_types=where_types,
            version=__version__,
            earlier={fingerprint: terms for fingerprint, terms in earlier.items() if fingerprint in present},
            known=KnownFiles(self.fingerprint, self._known(found)),
            sink=self.job.sink.path.rstrip("/"),
        )

    def _known(self, found: Findings) -> dict[FileIdentity, FileFacts]:
        before = self.contract.known.under(self.fingerprint) if self.contract else {}
        still = {
            file: facts
            for file, facts in before.items()
            if self.listing.by_path.get(file.path) == file or self._is_elsewhere(file.path)
        }
        return {**still, **found.facts}

    def _score(self, contract: Contract, plan: Plan) -> ScoreSpec:
        job = self.job
        needed = len(plan.shards) > 0
        keep_types, where_types = contract.keep_types, contract.where_types
        lacking = [name for name in self.keep if name not in keep_types and name not in PSEUDO_TYPES]
        lacking += [name for name in self.rows.columns if name not in where_types]
        if needed and lacking:
            raise HeadraceError(f"no type is known of column {lacking[0]}: this is a bug", "please report it")
        return ScoreSpec(
            text=job.text_spec(),
            keep=self.keep,
            keep_types={**dict.fromkeys(lacking, pa.string()), **keep_types},
            fingerprint=self.fingerprint,
            partition_types=job.source.key_types(),
            task=job.task_options(),
            empty=job.empty,
            where=self.rows.expression(where_types) if needed else None,
            where_columns=self.rows.columns,
            batching=job.batching,
            batch_tokens=job.batch_tokens or self.variant.batch_tokens,
            window_rows=job.window_rows,
            column_prefix=job.sink.column_prefix,
            keep_text=job.sink.keep_text,
            model=self.artifact.model,
        )

    def _notices(self) -> list[str]:
        if self.job.sink.keep:
            return []
        return [f"sink.keep names no column: {' and '.join(DEFAULT_KEEP)} are written"]


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _covers(pieces: Sequence[Piece], file: FileIdentity, rows: int) -> bool:
    """Whether ``pieces`` are every row of this version of the file, once."""
    at = 0
    for piece in sorted(pieces, key=lambda piece: piece.first_row):
        if piece.file != file or piece.first_row != at:
            return False
        at += piece.rows
    return at == rows


def _known_types(names: Iterable[str], *sources: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The first type given for each name, preferably one that is not null; names without any are left out."""
    found: dict[str, pa.DataType] = {}
    for name in names:
        given = [source[name] for source in sources if name in source]
        if given:
            found[name] = next((type_ for type_ in given if not pa.types.is_null(type_)), given[0])
    return found


def _written(type_: pa.DataType) -> pa.DataType:
    """A kept column that is null throughout is written as text."""
    return pa.string() if pa.types.is_null(type_) else type_
