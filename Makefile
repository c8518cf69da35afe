# make demo    a real A/B/A round on this machine (no GPU needed)
# make test    lint, types, import contracts, the fast suite, the real-SGLang suite
# make check   lint, types and import contracts only
# make fast    the fast suite only
# make real    the real-SGLang suite only

# The first of these that runs and fits: a version manager's shim may be on PATH and not run.
PYTHON ?= $(shell for python in python3.12 python3.11 python3; do \
  $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null \
    && echo $$python && break; done)
BIN := .venv/bin
# Rounds start many short processes: without compiled modules each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
STAMP := .venv/.installed
# A parent `make -j` must not run two servers on the same cores.
.NOTPARALLEL:
.PHONY: demo test check fast real format docs clean

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed and none was found; set PYTHON=/path/to/it"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[sglang,dev]'
	@touch $(STAMP)

models/tiny/config.json: | $(STAMP)
	$(BIN)/loop init --synthetic tiny

demo: $(STAMP) models/tiny/config.json
	$(BIN)/loop run float32 --baseline original --suite smoke --no-extend

test: check fast real

check: $(STAMP)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell
	$(BIN)/python -m loop.prompts --check

fast: $(STAMP)
	$(BIN)/python -m pytest --ignore tests/real --quiet --numprocesses 4 --dist loadgroup

real: $(STAMP) models/tiny/config.json
	$(BIN)/python -m pytest -m real_sglang --quiet

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)
	$(BIN)/python docs/generate.py

clean:
	rm -rf .venv models .mypy_cache .ruff_cache .hypothesis
