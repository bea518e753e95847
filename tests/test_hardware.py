"""CPU detection from the texts of real machines, and the choice of a variant."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.artifacts.errors import ArtifactNotFound, UsageError
from headrace.artifacts.hardware import (
    Cpu,
    available_cpus,
    cgroup_cpus,
    choose_variant,
    parse_cpuinfo,
    parse_sysctl,
    this_cpu,
)
from headrace.artifacts.manifest import Variant

# Flags shortened to those around the interesting ones.
ZEN4 = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9R14
flags\t\t: fpu sse4_1 sse4_2 avx fma avx2 avx512f avx512dq avx512bw avx512vl avx512_bf16 avx512_vnni avx512_bitalg

processor\t: 1
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9R14
flags\t\t: fpu sse4_1 sse4_2 avx fma avx2 avx512f avx512dq avx512bw avx512vl avx512_bf16 avx512_vnni avx512_bitalg
"""
SKYLAKE = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8175M CPU @ 2.50GHz
flags\t\t: fpu sse4_1 avx fma avx2 avx512f avx512dq avx512cd avx512bw avx512vl pku ospke
"""
HASWELL = "model name\t: Intel(R) Xeon(R) CPU E5-2666 v3 @ 2.90GHz\nflags\t\t: fpu sse4_1 avx fma avx2 bmi2\n"
ALDER_LAKE = (
    "model name\t: 12th Gen Intel(R) Core(TM) i7-12700\nflags\t\t: fpu sse4_1 avx fma avx2 avx_vnni serialize\n"
)
SAPPHIRE_RAPIDS = """model name\t: Intel(R) Xeon(R) Platinum 8488C
flags\t\t: sse4_1 avx fma avx2 avx_vnni avx512f avx512dq avx512bw avx512vl avx512_vnni amx_bf16 amx_tile amx_int8
"""
NEHALEM = "model name\t: Intel(R) Xeon(R) CPU X5570 @ 2.93GHz\nflags\t\t: fpu sse4_1 sse4_2 popcnt\n"
GRAVITON3 = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimddp sha3 sve asimdfhm i8mm bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
"""
RASPBERRY_PI4 = "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU implementer\t: 0x41\nCPU part\t: 0xd08\n"
M1 = """machdep.cpu.brand_string: Apple M1
hw.optional.AdvSIMD: 1
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_I8MM: 0
"""

VNNI, AVX2, ARM64, PLAIN = (
    ("cpu-vnni", "cpu-avx2", "cpu"),
    ("cpu-avx2", "cpu"),
    ("cpu-arm64", "cpu"),
    ("cpu",),
)


@pytest.mark.parametrize(
    ("text", "machine", "model", "instruction_set", "targets"),
    [
        (ZEN4, "x86_64", "AMD EPYC 9R14", "avx512-vnni", VNNI),
        (SKYLAKE, "x86_64", "Intel(R) Xeon(R) Platinum 8175M CPU @ 2.50GHz", "avx512", AVX2),
        (HASWELL, "x86_64", "Intel(R) Xeon(R) CPU E5-2666 v3 @ 2.90GHz", "avx2", AVX2),
        (ALDER_LAKE, "x86_64", "12th Gen Intel(R) Core(TM) i7-12700", "avx2-vnni", VNNI),
        (SAPPHIRE_RAPIDS, "x86_64", "Intel(R) Xeon(R) Platinum 8488C", "amx-int8", VNNI),
        (NEHALEM, "x86_64", "Intel(R) Xeon(R) CPU X5570 @ 2.93GHz", "sse", PLAIN),
        (GRAVITON3, "aarch64", "Neoverse-V1", "arm64-i8mm", ARM64),
        (RASPBERRY_PI4, "aarch64", "Cortex-A72", "arm64", ARM64),
        ("", "riscv64", "riscv64", "riscv64", PLAIN),
    ],
)
def test_cpuinfo(text: str, machine: str, model: str, instruction_set: str, targets: tuple[str, ...]) -> None:
    cpu = parse_cpuinfo(text, machine)
    assert (cpu.model, cpu.instruction_set, cpu.targets) == (model, instruction_set, targets)


def test_only_relevant_flags_are_kept() -> None:
    assert parse_cpuinfo(HASWELL, "x86_64").flags == ("avx", "avx2", "fma", "sse4_1")


def test_a_flag_that_one_core_lacks_does_not_count() -> None:
    mixed = ZEN4 + "\nprocessor\t: 2\nflags\t\t: fpu sse4_1 avx fma avx2\n"
    assert parse_cpuinfo(mixed, "x86_64").targets == AVX2


def test_macos() -> None:
    cpu = parse_sysctl(M1, "arm64")
    assert (cpu.model, cpu.instruction_set, cpu.targets) == ("Apple M1", "arm64-dotprod", ARM64)
    intel = "machdep.cpu.brand_string: Intel(R) Core(TM) i7\nmachdep.cpu.features: FMA AVX1.0 SSE4.1\n"
    assert parse_sysctl(intel + "machdep.cpu.leaf7_features: AVX2 BMI2\n", "x86_64").targets == AVX2


def test_this_cpu_is_cached_and_runs_fp32() -> None:
    assert this_cpu() is this_cpu()
    assert this_cpu().targets[-1] == "cpu"


def variant(name: str, target: str, precision: str) -> Variant:
    return Variant(
        name=name, target=target, precision=precision, recipe="", files=(), batch_tokens=512, batch_invariant=False
    )


FP32 = variant("cpu-fp32", "cpu", "fp32")
ALL = [
    FP32,
    variant("cpu-arm64-int8", "cpu-arm64", "int8"),
    variant("cpu-avx2-int8", "cpu-avx2", "int8"),
    variant("cpu-vnni-int8", "cpu-vnni", "int8"),
]


@pytest.mark.parametrize(
    ("text", "machine", "chosen"),
    [
        (ZEN4, "x86_64", "cpu-vnni-int8"),
        (ALDER_LAKE, "x86_64", "cpu-vnni-int8"),
        (SKYLAKE, "x86_64", "cpu-avx2-int8"),
        (HASWELL, "x86_64", "cpu-avx2-int8"),
        (NEHALEM, "x86_64", "cpu-fp32"),
        (GRAVITON3, "aarch64", "cpu-arm64-int8"),
    ],
)
def test_the_best_target_wins(text: str, machine: str, chosen: str) -> None:
    assert choose_variant(ALL, parse_cpuinfo(text, machine)).name == chosen


def test_reduced_range_runs_where_there_is_no_vnni_variant() -> None:
    assert choose_variant(ALL[:3], parse_cpuinfo(ZEN4, "x86_64")).name == "cpu-avx2-int8"


def test_fp32_is_last_and_loses_to_int8_of_its_own_target() -> None:
    int8 = variant("cpu-int8", "cpu", "int8")
    assert choose_variant([FP32, int8], parse_cpuinfo(HASWELL, "x86_64")) is int8
    assert choose_variant([FP32], parse_cpuinfo(ZEN4, "x86_64")) is FP32


def test_nothing_that_runs() -> None:
    with pytest.raises(ArtifactNotFound, match="cpu-arm64-int8"):
        choose_variant(ALL[1:2], parse_cpuinfo(ZEN4, "x86_64"))


def test_pinned() -> None:
    zen4 = parse_cpuinfo(ZEN4, "x86_64")
    assert choose_variant(ALL, zen4, pinned="cpu-fp32") is FP32
    with pytest.raises(ArtifactNotFound) as absent:
        choose_variant(ALL, zen4, pinned="cpu-int4")
    assert "cpu-int4" in absent.value.message
    assert "cpu-vnni-int8" in (absent.value.hint or "")
    with pytest.raises(UsageError, match="can't run the variant: cpu-arm64-int8"):
        choose_variant(ALL, zen4, pinned="cpu-arm64-int8")


def test_pinned_vnni_is_refused_where_it_would_saturate() -> None:
    with pytest.raises(UsageError) as refused:
        choose_variant(ALL, parse_cpuinfo(SKYLAKE, "x86_64"), pinned="cpu-vnni-int8")
    assert "avx512" in (refused.value.hint or "")


def cgroups(folder: Path, membership: str, files: dict[str, str]) -> float | None:
    for name, text in files.items():
        (folder / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "fs" / name).write_text(text)
    (folder / "self").write_text(membership)
    return cgroup_cpus(folder / "fs", folder / "self")


def test_cgroup_v2_takes_the_smallest_quota_on_the_way(tmp_path: Path) -> None:
    files = {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "150000 100000\n", "a/b/c/cpu.max": "max 100000\n"}
    assert cgroups(tmp_path, "0::/a/b/c\n", files) == 1.5


def test_cgroup_v2_of_a_container_is_mounted_at_the_root(tmp_path: Path) -> None:
    assert cgroups(tmp_path, "0::/\n", {"cpu.max": "200000 100000\n"}) == 2.0


def test_cgroup_v1(tmp_path: Path) -> None:
    files = {"cpu/docker/x/cpu.cfs_quota_us": "300000\n", "cpu/docker/x/cpu.cfs_period_us": "100000\n"}
    assert cgroups(tmp_path, "4:cpu,cpuacct:/docker/x\n1:memory:/docker/x\n", files) == 3.0


def test_no_quota(tmp_path: Path) -> None:
    assert cgroups(tmp_path, "0::/\n", {"cpu.max": "max 100000\n"}) is None
    assert cgroup_cpus(tmp_path / "none", tmp_path / "none") is None
    v1 = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert cgroups(tmp_path / "v1", "4:cpu:/\n", v1) is None


def test_available_cpus_is_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_cpus() >= 1
    monkeypatch.setattr("headrace.artifacts.hardware.cgroup_cpus", lambda *_: 0.5)
    assert available_cpus() == 1


def test_a_cpu_is_a_plain_value() -> None:
    assert parse_cpuinfo(ZEN4, "x86_64") == Cpu(
        model="AMD EPYC 9R14",
        architecture="x86_64",
        flags=("avx", "avx2", "avx512_vnni", "avx512bw", "avx512dq", "avx512f", "avx512vl", "fma", "sse4_1"),
        instruction_set="avx512-vnni",
        targets=VNNI,
    )
