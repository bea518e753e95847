"""Was a shard published already: by its part's own footer, never by its presence alone."""

from __future__ import annotations

from ..artifacts.storage import Folder
from ..workers import paths
from ..workers.footer import Footer, read_footer
from ..workers.shard import Shard


def is_part_of(footer: Footer | None, shard: Shard, fingerprint: str) -> bool:
    """Same fingerprint, same pieces of the same file versions."""
    return footer is not None and footer.fingerprint == fingerprint and footer.pieces == shard.pieces


def published_part(sink: Folder, shard: Shard, fingerprint: str) -> bool:
    """Whether the sink holds this shard's part, as this plan would make it."""
    try:
        with sink.open(paths.part(shard.partition, shard.id)) as file:
            return is_part_of(read_footer(file), shard, fingerprint)
    except FileNotFoundError:
        return False


def remove_staged(state: Folder, epoch: int) -> None:
    """What was staged under this epoch and never granted, once its workers are gone."""
    state.delete_many(entry.key for entry in state.list(paths.TMP) if entry.key.startswith(paths.staged_of(epoch)))
