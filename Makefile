# redrive: what a developer types. Needs Python 3.11 or newer and make; everything else lands in .venv.
#
#   make setup      create .venv, install what the lock names, build and install the wheel
#   make servers    get the RabbitMQ and Redis that tests run on (Debian and root; else it says what is missing)
#   make demo       the tour: signed webhooks come in, some fail, some land in front of you
#   make test       all tests, against the built wheel
#   make check      ruff, mypy, pyright, layers, tidy: what CI runs first
#   make bench      redrive beside huey, persist-queue, litequeue and the raw SQLite ceiling
#   make campaign   the fault campaigns in full (kill -9, deploys, hostile input)
#   make docs       write docs/reference anew from the code
#   make lock       resolve the dependencies anew (needs uv)
#   make clean      remove what the targets made

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SOURCES := $(shell find src examples/courier -name '*.py' -o -name '*.sql' -o -name 'py.typed')
# Most tests wait for time or for a server: three processes keep two processors busy.
JOBS ?= 3
PYTEST_ARGS ?=
BENCH_ARGS ?=
CAMPAIGN_ARGS ?=

.PHONY: help setup servers demo test check bench campaign docs lock clean

help:
	@sed -n 's/^#   \(make .*\)/  \1/p' Makefile

setup: .venv/stamp-wheel

.venv/stamp-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "redrive needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Run: make setup PYTHON=python3.12")'
	$(PYTHON) -m venv --clear .venv
	@touch $@

.venv/stamp-lock: .venv/stamp-python requirements-dev.lock
	$(PIP) install --require-hashes --no-deps -r requirements-dev.lock
	@touch $@

.venv/stamp-wheel: .venv/stamp-lock pyproject.toml README.md LICENSE $(SOURCES)
	@rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	$(PIP) install --no-deps --no-index --force-reinstall dist/redrive-*.whl
	@touch $@

# Tests start private nodes of what this finds or installs; no server is left running.
servers: setup
	@$(BIN)/python -m redrive.testing.servers

# With a terminal the tour waits for you; without one it runs its story once and ends.
demo: setup
	@if [ -t 0 ] && [ -t 1 ]; then $(BIN)/redrive demo; else $(BIN)/redrive demo --once; fi

test: setup servers
	REDRIVE_TEST_WHEEL=1 HYPOTHESIS_PROFILE=ci $(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup $(PYTEST_ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py tests/test_architecture.py

bench: setup servers
	$(BIN)/python -m bench $(BENCH_ARGS)

campaign: setup servers
	$(BIN)/python -m campaign $(CAMPAIGN_ARGS)
	REDRIVE_TEST_LETTERS=1000000 REDRIVE_TEST_MONGODB_LETTERS=20000 $(BIN)/python -m pytest -q -s \
		tests/service/test_many_letters.py tests/service/test_many_filters.py tests/postgres/test_many_letters.py \
		tests/mongodb/test_many_letters.py

docs: setup
	$(BIN)/python -m docs.generate

# Names no host: whatever index a machine is set up with serves the files, and the hashes say that they are these.
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-annotate --quiet \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"
lock:
	$(LOCK) -o requirements.lock
	$(LOCK) --group dev --extra pydantic --extra rabbitmq --extra redis --extra postgres --extra mongodb --extra web -o requirements-dev.lock

clean:
	rm -rf .venv dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
