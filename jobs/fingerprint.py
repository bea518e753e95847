"""What predictions depend on besides the source rows. Two runs with one fingerprint may write to one sink.

Out of it stay what only selects or runs: predicates on partition keys, pools, limits, package versions.
"""

from __future__ import annotations

from typing import Any

from ..artifacts.manifest import Content, hash_of
from .spec import Job
from .where import Where

FORMAT = 1


def terms_of(job: Job, content: Content, digest: str, keep: tuple[str, ...], rows: Where) -> dict[str, Any]:
    """The terms by name, as plain JSON values. ``rows`` is the row-level part of ``where``."""
    text = job.text_spec()
    return {
        "format": FORMAT,
        "artifact": digest,
        "text": {"columns": list(text.columns), "separator": text.separator, "template": text.template},
        "where": rows.text,
        "task": {
            "max_length": job.task.max_length or content.max_length,
            "top_k": job.task.top_k,
            "score_of": job.task.score_of,
        },
        "empty": job.empty,
        "shard_rows": job.shard_rows,
        "window_rows": job.window_rows,
        "batching": job.batching,
        "batch_tokens": _budget(job, content),
        "variant": job.pinned_variant(),
        "keep": list(keep),
        "column_prefix": job.sink.column_prefix,
        "partition_types": dict(job.source.partition_types),
        "limit": job.limit,
    }


def fingerprint_of(terms: dict[str, Any]) -> str:
    """SHA-256 in hex."""
    return hash_of(terms)


def _budget(job: Job, content: Content) -> int | dict[str, int] | None:
    """Tokens of a batch: the job's, else the artifact's. None where every row is a batch of its own.

    Without a pin the variant is chosen by the machine, and its budget with it: so all of them stand there, unless they
    are one.
    """
    if job.batching == "row":
        return None
    if job.batch_tokens is not None:
        return job.batch_tokens
    pinned = job.pinned_variant()
    budgets = {variant.name: variant.batch_tokens for variant in content.variants if pinned in (None, variant.name)}
    return next(iter(budgets.values())) if len(set(budgets.values())) == 1 else budgets
