"""``where``: which rows a job scores. Null is not true, so such rows are left out, as in SQL.

Terms over partition keys alone select whole files; the others are evaluated row by row in the workers, and let row
groups be left out beforehand that can't hold a matching row. NaN compares as in IEEE 754: equal to nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from . import predicate
from .predicate import And, Node
from .where_compile import compile_condition
from .where_prune import ColumnStats, may_match

__all__ = ["EVERYTHING", "ColumnStats", "Where", "parse_where"]


@dataclass(frozen=True)
class Where:
    """Terms that must all be true; with none, everything matches."""

    terms: tuple[Node, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column and partition key that is named, once, in the order of appearance."""
        return tuple(dict.fromkeys(name for term in self.terms for name in predicate.columns_of(term)))

    @property
    def text(self) -> str | None:
        """Canonical SQL, the same for terms in another order; None where everything matches."""
        return " AND ".join(sorted({predicate.render(term) for term in self.terms})) or None

    def split(self, keys: Collection[str]) -> tuple[Where, Where]:
        """What selects files, being over partition ``keys`` alone, and what selects rows."""
        named = {term: set(predicate.columns_of(term)) for term in self.terms}
        files = tuple(term for term in self.terms if named[term] and named[term] <= set(keys))
        return Where(files), Where(tuple(term for term in self.terms if term not in files))

    def expression(self, types: Mapping[str, pa.DataType]) -> pc.Expression | None:
        """``types`` holds every one of ``columns``. None where everything matches. Raises SpecError."""
        if not self.terms:
            return None
        return compile_condition(self.terms[0] if len(self.terms) == 1 else And(self.terms), types)

    def may_match(self, stats: Mapping[str, ColumnStats]) -> bool:
        """False only where statistics prove that no row matches."""
        return all(may_match(term, stats) for term in self.terms)

    def matches(self, keys: Mapping[str, pa.Scalar], types: Mapping[str, pa.DataType]) -> bool:
        """Whether one partition is selected; a key that it does not have is null."""
        expression = self.expression(types)
        if expression is None:
            return True
        row = {name: pa.array([keys[name].as_py() if name in keys else None], types[name]) for name in self.columns}
        return bool(pa.table(row).filter(expression).num_rows)

    def __and__(self, other: Where) -> Where:
        return Where(tuple(dict.fromkeys((*self.terms, *other.terms))))


EVERYTHING = Where()


def parse_where(sql: str | None) -> Where:
    """Raises SpecError for what can't be read or is not supported."""
    if sql is None or not sql.strip():
        return EVERYTHING
    from .where_parse import parse  # loads sqlglot, which a job without a where need not wait for

    return Where(tuple(dict.fromkeys(predicate.conjuncts(parse(sql)))))
