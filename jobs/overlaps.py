"""Source rows that more than one part claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from ..workers.shard import Piece
from .scan import FoundPart


@dataclass(frozen=True, slots=True)
class Overlap:
    """``rows`` rows of ``path`` from ``first_row`` are in both parts (shard ids; the same one twice is possible)."""

    path: str
    first_row: int
    rows: int
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class _Claim:
    first: int
    end: int
    shard_id: str


def overlaps(parts: Iterable[FoundPart]) -> list[Overlap]:
    """By source path whatever the file's version: old and new rows of one file are the same rows twice."""
    found = []
    for path, claims in _claims(parts).items():
        widest: _Claim | None = None
        for claim in sorted(claims, key=attrgetter("first")):
            if widest is not None and claim.first < widest.end:
                rows = min(claim.end, widest.end) - claim.first
                found.append(Overlap(path, claim.first, rows, widest.shard_id, claim.shard_id))
            if widest is None or claim.end > widest.end:
                widest = claim
    return found


def newest_disjoint(parts: Sequence[FoundPart]) -> tuple[list[FoundPart], list[FoundPart]]:
    """Parts to keep and parts to drop, so that no source row is kept twice.

    The one published last stays, by the store's own clock (equal times: the greater shard id): of a part that was
    being replaced and its replacement, the replacement.
    """
    kept: list[FoundPart] = []
    dropped: list[FoundPart] = []
    ids: set[str] = set()
    taken: dict[str, list[tuple[int, int]]] = {}
    contested = {shard_id for overlap in overlaps(parts) for shard_id in (overlap.a, overlap.b)}
    for part in sorted(parts, key=attrgetter("modified_s", "shard_id"), reverse=True):
        pieces = part.footer.pieces if part.shard_id in contested else ()
        if part.shard_id in ids or any(_meets(piece, taken.get(piece.file.path, [])) for piece in pieces):
            dropped.append(part)
            continue
        kept.append(part)
        ids.add(part.shard_id)
        for piece in pieces:
            taken.setdefault(piece.file.path, []).append((piece.first_row, piece.first_row + piece.rows))
    return kept, dropped


def _meets(piece: Piece, spans: Iterable[tuple[int, int]]) -> bool:
    return any(piece.first_row < end and first < piece.first_row + piece.rows for first, end in spans)


def _claims(parts: Iterable[FoundPart]) -> dict[str, list[_Claim]]:
    claims: dict[str, list[_Claim]] = {}
    for part in parts:
        for piece in part.footer.pieces:
            if piece.rows:
                claim = _Claim(piece.first_row, piece.first_row + piece.rows, part.shard_id)
                claims.setdefault(piece.file.path, []).append(claim)
    return claims
