# The two commands of the README: `make build` and `make test`. Each sets up what it needs in a fresh clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: build test lint docs clean

build: $(READY)
	$(BIN)/trtbuild build

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Files that are made from the code; a test checks that they are current.
docs: $(READY)
	$(BIN)/python -c 'from trtbuild.manifest import reference; print(reference(), end="")' > docs/manifest.md

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,rtx,dev]'
	touch $@

clean:
	rm -rf $(VENV) .trtbuild dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
