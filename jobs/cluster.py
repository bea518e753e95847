"""All that the driver says to Ray: start, ship, make and end actors, and the calls that are out."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..artifacts.bundle import Bundle
from ..artifacts.errors import UsageError
from ..artifacts.hardware import available_cpus
from ..artifacts.manifest import Content
from ..artifacts.store import Shipment, ship
from ..workers.shard import WorkerSpec

LOG = logging.getLogger("headrace")
CallKind = Literal["ready", "score", "probe", "publish", "discard", "vitals"]
#: Calls of one actor that may run while it scores: grants must not wait behind a shard.
CONTROL_THREADS = 4
#: Seconds in which a cluster's head has to accept a connection.
REACH_S = 15.0


@dataclass(frozen=True, slots=True)
class Call:
    """One actor call that is out."""

    kind: CallKind
    worker: str
    shard: int = -1
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a value, the error that the call raised, or ``lost``: the actor is dead or out of reach."""

    call: Call
    value: Any = None
    error: BaseException | None = None
    lost: str | None = None
    confirmed: bool = True  #: the actor surely is dead


@dataclass
class Cluster:
    """A connection to Ray for one run. ``address`` None: ``RAY_ADDRESS``, else a local Ray with ``num_cpus``."""

    address: str | None
    num_cpus: int | None = None
    actors: dict[str, Any] = field(default_factory=dict)
    _calls: dict[Any, Call] = field(default_factory=dict)
    _shipment: Shipment | None = None
    _connected: bool = False

    def connect(self) -> str:
        """Joins or starts Ray; says which."""
        # Before Ray is imported: it reads both once.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {}
        if address == "local":
            options = {"num_cpus": self.num_cpus or available_cpus(), "include_dashboard": False}
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=True, **options)
        self._connected = True
        return "a local Ray" if address == "local" else f"Ray at {address}"

    def close(self) -> None:
        if not self._connected:
            return
        import ray

        with contextlib.suppress(Exception):
            ray.shutdown()

    def ship(self, bundle: Bundle, variant: str) -> None:
        import ray

        self._shipment = ship(bundle, variant, ray.put)

    def start(self, worker: str, spec: WorkerSpec, content: Content, epoch: int, num_cpus: float) -> None:
        """Asks for an actor and for its ``info``; the answer's kind is ``ready``."""
        from ..workers.actor import Worker

        groups = {"score": 1, "control": CONTROL_THREADS}
        options: dict[str, Any] = {"num_cpus": num_cpus, "max_restarts": 0, "max_task_retries": 0}
        make = _ray().remote(**options, concurrency_groups=groups)
        self.actors[worker] = actor = make(Worker).remote(worker, spec, content, self._shipment, epoch)
        self._calls[actor.info.options(concurrency_group="control").remote()] = Call("ready", worker)

    def call(self, call: Call, method: str, *arguments: Any) -> None:
        actor = self.actors.get(call.worker)
        if actor is None:
            return
        group = "score" if call.kind in ("score", "probe") else "control"
        reference = getattr(actor, method).options(concurrency_group=group).remote(*arguments)
        self._calls[reference] = call

    def kill(self, worker: str) -> None:
        import ray

        actor = self.actors.pop(worker, None)
        self._calls = {ref: call for ref, call in self._calls.items() if call.worker != worker}
        if actor is not None:
            ray.kill(actor, no_restart=True)

    def kill_all(self) -> None:
        """Before what they staged is removed."""
        for worker in list(self.actors):
            self.kill(worker)

    def answers(self, timeout_s: float) -> list[Answer]:
        """Waits for at least one call, not longer than ``timeout_s``, then takes all that are there."""
        import ray

        if not self._calls:
            time.sleep(timeout_s)
            return []
        references = list(self._calls)
        done, _ = ray.wait(references, num_returns=1, timeout=timeout_s)
        if done and len(references) > 1:
            done, _ = ray.wait(references, num_returns=len(references), timeout=0)
        return [self._take(reference) for reference in done]

    def alive_nodes(self) -> set[str]:
        ray: Any = _ray()
        return {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def resources(self) -> Mapping[str, float]:
        ray: Any = _ray()
        return dict(ray.cluster_resources())

    def outstanding(self, kind: CallKind) -> int:
        return sum(call.kind == kind for call in self._calls.values())

    def _take(self, reference: Any) -> Answer:
        import ray
        from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

        call = self._calls.pop(reference)
        try:
            return Answer(call, ray.get(reference))
        except ActorUnavailableError as error:
            return Answer(call, lost=_reason(error), confirmed=False)
        except RayActorError as error:
            # A constructor that raised: its error travels as the first argument.
            task_error = next((part for part in error.args if isinstance(part, RayTaskError)), None)
            return Answer(call, lost=_reason(error), error=task_error and _cause(task_error))
        except RayTaskError as error:
            return Answer(call, error=_cause(error))
        except RayError as error:  # the answer itself is lost, or can't be unpickled
            return Answer(call, lost=_reason(error), confirmed=False)


def refuse_unreachable(address: str | None) -> None:
    """Raises UsageError where nobody listens at a cluster's address: Ray itself would try for minutes.

    ``address`` None: ``RAY_ADDRESS``, else a Ray of this machine's own, which needs no look.
    """
    wanted = address or os.environ.get("RAY_ADDRESS") or "local"
    if "://" in wanted:
        hint = "give the cluster's own host:port, from a machine inside it; leave --address out to start Ray here"
        raise UsageError(f"not an address of a Ray cluster for `run`: {wanted}", hint)
    host, colon, port = wanted.rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except OSError as error:
        hint = "check --address or RAY_ADDRESS; leave both out to start Ray here"
        raise UsageError(f"no Ray cluster answers at {wanted}: {error}", hint) from error


def _ray() -> Any:
    """Half of Ray's functions carry no types."""
    import ray

    return ray


def _cause(error: Any) -> BaseException:
    """What the worker raised, without Ray's wrapping."""
    cause: BaseException = error.cause if isinstance(error.cause, BaseException) else error
    return cause


def _reason(error: BaseException) -> str:
    """Ray's own sentence on why an actor is gone, without its list of ids and its guesses."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("The actor is dead because")), lines[0] if lines else "")
    return said.partition(" Some common causes")[0] or type(error).__name__
