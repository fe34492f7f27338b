# Everything a person does with this tree. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python
# Empty: the first Python 3.11 or newer found. Give one with `make setup PYTHON=python3.12`.
PYTHON ?=
# Groups of tests in the order they run; each is a directory of tests/.
GROUPS := unit fleet sim e2e $(if $(wildcard tests/chaos/test_*.py),chaos)
# More arguments for pytest, such as `make test-unit ARGS='-k frames -x'`.
ARGS ?=

.PHONY: help
help:  ## List every target
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.stamp  ## Make .venv and install the locked dependencies (only when they changed)

$(VENV)/.stamp: requirements.lock pyproject.toml setup.cfg tools/setup.sh
	@tools/setup.sh "$(VENV)" "$(PYTHON)"
	@touch $@

.PHONY: demo
demo: setup  ## Serve a real model on this machine and ask it a question (ONCE=1: then stop)
	@ONCE="$(ONCE)" $(PY) -m llmgw.demo

.PHONY: test
test: setup  ## Run all groups of tests in order; the time of each is printed at the end
	@tools/test.sh $(GROUPS)

.PHONY: test-unit
test-unit: setup  ## Unit tests: no long-lived processes, no network but loopback
	@ARGS="$(ARGS)" tools/test.sh unit

.PHONY: test-fleet
test-fleet: setup  ## Control plane, agents and routers as real processes, simulated engines
	@ARGS="$(ARGS)" tools/test.sh fleet

.PHONY: test-sim
test-sim: setup  ## Deterministic simulation: the real machines under faults, many seeds
	@ARGS="$(ARGS)" tools/test.sh sim

.PHONY: test-e2e
test-e2e: setup  ## The whole path with a real engine and the official client
	@ARGS="$(ARGS)" tools/test.sh e2e

.PHONY: test-chaos
test-chaos: setup  ## Real processes killed at random moments
	@ARGS="$(ARGS)" tools/test.sh chaos

.PHONY: fuzz-api
fuzz-api: setup  ## Generated requests to every operation of the admin API (ARGS=500: examples for each)
	@LLMGW_FUZZ_EXAMPLES="$(or $(ARGS),200)" $(PY) -m pytest -q -s tests/fleet/controlplane/api/test_openapi.py

.PHONY: lint
lint: setup  ## Style, types, import rules, shell scripts
	@tools/lint.sh

.PHONY: format
format: setup  ## Rewrite the sources in the house style
	@$(VENV)/bin/ruff check --fix . && $(VENV)/bin/ruff format .

.PHONY: docs
docs: setup  ## Write the generated pages of docs/reference from the code
	@$(PY) docs/generate.py

.PHONY: bench-router
bench-router: setup  ## Compare the router with vllm-router and LiteLLM on this machine
	@$(PY) bench/router.py $(ARGS)

.PHONY: bench-store
bench-store: setup  ## Measure usage and the request log on SQLite and PostgreSQL (ARGS='--rows 200000' for a short run)
	@$(PY) bench/store.py $(ARGS)

.PHONY: bench-fleet
bench-fleet: setup  ## Storms and heartbeats of 5,000 simulated nodes over mTLS (ARGS='--nodes 200 --rate 400' for a short run)
	@$(PY) bench/fleet.py $(ARGS)

.PHONY: bench-failover
bench-failover: setup  ## Take the leader of two control planes away under traffic, then the store (ARGS='--part killed' for one of four)
	@$(PY) bench/failover.py $(ARGS)

.PHONY: bench-status
bench-status: setup  ## Place replicas on 2,000 simulated nodes and time the command (ARGS='--nodes 200' for a short run)
	@$(PY) bench/status.py $(ARGS)

.PHONY: lock
lock: setup  ## Resolve the dependency ranges of pyproject.toml into requirements.lock anew
	@tools/lock.sh "$(VENV)" $(ARGS)

.PHONY: dist
dist: setup  ## Build the wheel and the source distribution into dist/
	@$(VENV)/bin/uv build --no-build-isolation --quiet --out-dir dist

.PHONY: clean
clean:  ## Remove what was built, the virtual environment too
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .demo .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
