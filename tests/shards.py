"""Source files, shards and a bench to score them on without Ray; and a model small enough to do by hand."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.artifacts.bundle import open_bundle, seal_bundle
from headrace.artifacts.manifest import Content, Report, Variant
from headrace.artifacts.storage import Folder, file_version
from headrace.workers import paths
from headrace.workers.pipeline import score_shard
from headrace.workers.quarantine import decode
from headrace.workers.scorer import Scorer
from headrace.workers.shard import (
    BadRow,
    FileIdentity,
    Grant,
    Piece,
    ScoreSpec,
    Shard,
    Staged,
    TaskOptions,
    TextSpec,
    WorkerSpec,
)
from headrace.workers.staging import Stager

LABELS = ("low", "middle", "high")
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue", "nan", "poison")
#: One row of logits per word but the last: ``poison`` has a token id that the model does not know.
WEIGHTS = np.array(
    [[0, 0, 0], [0.1, 0.2, 0.3], [0.5, 0, 0], [0, 0, 0.5], [3, 1, 0], [0, 4, 1], [1, 0, 5], [np.nan, 0, 0]],
    dtype=np.float32,
)


def lookup_artifact(folder: Path) -> Path:
    """Logits are the mean of its tokens' rows of WEIGHTS: sums by hand are the expected values."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    (folder / "cpu-fp32").mkdir(parents=True)
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["rows", "wide"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "tokens"], ["sums"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "tokens"], ["counts"], keepdims=1),
        helper.make_node("Div", ["sums", "counts"], ["logits"]),
    ]
    shape = ["rows", "tokens"]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, shape) for n in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", len(LABELS)])]
    constants = {"weights": WEIGHTS, "last": np.array([2]), "tokens": np.array([1])}
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "lookup", inputs, outputs, tensors)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "cpu-fp32" / "model.onnx")
    _word_tokenizer().save(str(folder / "tokenizer.json"))
    variant = Variant(
        name="cpu-fp32", target="cpu", precision="fp32", recipe="by hand", files=("cpu-fp32/model.onnx",),
        batch_tokens=64, batch_invariant=True,
    )  # fmt: skip
    content = Content(
        name="lookup", task="text-classification", problem_type="single_label_classification", labels=LABELS,
        max_length=16, variants=(variant,), files=(),
    )  # fmt: skip
    seal_bundle(folder, content, Report(source="by hand"))
    return folder


def _word_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def probabilities(text: str) -> npt.NDArray[np.float64]:
    """What the lookup model says of ``text``, by the formula."""
    tokens = [2, *(WORDS.index(word) if word in WORDS else 1 for word in text.split()[:14]), 3]
    logits = WEIGHTS[tokens].astype(np.float64).mean(axis=0)
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


def open_scorer(artifact: Path, variant: str = "cpu-fp32", threads: int = 1, **options: Any) -> Scorer:
    return Scorer(artifact, open_bundle(str(artifact)).content, variant, threads, TaskOptions(**options))


def write(path: Path, table: pa.Table, row_group_rows: int = 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_rows)
    return path


def identity(path: Path | str, options: dict[str, Any] | None = None) -> FileIdentity:
    """As a listing gives it."""
    folder, _, name = str(path).rpartition("/")
    where = Folder(folder, options or {})
    info = where.fs.info(where.path(name))
    return FileIdentity(str(path), int(info["size"]), file_version(info))


def piece(path: Path, first_row: int = 0, rows: int | None = None) -> Piece:
    return Piece(identity(path), first_row, pq.read_metadata(path).num_rows - first_row if rows is None else rows)


def shard(*pieces: Piece, partition: str = "", id: str = "0" * 20) -> Shard:
    return Shard(id, partition, pieces)


def spec(*, columns: tuple[str, ...] = ("body",), **changes: Any) -> ScoreSpec:
    """Text from ``body``, ``id`` and ``source_row`` kept, small windows."""
    base = ScoreSpec(
        text=TextSpec(columns), keep=("id", "source_row"), keep_types={"id": pa.int64()}, fingerprint="f" * 64,
        window_rows=64, batch_tokens=64, model="model@0123456789ab",
    )  # fmt: skip
    return replace(base, **changes)


@dataclass
class Bench:
    """A worker's place: sink and state below ``root``."""

    root: Path
    epoch: int = 1
    attempts: int = 0
    stager: Stager = field(init=False)

    def __post_init__(self) -> None:
        self.sink, self.state = Folder(str(self.root / "sink")), Folder(str(self.root / "state"))
        self.stager = Stager(self.sink, self.state)

    def worker(self, score: ScoreSpec) -> WorkerSpec:
        return WorkerSpec(score, "cpu-fp32", 1, self.sink.url, self.state.url)

    def stage(self, scorer: Scorer, score: ScoreSpec, work: Shard, **options: Any) -> Staged:
        self.attempts += 1
        return score_shard(work, self.attempts, self.epoch, self.worker(score), scorer, self.stager, **options)

    def publish(self, staged: Staged, in_s: float = 10.0, epoch: int | None = None) -> bool:
        deadline = time.monotonic() + in_s
        return self.stager.publish(Grant(staged.shard_id, staged.attempt, epoch or self.epoch, deadline))

    def score(self, scorer: Scorer, score: ScoreSpec, work: Shard, **options: Any) -> tuple[Staged, pa.Table]:
        """Staged and published, and what a reader finds."""
        staged = self.stage(scorer, score, work, **options)
        assert self.publish(staged)
        return staged, pq.read_table(self.part(work), partitioning=None)

    def part(self, work: Shard) -> Path:
        return Path(self.sink.path(paths.part(work.partition, work.id)))

    def digest(self, work: Shard) -> str:
        return hashlib.sha256(self.part(work).read_bytes()).hexdigest()

    def quarantined(self, work: Shard) -> list[BadRow]:
        key = paths.quarantine_rows(work.id)
        return decode(self.state.read(key)) if self.state.exists(key) else []
