# Everything a contributor or an operator needs: `make serve` on a fresh machine is enough.
# Needs one Python of 3.11 to 3.13 with venv (Debian: apt install python3-venv) and no other tool.

# The newest that works here; a shim that only says which versions it lacks does not. Of one release
# the distribution's own comes first: what is compiled at home usually lacks profile-guided
# optimization, and runs Python code in 1.3 times the time.
WORKS := -c 'import ensurepip, sqlite3, venv'
PYTHON ?= $(shell for v in 3.13 3.12 3.11; do for p in /usr/bin/python$$v python$$v; do \
	$$p $(WORKS) 2>/dev/null && echo $$p && exit; done; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --constraint constraints.txt

# Tests start processes by the hundred, and each would compile all modules of its own again.
unexport PYTHONDONTWRITEBYTECODE
# Nothing here reports to anybody.
export RAY_USAGE_STATS_ENABLED := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup serve test quick check docs bench attacks conformance interop environments pythons client clean

help: ## Show these targets.
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python of 3.11 to 3.13 with venv was found:" \
		"install one, or name it: make PYTHON=/path/to/python3.13" >&2; exit 1; }
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# What `poste serve` needs and nothing else: about 310 MB to download, 690 MB on disk.
$(VENV)/base: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the mediator needs"
	@$(PIP) --editable .
	@touch $@

# Tests import a small part of what is installed, and compile that when they do. That pip compiles all
# of it takes a third of an installation's CPU time.
$(VENV)/tests: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --no-compile --editable '.[test]'
	touch $(VENV)/base $@

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --no-compile --editable '.[spark,test,check,docs]'
	touch $(VENV)/base $(VENV)/tests $@

setup: $(VENV)/installed ## Make .venv with all that tests and Spark need, pinned; again when pins change.

serve: $(VENV)/base ## Run the mediator on http://127.0.0.1:8080.
	$(BIN)/poste serve

# Two of them use five sixths of two cores, since clusters wait for what comes late; three all of it.
test: setup ## Run all tests, in three processes.
	$(BIN)/python -m pytest --numprocesses 3 --dist loadgroup --no-loadscope-reorder

# What needs no Ray, no PostgreSQL and no Spark, and of the rest of tests/model and tests/edge a part.
QUICK := tests/unit tests/contract tests/golden tests/tidy tests/model tests/edge/test_layouts.py

quick: $(VENV)/tests ## Run what breaks first: rules, wire forms, store, a walk of each protocol, ten sabotages.
	$(BIN)/python -m pytest $(QUICK) --numprocesses 3 --dist worksteal --hypothesis-profile quick \
		-m 'not (thorough or cluster or crash or postgres or spark)'

check: setup ## Lint, format, types, direction of imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## Measure a mediator on this machine.
	$(BIN)/python -m tests.bench decentrl
	$(BIN)/python -m tests.bench didcomm

attacks: setup ## Attack a mediator on this machine, and measure what others feel of it.
	$(BIN)/python -m tests.attacks

conformance: setup ## Exchange DIDComm v2 messages with other libraries, each in an environment of its own.
	$(BIN)/python -m tests.conformance

interop: setup ## Play scenarios with real ACA-Py and Credo agents as wallets.
	$(BIN)/python -m tests.interop

docs: setup ## Build the guide into build/guide and check its links.
	$(BIN)/mkdocs build --strict --config-file deploy/docs/mkdocs.yml --site-dir "$(CURDIR)/build/guide"

# The other Pythons of 3.11 to 3.13 that are found here, each as VERSION=PATH.
OTHERS = $(shell for v in 3.11 3.12 3.13; do \
	test $$v != "$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" || continue; \
	for p in python$$v ~/.pyenv/versions/$$v.*/bin/python; do \
		$$p $(WORKS) 2>/dev/null && echo $$v=$$p && break; done; done)
EACH_OTHER = for other in $(OTHERS); do $(MAKE) --no-print-directory \
	VENV=.venv-$${other%%=*} PYTHON=$${other\#*=}

environments: $(VENV)/tests  # What `make pythons` needs.
	+@$(EACH_OTHER) .venv-$${other%%=*}/tests || exit 1; done

pythons: $(VENV)/tests ## Run the quick tests under the other Pythons of 3.11 to 3.13 that are found here.
	@echo "Other Pythons here: $(or $(OTHERS),none)"
	+@$(EACH_OTHER) quick || exit 1; done

client: | $(BIN)/python ## Build the wheel of poste-client, the client libraries alone, into dist.
	rm -rf deploy/client/build  # of a build that was interrupted: its modules would be in the wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist deploy/client
	rm -rf deploy/client/build poste_client.egg-info

clean: ## Remove what the other targets made, but no data.
	rm -rf tests/interop/credo/*/node_modules
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find actors eventstore http_edge projections tests -name __pycache__ -prune -exec rm -rf {} +
