"""``headrace plan``: a plan for a person, with how long it would take where an earlier run tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..artifacts.storage import Folder
from ..workers import paths
from .output import Shown, columns, count, duration, size
from .records import Plan
from .report import SUMMARY

_SHOWN = 10


def plan_shown(plan: Plan, job: str, variant: str, state: Folder, filtered: bool = False) -> Shown:
    """``filtered``: a ``where`` over columns will leave rows out; how many, only scoring tells."""
    value = plan_value(plan, job, variant, _last_rate(state), filtered)
    return Shown(value, list(_lines(plan, value)))


def plan_value(plan: Plan, job: str, variant: str, rows_per_s: float | None, filtered: bool = False) -> dict[str, Any]:
    """``rows_per_s`` is an earlier run's, of which ``estimated_s`` is made."""
    rows = int(plan.shards.piece_rows.sum())
    return {
        "job": job,
        "variant": variant,
        "files": plan.files,
        "rows": plan.rows,
        "size_bytes": plan.size_bytes,
        "rows_done": plan.done_rows,
        "shards_done": plan.done_shards,
        "rows_to_do": rows,
        "rows_are_before_where": filtered,
        "shards_to_do": len(plan.shards),
        "partitions": len(plan.partitions),
        "unfinished_partitions": dict(plan.unfinished_partitions),
        "replaced_parts": sum(len(one.remove) for one in plan.replacements),
        "bad_files": [{"file": bad.file.path, "reason": bad.reason} for bad in plan.bad_files],
        "known_bad_files": plan.known_bad_files,
        "cleared_files": len(plan.cleared_files),
        "vanished_files": list(plan.vanished),
        "rows_per_s_before": rows_per_s,
        "estimated_s": rows / rows_per_s if rows_per_s else None,
    }


def _lines(plan: Plan, value: dict[str, Any]) -> Iterator[str]:
    yield f"{value['job']}: {_todo(plan, value)}"
    yield from columns([("  " + name, text) for name, text in _pairs(plan, value)])
    for name, shards in list(plan.unfinished_partitions.items())[:_SHOWN]:
        if name:
            yield f"    {name}: {count(shards, 'shard')}"
    for bad in plan.bad_files[:_SHOWN]:
        yield f"  to quarantine: {bad.file.path}: {bad.reason}"


def _todo(plan: Plan, value: dict[str, Any]) -> str:
    if plan.nothing_to_do:
        return "nothing to do" if plan.files else "nothing to do, no file matches where"
    rows, shards = count(value["rows_to_do"], "row"), count(value["shards_to_do"], "shard")
    if value["rows_are_before_where"] and value["rows_to_do"]:
        return f"at most {rows} to score, before where, in {shards}"
    return f"{rows} in {shards} to score"


def _pairs(plan: Plan, value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "source", f"{count(plan.files, 'file')}, {count(plan.rows, 'row')}, {size(plan.size_bytes)}"
    yield "done before", f"{count(plan.done_rows, 'row')} in {count(plan.done_shards, 'shard')}"
    yield "variant", value["variant"]
    if value["replaced_parts"]:
        yield "replaced", f"{count(value['replaced_parts'], 'part')} of files that changed"
    if plan.vanished:
        yield "vanished", f"{count(len(plan.vanished), 'source file')} gone"
    if plan.known_bad_files:
        yield "quarantine", f"{count(plan.known_bad_files, 'unreadable file')}, unchanged"
    if plan.cleared_files:
        yield "mended", f"{count(len(plan.cleared_files), 'file')} of the quarantine can be read now"
    if value["estimated_s"]:
        rate = f"{value['rows_per_s_before']:,.0f} rows/s as in the last run"
        yield "time", f"about {duration(value['estimated_s'])} at {rate}"
    elif value["rows_to_do"]:
        yield "time", "unknown: no run has scored for this sink yet"


def _last_rate(state: Folder) -> float | None:
    """Rows per second of the newest run that scored something."""
    for key in sorted((e.key for e in state.list(paths.RUNS) if e.key.endswith(f"/{SUMMARY}")), reverse=True)[:_SHOWN]:
        try:
            rate = json.loads(state.read(key)).get("rows_per_s")
        except (FileNotFoundError, ValueError):
            continue
        if rate:
            return float(rate)
    return None
