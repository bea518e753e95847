"""One variant of an artifact on its way to a node: chunks of bytes, then a hash-checked folder in the node's cache.

The driver cuts each file into uint8 arrays (Ray shares numpy arrays between actors without a copy, bytes it copies per
task: ray#20801) and puts them into the object store once; the first actor of a node writes them out under a file lock,
the others find the folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .bundle import Bundle
from .errors import ArtifactCorrupt
from .manifest import FileHash

CHUNK_BYTES = 64 << 20
#: Environment variable that moves the node's cache.
CACHE_VARIABLE = "HEADRACE_CACHE"

Chunk = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ShippedFile:
    """``chunks`` are whatever stands for an array on the way: Ray object references, or the arrays themselves."""

    file: FileHash
    chunks: tuple[Any, ...]


@dataclass(frozen=True)
class Shipment:
    """All that a node needs of one variant."""

    digest: str
    variant: str
    files: tuple[ShippedFile, ...]


def ship(bundle: Bundle, variant: str, put: Callable[[Chunk], Any]) -> Shipment:
    """Reads the variant's files chunk by chunk, checks them against the manifest and hands each chunk to ``put``.

    Raises ArtifactCorrupt.
    """
    files = tuple(ShippedFile(file, tuple(_chunks(bundle, file, put))) for file in bundle.files_of(variant))
    return Shipment(bundle.digest, variant, files)


def _chunks(bundle: Bundle, file: FileHash, put: Callable[[Chunk], Any]) -> Iterator[Any]:
    for block in bundle.chunks(file.path, CHUNK_BYTES):
        yield put(np.frombuffer(block, dtype=np.uint8))


def cache_folder() -> Path:
    """``$HEADRACE_CACHE``, else ``headrace`` in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def unpack(shipment: Shipment, get: Callable[[Any], Chunk], cache: Path | None = None) -> Path:
    """The folder with the variant's files on this node, written if it is not there or does not match its hashes."""
    import filelock

    root = cache or cache_folder()
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f"{shipment.digest[:32]}-{shipment.variant}"
    with filelock.FileLock(f"{folder}.lock"):
        if not _matches(folder, shipment):
            _write(folder, shipment, get)
    return folder


def _matches(folder: Path, shipment: Shipment) -> bool:
    return all(_sha256_of(folder / shipped.file.path) == shipped.file.sha256 for shipped in shipment.files)


def _write(folder: Path, shipment: Shipment, get: Callable[[Any], Chunk]) -> None:
    """Beside its final name first: a killed writer leaves no half folder under it."""
    for leftover in folder.parent.glob(f"{folder.name}.new-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = folder.with_name(f"{folder.name}.new-{uuid.uuid4().hex}")
    for shipped in shipment.files:
        _write_file(temporary / shipped.file.path, shipped, map(get, shipped.chunks))
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def _write_file(path: Path, shipped: ShippedFile, chunks: Iterable[Chunk]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with path.open("wb") as out:
        for chunk in chunks:
            digest.update(chunk.data)
            out.write(chunk.data)
    if digest.hexdigest() != shipped.file.sha256:
        message = f"a file of the artifact changed on its way to this node: {shipped.file.path}"
        raise ArtifactCorrupt(message, "run the job again; if it happens again, check this node's disk and memory")


def _sha256_of(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
