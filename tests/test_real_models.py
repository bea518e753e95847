"""Real fine-tuned models on real rows, where they are at hand: transformers' answers, the accuracy of training."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from runs import JobFile, headrace

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
CASES = [("spam-minilm", "emails", ["subject", "body"]), ("gloss-tiny", "glosses", ["gloss"])]


@pytest.mark.parametrize(("model", "data", "columns"), CASES)
def test_fp32_equals_transformers_and_keeps_the_accuracy(
    shared: Path, tmp_path: Path, model: str, data: str, columns: list[str]
) -> None:
    from transformers import pipeline

    folder = shared / "models" / model
    training = json.loads((folder / "training.json").read_text())
    # Only the rows held out in training: what the accuracy was measured on, and quick enough for PyTorch.
    rows = duckdb.sql(f"select * from '{shared}/data/{data}.parquet' where split = 'test'").to_arrow_table()
    (tmp_path / "in").mkdir()
    pq.write_table(rows, tmp_path / "in" / "rows.parquet")
    assert headrace("compile", str(folder), "-o", str(tmp_path / "artifact")).returncode == 0
    job = JobFile.write(
        tmp_path,
        tmp_path / "artifact",
        tmp_path / "in",
        variant="cpu-fp32",
        source__text={"columns": columns, "separator": " "},
        sink__keep=["id", "label", "source_row"],
        sink__column_prefix="predicted_",
        task={"max_length": training["max_length"]},
    )
    done = headrace("run", str(job.path))
    assert done.returncode == 0, done.stderr
    got = duckdb.sql(
        f"select label, predicted_label, predicted_score from '{job.sink}/*.parquet' order by source_row"
    ).fetchall()
    assert len(got) == len(rows) == training["test_rows"]
    accuracy = sum(truth == label for truth, label, _ in got) / len(got)
    assert accuracy == pytest.approx(training["test_accuracy_fp32"], abs=0.001)
    # Some rows against PyTorch; `benchmarks/parity.py` compares every row of a file.
    texts = [" ".join(row[c] for c in columns if row[c]) for row in rows.slice(0, 200).to_pylist()]
    reference = pipeline("text-classification", model=str(folder), device="cpu", dtype="float32")
    answers = reference(texts, truncation=True, max_length=training["max_length"], batch_size=8)
    for (_, label, score), answer in zip(got, answers, strict=False):
        assert label == answer["label"]
        assert score == pytest.approx(answer["score"], abs=1e-4)
