# `make demo` trains and compares; `make test` is the whole gate. Both install what they need in .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test browser lint clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "mentalese needs Python 3.11 or newer; name one with make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,lint]'
	touch $@

demo: install
	$(BIN)/mentalese compare 'gpt2*/tiny' '*thought*/tiny' conceptlm/tiny --out runs/demo

# One thread a test process: the machine's cores are shared by the processes, not fought over by their threads.
test: install browser lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 8

# Pages are tested in Chromium. Without it their tests are skipped, and fail where CI is true.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		apt-get update --quiet --quiet && apt-get install --quiet --quiet --yes --no-install-recommends chromium fonts-dejavu-core && exit 0; \
	fi; \
	echo 'make browser: there is no Chromium and it cannot be installed here; tests of pages will be skipped'

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv runs
