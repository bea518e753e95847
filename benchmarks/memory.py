"""Peak memory of a worker does not grow with the file: 2,000,000 rows in one row group against 100,000 rows.

    python benchmarks/memory.py [--large 2000000] [--small 100000]

Both files hold the same texts, scored by a tiny model made on the spot; prints the peaks and their ratio, and exits 1
when they differ by more than 15 %.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
ALLOWED = 0.15
DISTINCT = 20_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int, default=2_000_000)
    parser.add_argument("--small", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        artifact = _artifact(folder)
        small, large = (_peak(folder, artifact, rows) for rows in (options.small, options.large))
    ratio = large / small
    print(json.dumps({"small_peak_bytes": small, "large_peak_bytes": large, "ratio": round(ratio, 4)}, indent=2))
    return 0 if abs(ratio - 1) <= ALLOWED else 1


def _artifact(folder: Path) -> Path:
    import tiny_models

    model = tiny_models.classifier(folder / "model")
    out = folder / "artifact"
    subprocess.run([sys.executable, "-m", "headrace", "compile", str(model), "-o", str(out)], check=True)
    return out


def _peak(folder: Path, artifact: Path, rows: int) -> int:
    """Scores a file of so many rows in one row group with one worker; its peak resident set in bytes."""
    import tiny_models

    choose = random.Random(0)
    texts = [" ".join(choose.choices(tiny_models.WORDS, k=choose.randint(1, 40))) for _ in range(DISTINCT)]
    here = folder / str(rows)
    here.mkdir()
    body = pa.array([texts[i % DISTINCT] for i in range(rows)], pa.large_string())
    pq.write_table(pa.table({"body": body}), here / "rows.parquet", row_group_size=rows)
    sink = here / "out" / "scores"
    job = {
        "name": f"memory-{rows}",
        "artifact": str(artifact),
        "source": {"path": str(here / "rows.parquet"), "text": "body"},
        "sink": {"path": str(sink)},
        "pools": {"cpu": {"workers": 1, "num_cpus": 1}},
    }
    (here / "job.yaml").write_text(yaml.safe_dump(job))
    subprocess.run([sys.executable, "-m", "headrace", "run", str(here / "job.yaml")], check=True)
    (report,) = (sink.parent / "_headrace" / "scores" / "runs").glob("*/workers.parquet")
    return max(pq.read_table(report)["peak_rss_bytes"].to_pylist())


if __name__ == "__main__":
    sys.exit(main())
