"""SQL text to a predicate, by sqlglot in DuckDB's dialect. What is not understood is refused by name, never guessed."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn, cast

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from ..artifacts.errors import SpecError
from .predicate import (
    And,
    Arithmetic,
    Call,
    Cast,
    CastType,
    Column,
    Compare,
    Comparison,
    Function,
    In,
    IsNull,
    IsTruth,
    Like,
    Literal,
    Node,
    Not,
    Operator,
    Or,
    Value,
)

_SUPPORTED = (
    "supported are comparisons, AND, OR, NOT, IN, BETWEEN, IS NULL, LIKE, ILIKE, + - * /, lower, upper, length, CAST, "
    "TRY_CAST, and literals: 'text', numbers, TRUE, DATE '2026-12-01', TIMESTAMP '2026-12-01 10:00:00'"
)
_COMPARISONS: dict[type[exp.Expression], Comparison] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_OPERATORS: dict[type[exp.Expression], Operator] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/"}
_FUNCTIONS: dict[type[exp.Expression], Function] = {exp.Lower: "lower", exp.Upper: "upper", exp.Length: "length"}
_CAST_TYPES: dict[str, CastType] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), "BIGINT"),
    **dict.fromkeys(("FLOAT", "DOUBLE"), "DOUBLE"),
    **dict.fromkeys(("TEXT", "VARCHAR"), "VARCHAR"),
    "DATE": "DATE",
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPNTZ", "DATETIME"), "TIMESTAMP"),
}


def parse(sql: str) -> Node:
    """Raises SpecError naming what can't be read or is not supported, and where."""
    try:
        tree: Any = sqlglot.parse_one(sql, into=exp.Condition, dialect="duckdb")
    except SqlglotError as error:
        raise _unreadable(sql, error) from error
    except RecursionError as error:
        raise SpecError("where is nested too deeply", "write long lists with IN") from error
    return _Reader(sql).node(tree)


def _unreadable(sql: str, error: SqlglotError) -> SpecError:
    details: list[dict[str, Any]] = getattr(error, "errors", None) or [{}]
    line, column = details[0].get("line"), details[0].get("col")
    place = f", line {line}, character {column}" if line else ""
    return SpecError(f"where can't be read: {sql!r}{place}", "write a condition as in SQL: id > 10 AND lang = 'en'")


class _Reader:
    def __init__(self, sql: str) -> None:
        self._sql = sql

    def node(self, tree: exp.Expression) -> Node:
        kind = type(tree)
        if kind in _COMPARISONS:
            return Compare(_COMPARISONS[kind], *self._pair(tree))
        if kind in _OPERATORS:
            return Arithmetic(_OPERATORS[kind], *self._pair(tree))
        if kind in _FUNCTIONS:
            # sqlglot marks some functions with how other dialects count; only the argument matters here.
            return Call(_FUNCTIONS[kind], self.node(tree.this))
        reader: Callable[[_Reader, Any], Node] | None = _READERS.get(kind)
        return reader(self, tree) if reader else self._refuse(tree)

    def _pair(self, tree: exp.Expression) -> tuple[Node, Node]:
        return self.node(tree.this), self.node(tree.expression)

    def _logical(self, tree: exp.And | exp.Or) -> Node:
        kind, terms = type(tree), list[exp.Expression]()
        todo = [tree]
        while todo:  # a chain of ORs is as deep as it is long
            one = todo.pop()
            if type(one) is kind:
                todo += [one.expression, one.this]
            else:
                terms.append(one)
        found = tuple(self.node(term) for term in terms)
        return And(found) if kind is exp.And else Or(found)

    def _paren(self, tree: exp.Paren) -> Node:
        return self.node(tree.this)

    def _not(self, tree: exp.Not) -> Node:
        return Not(self.node(tree.this))

    def _negative(self, tree: exp.Neg) -> Node:
        inner = self.node(tree.this)
        if isinstance(inner, Literal) and isinstance(inner.value, int | float | Decimal):
            return Literal(-inner.value)
        return Arithmetic("-", Literal(0), inner)

    def _column(self, tree: exp.Column) -> Node:
        if tree.args.get("table") or not isinstance(tree.this, exp.Identifier):
            self._refuse(tree, "a field of a struct")
        return Column(tree.name)

    def _in(self, tree: exp.In) -> Node:
        self._only(tree, "this", "expressions")
        return In(self.node(tree.this), tuple(self._value(item) for item in tree.expressions))

    def _between(self, tree: exp.Between) -> Node:
        self._only(tree, "this", "low", "high")
        term = self.node(tree.this)
        low, high = self.node(tree.args["low"]), self.node(tree.args["high"])
        return And((Compare(">=", term, low), Compare("<=", term, high)))

    def _is(self, tree: exp.Is) -> Node:
        if isinstance(tree.expression, exp.Null):
            return IsNull(self.node(tree.this))
        if isinstance(tree.expression, exp.Boolean):
            return IsTruth(self.node(tree.this), bool(tree.expression.this))
        return self._refuse(tree)

    def _like(self, tree: exp.Like | exp.ILike) -> Node:
        self._only(tree, "this", "expression", "negate")
        pattern = self._value(tree.expression)
        if not isinstance(pattern, str):
            self._refuse(tree, "LIKE with a pattern that is not text")
        found = Like(self.node(tree.this), pattern, isinstance(tree, exp.ILike))
        return Not(found) if tree.args.get("negate") else found

    def _cast(self, tree: exp.Cast) -> Node:
        name = tree.to.this.name if isinstance(tree.to, exp.DataType) else str(tree.to)
        inner, lenient = self.node(tree.this), isinstance(tree, exp.TryCast)
        if isinstance(inner, Literal) and isinstance(inner.value, str) and name in _TIMES:
            return Literal(self._time(tree, name, inner.value))
        if name not in _CAST_TYPES:
            self._refuse(tree, f"a cast to {name}")
        return Cast(inner, _CAST_TYPES[name], lenient)

    def _time(self, tree: exp.Cast, name: str, text: str) -> dt.date | dt.datetime:
        try:
            return _TIMES[name](text)
        except ValueError as error:
            raise SpecError(f"where has a bad literal: {tree.sql(dialect='duckdb')}: {error}", _SUPPORTED) from error

    def _literal(self, tree: exp.Literal) -> Node:
        return Literal(str(tree.this) if tree.is_string else self._number(tree))

    def _number(self, tree: exp.Literal) -> int | float | Decimal:
        text = str(tree.this).replace("_", "")
        try:
            if "e" in text.lower():
                return float(text) if math.isfinite(float(text)) else self._refuse(tree, f"the number {text}")
            return Decimal(text) if "." in text else int(text)
        except (ValueError, InvalidOperation):
            return self._refuse(tree, f"the number {text}")

    def _value(self, tree: exp.Expression) -> Value:
        found = self.node(tree)
        if not isinstance(found, Literal):
            self._refuse(tree, f"{tree.sql(dialect='duckdb')} where only a literal may stand")
        return found.value

    def _only(self, tree: exp.Expression, *known: str) -> None:
        if any(value for name, value in tree.args.items() if name not in known):
            self._refuse(tree)

    def _refuse(self, tree: exp.Expression, what: str = "") -> NoReturn:
        starts = [node.meta["start"] for node in tree.walk() if "start" in node.meta]
        place = f", near character {min(starts) + 1}" if starts else ""
        name = what or f"{type(tree).__name__.upper()} ({tree.sql(dialect='duckdb')})"
        raise SpecError(f"where does not support {name}: {self._sql!r}{place}", _SUPPORTED)


def _naive(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    return found.astimezone(dt.UTC).replace(tzinfo=None) if found.tzinfo else found


def _aware(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    return found.astimezone(dt.UTC) if found.tzinfo else found.replace(tzinfo=dt.UTC)


_TIMES: dict[str, Callable[[str], dt.date | dt.datetime]] = {
    "DATE": dt.date.fromisoformat,
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPNTZ", "DATETIME"), _naive),
    "TIMESTAMPTZ": _aware,
}
_READERS = cast(
    "dict[type[exp.Expression], Callable[[_Reader, Any], Node]]",
    {
        exp.And: _Reader._logical,
        exp.Or: _Reader._logical,
        exp.Paren: _Reader._paren,
        exp.Not: _Reader._not,
        exp.Neg: _Reader._negative,
        exp.Column: _Reader._column,
        exp.In: _Reader._in,
        exp.Between: _Reader._between,
        exp.Is: _Reader._is,
        exp.Like: _Reader._like,
        exp.ILike: _Reader._like,
        exp.Cast: _Reader._cast,
        exp.TryCast: _Reader._cast,
        exp.Literal: _Reader._literal,
        exp.Boolean: lambda _reader, tree: Literal(bool(tree.this)),
        exp.Null: lambda _reader, _tree: Literal(None),
    },
)
