# Targets that need the environment depend on `setup`, which does nothing if .venv is up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup clients browser run serve test test-native test-slow soak check bench bench-peers format docs

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with the pinned versions; does nothing if it is up to date

# torch is installed first and pinned: otherwise pip installs the newest version, with gigabytes of CUDA.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,check,bench,serve]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Weft needs Python 3.11 or newer; '$(PYTHON)' is older." \
	       "Set PYTHON, for example: make setup PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

run: setup ## Train the demo model: dates in 30 languages -> ISO dates
	$(BIN)/weft demo --out runs/demo

# make serve OPTIONS="--port 8080"
serve: setup ## Serve the demo model, trained first if it is missing, and SmolLM2 if it is pulled
	@$(BIN)/weft info runs/demo > /dev/null 2>&1 || { \
	  echo "There is no model in runs/demo yet. Training it takes about two minutes." >&2; \
	  $(BIN)/weft demo --out runs/demo; }
	@models=runs/demo; \
	if $(BIN)/weft info smollm2 > /dev/null 2>&1; then models="$$models smollm2"; \
	else echo "SmolLM2 is not pulled; .venv/bin/weft pull smollm2 installs it." >&2; fi; \
	echo "weft serve $$models $(OPTIONS)" >&2; exec $(BIN)/weft serve $$models $(OPTIONS)

clients: ## Install the client programs of tests/clients, in environments of their own
	@$(PYTHON) tests/clients/install.py

browser: ## Install Chromium for the tests of the web page; does nothing if it is installed
	@$(PYTHON) tests/browser/install.py

# One worker per core; each test uses one thread. worksteal keeps the tests of a file on one worker
# while it can, so that a module's fixtures are built once. Each worker holds about 1 GB.
test: setup ## Run the tests, in parallel
	$(BIN)/python -m pytest -q -m 'not slow' -n logical --maxprocesses 8 --dist worksteal

test-native: setup ## Test the kernels for each instruction set, and under sanitizers
	$(BIN)/python -m tests.native.run_variants

test-slow: test ## Run all tests; slow ones one at a time, as some need all cores or much memory
	$(BIN)/python -m pytest -q -m slow

# make soak CAMPAIGN="checkpoints kills" COUNT=1000 SEED=3; a campaign continues where it stopped
soak: setup ## Run the long random campaigns: scheduler, kills, checkpoints, requests, memory
	$(BIN)/python -m tests.soak $(CAMPAIGN) $(if $(COUNT),--count $(COUNT)) --seed $(or $(SEED),0)

check: setup ## Check format, lint, types, import order and generated docs
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_imports.py
	$(BIN)/python -m weft.cli.help_page --check docs/help.md
	$(BIN)/python -m weft.cli.settings_page --check docs/settings.md
	$(BIN)/python -m weft.cli.serve_page --check docs/serve.md

bench: setup ## Measure time and memory of the attention kernels
	$(BIN)/weft bench attention

bench-peers: setup ## Install the programs that Weft is compared with, each in its own environment
	$(BIN)/weft bench peers

format: setup ## Format the code and apply the linter's automatic fixes
	$(BIN)/ruff format src tests
	$(BIN)/ruff check --fix src tests

docs: setup ## Regenerate docs/help.md and the tables of docs/serve.md
	$(BIN)/python -m weft.cli.help_page docs/help.md
	$(BIN)/python -m weft.cli.settings_page docs/settings.md
	$(BIN)/python -m weft.cli.serve_page docs/serve.md
