"""Which process is this, and is that one still there? Only ever answered for the same host; unknown means no."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_ZOMBIE = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class Owner:
    """One process. ``boot``, ``pid_namespace`` and ``started`` are empty where the system does not tell them."""

    host: str
    pid: int
    boot: str = ""  #: changes with every start of the machine
    pid_namespace: str = ""  #: a pid means something inside one only
    started: str = ""  #: clock ticks from boot to the process's start: tells a reused pid

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Owner:
        text = {name: str(value.get(name) or "") for name in ("host", "boot", "pid_namespace", "started")}
        return cls(pid=int(value.get("pid") or 0), **text)


def this_process() -> Owner:
    _, started = _stat(os.getpid())
    return Owner(socket.gethostname(), os.getpid(), _boot_id(), _pid_namespace(), started)


def same_host(a: Owner, b: Owner) -> bool:
    """Whether a pid of the one is a pid of the other: same host, boot and pid namespace, all of them known."""
    known = a.boot and a.pid_namespace and a.host
    return bool(known) and (a.host, a.boot, a.pid_namespace) == (b.host, b.boot, b.pid_namespace)


def is_gone(owner: Owner) -> bool:
    """Whether ``owner`` is surely dead: on this host, and its pid is free, a zombie's or another process's."""
    if owner.pid <= 0 or not owner.started or not same_host(owner, this_process()):
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # there, under another user
    state, started = _stat(owner.pid)
    return bool(started) and (started != owner.started or state in _ZOMBIE)


def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id")


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, str]:
    """State letter and start time (field 22 of proc(5) stat); empty where there is no such file."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
