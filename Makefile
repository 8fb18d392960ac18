# Nothing is needed but make and Python 3.11 or newer (with its venv module).
# Every target makes .venv first, and again only when a pyproject.toml or constraints.txt has changed.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DOCS   := $(VENV)/.installed-docs
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
            if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
              echo $$python; break; fi; done)
FAST   := not slow and not gpu and not nightly
UNIT   := $(BIN)/python -m pytest -q -m '$(FAST)' --hypothesis-profile=check
SAMPLES := $(addprefix tests/unit/,recipe formats tables codecs workers sessions batching catalog)

.DEFAULT_GOAL := help
.PHONY: help venv demo test nightly check check-static check-samples check-rooms bench docs proto clean

help:
	@echo 'make demo [URL=s3://bucket/prefix/] [NODES=2]   the main job, on an embedded S3 server or on your data'
	@echo 'make test                                       every test that needs no GPU'
	@echo 'make nightly                                    the same and more: other seeds, all ways, hundred kills'
	@echo 'make check                                      format, lint, types, floors, tidy, unit and model tests'
	@echo 'make bench [ARGS=...]                           side by side with peers'
	@echo 'make docs                                       the documentation site, in build/site'
	@echo 'make proto                                      both sides stubs from proto/feedd.proto'
	@echo 'make venv                                       $(VENV) with everything installed'
	@echo 'make clean                                      remove what these targets made'

venv: $(STAMP)

$(STAMP): pyproject.toml client/pyproject.toml constraints.txt
	@test -n '$(PYTHON)' || { echo 'feedd needs Python 3.11 or newer, found none; name one with make PYTHON=...' >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV), the first time takes minutes'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]' -e client
	@touch $@

demo: $(STAMP)
	@$(BIN)/feedd demo $(if $(URL),--url '$(URL)') $(if $(NODES),--nodes '$(NODES)')

# Twice as many processes as cores of the smallest machine meant: tests of processes and timeouts mostly wait.
test: $(STAMP)
	$(BIN)/python -m pytest -n 4 --dist worksteal $(ARGS)

# The breadth that make test leaves out: every way through every case, other examples each time, workers as processes.
nightly: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not gpu and not bench' --hypothesis-profile=nightly \
	  -o timeout=600 -o faulthandler_timeout=3600 $(ARGS)

# More tests run at a time than there are cores. Threads of numpy and torch would only spin and take time from them.
test nightly check-samples check-rooms: export OMP_NUM_THREADS := 1
test nightly check-samples check-rooms: export OPENBLAS_NUM_THREADS := 1

# Compiled once, and not by each of the hundreds of processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

# Side by side, each one process: the type checker, and two halves of the tests. pytest-xdist would collect all of the
# tests once more in each of its processes, 7 s each.
check: $(STAMP)
	@$(MAKE) --no-print-directory -j3 --output-sync=target check-static check-samples check-rooms

check-static: $(STAMP)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -m '$(FAST)' tests/tidy

# Rooms and the models; what needs a server (conformance, fault, e2e) is left to make test. Decode workers of tests
# that are about something else are threads here.
check-samples: $(STAMP)
	$(UNIT) $(SAMPLES)

check-rooms: $(STAMP)
	$(UNIT) tests/unit tests/model $(addprefix --ignore=,$(SAMPLES))

bench: $(STAMP)
	$(BIN)/python -m tests.bench $(ARGS)

# mkdocs is installed when it is first needed: nothing else needs its twenty packages.
$(DOCS): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(DOCS)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .mkdocs.yml
	@echo 'the first page is build/site/index.html'

proto: $(STAMP)
	$(BIN)/python proto/generate.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find feedd client proto tests -name __pycache__ -type d -prune -exec rm -r {} +
