# Everything a contributor needs, from a fresh clone with Python >= 3.11 and make alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MEASUREMENTS ?= ../shared/measurements

.PHONY: setup plan test lint types layers pytest golden calibrate accuracy verify-engines compare-replay bench clean

setup: $(STAMP)

# Installs once, and again when the dependencies change.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed (set PYTHON=...)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

plan: $(STAMP)
	$(BIN)/plan --fleet fleets/h100.yaml --slo itl=50ms

test: lint types layers pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell planner templates fleets examples tests seeds benchmarks docs *.md

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports --no-cache 2>/dev/null || $(BIN)/lint-imports

pytest: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Rewrites golden files; the diff belongs into the review, with a sentence on why.
golden: $(STAMP)
	$(BIN)/python -m pytest --update-golden tests/test_examples.py tests/render

# Slower proofs, run before a release.
calibrate: $(STAMP)
	$(BIN)/python benchmarks/accuracy.py --measurements $(MEASUREMENTS) --calibrations planner/catalog/calibrations

accuracy: $(STAMP)
	$(BIN)/python benchmarks/accuracy.py --measurements $(MEASUREMENTS)

verify-engines: $(STAMP)
	$(BIN)/python benchmarks/verify_engines.py

compare-replay: $(STAMP)
	$(BIN)/python -m benchmarks.compare_replay

bench: $(STAMP)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/optimality.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
