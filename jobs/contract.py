"""What the sink holds: ``plans/contract.json``. A run that would put something else there is refused, unless the job's
``on_change`` says what is to be done."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ..artifacts.errors import LedgerFault, UsageError
from ..artifacts.storage import Folder, is_local
from ..workers import paths
from .known_files import KnownFiles, load_known_files, save_known_files

FORMAT = 1
_OWN_SINK = "give --limit a sink of its own: --set sink.path=…"
_ON_CHANGE = (
    "set on_change: replace to score everything anew, on_change: new_only to keep what is there and score only new "
    "files, or give the job another sink"
)


@dataclass(frozen=True)
class Contract:
    """``terms`` are what ``fingerprint`` is the hash of, in words.

    ``keep_types`` are the types of kept columns, frozen by the first plan so that all parts have one schema;
    ``where_types`` those that ``where`` was compiled for. ``earlier`` are the terms of other fingerprints that parts in
    the sink have, by fingerprint. ``sink`` is where the parts are. ``known`` lies in a file of its own, as it is as
    long as the listing.
    """

    fingerprint: str
    terms: Mapping[str, Any]
    keep_types: Mapping[str, pa.DataType]
    where_types: Mapping[str, pa.DataType] = field(default_factory=dict)
    version: str = ""  #: of headrace, when it was written
    earlier: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    known: KnownFiles = field(default_factory=KnownFiles, compare=False, repr=False)
    sink: str = ""  #: its path or URL; empty in a contract of before this was written down

    def terms_by_fingerprint(self) -> dict[str, Mapping[str, Any]]:
        return {**self.earlier, self.fingerprint: self.terms}


def load_contract(state: Folder) -> Contract | None:
    """None before the first run. Raises LedgerFault for one that can't be read."""
    key = paths.contract()
    try:
        raw = state.read(key)
    except FileNotFoundError:
        return None
    try:
        value = json.loads(raw)
        if value["format"] != FORMAT:
            hint = "it may come from a newer headrace: upgrade"
            raise LedgerFault(f"the sink's contract has an unknown format: {key}: {value['format']}", hint)
        return Contract(
            value["fingerprint"],
            value["terms"],
            _types(value["keep_types"]),
            _types(value["where_types"]),
            value["version"],
            value["earlier"],
            load_known_files(state),
            value.get("sink", ""),
        )
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        hint = "delete it: the next run writes it anew, with what the job says then"
        raise LedgerFault(f"the sink's contract can't be read: {state.path(key)}", hint) from error


def save_contract(state: Folder, contract: Contract) -> None:
    """Under the lease, before the first shard of a run."""
    value = {
        "format": FORMAT,
        "fingerprint": contract.fingerprint,
        "version": contract.version,
        "sink": contract.sink,
        "terms": contract.terms,
        "keep_types": _serialized(contract.keep_types),
        "where_types": _serialized(contract.where_types),
        "earlier": contract.earlier,
    }
    state.write(paths.contract(), json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True).encode())
    save_known_files(state, contract.known)


def refuse_other_sink(contract: Contract | None, sink: str, state: str) -> None:
    """Raises UsageError where ``state`` tells of another sink: its parts would count as this one's."""
    if contract is None or not contract.sink or _place(contract.sink) == _place(sink):
        return
    raise UsageError(
        f"the state is another sink's: {state}: it is of {contract.sink}, not of {sink}",
        "give each sink a state of its own: --set sink.state=…; for a sink that was moved, parts and all, write its "
        f"new path as 'sink' in {state.rstrip('/')}/{paths.contract()}",
    )


def _place(url: str) -> str:
    return os.path.realpath(url) if is_local(url) else url.rstrip("/")


def refuse_other_limit(
    contract: Contract | None,
    terms: Mapping[str, Any],
    fingerprint: str,
    present: Collection[str],
    selected: Collection[str],
    sink: str,
    replace: bool,
) -> None:
    """For a sink with parts. ``present`` are the fingerprints of all of them, ``selected`` those of the selected files.

    A run with a limit answers for files that it scores in part only: under any ``on_change``, what others made of them
    would go. One without may go on in a sink made with a limit under ``on_change: replace`` only. Raises UsageError.
    """
    known = contract.terms_by_fingerprint() if contract else {}
    limit = terms["limit"]
    if limit is None:
        others = () if replace else [*selected, *([contract.fingerprint] if contract else [])]
        found = [known[one].get("limit") for one in others if one in known]
    else:
        found = [known[one].get("limit") if one in known else "not known" for one in present if one != fingerprint]
    was = next((one for one in found if one != limit), limit)
    if was != limit:
        said = f"limit: {_said(limit)}, was {_said(was)}"
        raise UsageError(f"the sink holds what another job made: {sink}: {said}", _OWN_SINK)


def refuse_other_terms(
    contract: Contract | None, terms: Mapping[str, Any], fingerprint: str, others: Collection[str], sink: str
) -> None:
    """For a sink with parts. ``others`` are other fingerprints among those of the selected files.

    Raises UsageError that names what differs from the terms that the parts were made under.
    """
    old: Mapping[str, Any] | None
    if contract is not None and contract.fingerprint != fingerprint:
        old = contract.terms
    elif others:
        old = next((contract.earlier[other] for other in others if contract and other in contract.earlier), None)
    else:
        return
    said = "; ".join(difference(old, terms)) if old else "its terms are not known"
    other_limit = old is not None and old.get("limit") != terms.get("limit")
    raise UsageError(f"the sink holds what another job made: {sink}: {said}", _OWN_SINK if other_limit else _ON_CHANGE)


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Terms that differ, in words: ``task.max_length: 192, was 128``."""
    was, now = dict(_flat(old)), dict(_flat(new))
    names = [*now, *(name for name in was if name not in now)]
    return [
        f"{name}: {_said(now.get(name))}, was {_said(was.get(name))}"
        for name in names
        if now.get(name) != was.get(name)
    ]


def _flat(terms: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in terms.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", list(value) if isinstance(value, tuple) else value


def _said(value: Any) -> str:
    if value is None:
        return "not set"
    return str(value)[:12] if isinstance(value, str) and len(value) == 64 and " " not in value else str(value)


def _serialized(types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """``types`` for people, ``arrow`` for ``_types``: not every Arrow type can be told by its name."""
    raw = pa.schema(list(types.items())).serialize().to_pybytes()
    return {"types": {name: str(type_) for name, type_ in types.items()}, "arrow": base64.b64encode(raw).decode()}


def _types(value: Mapping[str, Any]) -> dict[str, pa.DataType]:
    schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(value["arrow"])))
    return {field.name: field.type for field in schema}
