"""What is shipped, what is imported, and that nobody else's ``jobs`` package gets in the way."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
LAYERS = ("artifacts", "workers", "jobs")
#: None of these may be loaded to show help or to import the package.
HEAVY = ("torch", "transformers", "optimum", "datasets", "onnx", "onnxruntime", "ray")
SKIPPED = (".*", "__pycache__", "build", "dist", "demo", "*.egg-info", "results")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def modules() -> set[str]:
    """Every module of the package, as a path below ``headrace``."""
    found = {str(path.relative_to(ROOT)) for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}
    return found | {"__init__.py", "__main__.py", "py.typed"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """sdist, and the wheel made from it; from a copy, because setuptools leaves a build folder that it uses again."""
    copy, out = tmp_path_factory.mktemp("copy") / "headrace", tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*SKIPPED))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel's packages and nothing else."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(built[1])], check=True)
    return target


def python(*arguments: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)} if path else dict(os.environ)
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def test_the_package_list_is_the_folders_on_disk(project: dict[str, Any]) -> None:
    folders = {path.parent.relative_to(ROOT) for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}
    on_disk = {"headrace", *("headrace." + ".".join(folder.parts) for folder in folders)}
    assert set(project["tool"]["setuptools"]["packages"]) == on_disk
    for layer in LAYERS:
        assert (ROOT / "headrace" / layer).readlink() == Path("..", layer)
    for folder in folders:
        assert (ROOT / folder / "__init__.py").is_file()


def test_sdist_and_wheel_hold_every_module(built: tuple[Path, Path], modules: set[str]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"headrace/{module}" for module in modules} | {"LICENSE", "README.md", "pyproject.toml"} <= names
    with zipfile.ZipFile(built[1]) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (licence,) = (name for name in wheel.namelist() if name.endswith("/LICENSE"))
        assert b"Apache License" in wheel.read(licence)
    assert packed == {f"headrace/{module}" for module in modules}


def test_the_wheel_runs_by_itself(installed: Path, project: dict[str, Any], tmp_path: Path) -> None:
    where = "import headrace.jobs, headrace.workers.tasks; print(headrace.jobs.__file__)"
    done = python("-c", where, cwd=tmp_path, path=installed)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed)
    version = python("-m", "headrace", "--version", cwd=tmp_path, path=installed)
    assert version.stdout == f"headrace {project['project']['version']}\n"


@pytest.mark.parametrize("code", ["import headrace", "from headrace.jobs.cli import main; main()"])
def test_help_and_import_are_light(code: str, tmp_path: Path) -> None:
    program = f"""
import sys
sys.argv = ["headrace", "--help"]
try:
    {code}
except SystemExit as ended:
    assert not ended.code, ended.code
print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)
"""
    done = python("-c", program, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "[]\n", done.stderr


def test_every_command_has_help(tmp_path: Path) -> None:
    shown = python("-m", "headrace", "--help", cwd=tmp_path).stdout
    for command in ["compile", "inspect", "preview", "plan", "run", "status", "verify", "repair", "unlock"]:
        assert command in shown
        one = python("-m", "headrace", command, "--help", cwd=tmp_path)
        assert one.returncode == 0 and "--json" in one.stdout and "--verbose" in one.stdout


def test_a_folder_with_packages_of_the_same_names(tmp_path: Path) -> None:
    for name in LAYERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong package')\n")
    done = python("-m", "headrace", "status", "nowhere/scores", cwd=tmp_path)
    assert done.returncode == 2 and "nowhere/scores" in done.stderr and "wrong package" not in done.stderr


@pytest.mark.parametrize(
    "line", ["import jobs", "from workers import shard", "from artifacts.errors import UsageError"]
)
def test_lint_bans_the_top_level_names(line: str) -> None:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--select",
        "TID251",
        "--stdin-filename",
        "tests/x.py",
        "-",
    ]
    done = subprocess.run(command, input=f"{line}\n", capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1 and "TID251" in done.stdout, done.stdout + done.stderr


def test_the_package_imports_itself_relatively() -> None:
    """Lint can't tell ``from jobs`` inside the package from a relative import, so it is looked for here."""
    files = [path for layer in LAYERS for path in (ROOT / layer).rglob("*.py")] + [*(ROOT / "headrace").glob("*.py")]
    assert len(files) > 50
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names.append(node.module or "")
            own = {name.partition(".")[0] for name in names} & {*LAYERS, "headrace"}
            assert not own, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_lint_bans_heavy_imports_at_module_level() -> None:
    program = "".join(f"import {name}\n" for name in HEAVY)
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--select",
        "TID253",
        "--stdin-filename",
        "jobs/x.py",
        "-",
    ]
    done = subprocess.run(command, input=program, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.count("TID253") == len(HEAVY), done.stdout + done.stderr


def test_everything_declared_is_pinned(project: dict[str, Any]) -> None:
    """An unpinned package lets pip look for a set of its own, for minutes, or take a CUDA build."""
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    pinned = {_normal(name) for name in pins}
    extras = project["project"]["optional-dependencies"]
    for wanted in [*project["project"]["dependencies"], *extras["compile"], *extras["s3"], *extras["dev"]]:
        match = re.match(r"[A-Za-z0-9_.-]+", wanted)
        assert match and _normal(match[0]) in pinned, wanted
    assert pins["torch"] == "2.13.0"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_make_help_lists_every_target() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert {line.split()[0] for line in shown.splitlines()} == set(phony[1].split())
    checks = (ROOT / ".ci" / "run").read_text()
    assert "make lint" in checks and "make test" in checks and os.access(ROOT / ".ci" / "run", os.X_OK)


def test_make_refuses_an_old_python(tmp_path: Path) -> None:
    old = tmp_path / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit\nexit 1\n')
    old.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(["make", "test", f"PYTHON={old}"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2 and "3.11 or newer" in done.stderr and "Python 3.9.2" in done.stderr


def test_the_cluster_file_is_valid() -> None:
    import jsonschema
    import ray.autoscaler

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(yaml.safe_load((ROOT / "cluster.yaml").read_text()), schema)


def test_the_published_schema_is_the_job_files_and_takes_the_example() -> None:
    import jsonschema

    from headrace.jobs.spec import job_schema

    published = json.loads((ROOT / "docs" / "job.schema.json").read_text())
    assert published == json.loads(json.dumps(job_schema())), "run `make schema`"
    jsonschema.validate(yaml.safe_load((ROOT / "examples" / "glosses" / "job.yaml").read_text()), published)
