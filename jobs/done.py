"""Per-partition completion: ``done/<partition>/_SUCCESS`` in the state, so that consumers wait for their own day."""

from __future__ import annotations

from collections.abc import Iterable

from ..artifacts.storage import Folder
from ..workers import paths


def marked(state: Folder) -> set[str]:
    """Partitions that are complete; the unpartitioned one is the empty string."""
    found = set()
    for entry in state.list(paths.DONE):
        folder, _, name = entry.key.removeprefix(f"{paths.DONE}/").rpartition("/")
        if name == "_SUCCESS":
            found.add(folder)
    return found


def mark(sink: Folder, state: Folder, partitions: Iterable[str], success_files: bool) -> None:
    """Marks partitions as complete; with ``success_files`` also inside the sink, as zero-byte files."""
    known = marked(state)
    for partition in sorted(set(partitions) - known):
        state.write(paths.done(partition), b"")
    if success_files:
        for partition in partitions:
            key = f"{partition}/_SUCCESS" if partition else "_SUCCESS"
            if not sink.exists(key):
                sink.write(key, b"")


def unmark(sink: Folder, state: Folder, partitions: Iterable[str], success_files: bool) -> None:
    """Partitions that are about to be rewritten lose their marks first."""
    for partition in partitions:
        state.delete(paths.done(partition))
        if success_files:
            sink.delete(f"{partition}/_SUCCESS" if partition else "_SUCCESS")
