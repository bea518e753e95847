"""The Ray actor: a thin shell around ``pipeline.score_shard``. Scoring has one thread, control calls have others.

A grant has ten seconds, so ``publish`` must not queue behind a shard that is being scored: hence two groups of threads.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifacts.hardware import choose_variant, this_cpu
from ..artifacts.manifest import Content
from ..artifacts.storage import Folder
from ..artifacts.store import Shipment, unpack
from .shard import Grant, Shard, Staged, WorkerInfo, WorkerSpec

if TYPE_CHECKING:
    from .scorer import Scorer


@dataclasses.dataclass(frozen=True)
class Vitals:
    """A worker's last words: its peak memory and the heavy modules it has loaded (encoders need no torch)."""

    peak_rss_bytes: int
    modules: tuple[str, ...]


class Worker:
    """One session on one node. Made ready by its constructor, then scores shards until it is killed."""

    def __init__(self, name: str, spec: WorkerSpec, content: Content, shipment: Shipment, epoch: int) -> None:
        started = time.monotonic()
        _limit_threads(spec.threads)
        from .staging import Stager

        self._name, self._spec, self._epoch = name, spec, epoch
        choose_variant(content.variants, this_cpu(), spec.variant)
        folder = unpack(shipment, _fetch)
        self._scorer = self._open(folder, content)
        self._stager = Stager(Folder(spec.sink_url, spec.sink_options), Folder(spec.state_url, spec.sink_options))
        self._load_s = time.monotonic() - started

    def _open(self, folder: Any, content: Content) -> Scorer:
        from .scorer import Scorer

        scorer = Scorer(folder, content, self._spec.variant, self._spec.threads, self._spec.score.task)
        scorer.warm_up()
        return scorer

    def info(self) -> WorkerInfo:
        """Answers when the worker is ready to score."""
        import ray

        from .footer import runtime_versions

        cpu = this_cpu()
        variant = self._scorer.variant
        return WorkerInfo(
            worker=self._name,
            node=ray.get_runtime_context().get_node_id(),
            host=platform.node(),
            pid=os.getpid(),
            variant=variant.name,
            precision=variant.precision,
            provider=self._scorer.provider,
            threads=self._spec.threads,
            cpu_model=cpu.model,
            cpu_flags=" ".join(cpu.flags),
            instruction_set=cpu.instruction_set,
            load_s=self._load_s,
            clock_s=time.monotonic(),
            versions=runtime_versions(),
        )

    def score(self, shard: Shard, attempt: int, excluded: tuple[int, ...], row_by_row: bool) -> Staged:
        """Stages one attempt; nothing is visible yet. ``excluded`` are rows counted from the shard's first."""
        from .pipeline import score_shard

        spec = self._spec
        if row_by_row:
            spec = dataclasses.replace(spec, score=dataclasses.replace(spec.score, batching="row"))
        return score_shard(shard, attempt, self._epoch, spec, self._scorer, self._stager, _named(shard, excluded))

    def probe(self, shard: Shard, first: int, last: int, excluded: tuple[int, ...]) -> int:
        """Scores rows ``first`` to ``last`` and writes nothing: finds rows that kill their worker."""
        from .pipeline import probe_rows

        return probe_rows(shard, self._spec, self._scorer, first, last, _named(shard, excluded))

    def publish(self, grant: Grant) -> bool:
        return self._stager.publish(grant)

    def discard(self, shard_id: str, attempt: int) -> None:
        self._stager.discard(shard_id, attempt)

    def vitals(self) -> Vitals:
        heavy = ("torch", "transformers", "optimum", "datasets", "onnx")
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return Vitals(peak, tuple(name for name in heavy if name in sys.modules))


def _limit_threads(threads: int) -> None:
    """Before tokenizers makes its thread pool: it takes every core of the host otherwise."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(threads)


def _fetch(reference: Any) -> Any:
    import ray

    return np.asarray(ray.get(reference))


def _named(shard: Shard, excluded: tuple[int, ...]) -> frozenset[tuple[str, int]]:
    """Rows counted from the shard's first, as (source path, row of that file)."""
    named: set[tuple[str, int]] = set()
    start = 0
    for piece in shard.pieces:
        rows = (row - start for row in excluded if start <= row < start + piece.rows)
        named.update((piece.file.path, piece.first_row + row) for row in rows)
        start += piece.rows
    return frozenset(named)
