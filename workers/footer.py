"""What a part says of itself: one JSON value in its Parquet footer, from which the ledger can be rebuilt.

Nothing in it names a run, an attempt, a host or a time: parts of the same inputs are byte-equal.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from ..artifacts.errors import BadFile
from .shard import Batching, Counts, FileIdentity, Piece

#: Key of the Parquet key-value metadata.
KEY = b"headrace"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Footer:
    """``versions`` are those that a part's bytes depend on: headrace, onnxruntime, tokenizers, pyarrow."""

    versions: Mapping[str, str]
    artifact: str  #: digest, in full
    variant: str
    precision: str
    instruction_set: str
    fingerprint: str
    batching: Batching  #: what was really used
    pieces: tuple[Piece, ...]  #: those that could be read
    counts: Counts


def runtime_versions() -> dict[str, str]:
    """Versions of this process's packages, by name, without importing them."""
    from .. import __version__

    versions = {"headrace": __version__}
    for name, distributions in _DISTRIBUTIONS.items():
        versions[name] = next((found for found in map(_version, distributions) if found), "unknown")
    return versions


_DISTRIBUTIONS = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "tokenizers": ("tokenizers",),
    "pyarrow": ("pyarrow",),
}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def dump(footer: Footer) -> bytes:
    """Canonical JSON: equal footers have equal bytes."""
    value = {"format": FORMAT, **asdict(footer)}
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def parse(data: bytes) -> Footer | None:
    """None where ``data`` is not a footer that this version understands."""
    try:
        value = json.loads(data)
        if value.pop("format") != FORMAT:
            return None
        pieces = tuple(_piece(piece) for piece in value.pop("pieces"))
        return Footer(pieces=pieces, counts=Counts(**value.pop("counts")), **value)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _piece(value: dict[str, Any]) -> Piece:
    return Piece(FileIdentity(**value["file"]), value["first_row"], value["rows"])


def read_footer(file: BinaryIO) -> Footer | None:
    """The footer of an open part; None for a Parquet file that headrace did not write.

    Raises BadFile where ``file`` is not a whole Parquet file, OSError where it can't be read just now.
    """
    try:
        metadata = pq.read_metadata(file).metadata or {}
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, TimeoutError) or getattr(error, "errno", None) is not None:
            raise  # the storage's own error: Arrow's has no number
        raise BadFile(f"not a whole Parquet file: {error}") from error
    return parse(metadata[KEY]) if KEY in metadata else None
