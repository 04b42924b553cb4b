# Every target makes the virtual environment and installs what is missing; the second time that takes no time.
# PYTHON: the interpreter it is made with. INSTALL: arguments for pip, as '--extra-index-url URL' for builds of torch
# without CUDA. JOBS: test processes side by side.

PYTHON ?= python3
INSTALL ?=
OUTSIDE ?=
SWEEP ?=
SEEDS ?= 10000
JOBS ?= 2
VENV := .venv
STAMP := $(VENV)/.installed
OUTSIDE_STAMP := $(VENV)/.installed-outside
ENGINES_STAMP := $(VENV)/.installed-engines
DOCS_STAMP := $(VENV)/.installed-docs
PIP := $(VENV)/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt $(INSTALL)
TYPES := build/types/cutset
PYTEST := $(VENV)/bin/python -m pytest -n $(JOBS) --dist loadgroup
FOLDERS := models partition ps runtime tools

# Tests start hundreds of processes: each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test runs slow bench-check simulate test-outside sweep engines fuzz chaos endure watched lint types format docs clean
.DELETE_ON_ERROR:

demo: $(STAMP)
	$(VENV)/bin/cutset demo

test: $(STAMP)
	$(PYTEST)

# What takes more than a second a test: more kinds of faults, methods and resumptions, in whole runs with processes of
# their own, every command of the documentation, and the wheel: ten minutes
runs: $(STAMP)
	$(PYTEST) -m 'run and not slow' tests

# And more cases of all that `make test` tests once: half an hour more
slow: runs
	$(PYTEST) -m slow tests

# Ratios to peers that are measured beside them, compared with those that are kept: names what fell by more than the
# noise. Some minutes, on a machine on which nothing else runs. After a change that is meant to move them:
#   .venv/bin/cutset bench check docs/guide/kept_ratios.json step --keep
bench-check: $(STAMP)
	$(VENV)/bin/cutset bench check docs/guide/kept_ratios.json

# Runs in virtual time, each with up to three faults at random moments: some thousand a minute. Then one over a thousand
# machines, to see whether the launcher keeps up.
simulate: $(STAMP)
	$(VENV)/bin/python tests/simulation/simulate.py --seeds $(SEEDS)
	$(VENV)/bin/python tests/simulation/fleet.py --machines 1000

# Models that others wrote (torchvision, transformers), with random weights. OUTSIDE: arguments for pytest, for example
#   make test-outside OUTSIDE='-m light'
test-outside: $(OUTSIDE_STAMP)
	$(PYTEST) -m 'light or not light' tests/outside $(OUTSIDE)
	$(PYTEST) -m slow tests/docs/test_migration.py -k 'accelerate or lightning' -rs

# What cutset makes of the models that the registries of torchvision, timm and transformers have: most of a day on two
# cores. It goes on where it was stopped, and writes docs/guide/models_tried.md. SWEEP: its options, for example
#   make sweep SWEEP='--library timm --every 5 --jobs 2 --since 2026-11-27', to try all again that were tried before
sweep: $(OUTSIDE_STAMP)
	cd tests/outside && OMP_NUM_THREADS=1 MKL_CBWR=AUTO HF_HUB_OFFLINE=1 $(CURDIR)/$(VENV)/bin/python -W ignore -m sweep $(SWEEP)

# Runs on a real Slurm, Ray and torchrun, and by a kubectl that is none. Of Slurm it needs what Debian has as slurmctld,
# slurmd, slurm-client and munge, and root; without them its tests are skipped.
engines: $(ENGINES_STAMP)
	$(VENV)/bin/python -m pytest tests/engines -rs

# A million broken messages to the inbox of a worker, and as many to that of a shard: some minutes
fuzz: $(STAMP)
	CUTSET_FUZZ=1000000 $(VENV)/bin/python -m pytest -m 'run or not run' tests/runtime/channel/test_wire_fuzz.py

# Processes killed and stopped, links cut and black-holed at random steps of real runs: some minutes
chaos: $(STAMP)
	$(VENV)/bin/python -m pytest tests/chaos -rP

# One run of so many minutes, in which replicas and shards are killed and replicas come and go
MINUTES ?= 10
endure: $(STAMP)
	PYTHONPATH=tests/support $(VENV)/bin/python tests/chaos/endure.py $(MINUTES)

# What it costs a run of so many minutes that three browsers watch it; needs Chromium, and that nothing else runs
WATCHED ?= cutset.models:digits
watched: $(STAMP)
	PYTHONPATH=tests/support $(VENV)/bin/python tests/chaos/watched.py $(MINUTES) $(WATCHED)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python tests/support/house.py
	$(MAKE) --no-print-directory types

# mypy sees the folders under the names they are imported by
types: $(STAMP)
	rm -rf $(TYPES)
	mkdir -p $(TYPES)
	ln -s $(FOLDERS:%=$(CURDIR)/%) $(wildcard $(CURDIR)/api/*.py) $(TYPES)
	cd build/types && $(CURDIR)/$(VENV)/bin/mypy --config-file $(CURDIR)/pyproject.toml -p cutset

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# What the documentation takes from the code, and the site of it: build/docs/index.html. Once Sphinx is installed, that
# needs no network.
docs: $(DOCS_STAMP)
	$(VENV)/bin/python docs/draw_pictures.py
	$(VENV)/bin/python docs/generate.py
	$(VENV)/bin/python docs/generate_reference.py
	$(VENV)/bin/python -m sphinx -q --fail-on-warning -c docs -d build/docs-state . build/docs
	@echo "build/docs/index.html"

# keeps the virtual environment; `rm -r .venv` starts afresh
clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(FOLDERS) api tests -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first and alone, so that a failure there is seen as one. axe-core, of which tests of pages take what it finds, is
# in a package for Playwright: alone, since Playwright is a browser driver of 40 MB that nothing here runs.
$(STAMP): pyproject.toml constraints.txt
	@echo "installing into $(VENV): a minute or two, this once"
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) 'torch==2.13.*'
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps axe-playwright-python
	touch $@

# torchvision and timm alone: what they depend on would bring another torch, with CUDA
$(OUTSIDE_STAMP): $(STAMP)
	@echo "installing models that others wrote: less than 60 MB, this once"
	$(PIP) -e '.[dev,outside]'
	$(PIP) --no-deps torchvision timm
	touch $@

$(ENGINES_STAMP): $(STAMP)
	@echo "installing Ray and a validator of manifests: less than 100 MB, this once"
	$(PIP) -e '.[dev,ray]' kubernetes-validate
	touch $@

$(DOCS_STAMP): $(STAMP)
	@echo "installing Sphinx: less than 80 MB, this once"
	$(PIP) -e '.[dev,docs]'
	touch $@
