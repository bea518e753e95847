"""SIGINT and SIGTERM during a run: an orderly end wherever it is."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from ..artifacts.errors import Interrupted


class Signals:
    """A context manager around a run. Before and after scoring a signal raises Interrupted; once ``drain`` is set it is
    remembered, and the loop, which asks now and then, ends in order. Outside the main thread there are no handlers.

    Ray puts a handler of its own in place when it starts: ``install`` again afterwards.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.drain = False
        self._caught: list[int] = []
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> int | None:
        """The first signal that was remembered, None while there is none."""
        return self._caught[0] if self._caught else None

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in self._NUMBERS:
                self._before.setdefault(number, signal.signal(number, self._catch))

    def __enter__(self) -> Signals:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if not self.drain:
            raise Interrupted("interrupted", "run the same command again to continue", number)
        self._caught.append(number)
