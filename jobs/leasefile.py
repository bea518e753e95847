"""What stands in ``lease/<epoch>.json``."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, dataclass
from typing import Any

from ..artifacts.storage import Folder
from ..workers import paths
from .host import Owner

_TRIES = 20


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """One epoch. Times are seconds since the epoch on the holder's clock: to be shown, never compared."""

    epoch: int
    run_id: str
    owner: Owner
    since: float
    beat_at: float
    beat: int
    state: str  #: held or released
    clean: bool  #: released, and nothing left that a next run has to recover
    token: str  #: whose file it is, whatever the store answered

    @property
    def is_readable(self) -> bool:
        """Whether the file says anything. Its holder would write it anew within seconds, so for long it has none."""
        return bool(self.token)

    @property
    def holder(self) -> str:
        if not self.is_readable:
            return f"an unknown run ({paths.lease(self.epoch)} in the state can't be read)"
        since = dt.datetime.fromtimestamp(self.since, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"run {self.run_id} on host {self.owner.host}, pid {self.owner.pid}, since {since}"

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_bytes(cls, epoch: int, raw: bytes) -> LeaseInfo:
        """A file that can't be read stands for a holder of whom nothing is known."""
        try:
            value: dict[str, Any] = json.loads(raw)
            return cls(
                epoch=epoch,
                run_id=str(value["run_id"]),
                owner=Owner.from_json(value["owner"]),
                since=float(value["since"]),
                beat_at=float(value["beat_at"]),
                beat=int(value["beat"]),
                state="released" if value["state"] == "released" else "held",
                clean=value["clean"] is True,
                token=str(value["token"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(epoch, "unknown", Owner("unknown", 0), 0.0, 0.0, 0, "held", False, "")


def epochs(state: Folder) -> list[int]:
    """Epochs that have a file, ascending."""
    names = (entry.key.rsplit("/", 1)[-1] for entry in state.list(paths.LEASE))
    stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def read_raw(state: Folder) -> tuple[LeaseInfo, bytes] | None:
    """The newest epoch and its bytes; None where the sink was never held."""
    for _ in range(_TRIES):
        newest = max(epochs(state), default=0)
        if not newest:
            return None
        try:
            raw = state.read(paths.lease(newest))
        except FileNotFoundError:  # tidied away since it was listed: there is a newer one
            continue
        return LeaseInfo.from_bytes(newest, raw), raw
    raise FileNotFoundError(paths.lease(newest))


def read_lease(state: Folder) -> LeaseInfo | None:
    """The newest epoch's lease, held or released; None where the sink was never held."""
    found = read_raw(state)
    return found[0] if found else None
