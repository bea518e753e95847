"""The dispatcher against simulated workers: every fault without a cluster."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.jobs import instructions as do
from headrace.jobs.dispatch_state import DONE, FAILED, GRANT_S, LEFT, MARGIN_S, MAX_LATE
from headrace.jobs.dispatcher import Dispatcher
from headrace.jobs.records import Replacement


def rows(*counts: int) -> np.ndarray:
    return np.array(counts, dtype=np.int64)


class Simulation:
    """Workers as a queue of shards each; the world decides what happens next by a seeded generator."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        seed: int,
        kill: float = 0.0,
        poison: dict[int, int] | None = None,
        mischief: float = 0.0,
    ) -> None:
        self.dispatcher, self.random, self.kill, self.mischief = dispatcher, random.Random(seed), kill, mischief
        self.poison = poison or {}  # shard -> row of it that kills a worker
        self.now = 0.0
        self.starting: list[str] = []
        self.queues: dict[str, list[do.Score | do.Probe]] = {}
        self.staged: dict[tuple[str, int, int], bool] = {}
        self.grants: list[do.Publish] = []
        self.visible: Counter[int] = Counter()
        self.commits: Counter[int] = Counter()
        self.excluded: dict[int, tuple[int, ...]] = {}
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.given_up: list[int] = []
        self.aborted: do.Abort | None = None

    def obey(self, instructions: list[do.Instruction]) -> None:
        for it in instructions:
            match it:
                case do.StartWorker():
                    self.starting.append(it.worker)
                case do.Score() | do.Probe():
                    self.queues[it.worker].append(it)
                    if isinstance(it, do.Score):
                        self.excluded[it.shard] = it.excluded
                case do.Publish():
                    assert all(g.shard != it.shard for g in self.grants), "two grants of one shard at once"
                    self.grants.append(it)
                case do.Commit():
                    self.commits[it.shard] += 1
                case do.CheckPart():
                    seen = self.visible[it.shard] > 0
                    self.grants = [g for g in self.grants if g.shard != it.shard]
                    self.obey(self.dispatcher.part_checked(it.shard, seen, self.now))
                case do.BeginReplacement():
                    self.begun.append(it.replacement)
                    self.obey(self.dispatcher.replacement_begun(it.replacement, self.now))
                case do.EndReplacement():
                    self.ended.append(it.replacement)
                case do.GiveUp():
                    self.given_up.append(it.shard)
                case do.Abort():
                    self.aborted = it
                case do.KillWorker():
                    self.queues.pop(it.worker, None)
                case do.Discard():
                    pass

    def step(self) -> None:
        self.now += 0.1
        self.obey(self.dispatcher.tick(self.now))
        moves = [("ready", w) for w in self.starting] + [("work", w) for w, q in self.queues.items() if q]
        moves += [("grant", g.worker) for g in self.grants]
        if not moves:
            return
        kind, worker = self.random.choice(moves)
        if worker in self.queues and self.random.random() < self.kill:
            self.die(worker)
        elif kind == "ready":
            self.starting.remove(worker)
            self.queues[worker] = []
            self.obey(self.dispatcher.worker_ready(worker, self.now))
        elif kind == "work":
            self.work(worker)
        else:
            self.publish(worker)

    def work(self, worker: str) -> None:
        it = self.queues[worker][0]
        row = self.poison.get(it.shard)
        if row is not None and row not in it.excluded and (not isinstance(it, do.Probe) or it.first <= row < it.last):
            self.die(worker)
            return
        self.queues[worker].pop(0)
        if isinstance(it, do.Probe):
            self.obey(self.dispatcher.probed(worker, it.shard, self.now))
        elif self.random.random() < self.mischief:
            told = (worker, it.shard, it.attempt)
            which = self.random.randrange(3)
            if which == 0:
                self.obey(self.dispatcher.score_failed(*told, "boom", self.now))
            elif which == 1:
                self.obey(self.dispatcher.nothing_to_publish(*told, self.now))
            else:
                self.obey(self.dispatcher.withdrawn(*told, self.now))
        else:
            self.obey(self.dispatcher.staged_one(worker, it.shard, it.attempt, self.now, self.now))

    def publish(self, worker: str) -> None:
        grant = next(g for g in self.grants if g.worker == worker)
        if self.random.random() < self.mischief:
            self.grants.remove(grant)
            if self.random.random() < 0.5:
                self.obey(self.dispatcher.published(worker, grant.shard, grant.attempt, False, self.now))
            else:
                self.obey(self.dispatcher.publish_unclear(worker, grant.shard, grant.attempt))
            return
        self.visible[grant.shard] += 1
        if self.random.random() < self.kill:
            self.die(worker)  # after the rename, before the answer
            return
        self.grants.remove(grant)
        self.obey(self.dispatcher.published(worker, grant.shard, grant.attempt, True, self.now))

    def die(self, worker: str) -> None:
        self.queues.pop(worker, None)
        self.obey(self.dispatcher.worker_lost(worker, self.now))

    def run(self) -> None:
        self.obey(self.dispatcher.start())
        self.run_on()

    def run_on(self, steps: int = 200_000) -> None:
        for _ in range(steps):
            if self.dispatcher.finished:
                return
            self.step()
        raise AssertionError("the dispatcher never finished")


@settings(max_examples=60, deadline=None)
@given(
    shards=st.integers(1, 40),
    workers=st.integers(1, 5),
    kill=st.sampled_from([0.0, 0.05, 0.2]),
    seed=st.integers(0, 2**20),
)
def test_every_shard_is_committed_once_whatever_dies(shards: int, workers: int, kill: float, seed: int) -> None:
    dispatcher = Dispatcher(rows(*[8] * shards), {"cpu": workers})
    simulation = Simulation(dispatcher, seed, kill)
    simulation.run()
    if simulation.aborted is None:
        done = set(range(shards)) - set(simulation.given_up)
        assert simulation.commits == Counter(done)
        assert all(simulation.visible[shard] >= 1 for shard in done)


def test_a_row_that_kills_its_workers_is_found_and_the_rest_is_scored() -> None:
    dispatcher = Dispatcher(rows(8, 100, 8), {"cpu": 2})
    simulation = Simulation(dispatcher, seed=1, poison={1: 37})
    simulation.run()
    assert simulation.commits == Counter({0: 1, 1: 1, 2: 1})
    assert simulation.excluded[1] == (37,)
    assert not simulation.given_up


def test_a_shard_that_fails_uses_up_its_attempts_and_the_others_go_on() -> None:
    dispatcher = Dispatcher(rows(8, 8), {"cpu": 1}, max_attempts=3)
    simulation = Simulation(dispatcher, seed=0)
    simulation.obey(dispatcher.start())
    simulation.step()
    while not dispatcher.finished:
        simulation.now += 5.0
        simulation.obey(dispatcher.tick(simulation.now))
        score = simulation.queues["cpu-1"][0]
        assert isinstance(score, do.Score)
        if score.shard == 0:
            simulation.queues["cpu-1"].pop(0)
            simulation.obey(dispatcher.score_failed("cpu-1", 0, score.attempt, "boom", simulation.now))
        else:
            simulation.work("cpu-1")
            simulation.publish("cpu-1")
    assert simulation.given_up == [0]
    assert dispatcher.attempts[0] == 3
    assert simulation.commits == Counter({1: 1})


def test_lost_nodes_never_count_against_a_shard() -> None:
    dispatcher = Dispatcher(rows(8), {"cpu": 1})
    simulation = Simulation(dispatcher, seed=0)
    simulation.obey(dispatcher.start())
    for turn in range(1, 11):
        worker = f"cpu-{turn}"
        simulation.starting.remove(worker)
        simulation.queues[worker] = []
        simulation.obey(dispatcher.worker_ready(worker, 0.0))
        assert isinstance(simulation.queues[worker][0], do.Score)
        del simulation.queues[worker]
        simulation.obey(dispatcher.worker_lost(worker, 0.0, innocent=True))
    simulation.run()
    assert simulation.commits == Counter({0: 1})


def test_workers_that_never_start_end_the_run() -> None:
    dispatcher = Dispatcher(rows(8), {"cpu": 1})
    simulation = Simulation(dispatcher, seed=0)
    simulation.obey(dispatcher.start())
    for _ in range(50):
        if not simulation.starting:
            break
        worker = simulation.starting.pop()
        simulation.obey(dispatcher.worker_lost(worker, 0.0, innocent=True, why="no such model"))
    assert simulation.aborted is not None
    assert "no such model" in simulation.aborted.error
    assert dispatcher.finished


def test_a_grant_that_is_not_answered_is_given_again_only_after_its_deadline_and_a_look_at_the_part() -> None:
    dispatcher = Dispatcher(rows(8), {"cpu": 1})
    simulation = Simulation(dispatcher, seed=0)
    simulation.obey(dispatcher.start())
    simulation.step()
    simulation.work("cpu-1")
    (grant,) = simulation.grants
    assert grant.deadline_s == pytest.approx(simulation.now + GRANT_S)
    frozen_at = simulation.now
    assert dispatcher.tick(frozen_at + GRANT_S + MARGIN_S - 0.01) == []
    instructions = dispatcher.tick(frozen_at + GRANT_S + MARGIN_S)
    assert do.CheckPart(0) in instructions
    assert [it.worker for it in instructions if isinstance(it, do.KillWorker)] == ["cpu-1"]
    late = dispatcher.published("cpu-1", 0, grant.attempt, True, frozen_at + 60)
    assert late == []


def test_the_deadline_follows_the_workers_clock_while_an_attempt_waits() -> None:
    dispatcher = Dispatcher(rows(8, 8), {"cpu": 1}, [Replacement(("old",), (0, 1))])
    simulation = Simulation(dispatcher, seed=0)
    simulation.obey(dispatcher.start())
    simulation.step()
    dispatcher.staged_one("cpu-1", 0, 1, clock_s=1000.0, now_s=5.0)
    (begin, *_) = dispatcher.staged_one("cpu-1", 1, 1, clock_s=1030.0, now_s=35.0)
    assert begin == do.BeginReplacement(0)
    grants = dispatcher.replacement_begun(0, 36.0)
    assert [g.deadline_s for g in grants if isinstance(g, do.Publish)] == [1031.0 + GRANT_S, 1031.0 + GRANT_S]


@settings(max_examples=40, deadline=None)
@given(kill=st.sampled_from([0.0, 0.1]), seed=st.integers(0, 2**20))
def test_a_replacement_begins_when_all_are_staged_and_ends_when_all_are_done(kill: float, seed: int) -> None:
    replacements = [Replacement(("a", "b"), (1, 2, 3)), Replacement(("c",), ()), Replacement(("d",), (5, 6))]
    dispatcher = Dispatcher(rows(*[8] * 8), {"cpu": 2}, replacements)
    simulation = Simulation(dispatcher, seed, kill)
    simulation.run()
    if simulation.aborted is None and not simulation.given_up:
        assert sorted(simulation.begun) == [0, 1, 2]
        assert sorted(simulation.ended) == [0, 1, 2]
        assert simulation.commits == Counter(range(8))


@pytest.mark.parametrize("others", ["pending", "scoring", "staged"])
def test_a_replacement_that_loses_a_member_leaves_the_old_parts(others: str) -> None:
    """Wherever its other shard is at that moment."""
    workers = 1 if others == "pending" else 2
    dispatcher = Dispatcher(rows(8, 8, 8), {"cpu": workers}, [Replacement(("old",), (0, 1))], max_attempts=1)
    simulation = Simulation(dispatcher, seed=0)
    simulation.obey(dispatcher.start())
    while simulation.starting:
        worker = simulation.starting.pop(0)
        simulation.queues[worker] = []
        simulation.obey(dispatcher.worker_ready(worker, 0.0))
    queues = simulation.queues.items()
    failing = next(w for w, q in queues if q and q[0].shard == 0)
    other = next((w for w, q in queues if q and q[0].shard == 1), None)
    if others == "staged":
        assert other is not None
        simulation.work(other)
    it = simulation.queues[failing].pop(0)
    assert isinstance(it, do.Score)
    simulation.obey(dispatcher.score_failed(failing, 0, it.attempt, "boom", simulation.now))
    while not dispatcher.finished:
        simulation.step()
    assert simulation.begun == []
    assert simulation.given_up == [0]
    assert simulation.commits == Counter({2: 1})
    assert [dispatcher.count(state) for state in (DONE, FAILED, LEFT)] == [1, 1, 1]


def test_a_file_found_unreadable_keeps_its_older_parts() -> None:
    dispatcher = Dispatcher(rows(8, 8), {"cpu": 1}, [Replacement(("old-a", "old-b"), (0, 1))])
    simulation = Simulation(dispatcher, seed=0)
    simulation.obey(dispatcher.start())
    simulation.step()
    simulation.queues["cpu-1"].pop(0)
    simulation.obey(dispatcher.nothing_to_publish("cpu-1", 0, 1, 1.0))
    while not dispatcher.finished:
        simulation.step()
    assert simulation.begun == [] and simulation.given_up == []
    assert simulation.commits == Counter({0: 1})  # its file goes to quarantine then


def test_a_grant_that_is_always_late_is_no_failure_but_ends() -> None:
    dispatcher = Dispatcher(rows(8), {"cpu": 1}, max_attempts=1)
    simulation = Simulation(dispatcher, seed=0)
    simulation.obey(dispatcher.start())
    simulation.step()
    for turn in range(1, MAX_LATE + 1):
        simulation.work("cpu-1")
        (grant,) = simulation.grants
        simulation.grants.clear()
        assert not dispatcher.finished
        simulation.obey(dispatcher.published("cpu-1", 0, grant.attempt, False, float(turn)))
    assert simulation.given_up == [0] and dispatcher.finished


@pytest.mark.parametrize("visible", [True, False])
def test_an_error_while_publishing_is_settled_by_a_look_at_the_part(visible: bool) -> None:
    dispatcher = Dispatcher(rows(8), {"cpu": 1})
    simulation = Simulation(dispatcher, seed=0)
    simulation.obey(dispatcher.start())
    simulation.step()
    simulation.work("cpu-1")
    (grant,) = simulation.grants
    simulation.visible[0] += visible
    simulation.obey(dispatcher.publish_unclear("cpu-1", 0, grant.attempt))
    assert simulation.commits == (Counter({0: 1}) if visible else Counter())
    if not visible:
        simulation.run_on()
        assert simulation.commits == Counter({0: 1})


def test_a_node_lost_during_a_probe_clears_no_rows() -> None:
    dispatcher = Dispatcher(rows(4), {"cpu": 1})
    simulation = Simulation(dispatcher, seed=0, poison={0: 2})
    simulation.obey(dispatcher.start())
    lost = 0
    while not dispatcher.finished:
        probing = [w for w, q in simulation.queues.items() if q and isinstance(q[0], do.Probe)]
        if probing and lost < 2:
            lost += 1
            del simulation.queues[probing[0]]
            simulation.obey(dispatcher.worker_lost(probing[0], simulation.now, innocent=True))
        simulation.step()
    assert lost == 2 and simulation.excluded[0] == (2,)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**20), workers=st.integers(1, 3))
def test_the_dispatcher_always_finishes(seed: int, workers: int) -> None:
    """Whatever comes back: failures, unreadable files, changed files, errors and lateness while publishing, deaths."""
    replacements = [Replacement(("a", "b"), (1, 2, 3)), Replacement(("c",), ()), Replacement(("d",), (5, 6))]
    dispatcher = Dispatcher(rows(*[4] * 8), {"cpu": workers}, replacements, max_attempts=2)
    simulation = Simulation(dispatcher, seed, kill=0.05, mischief=0.3)
    simulation.run()
    assert all(count == 1 for count in simulation.commits.values())
    assert len(set(simulation.ended)) == len(simulation.ended)
    assert set(simulation.ended) == set(simulation.begun) or simulation.aborted
