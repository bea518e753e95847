"""Who may write to a sink: one file per epoch in the state, made by create-if-absent; the highest epoch holds.

The holder rewrites its own file every few seconds (a beat). A newcomer takes over when that file stays unchanged on
the newcomer's own clock, or when the holder is a process of this host that is gone. A holder that sees a higher epoch,
or could not beat for as long as a newcomer waits, has lost the lease and must stop.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..artifacts.errors import LeaseLost, SinkError, SinkHeld, TransientError
from ..artifacts.storage import Folder
from ..workers import paths
from .host import is_gone, this_process
from .leasefile import LeaseInfo, epochs, read_lease, read_raw

LOG = logging.getLogger("headrace")
BEAT_S, STALE_S, WATCH_S = 3.0, 30.0, 35.0
GRANT_S = 12.0  #: the longest grant with its margin
_POLL_S = 1.0
_KEEP = 2  #: newest epochs whose files stay, so that epochs never start over

__all__ = ["Lease", "LeaseInfo", "probe_create", "read_lease", "unlock"]


@dataclass(frozen=True, slots=True)
class Timing:
    """All in seconds. ``clock`` only ever measures differences, on the machine that calls it."""

    watch_s: float = WATCH_S
    stale_s: float = STALE_S
    beat_s: float = BEAT_S
    grant_s: float = GRANT_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Lease:
    """A held lease. ``took_over`` tells that an earlier holder did not end in order: let its grants run out
    (``wait_out_grants``), recover, then say ``settled()``; until then the next holder has to recover too."""

    def __init__(self, state: Folder, info: LeaseInfo, took_over: bool, timing: Timing) -> None:
        self.epoch = info.epoch
        self.took_over = took_over
        self._state, self._info, self._timing = state, info, timing
        self._unsettled = took_over
        self._lost: str | None = None
        self._began = self._beaten = timing.clock()
        self._lock = threading.Lock()  #: one beat or release at a time
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name=f"lease-{self.epoch}", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(
        cls,
        state: Folder,
        run_id: str,
        *,
        watch_s: float = WATCH_S,
        stale_s: float = STALE_S,
        beat_s: float = BEAT_S,
        grant_s: float = GRANT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = LOG.info,
    ) -> Lease:
        """Raises SinkHeld when another run still holds the lease after ``watch_s``."""
        timing = Timing(watch_s, stale_s, beat_s, grant_s, clock, sleep)
        watch = _Watch(state, timing, say)
        while True:
            before = watch.until_free()
            info = _fresh_info(run_id, before.epoch + 1 if before else 1)
            if _claim(state, info):
                took_over = before is not None and not before.clean
                if took_over and before is not None:
                    say(f"taking over from {before.holder}, which did not end in order")
                _tidy(state, info.epoch)
                return cls(state, info, took_over, timing)

    def check(self) -> None:
        """Raises LeaseLost when a later epoch exists or no beat succeeded for ``stale_s``; called before each grant
        and each ledger flush."""
        silent_s = self._timing.clock() - self._beaten
        if self._lost is None:
            with contextlib.suppress(TransientError):  # nobody may take over while the last beat is fresh
                self._look()
        if self._lost is None and silent_s > self._timing.stale_s:
            self._lost = f"the lease could not be renewed for {silent_s:.0f} s"
        if self._lost is not None:
            raise LeaseLost(self._lost, hint="Another run may have taken over: see 'headrace status'")

    def wait_out_grants(self) -> None:
        """Returns once no worker of an earlier holder can have a grant left; at once where none was taken over."""
        if self.took_over:
            left_s = self._began + self._timing.grant_s - self._timing.clock()
            if left_s > 0:
                self._timing.sleep(left_s)

    def settled(self) -> None:
        """What the earlier holder left unfinished is put in order: the next one need not do it again."""
        self._unsettled = False

    def release(self, clean: bool = True) -> None:
        """Ends the lease; the file stays. ``clean=False`` when attempts may still be under way: the next run recovers
        as from a crash. A lease that was lost is left as it is."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        try:
            with self._lock:
                self._end(clean and not self._unsettled)
        except Exception as error:  # noqa: BLE001  each store raises its own; what the run did stands anyway
            LOG.warning("the lease could not be released, the next run will wait for it to go stale: %s", error)
        self._lost = self._lost or "the lease was released"

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.release(clean=kind is None)

    def _end(self, clean: bool) -> None:
        if self._lost is None:
            self._look()
        if self._lost is None:
            self._info = replace(self._info, state="released", clean=clean, beat_at=time.time())
            self._state.write(paths.lease(self.epoch), self._info.to_bytes())

    def _look(self) -> None:
        try:
            newest = max(epochs(self._state), default=0)
        except Exception as error:  # each store raises its own
            raise TransientError(f"the lease can't be read: {error}") from error
        if newest > self.epoch:
            self._lost = f"a later run holds the sink: epoch {newest} follows {self.epoch}"

    def _beat_on(self) -> None:
        while self._lost is None and not self._stop.wait(self._timing.beat_s):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001  each store raises its own, and a dead thread loses the lease
                LOG.warning("the lease could not be renewed: %s", error)

    def _beat(self) -> None:
        began = self._timing.clock()
        with self._lock:
            self._look()
            if self._lost is None and not self._stop.is_set():
                self._info = replace(self._info, beat=self._info.beat + 1, beat_at=time.time())
                self._state.write(paths.lease(self.epoch), self._info.to_bytes())
                self._beaten = began


class _Watch:
    """A newcomer's look at the holder, on its own clock only."""

    def __init__(self, state: Folder, timing: Timing, say: Callable[[str], None]) -> None:
        self._state, self._timing, self._say = state, timing, say
        self._began = timing.clock()
        self._seen: tuple[int, bytes] | None = None
        self._since = self._began

    def until_free(self) -> LeaseInfo | None:
        """The last lease, which holds no more: None where there was none. Raises SinkHeld."""
        while True:
            found = read_raw(self._state)
            if found is None:
                return None
            info, raw = found
            if info.state == "released":
                return info
            now = self._timing.clock()
            if self._seen != (info.epoch, raw):
                if self._seen is None and not is_gone(info.owner):
                    self._say(f"waiting up to {self._timing.watch_s:.0f} s: {info.holder}")
                self._seen, self._since = (info.epoch, raw), now
            if is_gone(info.owner) or now - self._since >= self._timing.stale_s:
                return info
            if now - self._began >= self._timing.watch_s:
                hint = "Wait for it, stop it, or end its lease with 'headrace unlock' when you know that it is dead"
                raise SinkHeld(f"another run holds the sink: {info.holder}", hint=hint)
            self._timing.sleep(min(_POLL_S, self._timing.stale_s / 4))


def unlock(state: Folder) -> str:
    """Ends a lease by hand and says what was done. A holder that still lives sees a later epoch and stops; the next
    run treats what it left as a takeover."""
    while True:
        before = read_lease(state)
        if before is None:
            return "there is no lease to end"
        if before.state == "released":
            return f"the lease is free already: released by the run {before.run_id} on {before.owner.host}"
        info = replace(before, epoch=before.epoch + 1, state="released", clean=False, token=uuid.uuid4().hex)
        if _claim(state, info):
            return f"ended the lease of {before.holder}"


def probe_create(state: Folder, unsafe: bool = False) -> None:
    """Raises SinkError where the store would let two runs make the same file, unless ``unsafe``: then two runs that
    start in the same moment may both hold the sink."""
    key = paths.probe(uuid.uuid4().hex)
    try:
        refused = state.create(key, b"first") and not state.create(key, b"second")
    finally:
        state.delete(key)
    if not refused and not unsafe:
        raise SinkError(
            f"the store does not support create-if-absent, which the lease needs: {state.url}",
            hint="Move the state with sink.state, or set sink.unsafe_lease: true and never start two runs at once",
        )


def _fresh_info(run_id: str, epoch: int) -> LeaseInfo:
    now = time.time()
    return LeaseInfo(epoch, run_id, this_process(), now, now, 0, "held", False, uuid.uuid4().hex)


def _claim(state: Folder, info: LeaseInfo) -> bool:
    """Makes the epoch's file. Read back, because a store may make it and say no, or say yes to two."""
    state.create(paths.lease(info.epoch), info.to_bytes())
    newest = read_lease(state)
    return newest is not None and newest.token == info.token


def _tidy(state: Folder, epoch: int) -> None:
    for old in epochs(state):
        if old <= epoch - _KEEP:
            state.delete(paths.lease(old))
