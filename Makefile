# Everything a contributor or an operator needs: `make serve` on a fresh machine is enough.
# Needs Python 3.11 with venv (Debian: apt install python3.11-venv) and no other tool.

PYTHON ?= python3.11
BIN := .venv/bin

# Nothing here reports to anybody.
export RAY_USAGE_STATS_ENABLED := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup serve test quick check bench interop clean

help: ## Show these targets.
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: .venv/installed ## Make .venv with the pinned versions; again only when they change.

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,spark]'
	touch $@

serve: setup ## Run the mediator on http://127.0.0.1:8080.
	$(BIN)/poste serve

test: setup ## Run all tests, in two processes.
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder

quick: setup ## Run the tests that need no Ray and no PostgreSQL: under a minute.
	$(BIN)/python -m pytest $(wildcard tests/unit tests/model tests/tidy) -m 'not cluster and not postgres'

check: setup ## Lint, format, types, direction of imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## Measure a mediator on this machine.
	$(BIN)/poste bench decentrl
	$(BIN)/poste bench didcomm

interop: setup .venv-interop/installed ## Play scenarios with real ACA-Py agents as wallets.
	$(BIN)/python -m tests.interop

.venv-interop/installed: tests/interop/constraints.txt
	test -x .venv-interop/bin/python || $(PYTHON) -m venv .venv-interop
	.venv-interop/bin/python -m pip install --quiet --constraint $< 'aries-cloudagent[askar]==0.12.8'
	touch $@

clean: ## Remove what the other targets made, but no data.
	rm -rf .venv .venv-interop build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find actors eventstore http_edge projections tests -name __pycache__ -prune -exec rm -rf {} +
