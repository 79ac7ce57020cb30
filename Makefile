# Targets that need the environment depend on `setup`, which does nothing if .venv is up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHONS := 3.11 3.12 3.13
PLATFORM := $(shell uname -sm)
TORCH_VERSION := 2.13.0

# Which torch `make setup` installs. TORCH_INDEX: a package index, as that of the CPU builds in
# README.md. TORCH=cuda: pip's usual index, which has the build with CUDA. Neither: the same index,
# with a warning where that build is large; pip may be configured to find another one.
TORCH_INDEX ?=
TORCH :=
ifneq ($(TORCH_INDEX),)
# its dependencies come from the usual index, with the versions of constraints.txt
TORCH_PIP := --no-deps --index-url $(TORCH_INDEX) torch==$(TORCH_VERSION)
else ifeq ($(TORCH),cuda)
TORCH_PIP := -c constraints.txt torch===$(TORCH_VERSION)
else ifeq ($(TORCH),)
TORCH_PIP := -c constraints.txt torch==$(TORCH_VERSION)
ifeq ($(PLATFORM),Linux x86_64)
TORCH_NOTE := torch with CUDA is a download of 5.2 GB, unless pip is configured otherwise; for the \
  CPU alone, 0.2 GB: make setup TORCH_INDEX=... with the index that README.md names
endif
else
$(error TORCH is '$(TORCH)': the only value is cuda. Leave it out, or set TORCH_INDEX)
endif

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup clients browser run serve test test-failed test-pythons test-native test-slow soak check bench bench-peers format docs

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with the pinned versions; does nothing if it is up to date

# torch is installed first: its build is chosen above, and the second command keeps what it finds.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(if $(TORCH_NOTE),@echo "$(strip $(TORCH_NOTE))" >&2)
	$(BIN)/python -m pip install --quiet $(TORCH_PIP)
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

test-failed: setup ## Run the tests that failed in the last run again, one at a time
	$(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none

# python3.12 may be a name that does not run, as those of pyenv for versions that are not selected
test-pythons: ## Run the tests on every Python 3.11 to 3.13 on PATH, each in its own .venv-VERSION
	@passed=; failed=; for version in $(PYTHONS); do \
	  if ! python$$version -c '' 2> /dev/null; then \
	    echo "python$$version is not on PATH, or does not run" >&2; \
	  elif $(MAKE) test PYTHON=python$$version VENV=.venv-$$version; then passed="$$passed $$version"; \
	  else failed="$$failed $$version"; fi; \
	done; \
	echo "passed:$${passed:- none}; failed:$${failed:- none}" >&2; \
	test -n "$$passed" && test -z "$$failed"

test-native: setup ## Test the kernels for each instruction set, and under sanitizers
	$(BIN)/python -m tests.native.run_variants

test-slow: setup ## Run the slow tests, which make test leaves out; those that measure times run alone
	$(BIN)/python -m pytest -q -m 'slow and not alone' -n logical --maxprocesses 8 --dist worksteal; \
	first=$$?; $(BIN)/python -m pytest -q -m 'slow and alone' && exit $$first

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

docs: setup ## Regenerate docs/help.md, docs/settings.md and the tables of docs/serve.md
	$(BIN)/python -m weft.cli.help_page docs/help.md
	$(BIN)/python -m weft.cli.settings_page docs/settings.md
	$(BIN)/python -m weft.cli.serve_page docs/serve.md
