# Every target makes .venv itself when it is missing or when the requirements have changed.
# Ours to choose:  make PYTHON=python3.13 TORCH=torch demo

PYTHON ?= python3
TORCH ?= torch==2.13.0
# Most of the tests' time is spent waiting for leases and processes.
TEST_PROCESSES ?= 3
BIN := .venv/bin
INSTALLED := .venv/.installed
SECONDS ?= 600

.DEFAULT_GOAL := help
.PHONY: help demo test test-integrations check bench bench-search soak fuzz screenshots clean

help:
	@echo "make demo          a real study from launch to best parameters (KEEP=1 leaves the server up)"
	@echo "make test          all tests"
	@echo "make test-integrations  the callbacks for Lightning and the Hugging Face Trainer, with both"
	@echo "make check         ruff, format, mypy, import rules"
	@echo "make bench         the service and its peers side by side, half an hour; ONLY='reads restart' JSON=file RAY=1"
	@echo "make bench-search  TPE and pruning beside random search, some minutes; JSON=file keeps figures"
	@echo "make soak          faults at random on both databases for SECONDS=600 together"
	@echo "make fuzz          requests made from the OpenAPI document on both databases for SECONDS=600 together"
	@echo "make screenshots   the README's pictures of the console, anew"
	@echo "make clean         removes .venv, caches and the data of demos; studies of 'hpo up' stay"

# torch first and alone: its build depends on the machine, everything else on constraints.txt.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info < (3, 14) or sys.exit("hpo needs Python 3.11 to 3.13, $(PYTHON) is " + sys.version.split()[0] + "; name another: make PYTHON=python3.12")'
	@echo "Installing into .venv; this takes a few minutes the first time."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[server,postgres,torch,dev]'
	@touch $@

demo: $(INSTALLED)
	@$(BIN)/hpo demo $(if $(KEEP),--keep)

# One thread each: trials and tests share the cores, and torch would start a pool in every process.
test test-integrations bench bench-search soak fuzz: export OMP_NUM_THREADS = 1

test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile -m 'not alone'
	$(BIN)/python -m pytest -m alone tests/acceptance

.venv/.extra-%: $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@

test-integrations: .venv/.extra-integrations
	$(BIN)/python -m pytest tests/extras

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.extra-bench $(if $(RAY),.venv/.extra-bench-ray)
	$(if $(ONLY),,$(BIN)/python -m pytest -s tests/benchmarks/test_console_open.py)
	$(BIN)/python -m tests.benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON))

bench-search: .venv/.extra-bench
	$(BIN)/python -m tests.benchmarks.search $(if $(JSON),--json $(JSON))

soak: $(INSTALLED)
	$(BIN)/python -m tests.acceptance.soak --seconds $$(( $(SECONDS) / 2 ))

# Six runs share the time: requests alone on each database, with and without a token, and sequences.
fuzz: $(INSTALLED)
	HPO_FUZZ_SECONDS=$$(( $(SECONDS) / 6 )) $(BIN)/python -m pytest tests/integration/api/test_api_fuzz.py

screenshots: $(INSTALLED)
	@mkdir -p docs/images
	HPO_SCREENSHOTS=$(CURDIR)/docs/images $(BIN)/python -m pytest tests/browser -k pictures

clean:
	rm -rf .venv build dist *.egg-info hpo-data/demo-*
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
