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
from ..artifacts.store import Chunk, ship, unpack
from ..workers.opened import UnreadableFile
from ..workers.schema import check_names, output_schema
from ..workers.shard import ScoreSpec
from .planner import PlannedJob, make_plan
from .records import LedgerView
from .source import Listing, list_source
from .spec import Job

if TYPE_CHECKING:
    from ..workers.reader import Window
    from ..workers.scorer import Scorer


#: Each further look is at so many times the rows of the one before.
_GROWTH = 32


def preview(job: Job, rows: int) -> pa.Table:
    """At most ``rows`` scored rows with the columns of a part; fewer where the source has fewer.

    Of the source it looks at as many files as it takes. Raises what planning raises. Rows that a run would quarantine
    are left out.
    """
    bundle = open_bundle(job.artifact, job.artifact_options)
    variant = choose_variant(bundle.content.variants, this_cpu(), job.pinned_variant())
    listing = list_source(job.source.paths(), job.source.storage_options)
    plans = _plans(job, bundle, variant, listing, rows)
    planned = next(plans)
    check_names(planned.score, bundle.content)
    with tempfile.TemporaryDirectory(prefix="headrace-preview-") as folder:
        scorer = _scorer(Path(folder), bundle, variant, planned.score)
        table = _table(planned, job, scorer, rows)
        while len(table) < rows and (further := next(plans, None)):
            table = _table(further, job, scorer, rows)
    return table


def _plans(job: Job, bundle: Bundle, variant: Variant, listing: Listing, rows: int) -> Iterator[PlannedJob]:
    """As if nothing was scored yet: of the first ``rows`` rows, then of many times more until there are no others.

    A plan counts rows before ``where``, so the first one may give too few.
    """
    most = job.limit
    while True:
        limit = rows if most is None else min(rows, most)
        limited = job.model_copy(update={"limit": limit})
        planned = make_plan(limited, bundle, variant, listing, LedgerView(), (), None, False)
        yield planned
        if limit == most or planned.plan.shards.piece_rows.sum() < limit:
            return
        rows *= _GROWTH


def _scorer(folder: Path, bundle: Bundle, variant: Variant, score: ScoreSpec) -> Scorer:
    from ..workers.scorer import Scorer

    local = unpack(ship(bundle, variant.name, _as_it_is), _as_it_is, folder)
    return Scorer(local, bundle.content, variant.name, available_cpus(), score.task)


def _as_it_is(chunk: Chunk) -> Chunk:
    return chunk


def _table(planned: PlannedJob, job: Job, scorer: Scorer, rows: int) -> pa.Table:
    schema = output_schema(planned.score, scorer.content)
    tables = [schema.empty_table()]
    for window in _windows(planned, job):
        tables.append(_scored(window, planned.score, scorer, schema))
        if sum(map(len, tables)) >= rows:
            break
    return pa.concat_tables(tables).slice(0, rows)


def _windows(planned: PlannedJob, job: Job) -> Iterator[Window]:
    """Small windows: a preview of ten rows need not score two thousand. Unreadable files are passed over."""
    import dataclasses

    from ..workers.reader import read_windows

    shards = planned.plan.shards
    few = max(1, min(planned.score.window_rows, int(shards.piece_rows.sum())))
    score = dataclasses.replace(planned.score, window_rows=few)
    for index in range(len(shards)):
        shard = shards.shard(index)
        try:
            yield from read_windows(shard.pieces, shard.partition, score, job.source.storage_options)
        except UnreadableFile:
            continue


def _scored(window: Window, score: ScoreSpec, scorer: Scorer, schema: pa.Schema) -> pa.Table:
    from ..workers.scorer import BatchFailed
    from ..workers.window import Tally, score_window

    try:
        return score_window(window, score, scorer, schema, score.batching, frozenset(), Tally())
    except BatchFailed:
        return score_window(window, score, scorer, schema, "row", frozenset(), Tally())


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
