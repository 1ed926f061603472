# The README shows `make build`, `make check` and `make test`. Each sets up what it needs in a fresh clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# torchvision is in a separate folder: it cannot be imported beside the CPU build of torch, and other libraries would try to.
TORCHVISION := $(VENV)/torchvision

.PHONY: build check test lint fuzz docs site screens bench zoo clean

build: $(READY)
	$(BIN)/trtbuild build

# Each of three processes takes one file of tests at a time, in the order of tests/conftest.py. Tests often wait for a disk or a
# server, so three are faster than two, even on two cores. The tests start thousands of processes, which import .pyc files of trtbuild.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: lint
	$(PYTEST)

# The tests that build nothing and need no torch: what to run after each change.
check: lint
	$(PYTEST) tests/core tests/manifest tests/driver/configuration

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Random modules, built and compared with eager PyTorch. A module takes one or two seconds. `make fuzz N=200 SEED=7` tries others. Each
# failure is printed with its seed, and `.venv/bin/python -m tests.fuzz --only SEED` tries the module again.
N    := 1000
SEED := 0
fuzz: $(READY)
	$(BIN)/python -W ignore -m tests.fuzz -n $(N) --seed $(SEED)

# Files that are made from the code; a test checks that they are current.
docs: $(READY)
	$(BIN)/python -c 'from trtbuild.manifest import reference; print(reference(), end="")' > docs/manifest.md
	$(BIN)/python -m docs.reference
	$(BIN)/python -m tests.operators

# The documents as a site in site/. A broken link, anchor or picture is an error.
site: $(READY)
	$(BIN)/python -m mkdocs build --strict

# Benchmarks of trtbuild and of other tools (the peers): about 40 minutes on two cores. `make bench ONLY="null
# plan"` runs some of them, and `ONLY=--help` lists them. The peers are in a separate virtual environment, because dvc alone
# needs 90 distributions.
PEERS := benchmarks/.work/peers
bench: $(READY) $(PEERS)/.ready
	$(BIN)/python -m benchmarks $(ONLY)

$(PEERS)/.ready: benchmarks/peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --requirement benchmarks/peers.txt
	touch $@

# Public architectures with random weights, built and verified; writes the tables of docs/zoo.md. It takes long, and 40 GB of
# disk. `make zoo ONLY=gpt2,yolo11n SIZE=small` builds some of them. The libraries of the models are in a separate virtual
# environment of 8 GB.
ZOO  := benchmarks/zoo/.work/venv
SIZE := published
zoo: $(ZOO)/.ready
	$(ZOO)/bin/python -m benchmarks.zoo --size $(SIZE) --only '$(ONLY)'

# From PyPI alone: a configured index may have a CPU build of torch, beside which torchvision of PyPI cannot be imported.
$(ZOO)/.ready: pyproject.toml benchmarks/zoo/requirements.txt
	test -x $(ZOO)/bin/python || $(PYTHON) -m venv $(ZOO)
	PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= PIP_CONSTRAINT= $(ZOO)/bin/python -m pip install --quiet \
		--requirement benchmarks/zoo/requirements.txt --editable '.[torch,rtx,verify]'
	touch $@

# The screens of docs/terminal.md: real builds, seen on an emulated terminal.
screens: $(READY)
	$(BIN)/python -m docs.screens

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,rtx,dev,docs]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps --upgrade --target $(TORCHVISION) torchvision pillow
	touch $@

clean:
	rm -rf $(VENV) .trtbuild dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
