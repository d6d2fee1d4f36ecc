# A machine with python3 >= 3.11 is enough: `make demo` shows Corral at work, `make test` runs everything.

PYTHON ?= python3
BIN := .venv/bin
SEEDS ?= 1000
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test check bench sim chaos format lock services

help:
	@echo 'make demo             run the main job on one machine, on simulated GPUs, and stop everything again'
	@echo 'make test [ARGS=...]  install what the tests need, run them all (ARGS goes to pytest)'
	@echo 'make check            format, lint, types, architecture'
	@echo 'make sim SEEDS=1000   run production code in the seeded simulation'
	@echo 'make chaos            kill, stop and cut real processes, for long'
	@echo 'make bench            measure every number that the README names'
	@echo 'make format | lock    rewrite the formatting | the lock files'

demo: .venv/.runtime
	$(BIN)/python examples/demo.py

test: .venv/.development services
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadscope $(ARGS)

check: .venv/.development
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

sim: .venv/.development
	$(BIN)/python -m corral.testing.world --seeds $(SEEDS)

chaos: .venv/.development services
	$(BIN)/python -m pytest tests/chaos --long $(ARGS)

bench: .venv/.development
	$(BIN)/python -m benchmarks $(ARGS)

format: .venv/.development
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: .venv/.development
	$(BIN)/python tools/lock.py

services:
	@tools/services.sh

# pip changes nothing that is right already, so a stamp that is too old costs a second and breaks nothing.
.venv/.runtime: requirements.lock pyproject.toml
	@PYTHON='$(PYTHON)' tools/venv.sh
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.development: .venv/.runtime requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock -r requirements-dev.lock
	@touch $@
