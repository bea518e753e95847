"""Whether sink and state can be used, and making them. ``check`` only reads, so that a plan or a run with nothing to
do leaves no trace."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..artifacts.errors import SinkError, UsageError
from ..artifacts.storage import Folder
from ..workers import paths
from .scan import is_own_name

_MOVE = "Move the sink one folder down, or set sink.state to a folder outside it"


def state_folder(sink: Folder, state_url: str | None = None) -> Folder:
    """The state's folder: ``state_url`` (sink.state, ``--state``) or the one beside the sink. Raises SinkError."""
    url = state_url or paths.state_url(sink.root if sink.is_local else sink.url)
    if url is None:
        raise SinkError(f"the sink has no parent folder to keep its state in: {sink.url}", hint=_MOVE)
    return Folder(url, sink.options)


def check(
    sink: Folder, state: Folder, sources: Iterable[str] = (), source_options: Mapping[str, Any] | None = None
) -> None:
    """Raises SinkError where a run can't write to ``sink``, or must not. ``sources`` may be files, folders or globs."""
    _check_places(sink, state, [Folder(url, source_options or {}) for url in sources])
    if sink.is_local:
        _check_disk(sink, state)
    for folder in (sink, state):
        if folder.is_local:
            _check_writable(folder)
    _check_content(sink, state)


def check_used(sink: Folder, state: Folder) -> None:
    """Raises UsageError where there is neither a state nor a part of ours: no sink, or not the one that was meant."""
    if not state.list() and not any(is_own_name(entry.key) for entry in sink.list()):
        raise unused(sink, state)


def unused(sink: Folder, state: Folder) -> UsageError:
    hint = "Check the path; give --state if the job file sets sink.state"
    return UsageError(f"no run has used this sink: {sink.url} (state looked for in {state.url})", hint)


def create(sink: Folder, state: Folder) -> None:
    """Makes the folders of a local sink and state, and proves that both can be written. Raises SinkError.

    Whether the state's store has create-if-absent is ``lease.probe_create``'s to find out.
    """
    for what, folder in (("sink", sink), ("state", state)):
        try:
            _prove_writable(folder)
        except Exception as error:  # each store raises its own
            raise _unwritable(what, folder, str(error)) from error


def _check_places(sink: Folder, state: Folder, sources: Iterable[Folder]) -> None:
    if _nested(sink, state):
        raise SinkError(f"sink and state lie inside one another: {sink.url} and {state.url}", hint=_MOVE)
    for source in sources:
        if _nested(sink, source):
            hint = "Give the sink a folder of its own: a run would read what it writes"
            raise SinkError(f"sink and source lie inside one another: {sink.url} and {source.url}", hint=hint)
        if _nested(state, source) and not _hidden(state, source):
            hint = "Set sink.state to a folder outside the source"
            raise SinkError(f"state and source lie inside one another: {state.url} and {source.url}", hint=hint)


def _nested(a: Folder, b: Folder) -> bool:
    """Whether one is the other or an ancestor of it; components of a glob match as a glob's do."""
    if a.is_local != b.is_local or (not a.is_local and a.fs.protocol != b.fs.protocol):
        return False
    return _meet(_components(a), _components(b))


def _meet(one: Sequence[str], other: Sequence[str]) -> bool:
    if not one or not other:
        return True
    if other[0] == "**":
        return True
    return fnmatchcase(one[0], other[0]) and _meet(one[1:], other[1:])


def _components(folder: Folder) -> list[str]:
    root = os.path.realpath(folder.root) if folder.is_local else folder.root
    return [component for component in root.split("/") if component]


def _hidden(state: Folder, source: Folder) -> bool:
    """Whether listing ``source`` passes the state over: below it, behind a name with ``_`` or ``.`` in front."""
    below = _components(state)[len(_components(source)) :]
    return any(component[0] in "_." for component in below)


def _check_disk(sink: Folder, state: Folder) -> None:
    """A part is published by a rename out of the state, which only works within one file system."""
    if not state.is_local:
        raise SinkError(f"a sink on a local disk needs its state on that disk: {state.url}", hint=_MOVE)
    here, there = (_existing(Path(folder.root)) for folder in (sink, state))
    if here.stat().st_dev != there.stat().st_dev:
        raise SinkError(f"the state is on another file system than the sink: {state.url}", hint=_MOVE)


def _check_writable(folder: Folder) -> None:
    nearest = _existing(Path(folder.root))
    if not nearest.is_dir():
        raise _unwritable("folder", folder, f"{nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise _unwritable("folder", folder, f"no permission to write in {nearest}")


def _existing(path: Path) -> Path:
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def _check_content(sink: Folder, state: Folder) -> None:
    """Parts without their state can't be trusted, and other files must not be mixed with ours."""
    if state.list(paths.LEDGER):
        return
    keys = [entry.key for entry in sink.list() if entry.key.rsplit("/", 1)[-1][0] not in "_."]
    foreign = [key for key in keys if not is_own_name(key)]
    if foreign:
        hint = "Give the job a sink of its own"
        raise SinkError(f"the sink holds files that headrace did not write: {sink.url}, as {foreign[0]}", hint=hint)
    if keys and not state.list(paths.LEASE):  # with one, a first run died before it wrote its ledger
        hint = "Point sink.state at it, or run 'headrace repair' on the sink to make it anew from the parts"
        raise SinkError(f"the sink holds parts but its state is not there: {state.url}", hint=hint)


def _prove_writable(folder: Folder) -> None:
    """Leaves nothing behind, and in an object store nothing to see meanwhile: readers may be at work."""
    if folder.is_local:
        root = Path(folder.root)
        root.mkdir(parents=True, exist_ok=True)
        probe = root / f".probe.{uuid4().hex}"
        try:
            probe.touch(exist_ok=False)
        finally:
            probe.unlink(missing_ok=True)
    elif hasattr(folder.fs, "call_s3"):
        bucket, _, key = folder.path(f".probe.{uuid4().hex}").partition("/")
        upload = folder.fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
        folder.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload["UploadId"])


def _unwritable(what: str, folder: Folder, why: str) -> SinkError:
    hint = "Check the path, its permissions and the credentials"
    return SinkError(f"the {what} can't be written: {folder.url}: {why}", hint=hint)
