# `make demo` and `make test` are all a newcomer needs. Every target sets up .venv first if it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: demo lint docs screenshots notebooks test test-slow fuzz test-lowest test-newest coverage audit dist clean

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -e '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/promptcal demo --output runs/demo --overwrite

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# The documentation, into build/site. Fails at a broken link, and at anything that a page would load from the network.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The pictures of the documentation, with headless Chromium; minutes, because the demo runs first.
screenshots: $(READY)
	$(BIN)/python tools/docs/screenshots.py

# Runs the notebooks and stores their output, which the documentation shows.
notebooks: $(READY)
	$(BIN)/python tools/docs/run_notebooks.py

# One process per core, each with one thread. The test files are distributed among the processes, slow ones first
# (tests/conftest.py).
# TESTS limits a run to some folders or files: make coverage TESTS='tests/models tests/training'
PYTEST := -m pytest -n auto --dist loadfile --no-loadscope-reorder

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) $(TESTS)

test-slow: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -m slow $(TESTS)

# Inputs that break a promise are kept in tests/fuzz/corpus, which `make test` replays.
FUZZ_SECONDS ?= 600

fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz.py --seconds $(FUZZ_SECONDS)

coverage: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) --cov --cov-report=term $(TESTS)

# The tests with the lowest and the newest versions of the dependencies, each in a separate environment.
test-lowest test-newest: test-%: constraints/%.txt pyproject.toml
	test -x $(VENV)-$*/bin/python || $(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python $(INSTALL) -c $< -e '.[dev]'
	OMP_NUM_THREADS=1 $(VENV)-$*/bin/python $(PYTEST) $(TESTS)

audit: $(READY)
	$(BIN)/python .ci/audit.py

# Builds sdist and wheel, installs the wheel into an empty environment outside the checkout and runs the demo there.
dist: $(READY)
	$(BIN)/python .ci/dist.py

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest runs build dist .coverage .coverage.* \
		.pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
