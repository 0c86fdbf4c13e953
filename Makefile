# Two commands are enough: `make run` shows a turn, `make test` proves it.
.DEFAULT_GOAL := help
.PHONY: help setup run test full e2e newest bench fuzz accept picture texts screens lint clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

help: ## this list
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "claude-shim needs Python 3.11 or newer; set PYTHON=python3.11")'
	@echo "making $(VENV), and installing claude-shim and the packages that it runs with into it (once) …"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -e .
	@$(BIN)/python -m compileall -q shim
	@touch $@

# The tests are collected once, so that the bytecode of their rewritten assertions is there for every worker.
$(VENV)/.ready: $(VENV)/.installed
	@echo "installing the test tools into $(VENV) (once) …"
	@$(PIP) -e '.[test]'
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q --collect-only tests > /dev/null || true
	@touch $@

setup: $(VENV)/.ready ## .venv with the shim (editable), its bytecode and the test tools
	@$(BIN)/python -m compileall -q shim

run: $(VENV)/.installed ## the drop-in `claude` over the bundled demo vendor, drawn for a person
	@$(BIN)/shim demo

lint: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy

# Three workers on two cores: tests of processes wait. With bytecode: what was changed is rewritten only once.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q --alone -n 3 --dist worksteal --ignore=tests/e2e
# Five workers on two cores: real programs wait for much of their time.
PYTEST_E2E := $(BIN)/python -m pytest -q --alone -n 5 --dist loadgroup -m e2e

test: setup ## lint, types and the tests that need nothing but Python, in about two minutes on two cores
	@began=$$(date +%s); \
	  $(MAKE) --no-print-directory lint > $(VENV)/lint.log 2>&1 & lint=$$!; \
	  $(PYTEST) tests; tests=$$?; \
	  wait $$lint; lint=$$?; cat $(VENV)/lint.log; \
	  echo "make test: $$(($$(date +%s) - began)) s"; \
	  [ $$lint = 0 ] && [ $$tests = 0 ]

full: $(VENV)/.e2e lint ## every test of `make test` and `make e2e`, and every sweep over everything; takes long
	@$(PYTEST) --full tests
	@$(PYTEST_E2E) --full tests/e2e
	@cd tests && $(abspath $(BIN))/python -m fuzzing.shell_lines 100000
	@cd tests && $(abspath $(BIN))/python -m fuzzing.rpc_fuzzer 1000000
	@cd tests && $(abspath $(BIN))/python -m fuzzing.hub_interleavings 10000

$(VENV)/.e2e: $(VENV)/.ready
	@$(PIP) -e '.[e2e]' \
	  || echo "without selenium the exported page is tried in no browser"
	@touch $@

e2e: $(VENV)/.e2e ## real vendor CLIs against a model server on loopback, and the exported page in Chromium
	@began=$$(date +%s) && $(PYTEST_E2E) tests/e2e \
	  && echo "make e2e: $$(($$(date +%s) - began)) s"

# NAMES="codex pi" tries these alone.
newest: $(VENV)/.e2e ## the newest version of each vendor CLI and client, and what differs from the pinned ones
	@$(BIN)/python tests/e2e/newest_versions.py $(NAMES)

bench: $(VENV)/.e2e ## measurements, as ratios inside one run
	@$(BIN)/python tests/bench/bench.py
	@$(BIN)/python tests/bench/bench_start.py
	@$(BIN)/python tests/bench/bench_shutdown.py
	@$(BIN)/python tests/bench/bench_inbound_limit.py
	@$(BIN)/python tests/bench/bench_memory.py
	@$(BIN)/python tests/bench/bench_show.py
	@$(BIN)/python tests/bench/bench_record.py
	@$(BIN)/python tests/bench/bench_profile.py
	@$(BIN)/python tests/bench/bench_bridge.py
	@$(BIN)/python tests/bench/bench_gateway.py
	@$(BIN)/python tests/e2e/bench_real_vendors.py
	@$(BIN)/python tests/e2e/bench_drivers.py
	@$(BIN)/python tests/e2e/bench_export.py
	@$(BIN)/python tests/e2e/bench_page.py

# Seconds for both fuzzers together; FUZZ_SECONDS=3600 for a long night.
FUZZ_SECONDS ?= 600

$(VENV)/.fuzz: $(VENV)/.ready
	@$(PIP) --only-binary atheris -e '.[fuzz]' \
	  || echo "atheris has no wheel for this Python: only hypothesis fuzzes (PYTHON=python3.11 has one)"
	@touch $@

fuzz: $(VENV)/.fuzz ## two fuzzers over every vendor and dialect for FUZZ_SECONDS (600)
	@$(BIN)/python tests/fuzz.py run --seconds $(FUZZ_SECONDS)

accept: setup ## rewrite the goldens; read the diff before you commit it
	@$(BIN)/python tests/accept.py

picture: $(VENV)/.e2e ## draw the README's pictures again: of `shim demo`, and of the page of `shim bridge serve`
	@$(BIN)/python tests/picture.py
	@$(BIN)/python tests/e2e/screens.py --readme

texts: setup ## every help page and every sentence of the program in build/texts.txt, to be read
	@$(BIN)/python tests/texts.py

screens: $(VENV)/.e2e ## pictures of the commands in a terminal and of the pages, in build/screens, to be looked at
	@$(BIN)/python tests/e2e/screens.py

clean:
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz
