"""The folder that an artifact is written to: built beside it, moved there in one step, never over anything else."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..bundle import open_bundle
from ..errors import ArtifactCorrupt, ArtifactNotFound, UsageError
from ..manifest import MANIFEST_NAME
from .source import same_source


def check_target(out: Path) -> None:
    """Raises UsageError unless ``out`` is absent, empty, or an artifact with nothing else in it."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UsageError(f"the artifact is a folder, there is a file: {out}", "give another name")
    present = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    if not present:
        return
    try:
        known = {MANIFEST_NAME, *(file.path for file in open_bundle(str(out)).content.files)}
    except (ArtifactNotFound, ArtifactCorrupt) as error:
        hint = "give a new folder, or remove this one"
        raise UsageError(f"the folder exists and is not an intact artifact: {out}", hint) from error
    if foreign := present - known:
        hint = "give a new folder, or move them away"
        raise UsageError(f"the artifact's folder holds other files too: {out}: {min(foreign)}", hint)


def check_same_model(out: Path, name: str, source: str) -> None:
    """Raises UsageError where the artifact at ``out`` has another name or was made of another model."""
    try:
        manifest = open_bundle(str(out)).manifest
    except ArtifactNotFound:
        return  # nothing there, or not an artifact: check_target's to judge
    there, before = manifest.content.name, manifest.report.source
    if there != name or not same_source(before, source):
        hint = "give another folder, or replace it with --force"
        raise UsageError(f"the folder holds another model's artifact: {out}: {there}, made of {before}", hint)


@contextmanager
def workspace(out: Path) -> Iterator[Path]:
    """A hidden folder beside ``out``, so that moving from it is a rename; removed at the end."""
    folder = out.parent / f".{out.name}.new-{uuid.uuid4().hex[:12]}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"can't write to the folder: {out.parent}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def move_into_place(built: Path, out: Path) -> None:
    """``built`` becomes ``out``; an artifact that was there is kept until then and comes back if the move fails."""
    check_target(out)  # again: building takes a while
    old = out.parent / f".{out.name}.old-{uuid.uuid4().hex[:12]}"
    if out.exists():
        out.rename(old)
    try:
        built.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
