"""Every row of a file: headrace's fp32 predictions against the transformers pipeline on PyTorch.

    python benchmarks/parity.py MODEL ROWS.parquet --text subject,body --max-length 192 --split test --label label

Prints rows, label differences, the largest score difference and the accuracy on the split. PyTorch is the slow part:
about an hour for 100,000 short rows on two cores; `--rows N` takes the first N.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import yaml


def main() -> int:
    options = _options()
    columns = options.text.split(",")
    rows = pq.read_table(options.data)
    rows = rows.slice(0, options.rows) if options.rows else rows
    with tempfile.TemporaryDirectory() as scratch:
        got = _headrace(Path(scratch), options, columns, rows)
    texts = [" ".join(row[c] for c in columns if row[c]) for row in rows.select(columns).to_pylist()]
    labels, scores = _transformers(options.model, texts, options.max_length)
    differ = sum(a != b for a, b in zip(got["predicted_label"].to_pylist(), labels, strict=True))
    drift = np.abs(got["predicted_score"].to_numpy() - np.array(scores))
    result = {"rows": len(rows), "labels_that_differ": differ, "largest_score_difference": float(drift.max())}
    if options.label:
        part = [row for row in got.to_pylist() if not options.split or row["split"] == options.split]
        result["accuracy"] = sum(row[options.label] == row["predicted_label"] for row in part) / len(part)
        result["accuracy_rows"] = len(part)
    print(json.dumps(result, indent=2))
    return 1 if differ or drift.max() > 1e-4 else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--text", required=True)
    parser.add_argument("--max-length", type=int, required=True)
    parser.add_argument("--label")
    parser.add_argument("--split")
    parser.add_argument("--rows", type=int)
    return parser.parse_args()


def _headrace(scratch: Path, options: argparse.Namespace, columns: list[str], rows):
    pq.write_table(rows, scratch / "rows.parquet")
    keep = [name for name in (options.label, "split" if options.split else None, "source_row") if name]
    job = {
        "name": "parity",
        "artifact": str(scratch / "artifact"),
        "source": {"path": str(scratch / "rows.parquet"), "text": {"columns": columns, "separator": " "}},
        "task": {"max_length": options.max_length},
        "sink": {"path": str(scratch / "out" / "scores"), "keep": keep, "column_prefix": "predicted_"},
        "variant": "cpu-fp32",
    }
    (scratch / "job.yaml").write_text(yaml.safe_dump(job))
    base = [sys.executable, "-m", "headrace"]
    subprocess.run([*base, "compile", options.model, "-o", str(scratch / "artifact")], check=True)
    subprocess.run([*base, "run", str(scratch / "job.yaml")], check=True)
    return pq.read_table(scratch / "out" / "scores").sort_by("source_row")


def _transformers(model: str, texts: list[str], max_length: int) -> tuple[list[str], list[float]]:
    from transformers import pipeline

    classify = pipeline("text-classification", model=model, device="cpu", dtype="float32")
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    answers = classify([texts[i] for i in order], truncation=True, max_length=max_length, batch_size=16)
    placed = dict(zip(order, answers, strict=True))
    return [placed[i]["label"] for i in range(len(texts))], [placed[i]["score"] for i in range(len(texts))]


if __name__ == "__main__":
    sys.exit(main())
