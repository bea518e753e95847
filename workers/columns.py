"""The columns of one piece as the job wants them: found or made up, cast to their frozen types, checked for UTF-8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..artifacts.errors import SourceError
from .schema import PSEUDO_TYPES, kept_type
from .shard import ScoreSpec
from .text import Mask, as_text, emptied, invalid_rows, is_bytes, is_string, is_text, text_columns

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


class UnfitColumn(Exception):
    """The file has no such column, or not of a usable type."""


@dataclass(frozen=True)
class Source:
    """Where a batch of rows comes from. ``keys`` are the hive partition's values by name, typed."""

    path: str
    first_row: int
    keys: Mapping[str, pa.Scalar]


@dataclass(frozen=True)
class Columns:
    """Rows of one piece. ``unreadable`` gives, by row, the column whose value is not UTF-8."""

    kept: list[pa.Array]  # in the order of ``keep``, of their frozen types
    texts: Mapping[str, pa.Array]  # large_string, not checked
    selected: Mask  # (rows,)
    unreadable: dict[int, str] = field(default_factory=dict)


def partition_keys(partition: str, types: Mapping[str, pa.DataType]) -> dict[str, pa.Scalar]:
    """Of a hive folder, ``a=1/b=x``. Strings unless declared otherwise: "04" is not 4. Raises SourceError."""
    pairs = (part.partition("=") for part in partition.split("/") if "=" in part)
    return {unquote(name): _key(unquote(value), types.get(unquote(name), pa.string())) for name, _, value in pairs}


def file_columns(score: ScoreSpec, names: Sequence[str], keys: Mapping[str, pa.Scalar]) -> list[str]:
    """What must be read of a file with columns ``names``. Raises UnfitColumn for one that is missing or there twice."""
    needed = [name for name in _needed(score) if name not in PSEUDO_TYPES and (name in names or name not in keys)]
    for name in needed:
        if name not in names:
            raise UnfitColumn(f"no such column: {name}; present are {', '.join(names)}")
        if names.count(name) > 1:
            raise UnfitColumn(f"column is there more than once: {name}")
    return needed


def columns_of(batch: pa.RecordBatch, source: Source, score: ScoreSpec) -> Columns:
    """Raises UnfitColumn where a type does not fit or ``where`` can't be evaluated."""
    unreadable: dict[int, str] = {}
    arrays = {name: _found(batch, source, name) for name in _needed(score)}
    selected = _selected(arrays, score, len(batch), unreadable)
    kept = [_kept(name, arrays[name], score, unreadable) for name in score.keep]
    texts = {name: _text(name, arrays[name]) for name in text_columns(score.text)}
    return Columns(kept, texts, selected, unreadable)


def _needed(score: ScoreSpec) -> list[str]:
    where = score.where_columns if score.where is not None else ()
    return list(dict.fromkeys([*score.keep, *text_columns(score.text), *where]))


def _found(batch: pa.RecordBatch, source: Source, name: str) -> pa.Array:
    if name == "source_file":
        return pa.repeat(pa.scalar(source.path), len(batch))
    if name == "source_row":
        return pa.array(np.arange(source.first_row, source.first_row + len(batch), dtype=np.int64))
    if name in batch.schema.names:
        return batch.column(name)
    return pa.repeat(source.keys[name], len(batch))


def _selected(arrays: Mapping[str, pa.Array], score: ScoreSpec, rows: int, unreadable: dict[int, str]) -> Mask:
    """Rows for which ``where`` is true; null is not. Rows with bad bytes there count as selected, for quarantine."""
    if score.where is None:
        return np.ones(rows, dtype=np.bool_)
    named = {name: _plain(name, arrays[name], unreadable) for name in score.where_columns}
    place = "".join(named) + "#"  # a name that no column has
    table = pa.table({**named, place: pa.array(np.arange(rows))})
    try:
        passed = table.filter(score.where).column(place).to_numpy()
    except (pa.ArrowException, KeyError) as error:
        raise UnfitColumn(f"where can't be evaluated: {error}") from error
    selected = np.zeros(rows, dtype=np.bool_)
    selected[passed] = True
    selected[list(unreadable)] = True
    return selected


def _plain(name: str, array: pa.Array, unreadable: dict[int, str]) -> pa.Array:
    """Text of any kind as plain strings, so that one expression fits every file."""
    if pa.types.is_dictionary(array.type) and not is_text(array.type):
        return array.dictionary_decode()
    if is_string(_value_type(array.type)):
        return _readable(name, as_text(array), unreadable).cast(pa.string())
    return array


def _readable(name: str, text: pa.Array, unreadable: dict[int, str]) -> pa.Array:
    bad = invalid_rows(text)
    for row in np.flatnonzero(bad).tolist():
        unreadable.setdefault(row, name)
    return emptied(text, bad)


def _text(name: str, array: pa.Array) -> pa.Array:
    if not is_text(array.type):
        raise UnfitColumn(f"column is no text: {name}, {array.type}")
    return as_text(array)


def _kept(name: str, array: pa.Array, score: ScoreSpec, unreadable: dict[int, str]) -> pa.Array:
    type_ = kept_type(score, name)
    if _family(array.type) != _family(type_) and not pa.types.is_null(array.type):
        raise UnfitColumn(f"column has another type than in other files: {name}, {array.type} instead of {type_}")
    if is_string(_value_type(type_)):
        text = _readable(name, as_text(array), unreadable)
        # Uncast where nothing was wrong: a dictionary would be made anew.
        array = array if array.type == type_ and not unreadable else text
    try:
        return array.cast(type_)
    except pa.ArrowException as error:
        raise UnfitColumn(f"column does not fit its type in other files: {name}: {error}") from error


def _family(type_: pa.DataType) -> str:
    """Types of one family are cast into each other where no value is lost."""
    type_ = _value_type(type_)
    if is_string(type_) or is_bytes(type_):
        return "text"
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return "number"
    if pa.types.is_timestamp(type_):
        return "timestamp with zone" if type_.tz else "timestamp"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return f"list of {_family(type_.value_type)}"
    for family, known in _FAMILIES.items():
        if known(type_):
            return family
    return str(type_)


_FAMILIES = {
    "decimal": pa.types.is_decimal,
    "date": pa.types.is_date,
    "time": pa.types.is_time,
    "duration": pa.types.is_duration,
}


def _value_type(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _key(value: str, type_: pa.DataType) -> pa.Scalar:
    if value == _HIVE_NULL:
        return pa.scalar(None, type_)
    try:
        return pc.cast(pa.scalar(value), type_)
    except pa.ArrowException as error:
        message = f"partition value does not fit its declared type: {value}, {type_}"
        raise SourceError(message, "declare another type, or none: values are strings then") from error
