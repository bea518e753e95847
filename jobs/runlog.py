"""The run's log: all that headrace logs, in ``runs/<run id>/log`` of the state, also when the state is remote."""

from __future__ import annotations

import logging
import time
from types import TracebackType

from ..artifacts.storage import Folder
from ..workers import paths

LOG = logging.getLogger("headrace")
#: An object store can't append, so the whole log is written again; not more often than this.
EVERY_S = 5.0


class RunLog(logging.Handler):
    """A context manager that collects the log while it is open."""

    def __init__(self, state: Folder, run_id: str) -> None:
        super().__init__(logging.DEBUG)
        self._state, self._key = state, paths.run(run_id, "log")
        self._lines: list[str] = []
        self._written_s = 0.0
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))
        if time.monotonic() - self._written_s >= EVERY_S:
            self._write()

    def __enter__(self) -> RunLog:
        self._level = LOG.level
        LOG.setLevel(logging.DEBUG)
        LOG.addHandler(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self._lines.append(f"ended with {type(error).__name__}: {error}")
        LOG.removeHandler(self)
        LOG.setLevel(self._level)
        self._write()

    def _write(self) -> None:
        self._written_s = time.monotonic()
        try:
            self._state.write(self._key, ("\n".join(self._lines) + "\n").encode())
        except Exception as error:  # noqa: BLE001 - each store raises its own, and the log must never end a run
            self._lines.append(f"the log could not be written: {error}")
