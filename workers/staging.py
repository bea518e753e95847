"""Attempts between their last byte and their grant: everything is written, nothing is visible.

On a local or network disk a temporary file in the state, on the sink's own file system; on an object store an upload
that is not completed. Publishing is one atomic call either way, and never a rename on an object store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO

from ..artifacts.errors import HeadraceError, SinkError
from ..artifacts.storage import Folder
from . import paths
from .footer import Footer
from .quarantine import encode, write_rows
from .shard import BadRow, Grant
from .uploads import LocalUpload, ObjectUpload, Upload


@dataclass
class _Attempt:
    upload: Upload
    quarantined: bytes | None = None
    finished: bool = False


class Stager:
    """The attempts of one worker. ``publish`` and ``discard`` may be called from another thread than the rest."""

    def __init__(self, sink: Folder, state: Folder) -> None:
        if sink.is_local and not state.is_local:
            message = f"state must be on the sink's own file system: {state.url}"
            raise SinkError(message, "leave sink.state out, or name a local folder")
        self._sink, self._state = sink, state
        self._attempts: dict[tuple[str, int], _Attempt] = {}  #: by shard id and attempt
        self._lock = threading.Lock()

    def begin(self, shard_id: str, partition: str, epoch: int, attempt: int) -> BinaryIO:
        """An empty file for the attempt's part; a begun one of the same number is discarded."""
        self.discard(shard_id, attempt)
        key = paths.part(partition, shard_id)
        upload: Upload
        if self._sink.is_local:
            upload = LocalUpload(self._sink, key, self._state.path(paths.staged(epoch, shard_id, attempt)))
        else:
            upload = ObjectUpload(self._sink, key)
        with self._lock:
            self._attempts[shard_id, attempt] = _Attempt(upload)
        return upload.file

    def finish(self, shard_id: str, attempt: int, footer: Footer, quarantined: Sequence[BadRow]) -> int:
        """Makes the written bytes durable. Returns the part's size in bytes."""
        staged = self._attempts[shard_id, attempt]
        staged.quarantined = encode(quarantined, shard_id) if quarantined else None
        size_bytes = staged.upload.finish(footer)
        staged.finished = True
        return size_bytes

    def publish(self, grant: Grant) -> bool:
        """Makes the attempt visible, its quarantined rows first.

        False, and nothing is visible: the grant's deadline has passed, a later epoch holds the lease, or the staged
        bytes are gone. The attempt is discarded then.
        """
        with self._lock:
            staged = self._attempts.pop((grant.shard_id, grant.attempt), None)
        if staged is None:
            return False
        if not staged.finished:
            raise HeadraceError(f"granted before it was staged: {grant.shard_id}", "this is a bug: please report it")
        published = False
        try:
            published = self._publish(staged, grant)
        finally:
            if not published:
                staged.upload.discard()
        return published

    def discard(self, shard_id: str, attempt: int) -> None:
        """Throws the attempt's bytes away; one that is unknown or gone is fine."""
        with self._lock:
            staged = self._attempts.pop((shard_id, attempt), None)
        if staged is not None:
            staged.upload.discard()

    def _publish(self, staged: _Attempt, grant: Grant) -> bool:
        if _late(grant) or self._superseded(grant.epoch):
            return False
        write_rows(self._state, grant.shard_id, staged.quarantined)
        # Last of all, as close to the atomic call as can be: a worker may have been frozen until now.
        return not _late(grant) and staged.upload.commit()

    def _superseded(self, epoch: int) -> bool:
        """Whether a later epoch's lease exists."""
        stems = (PurePosixPath(entry.key).stem for entry in self._state.list(paths.LEASE))
        return any(int(stem) > epoch for stem in stems if stem.isdigit())


def _late(grant: Grant) -> bool:
    return time.monotonic() > grant.deadline_s
