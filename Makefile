# make run     install into .venv and do the main job; make run ARGS="mini --corpus texts/ --budget 15m"
# make test    install and run the tests, a process for each core (up to six); make test ARGS="tests/data -x"
# make test-all  every test, with every extra, Ray and transformers 4.57; ARGS="-m extra" runs what make test leaves out
# make check   ruff and mypy
# make bench   the short form of every script in benchmarks/
# make gpu     everything that a GPU is needed for, into gpu/; make gpu ARGS="--task-dir GLUE --minutes 60"
# make gpu-dry the same stages on a CPU with tiny shapes
# make tables  the tables of README and docs anew from records/
# make docs    the documentation as a site, in site/
#
# SYSTEM_TORCH=1 uses the torch that this machine has already (decided when .venv is made: delete .venv to change it).

.PHONY: run test test-all check bench tables gpu gpu-dry docs
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PINS := $(VENV)/constraints.txt
# An environment that was made with SYSTEM_TORCH=1 stays so, also when constraints.txt has changed.
ifeq ($(origin SYSTEM_TORCH),undefined)
ifneq ($(wildcard $(PINS)),)
SYSTEM_TORCH := $(if $(shell grep '^torch==' $(PINS)),,1)
endif
endif
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c $(PINS)

# The first of these that really runs and is new enough; a name on the path may be an empty shim.
PYTHON ?= $(shell for name in python3.11 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)

run: $(VENV)/.installed-run
	$(BIN)/daybreak run $(ARGS)

# tests/conftest.py counts the workers for "auto"; ARGS="-n 0" runs all tests in one process.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

test: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(PYTEST) $(ARGS)

# The export is also read by transformers 4, which lies in a folder of its own with the versions that it needs.
TRANSFORMERS_4 := transformers==4.57.6 huggingface_hub==0.36.2 tokenizers==0.22.2

test-all: $(VENV)/.installed-test-all
	OMP_NUM_THREADS=1 DAYBREAK_TEST_ALL='$(CURDIR)/$(VENV)/transformers-4' $(PYTEST) $(ARGS)

check: $(VENV)/.installed-check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.installed-test
	@found=; for script in benchmarks/*.py; do \
		[ -e "$$script" ] || continue; \
		found=1; echo "== $$script --short"; $(BIN)/python "$$script" --short || exit; \
	done; [ -n "$$found" ] || echo "There is no script in benchmarks/ yet."

tables: $(VENV)/.installed-test
	$(BIN)/python docs/tables.py

# With the Python that has torch, for a rented machine has its own: nothing is installed.
TORCH_PYTHON ?= $(or $(shell for name in python3 python3.12 python3.11 $(BIN)/python; do \
	$$name -c 'import sys, torch; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done),$(PYTHON))

gpu:
	'$(TORCH_PYTHON)' benchmarks/gpu.py --work gpu $(ARGS)

gpu-dry:
	'$(TORCH_PYTHON)' benchmarks/gpu.py --dry-run --work gpu-dry --minutes 15 $(ARGS)

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict $(ARGS)

$(VENV)/.installed-run: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed-run
	$(PIP) -e '.[test]'
	@touch $@

$(VENV)/.installed-test-all: $(VENV)/.installed-run
	$(PIP) -e '.[test-all]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --upgrade \
		--target $(VENV)/transformers-4 $(TRANSFORMERS_4)
	@touch $@

$(VENV)/.installed-check: $(VENV)/.installed-run
	$(PIP) -e '.[check]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed-run
	$(PIP) -e '.[docs]'
	@touch $@

# torch first and by itself: by far the largest download, so that its failure is seen before anything else is done.
$(VENV)/.torch: constraints.txt
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Daybreak needs Python 3.11 or newer$(if $(PYTHON), and '$(PYTHON)' is none)." \
			"Install it, or name it: make run PYTHON=/path/to/python3.11." >&2; exit 2; }
	@'$(PYTHON)' -m venv $(if $(SYSTEM_TORCH),--system-site-packages) $(VENV) || { \
		echo "'$(PYTHON)' cannot make a virtual environment." \
			"Install its venv module (on Debian: apt-get install python3-venv)." >&2; exit 2; }
ifneq ($(SYSTEM_TORCH),)
	@$(BIN)/python -c 'import torch, sys; sys.exit(not (2, 11) <= tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14))' || { \
		echo "SYSTEM_TORCH=1 needs torch 2.11, 2.12 or 2.13 in '$(PYTHON)'." \
			"Name a Python that has it with PYTHON=..., or leave SYSTEM_TORCH out." >&2; exit 2; }
	@grep -vE '^(torch|setuptools)==' constraints.txt > $(PINS)  # setuptools: older torch wants an older one
else
	@cp constraints.txt $(PINS)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
endif
	@touch $@
