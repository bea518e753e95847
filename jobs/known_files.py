"""What planning learned of source files' footers, kept in the state so that the next plan reads only new ones.

Facts about one version of one file, so they can't go stale; a file that is not in it, or all of it, is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ..artifacts.storage import Folder
from ..workers import paths
from ..workers.shard import FileIdentity

_FINGERPRINT = b"fingerprint"
_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("version", pa.string()),
        ("row_groups", pa.list_(pa.int64())),
        ("dead", pa.list_(pa.int32())),
    ]
)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """``row_groups`` are the rows of each; ``dead`` the numbers of those in which no row can match ``where``."""

    row_groups: tuple[int, ...]
    dead: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return sum(self.row_groups)

    @property
    def is_dead(self) -> bool:
        """Whether the file has no row that may match, or none at all."""
        return sum(1 for rows in self.row_groups if rows) == sum(1 for n in self.dead if self.row_groups[n])


@dataclass(frozen=True)
class KnownFiles:
    """For one fingerprint, which ``where`` is part of."""

    fingerprint: str = ""
    facts: Mapping[FileIdentity, FileFacts] = field(default_factory=dict, repr=False)

    def under(self, fingerprint: str) -> Mapping[FileIdentity, FileFacts]:
        return self.facts if fingerprint == self.fingerprint else {}


def load_known_files(state: Folder) -> KnownFiles:
    """Nothing where there is nothing that can be read: it only costs time."""
    try:
        table = pa.ipc.open_file(pa.BufferReader(state.read(paths.files()))).read_all()
        fingerprint = (table.schema.metadata or {}).get(_FINGERPRINT, b"").decode()
        return KnownFiles(fingerprint, dict(_rows(table.select(_SCHEMA.names))))
    except (FileNotFoundError, pa.ArrowException, KeyError, ValueError):
        return KnownFiles()


def save_known_files(state: Folder, known: KnownFiles) -> None:
    schema = _SCHEMA.with_metadata({_FINGERPRINT: known.fingerprint.encode()})
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(pa.table(_columns(known.facts.items()), schema=schema))
    state.write(paths.files(), out.getvalue().to_pybytes())


def _columns(items: Iterable[tuple[FileIdentity, FileFacts]]) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {name: [] for name in _SCHEMA.names}
    for file, facts in items:
        columns["path"].append(file.path)
        columns["size_bytes"].append(file.size_bytes)
        columns["version"].append(file.version)
        columns["row_groups"].append(facts.row_groups)
        columns["dead"].append(facts.dead)
    return columns


def _rows(table: pa.Table) -> Iterator[tuple[FileIdentity, FileFacts]]:
    lists = (column.to_pylist() for column in table.columns)
    for path, size_bytes, version, row_groups, dead in zip(*lists, strict=True):
        yield FileIdentity(path, size_bytes, version), FileFacts(tuple(row_groups), tuple(dead))
