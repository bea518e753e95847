"""The end of a run for a person: what was done, how fast, what it cost, where it is, what to do next.

Made of the summary's value alone (``report.summary_of``), so that a run of long ago reads the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .output import columns, count, duration, size

_STATES = {
    "done": "done",
    "failed": "FAILED",
    "interrupted": "interrupted: run the same command again to continue",
}


@dataclass(frozen=True)
class Places:
    """Where to look afterwards. ``model_cost`` is one line on what the variant costs against fp32."""

    sink: str
    state: str
    command: str  #: that started the run
    model: str = ""
    model_cost: str | None = None


def summary_lines(summary: Mapping[str, Any], places: Places) -> list[str]:
    if summary["state"] == "done" and not summary["shards"] and not summary["bad_files"]:
        return list(_nothing_done(summary, places))
    pairs = [*_work(summary, places), *_bad(summary, places), *_places(summary, places)]
    head = f"{summary['job']}: {_STATES.get(summary['state'], summary['state'])}"
    return [head, "", *columns([("  " + name, text) for name, text in pairs]), *_next(summary, places)]


def quarantine_warning(summary: Mapping[str, Any], sink: str, state: str, state_given: bool) -> str | None:
    """What a run put into quarantine and how to see it; None where that is nothing."""
    rows, files = summary["bad_rows"], summary["bad_files"]
    if not rows and not files:
        return None
    what = " and ".join(count(number, noun) for number, noun in ((rows, "row"), (files, "file")) if number)
    command = shlex.join(["headrace", "status", sink, *(["--state", state] if state_given else [])])
    return f"put into quarantine: {what}, see {state}/quarantine/; `{command}` lists them by reason"


def _nothing_done(summary: Mapping[str, Any], places: Places) -> Iterator[str]:
    yield f"{summary['job']}: {_nothing(summary)}"
    yield ""
    pairs = [("rows", f"{summary['rows_before']:,} in {count(summary['files'], 'file')}, done before and unchanged")]
    pairs += [("time", duration(summary["wall_s"])), *_model(places), *_bad(summary, places)]
    pairs.append(("predictions", places.sink))
    yield from columns([("  " + name, text) for name, text in pairs])


def _nothing(summary: Mapping[str, Any]) -> str:
    if summary["removed_parts"]:
        return f"removed {count(summary['removed_parts'], 'part')}, all is up to date"
    return f"nothing to do, {'all is up to date' if summary['files'] else 'no file matches where'}"


def _work(summary: Mapping[str, Any], places: Places) -> Iterator[tuple[str, str]]:
    yield "rows", _row_text(summary)
    yield "shards", f"{summary['shards']:,} of {summary['shards_planned']:,}"
    took = f"{duration(summary['wall_s'])} in all: {duration(summary['start_s'])} to start"
    yield "time", f"{took}, {duration(summary['score_s'])} to score"
    for name, pool in summary["pools"].items():
        yield f"pool {name}", _pool_text(pool)
    if summary["tokens"]:
        yield "speed", f"{_number(summary['rows_per_s'])} rows/s, {_number(summary['tokens_per_s'])} tokens/s"
        yield "tokens", _token_text(summary)
    yield from _model(places)


def _model(places: Places) -> Iterator[tuple[str, str]]:
    if places.model:
        yield "model", places.model
    if places.model_cost:
        yield "cost", places.model_cost


def _row_text(summary: Mapping[str, Any]) -> str:
    """What became of the rows that this run read; they add up."""
    text = f"{summary['rows_written']:,} scored"
    if summary["rows_filtered"]:
        text += f", {summary['rows_filtered']:,} filtered out by where"
    if summary["bad_rows"]:
        text += f", {summary['bad_rows']:,} in quarantine"
    if summary["rows_before"]:
        text += f"; {summary['rows_before']:,} done before"
    if summary["rows"] < summary["rows_planned"]:
        text += f"; {summary['rows_planned'] - summary['rows']:,} left"
    return text


def _pool_text(pool: Mapping[str, Any]) -> str:
    where = (
        f"{count(pool['workers'], 'worker')} on {count(pool['hosts'], 'host')}"
        if pool["hosts"] > 1
        else f"{count(pool['workers'], 'worker')}"
    )
    # Nobody can ask a worker that was killed.
    peak = f", peak memory of one {size(pool['peak_rss_bytes'])}" if pool["peak_rss_bytes"] else ""
    return f"{where}, {pool['variant']}{peak}"


def _token_text(summary: Mapping[str, Any]) -> str:
    """Equal texts of one window are scored once, so the texts may be fewer than the rows."""
    texts = f"{count(summary['unique_rows'], 'text')} in {count(summary['batches'], 'batch')}"
    return f"{summary['tokens']:,} of {texts}, {1 - summary['padding_efficiency']:.1%} padding"


def _bad(summary: Mapping[str, Any], places: Places) -> Iterator[tuple[str, str]]:
    if summary["empty_rows"]:
        yield "empty", f"{count(summary['empty_rows'], 'row')} without text"
    if summary["truncated_rows"]:
        yield "truncated", f"{count(summary['truncated_rows'], 'text')} longer than the model takes"
    if summary["row_by_row_shards"]:
        yield "fallback", f"{count(summary['row_by_row_shards'], 'shard')} scored row by row, after an error in a batch"
    if summary["bad_rows"] or summary["bad_files"]:
        what = f"{count(summary['bad_rows'], 'row')} and {count(summary['bad_files'], 'file')}"
        yield "quarantine", f"{what}, see {places.state}/quarantine/"
    if summary["known_bad_files"]:
        yield "", f"{count(summary['known_bad_files'], 'file')} there before, unchanged"
    for failed in summary["failed_shards"][:5]:
        yield "failed", f"shard {failed['shard']}: {failed['error']}"
    if summary["vanished_files"]:
        yield "vanished", _vanished(summary)


def _places(summary: Mapping[str, Any], places: Places) -> Iterator[tuple[str, str]]:
    yield "predictions", f"{places.sink} ({size(summary['size_bytes'])} written)"
    yield "statistics", f"{places.state}/runs/{summary['run']}/"


def _next(summary: Mapping[str, Any], places: Places) -> Iterator[str]:
    if summary["state"] == "done":
        yield ""
        yield f"  again:  {places.command}   (scores what is new or changed, nothing else)"


def _vanished(summary: Mapping[str, Any]) -> str:
    kept = "their predictions are kept (source.on_source_deleted: replace removes them)"
    return f"{count(summary['vanished_files'], 'source file')} gone; {kept}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"
