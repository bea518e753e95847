"""``headrace preview``: a job's first rows, scored in this process by the code that a worker runs. Writes nothing.

The sink is not looked at, so a job can be tried before it has one, or with options that its sink would refuse.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..artifacts.bundle import Bundle, open_bundle
from ..artifacts.hardware import available_cpus, choose_variant, this_cpu
from ..artifacts.manifest import Variant
from ..workers.opened import UnreadableFile
from ..workers.shard import ScoreSpec
from .planner import PlannedJob, make_plan
from .records import LedgerView
from .source import list_source
from .spec import Job

if TYPE_CHECKING:
    from ..workers.reader import Window
    from ..workers.scorer import Scorer


def preview(job: Job, rows: int) -> pa.Table:
    """At most ``rows`` scored rows with the columns of a part; fewer where the source has fewer.

    Raises what planning raises. Rows that a run would quarantine are left out.
    """
    bundle = open_bundle(job.artifact, job.artifact_options)
    variant = choose_variant(bundle.content.variants, this_cpu(), job.pinned_variant())
    planned = _plan(job, bundle, variant)
    from ..workers.schema import output_schema

    tables: list[pa.Table] = []
    with tempfile.TemporaryDirectory(prefix="headrace-preview-") as folder:
        bundle.fetch(variant.name, Path(folder))
        scorer = _scorer(Path(folder), bundle, variant, planned.score)
        for window in _windows(planned, job, rows):
            if sum(map(len, tables)) >= rows:
                break
            tables.append(_scored(window, planned.score, scorer))
    schema = output_schema(planned.score, bundle.content)
    return pa.concat_tables([schema.empty_table(), *tables]).slice(0, rows)


def _plan(job: Job, bundle: Bundle, variant: Variant) -> PlannedJob:
    """As if nothing was scored yet."""
    listing = list_source(job.source.paths(), job.source.storage_options)
    return make_plan(job, bundle, variant, listing, LedgerView(), (), None, False)


def _scorer(folder: Path, bundle: Bundle, variant: Variant, score: ScoreSpec) -> Scorer:
    from ..workers.scorer import Scorer

    return Scorer(folder, bundle.content, variant.name, available_cpus(), score.task)


def _windows(planned: PlannedJob, job: Job, rows: int) -> Iterator[Window]:
    """Small windows: a preview of ten rows need not score two thousand. Unreadable files are passed over."""
    import dataclasses

    from ..workers.reader import read_windows

    score = dataclasses.replace(planned.score, window_rows=min(planned.score.window_rows, rows))
    for index in range(len(planned.plan.shards)):
        shard = planned.plan.shards.shard(index)
        try:
            yield from read_windows(shard.pieces, shard.partition, score, job.source.storage_options)
        except UnreadableFile:
            continue


def _scored(window: Window, score: ScoreSpec, scorer: Scorer) -> pa.Table:
    from ..workers.scorer import BatchFailed
    from ..workers.window import Tally, score_window

    try:
        return score_window(window, score, scorer, score.batching, frozenset(), Tally())
    except BatchFailed:
        return score_window(window, score, scorer, "row", frozenset(), Tally())


def table_values(table: pa.Table) -> list[dict[str, Any]]:
    """Rows for JSON."""
    values: list[dict[str, Any]] = table.to_pylist()
    return values


def table_lines(table: pa.Table, width: int = 40) -> list[str]:
    """Rows as aligned text; long values are cut, embeddings to their first numbers."""
    from .output import columns

    if not len(table):
        return ["no row to score"]
    rows = [[_cell(value, width) for value in row.values()] for row in table.to_pylist()]
    return columns([table.schema.names, *rows])


def _cell(value: object, width: int) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list) and value and isinstance(value[0], float):
        return f"[{', '.join(f'{number:.3f}' for number in value[:4])}, ...] ({len(value)})"
    if isinstance(value, list):
        return ", ".join(f"{one['label']} {one['score']:.3f}" for one in value)[: 2 * width]
    text = "null" if value is None else " ".join(str(value).split())
    return text if len(text) <= width else text[: width - 1] + "…"
