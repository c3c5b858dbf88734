# Every target sets up what it needs: a virtual environment in .venv, made again when
# pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made

.PHONY: setup demo docs test test-slow lint format browser bench picture table release-check clean

setup: $(STAMP)

# Debian's python3 comes without ensurepip: there, pip outside installs pip inside.
$(STAMP): pyproject.toml constraints.txt
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: setup ## four methods on a LeNet-5 and Fashion-MNIST: a table, and a report to open
	$(BIN)/simplexcal demo --output simplexcal-demo.html

docs: setup ## the documentation site, site/index.html, with its links checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python -m tools.website.check site

test: lint browser ## lint, then the suite without its slow tests, on all cores
	$(BIN)/python -m pytest --numprocesses auto

test-slow: setup ## the slow tests, which make test leaves out
	$(BIN)/python -m pytest --numprocesses auto -m slow

# It makes an environment for each extra, in a folder for temporary files: several minutes and GB.
release-check: setup ## build sdist and wheel, and try the wheel without extras and with each
	$(BIN)/python -m tools.release.check

# The report is tested in a real browser: an installed one, or Debian's chromium.
browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo "No browser is installed or could be: the report's browser tests are skipped (in CI: fail)."

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
	$(BIN)/python benchmarks/evaluate_many.py
	$(BIN)/python benchmarks/ece_coverage.py 200
	$(BIN)/python benchmarks/one_distribution.py demo
	$(BIN)/python benchmarks/threshold_guarantees.py demo --method ts --draws 200

picture: setup ## draw the README's picture, docs/reliability.png
	$(BIN)/python benchmarks/reliability_picture.py

table: setup ## compute the table of the distribution of the Gumbel sum
	$(BIN)/python -m simplexcal.concrete._gumbel_sum

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist site
