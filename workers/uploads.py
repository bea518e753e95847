"""One part on its way into the sink: a temporary file that is renamed, or an upload that is completed."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from ..artifacts.errors import BadFile, SinkError
from ..artifacts.storage import Folder, fsync_folder
from .footer import Footer, read_footer

#: Parts of a multipart upload, held in memory: 10,000 of them are allowed, 5 MiB is the least.
_BLOCK_BYTES = 8 << 20


class Upload(Protocol):
    @property
    def file(self) -> BinaryIO: ...

    def finish(self, footer: Footer) -> int:
        """All bytes are written: makes them durable. Returns how many they are."""

    def commit(self) -> bool:
        """One atomic call. False: the staged bytes are gone, or another's part is there that must not be replaced."""

    def discard(self) -> None:
        """Idempotent; harmless after a commit."""


class LocalUpload:
    """``staged`` lies in the state, on the sink's own file system, until it is renamed to the part's final name."""

    def __init__(self, sink: Folder, key: str, staged: str) -> None:
        self._root, self._final, self._staged = Path(sink.root), Path(sink.path(key)), Path(staged)
        self._staged.parent.mkdir(parents=True, exist_ok=True)
        self.file: BinaryIO = self._staged.open("wb")

    def finish(self, footer: Footer) -> int:
        self.file.flush()
        os.fsync(self.file.fileno())
        size_bytes = self.file.tell()
        self.file.close()
        return size_bytes

    def commit(self) -> bool:
        made = self._make_folder()
        try:
            os.replace(self._staged, self._final)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            message = f"sink and state are on different file systems: {self._final.parent}, {self._staged.parent}"
            raise SinkError(message, "set sink.state to a folder on the sink's file system") from error
        for folder in (self._final.parent, *made):
            fsync_folder(folder)
        return True

    def discard(self) -> None:
        self.file.close()
        self._staged.unlink(missing_ok=True)

    def _make_folder(self) -> list[Path]:
        """Makes the partition's folder. Returns the folders that got a new entry by it."""
        wanted = self._final.parent
        missing = [folder for folder in (wanted, *wanted.parents) if not folder.exists()]
        wanted.mkdir(parents=True, exist_ok=True)
        return [folder.parent for folder in missing]


class ObjectUpload:
    """An upload to the part's final name, not completed. No folders: an object store has none.

    Where no part was there at the beginning it completes only if there still is none. One that is there then is either
    this very work, published by an attempt whose answer was lost, or another run's: that one stays.
    """

    def __init__(self, sink: Folder, key: str) -> None:
        self._sink, self._key = sink, key
        mode = "wb" if sink.exists(key) else "xb"
        self._upload: Any = sink.fs.open(sink.path(key), mode, autocommit=False, block_size=_BLOCK_BYTES)
        self._footer: Footer | None = None
        self._open = True

    @property
    def file(self) -> BinaryIO:
        return cast("BinaryIO", self._upload)

    def finish(self, footer: Footer) -> int:
        self._footer = footer
        size_bytes = int(self._upload.tell())
        self._upload.close()
        return size_bytes

    def commit(self) -> bool:
        try:
            self._upload.commit()
        except FileExistsError:
            self.discard()
            return self._is_published()
        except FileNotFoundError:  # aborted by whoever took over
            return False
        self._open = False
        return True

    def discard(self) -> None:
        if not self._open:
            return
        self._open = False
        self._upload.closed = True  # or its finalizer would go on uploading
        with contextlib.suppress(FileNotFoundError):
            self._upload.discard()

    def _is_published(self) -> bool:
        try:
            with self._sink.open(self._key) as file:
                found = read_footer(file)
        except (FileNotFoundError, BadFile):
            return False
        mine = self._footer
        return found is not None and mine is not None and _work(found) == _work(mine)


def _work(footer: Footer) -> tuple[object, ...]:
    return footer.fingerprint, footer.pieces
