"""A ``where`` as a small tree of its own: what it means does not change with the library that parsed it, nor does its
canonical text, which is part of the fingerprint."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal as OneOf

Value = None | bool | int | float | Decimal | str | dt.date | dt.datetime
Comparison = OneOf["=", "<>", "<", "<=", ">", ">="]
Operator = OneOf["+", "-", "*", "/"]
Function = OneOf["lower", "upper", "length"]
CastType = OneOf["BIGINT", "DOUBLE", "VARCHAR", "DATE", "TIMESTAMP"]


@dataclass(frozen=True, slots=True)
class Column:
    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    value: Value


@dataclass(frozen=True, slots=True)
class Compare:
    op: Comparison
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class And:
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    term: Node


@dataclass(frozen=True, slots=True)
class In:
    term: Node
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    term: Node


@dataclass(frozen=True, slots=True)
class IsTruth:
    """``term IS TRUE`` or ``IS FALSE``: never null."""

    term: Node
    value: bool


@dataclass(frozen=True, slots=True)
class Like:
    """``%`` and ``_`` stand for anything and for one character; there is no escape character, as in DuckDB."""

    term: Node
    pattern: str
    ignore_case: bool


@dataclass(frozen=True, slots=True)
class Call:
    name: Function
    term: Node


@dataclass(frozen=True, slots=True)
class Arithmetic:
    op: Operator
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Cast:
    """``lenient`` (TRY_CAST): what can't be cast is null."""

    term: Node
    to: CastType
    lenient: bool


Node = (
    Column | Literal | Compare | And | Or | Not | In | IsNull | IsTruth | Like | Call | Arithmetic | Cast
)  # fmt: skip


def columns_of(node: Node) -> Iterator[str]:
    """Names of columns, in the order of their appearance, with repeats."""
    if isinstance(node, Column):
        yield node.name
    for child in _children(node):
        yield from columns_of(child)


def conjuncts(node: Node) -> tuple[Node, ...]:
    """The terms that must all be true."""
    if isinstance(node, And):
        return tuple(term for child in node.terms for term in conjuncts(child))
    return (node,)


def render(node: Node) -> str:
    """Canonical SQL, fully parenthesised; DuckDB reads it as the same predicate."""
    match node:
        case Column(name):
            return '"' + name.replace('"', '""') + '"'
        case Literal(value):
            return render_value(value)
        case Compare(op, left, right) | Arithmetic(op, left, right):
            return f"({render(left)} {op} {render(right)})"
        case And(terms):
            return "(" + " AND ".join(map(render, terms)) + ")"
        case Or(terms):
            return "(" + " OR ".join(map(render, terms)) + ")"
        case Not(term):
            return f"(NOT {render(term)})"
        case In(term, values):
            return f"({render(term)} IN ({', '.join(map(render_value, values))}))"
        case IsNull(term):
            return f"({render(term)} IS NULL)"
        case IsTruth(term, value):
            return f"({render(term)} IS {str(value).upper()})"
        case Like(term, pattern, ignore_case):
            return f"({render(term)} {'ILIKE' if ignore_case else 'LIKE'} {render_value(pattern)})"
        case Call(name, term):
            return f"{name}({render(term)})"
        case Cast(term, to, lenient):
            return f"{'TRY_CAST' if lenient else 'CAST'}({render(term)} AS {to})"


def render_value(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, dt.datetime):
        return f"{'TIMESTAMPTZ' if value.tzinfo else 'TIMESTAMP'} '{value.isoformat(sep=' ')}'"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, float):
        return repr(value) if "e" in repr(value) else f"{value!r}e0"
    if isinstance(value, Decimal):
        return f"{value:f}"
    return "NULL" if value is None else str(value).upper()


def _children(node: Node) -> tuple[Node, ...]:
    match node:
        case Compare(_, left, right) | Arithmetic(_, left, right):
            return (left, right)
        case And(terms) | Or(terms):
            return terms
        case Not(term) | IsNull(term) | In(term) | IsTruth(term) | Like(term) | Call(_, term) | Cast(term):
            return (term,)
        case Column() | Literal():
            return ()
