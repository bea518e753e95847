"""Footers to facts: rows, row groups that can't match, column types; and the files that can't be used, with why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from ..artifacts.errors import SourceError
from ..workers.columns import partition_keys
from ..workers.schema import PSEUDO_TYPES
from ..workers.shard import BadRow, FileIdentity
from ..workers.text import is_text
from .footers import FileFooter, read_footers
from .known_files import FileFacts
from .source import SourceFile
from .where import ColumnStats, Where

#: With ``--limit`` footers are read so many at a time, until there are rows enough.
_CHUNK = 64


@dataclass(frozen=True)
class Needs:
    """Columns by what they are for; partition keys may stand among them. ``key_types`` are those of all keys."""

    text: tuple[str, ...]
    keep: tuple[str, ...]
    rows: Where
    key_types: Mapping[str, pa.DataType]
    limit: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        named = (*self.text, *self.keep, *self.rows.columns)
        return tuple(name for name in dict.fromkeys(named) if name not in PSEUDO_TYPES)


@dataclass
class Findings:
    """What footers told. ``types`` are those of needed columns: the first that is not null, widened within its kind."""

    facts: dict[FileIdentity, FileFacts] = field(default_factory=dict)
    bad: list[BadRow] = field(default_factory=list)
    types: dict[str, pa.DataType] = field(default_factory=dict)
    files: int = 0  #: how many of those given were looked at
    readable: int = 0
    columns: dict[str, None] = field(default_factory=dict)  #: of all readable files, in order
    missing: dict[str, int] = field(default_factory=dict)  #: readable files without the column
    no_text: dict[str, int] = field(default_factory=dict)  #: readable files where the text column is none


def inspect(
    files: Sequence[SourceFile], needs: Needs, options: Mapping[str, Any], known: Mapping[FileIdentity, FileFacts]
) -> Findings:
    """Facts about ``files``, from ``known`` or their footers; with a limit only of as many as are needed for it.

    Raises TransientError where the storage fails.
    """
    found = Findings()
    todo = iter(files)
    rows = 0
    while chunk := list(islice(todo, _CHUNK if needs.limit is not None else None)):
        found.files += len(chunk)
        fresh = [file for file in chunk if file.identity not in known]
        footers = read_footers([file.identity for file in fresh], options, needs.rows.columns)
        for file, footer in zip(fresh, footers, strict=True):
            _take(found, file, footer, needs)
        found.facts.update((file.identity, known[file.identity]) for file in chunk if file.identity in known)
        rows += sum(_living(found.facts[file.identity]) for file in chunk if file.identity in found.facts)
        if needs.limit is not None and rows >= needs.limit:
            break
    return found


def refuse_unusable(found: Findings, needs: Needs) -> None:
    """For a source of which nothing was ever scored under these terms. Raises SourceError where no file can be used."""
    keys = ", ".join(needs.key_types)
    present = f"columns are: {', '.join(found.columns)}" + (f"; partition keys: {keys}" if keys else "")
    for name, count in found.missing.items():
        if count == found.readable:
            raise SourceError(f"no such column in any source file: {name}", present)
    for name, count in found.no_text.items():
        if count == found.readable:
            raise SourceError(f"column is no text in any source file: {name}, {found.types[name]}", present)
    if found.bad and not found.facts:
        first = found.bad[0]
        hint = f"all {len(found.bad):,} files looked at are like it" if len(found.bad) > 1 else "it is the only one"
        raise SourceError(f"no source file can be used: {first.file.path}: {first.reason}", hint)


def _take(found: Findings, file: SourceFile, footer: FileFooter | BadRow, needs: Needs) -> None:
    if isinstance(footer, BadRow):
        found.bad.append(footer)
        return
    found.readable += 1
    found.columns.update(dict.fromkeys(footer.columns))
    keys = partition_keys(file.partition, needs.key_types)
    _learn_types(found, footer, keys, needs)
    reason = _unusable(found, footer, keys, needs)
    if reason is not None:
        found.bad.append(BadRow(file.identity, None, "read", reason))
        return
    found.facts[file.identity] = FileFacts(
        footer.row_groups, tuple(_dead(footer, file.identity.path, keys, needs.rows))
    )


def _unusable(found: Findings, footer: FileFooter, keys: Mapping[str, pa.Scalar], needs: Needs) -> str | None:
    """Why the file can't be scored; counts what is wrong with it."""
    present = f"columns are: {', '.join(footer.columns)}"
    absent = [name for name in needs.columns if name not in footer.types and name not in keys]
    others = [name for name in needs.text if name in footer.types and not is_text(footer.types[name])]
    for counter, names in ((found.missing, absent), (found.no_text, others)):
        for name in names:
            counter[name] = counter.get(name, 0) + 1
    if absent:
        return f"no such column: {absent[0]}; {present}"
    twice = next((name for name in needs.columns if footer.columns.count(name) > 1), None)
    if twice is not None:
        return f"column is there more than once: {twice}"
    return f"column is no text: {others[0]}, {footer.types[others[0]]}" if others else None


def _learn_types(found: Findings, footer: FileFooter, keys: Mapping[str, pa.Scalar], needs: Needs) -> None:
    for name in needs.columns:
        type_ = footer.types.get(name)
        if type_ is None and name in keys:
            type_ = keys[name].type
        if type_ is not None:
            found.types[name] = widest(found.types.get(name), type_)


def widest(one: pa.DataType | None, other: pa.DataType) -> pa.DataType:
    """``one``, unless it is null or ``other`` is a wider number. Dictionaries count as what they hold."""
    other = other.value_type if pa.types.is_dictionary(other) else other
    if one is None or pa.types.is_null(one):
        return other
    for same in (pa.types.is_signed_integer, pa.types.is_unsigned_integer, pa.types.is_floating):
        if same(one) and same(other):
            return other if other.bit_width > one.bit_width else one
    return one


def _dead(footer: FileFooter, path: str, keys: Mapping[str, pa.Scalar], rows: Where) -> Iterator[int]:
    """Row groups in which no row can match."""
    if not rows.terms:
        return
    constant = {
        name: _constant(keys[name].as_py()) for name in rows.columns if name in keys and name not in footer.types
    }
    constant["source_file"] = _constant(path)
    first = 0
    for number, (stats, count) in enumerate(zip(footer.stats, footer.row_groups, strict=True)):
        # Pseudo columns last: they hide what a file has under their names.
        here = ColumnStats(first, first + count - 1, nulls=False, values=count > 0)
        if not rows.may_match({**stats, **constant, "source_row": here}):
            yield number
        first += count


def _constant(value: Any) -> ColumnStats:
    return ColumnStats(value, value, nulls=value is None, values=value is not None)


def _living(facts: FileFacts) -> int:
    return facts.rows - sum(facts.row_groups[number] for number in facts.dead)
