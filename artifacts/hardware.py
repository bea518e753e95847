"""What this machine's CPU can run, and which variant of an artifact suits it."""

from __future__ import annotations

import functools
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import ArtifactNotFound, UsageError
from .manifest import Variant

#: The flags that decide which kernels ONNX Runtime picks, as ``/proc/cpuinfo`` spells them.
RELEVANT_FLAGS = (
    "sse4_1", "avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
    "amx_tile", "amx_int8", "asimd", "asimddp", "i8mm", "sve", "sve2",
)  # fmt: skip
_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_X86 = {"x86_64", "amd64", "i386", "i686", "x86"}
_ARM64 = {"aarch64", "arm64"}
#: ``/proc/cpuinfo`` on arm64 has no model name: https://github.com/util-linux/util-linux/blob/master/sys-utils/lscpu-arm.c
_ARM_PARTS = {
    "0xd08": "Cortex-A72",
    "0xd0c": "Neoverse-N1",
    "0xd40": "Neoverse-V1",
    "0xd49": "Neoverse-N2",
    "0xd4f": "Neoverse-V2",
    "0xd84": "Neoverse-V3",
}


@dataclass(frozen=True)
class Cpu:
    """``instruction_set`` names what decides the bytes of an answer; ``targets`` are variant targets, best first."""

    model: str
    architecture: str
    flags: tuple[str, ...]  #: the relevant ones only, sorted
    instruction_set: str
    targets: tuple[str, ...]


@functools.cache
def this_cpu() -> Cpu:
    """From ``/proc/cpuinfo``, on macOS from sysctl; elsewhere no flags are known and ``cpu`` is the only target."""
    machine = platform.machine().lower()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        return parse_cpuinfo(cpuinfo.read_text(errors="replace"), machine)
    if platform.system() == "Darwin":
        return parse_sysctl(_sysctl(), machine)
    return _cpu(platform.processor() or machine, machine, set())


def parse_cpuinfo(text: str, machine: str) -> Cpu:
    """``machine`` is what ``uname -m`` says. Only flags that every core has count."""
    fields = [line.split(":", 1) for line in text.splitlines() if ":" in line]
    values: dict[str, list[str]] = {}
    for name, value in fields:
        values.setdefault(name.strip(), []).append(value.strip())
    flag_lines = values.get("flags") or values.get("Features") or []
    flags = set.intersection(*(set(line.split()) for line in flag_lines)) if flag_lines else set()
    return _cpu(_model_name(values) or machine, machine, flags)


def parse_sysctl(text: str, machine: str) -> Cpu:
    """``text`` holds ``name: value`` lines of ``sysctl -a``."""
    values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    words = f"{values.get('machdep.cpu.features', '')} {values.get('machdep.cpu.leaf7_features', '')}".lower()
    renamed = {"avx1.0": "avx", "sse4.1": "sse4_1", "avx512vnni": "avx512_vnni"}
    flags = {renamed.get(word, word) for word in words.split()}
    for name, flag in (("AdvSIMD", "asimd"), ("FEAT_DotProd", "asimddp"), ("FEAT_I8MM", "i8mm")):
        if values.get(f"hw.optional.arm.{name}") == "1" or values.get(f"hw.optional.{name}") == "1":
            flags.add(flag)
    return _cpu(values.get("machdep.cpu.brand_string") or machine, machine, flags)


def choose_variant(variants: Sequence[Variant], cpu: Cpu, pinned: str | None = None) -> Variant:
    """The variant to run on ``cpu``: its best target first, int8 before fp32 within one; or the pinned one.

    Raises ArtifactNotFound where no variant has the pinned name or none suits, UsageError where ``cpu`` can't run it.
    """
    if pinned is not None:
        return _pinned(variants, cpu, pinned)
    for target in cpu.targets:
        matching = sorted((v for v in variants if v.target == target), key=lambda v: v.precision != "int8")
        if matching:
            return matching[0]
    message = f"no variant runs on this CPU ({', '.join(cpu.targets)}): {_names(variants)}"
    raise ArtifactNotFound(message, "compile the model again with --variant cpu-fp32")


def _pinned(variants: Sequence[Variant], cpu: Cpu, name: str) -> Variant:
    found = find_variant(variants, name)
    if found.target not in cpu.targets:
        hint = f"its instruction set is {cpu.instruction_set}; it runs variants for {', '.join(cpu.targets)}"
        raise UsageError(f"this CPU can't run the variant: {name}", hint)
    return found


def find_variant(variants: Sequence[Variant], name: str) -> Variant:
    """Raises ArtifactNotFound, naming those that are there."""
    for variant in variants:
        if variant.name == name:
            return variant
    raise ArtifactNotFound(f"the artifact has no such variant: {name}", f"it has {_names(variants)}")


def _names(variants: Sequence[Variant]) -> str:
    return ", ".join(variant.name for variant in variants) or "none"


def _cpu(model: str, machine: str, flags: set[str]) -> Cpu:
    relevant = flags & set(RELEVANT_FLAGS)
    if machine in _X86:
        instruction_set, targets = _x86(relevant)
    elif machine in _ARM64:
        instruction_set, targets = _arm64(relevant)
    else:
        instruction_set, targets = machine, ("cpu",)
    return Cpu(model, machine, tuple(sorted(relevant)), instruction_set, targets)


def _x86(flags: set[str]) -> tuple[str, tuple[str, ...]]:
    """The tiers of ONNX Runtime's MLAS (core/mlas/lib/platform.cpp)."""
    vnni = ("cpu-vnni", "cpu-avx2", "cpu")
    if flags >= _AVX512 | {"avx512_vnni"}:
        return ("amx-int8" if flags >= {"amx_tile", "amx_int8"} else "avx512-vnni"), vnni
    if flags >= {"avx2", "avx_vnni"}:
        return "avx2-vnni", vnni
    if flags >= _AVX512:
        return "avx512", ("cpu-avx2", "cpu")
    if "avx2" in flags:
        return "avx2", ("cpu-avx2", "cpu")
    return ("avx" if "avx" in flags else "sse"), ("cpu",)


def _arm64(flags: set[str]) -> tuple[str, tuple[str, ...]]:
    for flag, name in (("i8mm", "arm64-i8mm"), ("asimddp", "arm64-dotprod")):
        if flag in flags:
            return name, ("cpu-arm64", "cpu")
    return "arm64", ("cpu-arm64", "cpu")


def _model_name(values: dict[str, list[str]]) -> str | None:
    if "model name" in values:
        return values["model name"][0]
    part = values.get("CPU part", [""])[0]
    if not part:
        return None
    return _ARM_PARTS.get(part, f"arm64 {values.get('CPU implementer', ['?'])[0]}/{part}")


def _sysctl() -> str:
    try:
        return subprocess.run(["sysctl", "-a"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def available_cpus() -> int:
    """CPUs that this process may use, at least 1: its affinity, cut by the quota of its cgroups (v2 or v1)."""
    import os

    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cpus(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    return max(1, affinity if quota is None else min(affinity, int(quota)))


def cgroup_cpus(root: Path, membership: Path) -> float | None:
    """The smallest quota, in CPUs, of the cgroups in ``membership`` (``/proc/self/cgroup``) and all above them.

    None where there is no quota. Inside a container the own group is mounted at ``root`` itself.
    """
    quotas = [_v2_quota(folder) for folder in _groups(root, membership, "")]
    for mount in (root / "cpu", root / "cpu,cpuacct"):
        quotas += [_v1_quota(folder) for folder in _groups(mount, membership, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(mount: Path, membership: Path, controller: str) -> list[Path]:
    """``mount`` and every folder below it on the way to this process's group."""
    lines = membership.read_text().splitlines() if membership.exists() else []
    parts = [re.split(":", line, maxsplit=2) for line in lines]
    paths = [path for _, controllers, path in (p for p in parts if len(p) == 3) if controller in controllers.split(",")]
    found = [mount]
    for path in paths:
        folder = mount
        for name in path.strip("/").split("/"):
            folder = folder / name
            found.append(folder)
    return found


def _v2_quota(folder: Path) -> float | None:
    words = _words(folder / "cpu.max")
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _v1_quota(folder: Path) -> float | None:
    quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
    return int(quota[0]) / int(period[0]) if quota and period and int(quota[0]) > 0 else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
