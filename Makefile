# Everything is done in .venv, which is made on first use from pyproject.toml and constraints.txt.
#   make run ARGS="plan +grid=llama2_superglue"        make test ARGS="-m unit"        make run PYTHON=python3.12

PYTHON ?= python3
ARGS ?=
JOBS ?= 3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help run test lint docs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-6s %s\n", $$1, $$2}' Makefile

run: $(VENV)/.installed ## set up, then `python -m zo_sweeps $(ARGS)`: the quickstart sweep if ARGS is empty
	@$(PY) -m zo_sweeps $(ARGS)

test: $(VENV)/.installed-dev ## set up, then the test suite in JOBS processes (`pytest $(ARGS)`)
	@$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.installed-dev ## formatting, lint, types
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy

docs: $(VENV)/.installed-dev ## the documentation site, in build/site; needs Python 3.11 or later
	@$(VENV)/bin/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going -b html -c docs/site -d build/doctrees . build/site
	@$(PY) docs/site/check.py build/site
	@echo "build/site/index.html"

lock: ## resolve the dependencies afresh and rewrite constraints.txt (needs python3.10 and python3.11)
	@$(PYTHON) .ci/lock.py python3.10 python3.11

clean: ## remove .venv, caches and build products; your runs (zo_runs) are kept
	@rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. The stamps are files in .venv, so that `rm -rf .venv` is a clean start.
$(PY):
	@command -v $(PYTHON) >/dev/null || { echo "zo_sweeps needs Python 3.10 to 3.13, and there is no '$(PYTHON)' on PATH: install one, or name it, e.g. make run PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { echo "zo_sweeps needs Python 3.10 to 3.13, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1): name another one, e.g. make run PYTHON=python3.12"; exit 1; }
	@echo "[1/3] virtual environment $(VENV) ($$($(PYTHON) --version))"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "'$(PYTHON) -m venv' failed: on Debian and Ubuntu, apt install python3-venv"; exit 1; }

$(VENV)/.torch: constraints.txt | $(PY)
	@$(PIP) --upgrade 'pip>=25.1'
	@echo "[2/3] torch (the large one: some minutes on a slow line)"
	@$(PIP) --constraint constraints.txt torch
	@touch $@

BESIDE := bench league ray report tracking # the packages that `make run` installs

$(VENV)/.installed: pyproject.toml $(BESIDE:%=packages/%/pyproject.toml) $(VENV)/.torch
	@echo "[3/3] the other dependencies, zo_sweeps itself and its packages for Ray, trackers, reports, benchmarks and the league"
	@$(PIP) --constraint constraints.txt --editable . $(BESIDE:%=--editable packages/%)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(wildcard packages/*/pyproject.toml) $(VENV)/.torch
	@echo "[3/3] the other dependencies, test tools, zo_sweeps itself and packages/"
	@$(PIP) --constraint constraints.txt --editable '.[agents,demo,edge,federated,rtl]' $(patsubst %,--editable %,$(wildcard packages/*)) --group dev
	@touch $(VENV)/.installed $@
