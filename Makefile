# make install   .venv with everything that a sweep needs; its last line is the next command
# make sweep     the same, and a first sweep on the device that is found
# make docs      the site of the documentation, in site/index.html
# make check     ruff, mypy and the tests that neither import torch nor start a process: within three minutes
# make test      ruff, mypy and all tests, in .venv with the test extra: minutes
#
# PYTHON=python3.12 chooses the interpreter that .venv is made with.
# PIP_CONSTRAINT=constraints.txt keeps torch to the CPU build that the tests run with; without it, pip chooses.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Touched when an installation is complete: a second `make` installs nothing, an edited pyproject.toml does.
INSTALLED := $(VENV)/installed
INSTALLED_TO_TEST := $(VENV)/installed-to-test

# Hundreds of processes import the same modules: without their bytecode, each would compile them again.
unexport PYTHONDONTWRITEBYTECODE

ifdef PIP_CONSTRAINT
export PIP_CONSTRAINT
endif

.PHONY: help install sweep docs check pure test lint test-slow test-gpu bench
.DEFAULT_GOAL := help

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

install: $(INSTALLED)
	@printf '\nInstalled in %s. Next, what fits on a card (calculated, no GPU needed):\n\n  %s\n' \
		$(VENV) '. $(BIN)/activate && sweeper fit qwen2.5-7b rtx-4090'

sweep: $(INSTALLED)
	$(BIN)/python -m sweeper batch=1,2,4 context=2048,4096

docs: $(BIN)/zensical
	$(BIN)/zensical build --strict --clean
	@echo "Open site/index.html, or run '$(BIN)/zensical serve' to see each change as you write."

# worksteal: each worker takes its half in the order of the files, so that a module's runs are made once, and one that
# is done takes over half of what the other has left. With loadfile it waited for the other's last file.
test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=25

# The linters and the tests at the same time: the time of the longer one, on two cores.
check: $(INSTALLED_TO_TEST)
	+@$(MAKE) --no-print-directory --output-sync --jobs 2 lint pure

# Without the tests that compose hundreds of configurations in this process.
pure: $(INSTALLED_TO_TEST)
	$(BIN)/python -m pytest -p tests.pure -r fE --durations=5 \
		--ignore tests/sweeper/planning/test_planner.py --ignore tests/sweeper/test_programs.py

lint: $(INSTALLED_TO_TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

test-slow: $(INSTALLED_TO_TEST)
	$(BIN)/python -m pytest -m slow

test-gpu: $(INSTALLED_TO_TEST)
	$(BIN)/python -m pytest -m gpu

bench: $(INSTALLED_TO_TEST)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/tables.py

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "sweeper needs Python 3.10 or newer, and $(PYTHON) is: $$($(PYTHON) --version 2>&1)." \
			"Name another: make install PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(BIN)/zensical: | $(BIN)/python
	$(BIN)/python -m pip install --editable '.[docs]'
	@test -x $@ || { echo "The site needs Python 3.11 or newer: make docs VENV=.venv-docs PYTHON=python3.12" >&2; exit 1; }

$(INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --editable '.[models,quantize,report]'
	@touch $@

$(INSTALLED_TO_TEST): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --editable '.[test]'
	@touch $@ $(INSTALLED)
