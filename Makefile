# Two commands are enough: `make run` shows a demo turn, `make test` runs the tests.
.DEFAULT_GOAL := help
.PHONY: help setup run bytecode test full e2e newest bench fuzz accept picture texts screens lint clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# uv creates the environment and installs packages if it is on PATH: it takes a fraction of pip's
# time. `make UV= …` uses venv and pip all the same.
UV ?= $(shell command -v uv 2> /dev/null)
ifneq ($(UV),)
INSTALLER := uv
# Some tests call pip, so the environment gets it (--seed).
CREATE_VENV = $(UV) venv --seed --allow-existing --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
INSTALL = $(UV) pip install --compile-bytecode --python $(BIN)/python
else
INSTALLER := pip
CREATE_VENV = $(PYTHON) -m venv $(VENV)
INSTALL = $(BIN)/python -m pip install --progress-bar off --disable-pip-version-check
endif

# $(STEP) TITLE COMMAND prints one line: the title before the command runs, its duration afterwards.
STEP := $(BIN)/python .ci/step.py
FIRST_STEP := $(PYTHON) .ci/step.py

help: ## list the targets
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

# Each file `.venv/.NAME` records that its packages are installed. A changed pyproject.toml installs
# all of them again.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "claude-shim needs Python 3.11 or newer; set PYTHON=python3.11")'
	@$(FIRST_STEP) "Creating $(VENV)" $(CREATE_VENV)
	@$(FIRST_STEP) "Installing claude-shim and its dependencies with $(INSTALLER)" $(INSTALL) -e .
	@$(FIRST_STEP) "Compiling claude-shim" $(BIN)/python -m compileall -q shim
	@touch $@

# pytest rewrites assertions and stores the bytecode. One collection writes it for all workers.
$(VENV)/.ready: $(VENV)/.installed
	@$(STEP) "Installing the test tools with $(INSTALLER)" $(INSTALL) -e '.[test]'
	@PYTHONDONTWRITEBYTECODE= $(STEP) "Compiling the tests" sh -c '$(BIN)/python -m pytest -q --collect-only tests > /dev/null || true'
	@touch $@

bytecode: $(VENV)/.installed
	@$(BIN)/python -m compileall -q shim

setup: bytecode ## install claude-shim (editable) and its dependencies into .venv
	@echo "Next: $(BIN)/shim install --vendor NAME   (names: $(BIN)/shim vendors)"

run: $(VENV)/.installed ## run a demo turn through the drop-in, with the bundled demo vendor
	@$(BIN)/shim demo

lint: $(VENV)/.ready
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy

# Three workers on two cores, because tests of processes spend much of their time waiting. Bytecode is
# written, so that each changed module is compiled only once.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q --alone -n 3 --dist worksteal --ignore=tests/e2e
# Five workers on two cores, because real programs wait even more.
PYTEST_E2E := $(BIN)/python -m pytest -q --alone -n 5 --dist loadgroup -m e2e

test: bytecode $(VENV)/.ready ## lint, types and the tests that need only Python, in about two minutes on two cores
	@start=$$(date +%s); \
	  $(MAKE) --no-print-directory lint > $(VENV)/lint.log 2>&1 & lint=$$!; \
	  $(PYTEST) tests; tests=$$?; \
	  wait $$lint; lint=$$?; cat $(VENV)/lint.log; \
	  echo "make test: $$(($$(date +%s) - start)) s"; \
	  [ $$lint = 0 ] && [ $$tests = 0 ]

full: $(VENV)/.e2e lint ## all tests of `make test` and `make e2e`, and all slow sweeps; takes long
	@$(PYTEST) --full tests
	@$(PYTEST_E2E) --full tests/e2e
	@cd tests && $(abspath $(BIN))/python -m fuzzing.shell_lines 100000
	@cd tests && $(abspath $(BIN))/python -m fuzzing.rpc_fuzzer 1000000
	@cd tests && $(abspath $(BIN))/python -m fuzzing.hub_interleavings 10000

$(VENV)/.e2e: $(VENV)/.ready
	@$(STEP) "Installing the tools of the end-to-end tests with $(INSTALLER)" $(INSTALL) -e '.[e2e]' \
	  || echo "Selenium is not installed: the tests of the pages in a browser are skipped."
	@touch $@

e2e: $(VENV)/.e2e ## test real vendor CLIs against a model server on loopback, and the pages in Chromium
	@start=$$(date +%s) && $(PYTEST_E2E) tests/e2e \
	  && echo "make e2e: $$(($$(date +%s) - start)) s"

# NAMES="codex pi" limits it to these programs.
newest: $(VENV)/.e2e ## compare the newest version of each vendor CLI and client with the pinned version
	@$(BIN)/python tests/e2e/newest_versions.py $(NAMES)

bench: $(VENV)/.e2e ## measure, as ratios within one run
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
	@$(BIN)/python tests/bench/bench_machines.py
	@$(BIN)/python tests/bench/bench_fleet.py
	@$(BIN)/python tests/bench/bench_fleet_sessions.py
	@$(BIN)/python tests/e2e/bench_real_vendors.py
	@$(BIN)/python tests/e2e/bench_drivers.py
	@$(BIN)/python tests/e2e/bench_export.py
	@$(BIN)/python tests/e2e/bench_page.py

# The seconds of both fuzzers together.
FUZZ_SECONDS ?= 600

$(VENV)/.fuzz: $(VENV)/.ready
	@$(STEP) "Installing atheris with $(INSTALLER)" $(INSTALL) --only-binary atheris -e '.[fuzz]' \
	  || echo "atheris has no wheel for this Python, so only hypothesis runs (Python 3.11 has one: PYTHON=python3.11)."
	@touch $@

fuzz: $(VENV)/.fuzz ## run two fuzzers over every vendor and dialect for FUZZ_SECONDS (600)
	@$(BIN)/python tests/fuzz.py run --seconds $(FUZZ_SECONDS)

accept: $(VENV)/.ready ## rewrite the golden files; read the diff before you commit it
	@$(BIN)/python tests/accept.py

picture: $(VENV)/.e2e ## redraw the README's pictures of `shim demo` and of the page of `shim bridge serve`
	@$(BIN)/python tests/picture.py
	@$(BIN)/python tests/e2e/screens.py --readme

texts: $(VENV)/.ready ## write every help page and message of the program to build/texts.txt
	@$(BIN)/python tests/texts.py

screens: $(VENV)/.e2e ## take pictures of the commands in a terminal and of the pages, in build/screens
	@$(BIN)/python tests/e2e/screens.py

clean: ## delete .venv and the caches
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz
