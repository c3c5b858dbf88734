# Every target sets up what it needs: a virtual environment in .venv, remade when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made

.PHONY: setup demo test lint format bench table clean

setup: $(STAMP)

# Debian's python3 comes without ensurepip: there, pip outside installs pip inside.
$(STAMP): pyproject.toml constraints.txt
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: setup ## exact moments beside the 30-sample estimate
	$(BIN)/python -m simplexcal.demo

test: lint ## lint, then the whole suite
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## rewrite in the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## the claims about accuracy, speed and memory, measured here
	$(BIN)/python benchmarks/concrete_accuracy.py
	$(BIN)/python benchmarks/concrete_mean.py
	$(BIN)/python benchmarks/concrete_memory.py

table: setup ## write the table of the noise law again
	$(BIN)/python -m simplexcal._noise

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
