"""A predicate to a ``pyarrow.compute`` expression with SQL's meaning: null where SQL says null, types never guessed.

Every column is cast to one type of its kind, so that one expression fits files whose types differ within a kind.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from ..artifacts.errors import SpecError
from . import predicate as p

Kind = Literal["null", "bool", "int", "float", "decimal", "text", "bytes", "date", "timestamp", "zoned", "other"]
_INT64 = range(-(2**63), 2**63)
_UINT64_AS = pa.decimal128(20, 0)  #: Arrow compares uint64 as int64, and fails on what does not fit
_WHOLE = r"^-?[0-9]{1,18}$"
_NUMBER = r"^-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?$"
_QUOTES = "text stands in quotes, numbers do not"


@dataclass(frozen=True)
class Typed:
    expression: pc.Expression
    kind: Kind
    type: pa.DataType


def canonical(type_: pa.DataType) -> tuple[Kind, pa.DataType]:
    """The kind of a column and the type that its values are compared in."""
    if pa.types.is_dictionary(type_):
        return canonical(type_.value_type)
    if pa.types.is_uint64(type_):
        return "decimal", _UINT64_AS
    if pa.types.is_timestamp(type_):
        return ("zoned" if type_.tz else "timestamp"), type_
    for known, kind, plain in _KINDS:
        if known(type_):
            return kind, plain or type_
    return "other", type_


_KINDS: list[tuple[Any, Kind, pa.DataType | None]] = [
    (pa.types.is_null, "null", None),
    (pa.types.is_boolean, "bool", None),
    (pa.types.is_integer, "int", pa.int64()),
    (pa.types.is_float64, "float", None),
    (pa.types.is_floating, "float", pa.float32()),
    (pa.types.is_decimal, "decimal", None),
    (pa.types.is_string, "text", None),
    (pa.types.is_large_string, "text", pa.string()),
    (pa.types.is_string_view, "text", pa.string()),
    (pa.types.is_binary, "bytes", None),
    (pa.types.is_large_binary, "bytes", pa.binary()),
    (pa.types.is_binary_view, "bytes", pa.binary()),
    (pa.types.is_date, "date", pa.date32()),
]


def compile_condition(node: p.Node, types: Mapping[str, pa.DataType]) -> pc.Expression:
    """Raises SpecError where types do not go together, or Arrow has no way to do it."""
    expression = _Compiler(types).condition(node)
    empty = pa.table(
        {name: pa.array([], _plain(types[name])) for name in set(p.columns_of(node))} | {"#": pa.array([], pa.int64())}
    )
    try:
        empty.filter(expression)
    except pa.ArrowException as error:
        raise SpecError(f"where can't be evaluated: {p.render(node)}: {error}", "compare values of one type") from error
    return expression


def _plain(type_: pa.DataType) -> pa.DataType:
    kind, plain = canonical(type_)
    return plain if kind == "text" else type_


class _Compiler:
    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        self._types = types

    def condition(self, node: p.Node) -> pc.Expression:
        found = self._value(node)
        if found.kind == "null":
            return _null(pa.bool_())
        if found.kind != "bool":
            raise SpecError(f"where is not a condition: {p.render(node)}", "compare it with something")
        return found.expression

    def _value(self, node: p.Node) -> Typed:
        match node:
            case p.Column(name):
                kind, type_ = canonical(self._types[name])
                field = pc.field(name)
                return Typed(field if kind in ("other", "null") else field.cast(type_), kind, type_)
            case p.Literal(value):
                return _literal(value)
            case p.Arithmetic():
                return self._arithmetic(node)
            case p.Call(name, term):
                return self._call(name, term)
            case p.Cast(term, to, lenient):
                return self._cast(node, self._value(term), to, lenient)
            case _:
                return Typed(self._boolean(node), "bool", pa.bool_())

    def _boolean(self, node: p.Node) -> pc.Expression:
        match node:
            case p.And(terms):
                return _tree([self.condition(term) for term in terms], pc.and_kleene)
            case p.Or(terms):
                return _tree([self.condition(term) for term in terms], pc.or_kleene)
            case p.Not(term):
                return ~self.condition(term)
            case p.IsNull(term):
                return self._value(term).expression.is_null()
            case p.IsTruth(term, value):
                condition = self.condition(term)
                return pc.coalesce(condition if value else ~condition, pc.scalar(False))
            case p.Compare(op, left, right):
                return self._compare(op, left, right)
            case p.In(term, values):
                return self._in(term, values)
            case p.Like(term, pattern, ignore_case):
                return self._like(term, pattern, ignore_case)
        raise TypeError(type(node).__name__)

    def _compare(self, op: p.Comparison, left: p.Node, right: p.Node) -> pc.Expression:
        a, b = self._value(left), self._value(right)
        what = f"({p.render(left)} {op} {p.render(right)})"
        if isinstance(right, p.Literal):
            a, b = _meet_literal(a, right.value, what)
        elif isinstance(left, p.Literal):
            b, a = _meet_literal(b, left.value, what)
        else:
            a, b = _meet(a, b, what)
        if "null" in (a.kind, b.kind):
            return _null(pa.bool_())
        return _COMPARE[op](a.expression, b.expression)

    def _in(self, term: p.Node, values: tuple[p.Value, ...]) -> pc.Expression:
        """A list of literals in one lookup where their types allow it, else as comparisons."""
        given = [value for value in values if value is not None]
        found = self._value(term)
        what = f"({p.render(term)} IN …)"
        pairs = [_meet_literal(found, value, what) for value in given]
        if pairs and all(type(value) is _LISTED.get(found.kind) for value in given):
            inside = found.expression.isin(pa.array(given, pairs[0][1].type))
            known = pc.if_else(found.expression.is_null(), _null(pa.bool_()), inside)
        else:
            known = _tree([self._compare("=", term, p.Literal(value)) for value in given], pc.or_kleene)
        return known if len(given) == len(values) else pc.or_kleene(known, _null(pa.bool_()))

    def _like(self, term: p.Node, pattern: str, ignore_case: bool) -> pc.Expression:
        found = self._value(term)
        if found.kind == "null":
            return _null(pa.bool_())
        if found.kind != "text":
            _refuse(f"LIKE needs text: {p.render(term)} is {found.type}", "CAST it to VARCHAR")
        # Arrow takes a backslash as an escape character, DuckDB does not.
        return pc.match_like(found.expression, pattern.replace("\\", "\\\\"), ignore_case=ignore_case)

    def _call(self, name: p.Function, term: p.Node) -> Typed:
        found = self._value(term)
        if found.kind == "null":
            return found
        if found.kind != "text":
            _refuse(f"{name} needs text: {p.render(term)} is {found.type}", "CAST it to VARCHAR")
        if name == "length":
            return Typed(pc.utf8_length(found.expression).cast(pa.int64()), "int", pa.int64())
        change = pc.utf8_lower if name == "lower" else pc.utf8_upper
        return Typed(change(found.expression), "text", found.type)

    def _arithmetic(self, node: p.Arithmetic) -> Typed:
        a, b = (_number(self._value(side), p.render(node)) for side in (node.left, node.right))
        if "null" in (a.kind, b.kind):
            return _literal(None)
        if a.kind == b.kind == "int" and node.op != "/":
            return Typed(_ARITHMETIC[node.op](a.expression, b.expression), "int", pa.int64())
        x, y = a.expression.cast(pa.float64()), b.expression.cast(pa.float64())
        if node.op == "/":  # of whole numbers too, as in DuckDB; a division by zero is null
            y = pc.if_else(y == pc.scalar(0.0), _null(pa.float64()), y)
        return Typed(_ARITHMETIC[node.op](x, y), "float", pa.float64())

    def _cast(self, node: p.Node, found: Typed, to: p.CastType, lenient: bool) -> Typed:
        kind, type_ = _CAST_TO[to]
        if found.kind in (kind, "null"):
            return found
        if found.kind == "text" and kind in ("int", "float"):
            if not lenient:
                _refuse(f"where would fail on text that is no number: {p.render(node)}", "use TRY_CAST: it gives null")
            text = pc.utf8_trim_whitespace(found.expression)
            clean = pc.match_substring_regex(text, _WHOLE if kind == "int" else _NUMBER)
            return Typed(pc.if_else(clean, text, _null(found.type)).cast(type_), kind, type_)
        if (found.kind, kind) == ("timestamp", "date"):
            day = pc.floor_temporal(found.expression, unit="day")
            return Typed(day.cast(pa.date32()), kind, type_)
        if (found.kind, kind) in _PLAIN_CASTS:
            return Typed(found.expression.cast(type_), kind, type_)
        _refuse(f"where does not support this cast: {p.render(node)} of {found.type}", "compare it uncast")


#: Kinds whose lists of literals need no conversion.
_LISTED: dict[Kind, type] = {"int": int, "text": str, "date": dt.date}
_COMPARE: dict[str, Any] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_ARITHMETIC: dict[str, Any] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "/": pc.divide,
}
_CAST_TO: dict[p.CastType, tuple[Kind, pa.DataType]] = {
    "BIGINT": ("int", pa.int64()),
    "DOUBLE": ("float", pa.float64()),
    "VARCHAR": ("text", pa.string()),
    "DATE": ("date", pa.date32()),
    "TIMESTAMP": ("timestamp", pa.timestamp("us")),
}
_PLAIN_CASTS = {
    ("int", "float"),
    ("decimal", "float"),
    ("int", "text"),
    ("date", "text"),
    ("date", "timestamp"),
}


def _null(type_: pa.DataType) -> pc.Expression:
    return pc.scalar(pa.scalar(None, type_))


def _tree(terms: list[pc.Expression], join: Any) -> pc.Expression:
    """Balanced: Arrow walks expressions recursively."""
    while len(terms) > 1:
        pairs = [terms[i : i + 2] for i in range(0, len(terms), 2)]
        terms = [join(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return terms[0] if terms else pc.scalar(False)


def _literal(value: p.Value) -> Typed:
    kind: Kind
    if value is None:
        kind, type_ = "null", pa.null()
    elif isinstance(value, bool):
        kind, type_ = "bool", pa.bool_()
    elif isinstance(value, int) and value in _INT64:
        kind, type_ = "int", pa.int64()
    elif isinstance(value, int | float | Decimal):
        kind, type_, value = "float", pa.float64(), float(value)
    elif isinstance(value, str):
        kind, type_ = "text", pa.string()
    elif isinstance(value, dt.datetime):
        kind = "zoned" if value.tzinfo else "timestamp"
        type_ = pa.timestamp("us", "UTC" if value.tzinfo else None)
    else:
        kind, type_ = "date", pa.date32()
    return Typed(pc.scalar(pa.scalar(value, type_)), kind, type_)


def _meet_literal(other: Typed, value: p.Value, what: str) -> tuple[Typed, Typed]:
    """``other`` and the literal, both of types that compare; ``other`` itself where it needs no cast."""
    if value is None or other.kind == "null":
        return other, _literal(None)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _meet_number(other, value, what)
    if isinstance(value, str) and other.kind in ("date", "timestamp", "zoned"):
        value = _moment(value, what)
    if isinstance(value, dt.date) and other.kind in ("date", "timestamp", "zoned"):
        return _meet_moment(other, value, what)
    if isinstance(value, str) and other.kind == "bytes":
        return other, _of(value.encode(), "bytes", other.type, what)
    plain = _literal(value)
    if plain.kind != other.kind:
        _refuse(f"where compares {other.type} with {p.render_value(value)}: {what}", _QUOTES)
    return other, plain


def _meet_number(other: Typed, value: int | float | Decimal, what: str) -> tuple[Typed, Typed]:
    if other.kind == "float":
        return other, _of(float(value), "float", other.type, what)
    if other.kind == "int" and value == int(value) and int(value) in _INT64:
        return other, _literal(int(value))
    if other.kind == "decimal" and not isinstance(value, float):
        exact = pa.scalar(Decimal(value))
        return other, Typed(pc.scalar(exact), "decimal", exact.type)
    if other.kind in ("int", "decimal"):
        return _double(other), _literal(float(value))
    _refuse(f"where compares {other.type} with {p.render_value(value)}: {what}", _QUOTES)


def _meet_moment(other: Typed, value: dt.date, what: str) -> tuple[Typed, Typed]:
    if other.kind == "date":
        if not isinstance(value, dt.datetime):
            return other, _literal(value)
        other = _as(other, "timestamp", pa.timestamp("us"))
    moment = value if isinstance(value, dt.datetime) else dt.datetime(value.year, value.month, value.day)
    if other.kind == "zoned":
        moment = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    elif moment.tzinfo:
        _refuse(f"where compares a time with a zone and one without: {what}", "leave the zone out")
    exact = pa.scalar(moment, pa.timestamp("us", other.type.tz))
    try:
        exact = exact.cast(other.type)
    except pa.ArrowInvalid as error:  # finer than the column, which Arrow compares well, or out of its range
        if other.type.unit == "ns":
            raise SpecError(f"where has a time out of range: {what}", "1677 to 2262 for nanoseconds") from error
    return other, Typed(pc.scalar(exact), other.kind, exact.type)


def _moment(text: str, what: str) -> dt.date | dt.datetime:
    try:
        return dt.date.fromisoformat(text) if len(text) <= 10 else dt.datetime.fromisoformat(text)
    except ValueError as error:
        hint = "write dates as '2026-12-01' and times as '2026-12-01 10:00:00'"
        raise SpecError(f"where compares a time with {text!r}: {what}", hint) from error


def _meet(a: Typed, b: Typed, what: str) -> tuple[Typed, Typed]:
    if a.kind == b.kind and a.kind != "other":
        return (a, b) if a.type == b.type or a.kind != "decimal" else (_double(a), _double(b))
    if "null" in (a.kind, b.kind):
        return a, b
    numbers = ("int", "float", "decimal")
    if a.kind in numbers and b.kind in numbers:
        return _double(a), _double(b)
    if {a.kind, b.kind} == {"date", "timestamp"}:
        return _as(a, "timestamp", pa.timestamp("us")), _as(b, "timestamp", pa.timestamp("us"))
    _refuse(f"where compares {a.type} with {b.type}: {what}", "CAST one of them")


def _number(found: Typed, what: str) -> Typed:
    if found.kind == "decimal":
        return _double(found)
    if found.kind not in ("int", "float", "null"):
        _refuse(f"where calculates with {found.type}: {what}", "only numbers can be calculated with")
    return found


def _double(found: Typed) -> Typed:
    return _as(found, "float", pa.float64())


def _as(found: Typed, kind: Kind, type_: pa.DataType) -> Typed:
    return found if found.type == type_ else Typed(found.expression.cast(type_), kind, type_)


def _of(value: Any, kind: Kind, type_: pa.DataType, what: str) -> Typed:
    try:
        return Typed(pc.scalar(pa.scalar(value, type_)), kind, type_)
    except (pa.ArrowException, OverflowError) as error:
        raise SpecError(f"where has a value out of range: {what}", f"the column is {type_}") from error


def _refuse(message: str, hint: str) -> NoReturn:
    raise SpecError(message, hint)
