"""Rows to batches: by length, under a token budget. Pure, and a function of the lengths alone.

Dynamic int8 takes its activation scale from the whole batch, so which rows share one must never depend on a worker, its
threads or a retry.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .shard import Batching


def plan_batches(lengths: npt.NDArray[np.int64], token_budget: int, mode: Batching) -> list[npt.NDArray[np.int64]]:
    """Row positions of each batch, longest rows first, rows of one length in their order.

    ``lengths`` (rows,) are tokens per row. A batch has at least one row and, with more than one, at most
    ``token_budget`` tokens, padding included. Mode ``row`` gives every row a batch of its own, in input order.
    """
    if mode == "row":
        return [np.array([row], dtype=np.int64) for row in range(len(lengths))]
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    batches = []
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        stop = start + max(1, token_budget // longest)
        batches.append(order[start:stop])
        start = stop
    return batches
