# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv if needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow test-lowest test-newest audit lint clean

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/promptcal demo --output runs/demo --overwrite

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A process for each core, each with a single thread: files of tests are shared out among them.
TOGETHER := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

test: lint
	$(TOGETHER)

test-slow: $(READY)
	$(TOGETHER) -m slow

# The suite on the lowest versions pyproject.toml allows, and on those it was last run with, in environments of their own.
test-lowest test-newest: test-%: constraints/%.txt pyproject.toml
	test -x $(VENV)-$*/bin/python || $(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check -c $< -e '.[dev]'
	OMP_NUM_THREADS=1 $(VENV)-$*/bin/python -m pytest -n auto --dist loadfile $(TESTS)

audit: $(READY)
	$(BIN)/python .ci/audit.py

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest runs build dist .pytest_cache .mypy_cache .ruff_cache
