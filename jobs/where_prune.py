"""Whether a predicate can be true for any row, judged by Parquet's statistics. Never says no without proof."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from . import predicate as p

#: A statistic given as datetime is cut to microseconds: bounds are widened by one.
_TICK = dt.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """``low`` and ``high`` are bounds, not necessarily values that occur; None where they are not known.

    ``nulls`` and ``values``: whether the row group may hold any null, any non-null value.
    """

    low: Any = None
    high: Any = None
    nulls: bool = True
    values: bool = True


@dataclass(frozen=True, slots=True)
class _May:
    """Which answers some row may get."""

    true: bool = True
    false: bool = True
    null: bool = True


_UNKNOWN = _May()


def may_match(node: p.Node, stats: Mapping[str, ColumnStats]) -> bool:
    """``stats`` by column; a column that is absent may hold anything."""
    return _may(node, stats).true


def _may(node: p.Node, stats: Mapping[str, ColumnStats]) -> _May:
    match node:
        case p.Literal(value) if value is None or isinstance(value, bool):
            return _May(value is True, value is False, value is None)
        case p.And(terms):
            found = [_may(term, stats) for term in terms]
            return _May(all(f.true for f in found), any(f.false for f in found), any(f.null for f in found))
        case p.Or(terms):
            found = [_may(term, stats) for term in terms]
            return _May(any(f.true for f in found), all(f.false for f in found), any(f.null for f in found))
        case p.Not(term):
            inner = _may(term, stats)
            return _May(inner.false, inner.true, inner.null)
        case p.IsNull(p.Column(name)) if name in stats:
            return _May(stats[name].nulls, stats[name].values, False)
        case p.Compare(op, p.Column(name), p.Literal(value)) if name in stats:
            return _compare(op, stats[name], value)
        case p.Compare(op, p.Literal(value), p.Column(name)) if name in stats:
            return _compare(_MIRRORED[op], stats[name], value)
        case p.In(p.Column(name), values) if name in stats:
            return _in(stats[name], values)
        case _:
            return _UNKNOWN


_MIRRORED: dict[p.Comparison, p.Comparison] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _in(stats: ColumnStats, values: tuple[p.Value, ...]) -> _May:
    true = any(_compare("=", stats, value).true for value in values)
    return _May(true, stats.values, stats.nulls or None in values)


def _compare(op: p.Comparison, stats: ColumnStats, value: p.Value) -> _May:
    if value is None or not stats.values:
        return _May(False, False, True)
    inside = _bounds(stats, value)
    if inside is None:
        return _May(null=stats.nulls)
    low, high, wanted = inside
    true = {
        "=": low <= wanted <= high,
        "<>": not low == wanted == high,
        "<": low < wanted,
        "<=": low <= wanted,
        ">": high > wanted,
        ">=": high >= wanted,
    }[op]
    # NaN is in no statistics, and answers a comparison with false and <> with true.
    nan = isinstance(stats.low, float) or isinstance(stats.high, float)
    return _May(true or (nan and op == "<>"), nan or not _certain(op, low, high, wanted), stats.nulls)


def _certain(op: p.Comparison, low: Any, high: Any, wanted: Any) -> bool:
    """Whether every value between the bounds answers with true."""
    return bool(
        {
            "=": low == wanted == high,
            "<>": wanted < low or wanted > high,
            "<": high < wanted,
            "<=": high <= wanted,
            ">": low > wanted,
            ">=": low >= wanted,
        }[op]
    )


def _bounds(stats: ColumnStats, value: Any) -> tuple[Any, Any, Any] | None:
    """Both bounds and the value as types that compare; None where one is missing or they do not go together."""
    if stats.low is None or stats.high is None:
        return None
    low, high = _comparable(stats.low), _comparable(stats.high)
    wanted = _comparable(_parsed(value) if isinstance(low, dt.datetime) else value)
    if isinstance(stats.low, dt.datetime):
        low, high = _wider(low, high)
    if _sort(low) is None or not _sort(low) == _sort(high) == _sort(wanted):
        return None
    return low, high, wanted


def _comparable(value: Any) -> Any:
    """Dates as midnights, times in UTC without their zone, text as its bytes."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, dt.date):
        return dt.datetime(value.year, value.month, value.day)
    return value.encode(errors="surrogateescape") if isinstance(value, str) else value


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return dt.datetime.fromisoformat(value)
    except ValueError:
        return value


def _wider(low: dt.datetime, high: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    return (low - _TICK if low > dt.datetime.min else low), (high + _TICK if high < dt.datetime.max else high)


def _sort(value: Any) -> str | None:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float | Decimal):
        return "number" if value == value else None  # NaN as a bound proves nothing
    if isinstance(value, bytes):
        return "bytes"
    return "moment" if isinstance(value, dt.datetime) else None
