# Three words for a newcomer: make setup, make demo, make test. Each does its own set-up.
# To use a certain interpreter: make setup PYTHON=/path/to/python3.12

PYTHON ?=
VENV := .venv
OLDEST := .venv-oldest
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OLDEST_READY := $(OLDEST)/.ready

# The oldest supported pair: TensorFlow 2.16 with the Keras 3 of its time.
OLDEST_PINS := "tensorflow==2.16.2" "keras==3.3.3" "numpy<2"

# Quiet logs, and no search for a GPU that the tests do not use.
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: help setup demo test test-long check bench test-oldest clean
.DEFAULT_GOAL := help

help: ## show these words
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(READY) ## make .venv with everything that development needs, and install the git hook
	@scripts/install_hook
	@echo "Ready. Next: make demo, make test, or . $(BIN)/activate"

demo: $(READY) ## a job of three workers on this machine: one is killed and comes back
	@$(BIN)/python scripts/demo.py

test: $(READY) ## every test but the long ones
	$(BIN)/python -m pytest -m "not long"

test-long: $(READY) ## fifty kills, and the whole catalogue of numerics with 1, 2, 3 and 4 workers
	$(BIN)/python -m pytest -m long

check: $(READY) ## format, lint, types, layers and unit tests, in under a minute: what the git hook runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -m "not slow" tests/architecture tests/unit

bench: $(READY) ## every benchmark, peers beside ours in one run; writes benchmarks/results/
	@scripts/bench $(BIN)/python

test-oldest: $(OLDEST_READY) ## the TensorFlow tests on the oldest supported TensorFlow and Keras
	$(OLDEST)/bin/python -m pytest tests/tensorflow

clean: ## remove the environments and everything that was built
	rm -rf $(VENV) $(OLDEST) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml scripts/make_venv
	@PYTHON="$(PYTHON)" scripts/make_venv $(VENV) 13 --editable ".[dev]"
	@touch $@

$(OLDEST_READY): pyproject.toml scripts/make_venv Makefile
	@PYTHON="$(PYTHON)" scripts/make_venv $(OLDEST) 12 --editable ".[dev]" $(OLDEST_PINS)
	@touch $@
