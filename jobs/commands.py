"""What each command does, given its output. Returns exit codes; raises HeadraceError for ``guard.py`` to tell."""

from __future__ import annotations

import dataclasses
import logging
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifacts.errors import HeadraceError, LedgerFault
from ..artifacts.storage import Folder
from . import guard
from .output import JsonOutput, Output, Shown, columns, count

if TYPE_CHECKING:
    from .compiling import EvalData
    from .spec import Job
    from .summary import Places

LOG = logging.getLogger("headrace")


def compile_command(output: Output, model: str, out: str, data: EvalData, choices: dict[str, Any]) -> int:
    from .compiling import compile_model
    from .inspecting import compiled_artifact

    compile_model(model, Path(out), eval_data=data, say=LOG.info, **choices)
    output.show(compiled_artifact(out))
    return 0


def inspect_command(output: Output, artifact: str, verify: bool) -> int:
    from .inspecting import inspect_artifact

    output.show(inspect_artifact(artifact, verify))
    return 0


def preview_command(output: Output, job: str, sets: tuple[str, ...], where: str | None, rows: int) -> int:
    from .preview import preview, table_lines, table_values
    from .spec import load_job

    table = preview(load_job(job, sets, where), rows)
    output.show(Shown(table_values(table), table_lines(table)))
    return 0


def plan_command(output: Output, job: str, sets: tuple[str, ...], where: str | None, limit: int | None) -> int:
    from .plan_text import plan_shown
    from .prepare import prepare
    from .spec import load_job

    prepared = prepare(load_job(job, sets, where, limit))
    planned, name = prepared.planned, prepared.job.name
    output.show(plan_shown(planned.plan, name, prepared.variant.name, prepared.state, planned.score.where is not None))
    return 0


def run_command(
    output: Output, job: str, sets: tuple[str, ...], where: str | None, limit: int | None, choices: dict[str, Any]
) -> int:
    from .display import display_for
    from .driver import run_job
    from .report import summary_of
    from .session import RunOptions
    from .spec import load_job
    from .summary import quarantine_warning, summary_lines

    loaded = load_job(job, sets, where, limit)
    display = display_for(sys.stderr)
    try:
        result = run_job(loaded, RunOptions(display=display, **choices))
    finally:
        display.close()
    summary = summary_of(result)
    lines = [] if isinstance(output, JsonOutput) else summary_lines(summary, _places(loaded, summary))
    output.show(Shown(summary, lines))
    moved = loaded.sink.state is not None
    if warning := quarantine_warning(summary, loaded.sink.path.rstrip("/"), loaded.state_url(), moved):
        LOG.warning(warning)
    if result.failed:
        shards = f"{len(result.failed)} shards used up their attempts"
        guard.tell(HeadraceError(shards, "the rest is committed; run the same command to try them again"))
    return result.exit_code


def _places(job: Job, summary: dict[str, Any]) -> Places:
    """Where things are, and what the model that scored costs."""
    from .summary import Places

    command = shlex.join(["headrace", *sys.argv[1:]])
    return Places(job.sink.path.rstrip("/"), job.state_url(), command, *_model(job, summary))


def _model(job: Job, summary: dict[str, Any]) -> tuple[str, str | None]:
    """Model and cost, a line each; nothing where the artifact is gone by now: the run itself is done."""
    from ..artifacts.bundle import open_bundle
    from ..artifacts.hardware import choose_variant, this_cpu
    from .inspecting import cost_line

    try:
        manifest = open_bundle(job.artifact, job.artifact_options).manifest
        used = [pool["variant"] for pool in summary["pools"].values()]
        variant = used[0] if used else choose_variant(manifest.content.variants, this_cpu(), job.pinned_variant()).name
    except HeadraceError as error:
        LOG.debug("no model line: %s", error)
        return "", None
    return f"{manifest.model}, {variant}", cost_line(manifest, variant)


def status_command(output: Output, sink: str, state: str | None) -> int:
    from .status import read_status, status_lines

    status = read_status(*_folders(sink, state))
    output.show(Shown(status.to_json(), status_lines(status)))
    return 0


def verify_command(output: Output, sink: str, state: str | None) -> int:
    from .verify import verify

    report = verify(*_folders(sink, state))
    counts = report.counts
    lines = [
        f"{sink}: {count(report.rows, 'row')} in {count(report.parts, 'part')}, {report.duplicate_rows:,} duplicate"
    ]
    told = f"{counts.rows_in:,} rows in = {counts.rows_out:,} out + {counts.quarantined:,} quarantined"
    lines.append(f"  {told} + {counts.filtered:,} filtered; {count(report.bad_files, 'unreadable file')}")
    if report.running is not None:
        lines.append(
            f"  a run is under way: {report.running.holder}; {report.uncommitted:,} of its parts not booked yet"
        )
    lines += [f"  not headrace's: {key}" for key in report.foreign]
    lines += columns([(fault.kind, fault.subject, fault.detail) for fault in report.faults], "  ")
    value = dataclasses.asdict(report) | {"ok": report.ok}
    output.show(Shown(value, lines))
    if not report.ok:
        faults = f"sink and ledger disagree: {count(len(report.faults), 'fault')}"
        command = shlex.join(["headrace", "repair", sink, *(["--state", state] if state else [])])
        error = LedgerFault(faults, f"`{command}` makes the ledger anew, the next run scores what is missing")
        guard.tell(error)
        return error.exit_code
    return 0


def repair_command(output: Output, sink: str, state: str | None) -> int:
    from .verify import repair

    done = repair(*_folders(sink, state))
    lines = [
        f"{sink}: the ledger now holds {count(done.rows, 'row')} in {count(done.parts, 'part')}",
        f"  {count(done.learned, 'part')} new to it or changed, {len(done.forgotten):,} gone",
        *(f"  removed, its rows are in another part too: {key}" for key in done.dropped),
        *(f"  removed, its quarantined rows are lost: {key}" for key in done.partial),
        *(f"  removed, not a whole Parquet file: {key}" for key in done.torn),
        *(f"  removed, could not be read: {key}" for key in done.unreadable),
        *(f"  not headrace's, left alone: {key}" for key in done.foreign),
    ]
    if done.dropped or done.partial or done.torn or done.forgotten:
        lines.append("  run the job again: it scores the rows that are missing")
    output.show(Shown(dataclasses.asdict(done), lines))
    return 0


def unlock_command(output: Output, sink: str, state: str | None) -> int:
    from .lease import unlock

    told = unlock(_folders(sink, state)[1])
    output.show(Shown({"result": told}, [told]))
    return 0


def _folders(sink: str, state: str | None) -> tuple[Folder, Folder]:
    from .sink import state_folder

    folder = Folder(sink)
    return folder, state_folder(folder, state)
