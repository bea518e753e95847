"""Which rows share a batch: a function of the lengths alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.workers.batching import plan_batches

LENGTHS = st.lists(st.integers(0, 300), max_size=400).map(lambda found: np.array(found, dtype=np.int64))
BUDGETS = st.integers(1, 2000)


@given(LENGTHS, BUDGETS)
def test_every_row_is_in_one_batch(lengths: np.ndarray, budget: int) -> None:
    batches = plan_batches(lengths, budget, "budget")
    assert all(len(batch) for batch in batches)
    assert sorted(np.concatenate([[], *batches]).tolist()) == list(range(len(lengths)))


@given(LENGTHS, BUDGETS)
def test_no_batch_is_over_budget_but_a_single_row(lengths: np.ndarray, budget: int) -> None:
    for batch in plan_batches(lengths, budget, "budget"):
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= budget


@given(LENGTHS, BUDGETS)
def test_no_batch_could_take_the_next_row(lengths: np.ndarray, budget: int) -> None:
    batches = plan_batches(lengths, budget, "budget")
    for batch in batches[:-1]:
        assert (len(batch) + 1) * max(1, lengths[batch].max()) > budget


@given(LENGTHS, BUDGETS)
def test_rows_go_by_length_and_then_by_position(lengths: np.ndarray, budget: int) -> None:
    order = [row for batch in plan_batches(lengths, budget, "budget") for row in batch.tolist()]
    assert order == sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))


def test_by_hand() -> None:
    lengths = np.array([3, 9, 3, 4, 20, 3])
    batches = [batch.tolist() for batch in plan_batches(lengths, 12, "budget")]
    assert batches == [[4], [1], [3, 0, 2], [5]]


def test_mode_row_keeps_the_order() -> None:
    assert [batch.tolist() for batch in plan_batches(np.array([5, 1, 9]), 512, "row")] == [[0], [1], [2]]
    assert plan_batches(np.array([], dtype=np.int64), 512, "row") == []
