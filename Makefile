# Two targets matter to a newcomer: `make demo` shows what ortlens does, `make test` runs what every change must pass.
# Both make .venv when it is missing. Debian 12 with python3 and make is enough to start.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
PIP_ARGS ?=
BENCH_ARGS ?=
FUZZ_ARGS ?=
SEAMS_ARGS ?=
WORKLOADS_ARGS ?=
VENV ?= .venv
BIN := $(VENV)/bin
BUILD := build
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt $(PIP_ARGS)
SAY := @printf '\n==> %s\n'

.PHONY: help venv demo frontend notebooks browser test test-slow lint format-check ruff types contracts dead-code deps docs tests slow-tests coverage bench workloads zoo conformance opinfo opinfo-numbers faults seams integrations fuzz fuzz-programs sbom versions soak clean

help: ## Show this list
	@printf 'ortlens: PyTorch through ONNX Runtime, recorded and shown\n\n'
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nPYTHON=%s (3.11 or newer) makes %s. PIP_ARGS goes to every pip install, e.g. an index with CPU builds of torch.\n' \
		'$(PYTHON)' '$(VENV)'

# Rewriting the asserts of all tests anew costs each worker half a minute: let Python keep what it compiled, whatever the shell says.
export PYTHONDONTWRITEBYTECODE =

# ------------------------------------------------------------------------------------------------ the virtual environment

$(BIN)/python:
	$(SAY) 'Making the virtual environment $(VENV)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo '$(PYTHON) is missing or older than 3.11, which the tested pins need. On Debian: apt-get install python3 python3-venv'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo 'The venv module is not installed. On Debian: apt-get install python3-venv'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# Torch goes in alone and first: its pin decides what else comes along.
$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/python
	$(SAY) 'Installing ortlens and what it needs to run, $(TORCH) first: a few minutes the first time'
	@$(PIP) --upgrade pip
	@$(PIP) '$(TORCH)'
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(SAY) 'Installing what the tests, the linters and the docs need'
	@$(PIP) '$(TORCH)' -e '.[all]' --group dev
	@touch $@

venv: $(VENV)/.dev ## Make the development environment in .venv, with the tested pins
	$(SAY) 'Ready: source $(BIN)/activate'

# -------------------------------------------------------------------------------------------------------- the main job

demo: $(VENV)/.runtime ## Run a small model through ONNX Runtime and show what happened
	$(SAY) 'Running: ortlens demo'
	@$(BIN)/ortlens demo

frontend: ## Build and test the explorer's bundles in frontend/; needs node 20. Installing and testing the rest needs none
	$(SAY) 'Building the explorer'
	@cd frontend && npm ci --no-audit --no-fund && npm run build && npm test
	@git diff --exit-code --stat -- ortlens/views/static || { echo 'the bundles changed: commit them'; exit 1; }

notebooks: $(VENV)/.dev ## Run the notebooks from clean kernels and keep their outputs: two minutes
	$(SAY) 'Running the notebooks'
	@$(BIN)/python notebooks/execute.py

bench: $(VENV)/.dev ## Measure the figures that the README quotes: half an hour. BENCH_ARGS goes to each script
	$(SAY) 'Running the benchmarks; the tables are kept in $(BUILD)/bench'
	@for script in benchmarks/bench_*.py; do \
		printf '\n-- %s\n' "$$script"; \
		$(BIN)/python "$$script" --json "$(BUILD)/bench/$$(basename "$$script" .py).json" $(BENCH_ARGS); done

workloads: $(VENV)/.dev ## Measure everyday programs and write docs/workloads.md: half an hour. WORKLOADS_ARGS chooses
	$(SAY) 'Running the workloads'
	@$(BIN)/python benchmarks/bench_workloads.py --page docs/workloads.md $(WORKLOADS_ARGS)

zoo: $(VENV)/.dev ## Run every architecture of the model zoo and write docs/data/zoo.json: a quarter of an hour
	$(SAY) 'Running the model zoo'
	@$(BIN)/python -m tests.zoo

browser: $(VENV)/.dev ## Run what needs a browser: the report, JupyterLab, Notebook 7, light and dark; five minutes
	$(SAY) 'Walking the explorer in chromium'
	@$(BIN)/python -m pytest tests/browser -m slow --durations=15

conformance: $(VENV)/.dev ## Run every promise down every road and write docs/data/conformance.json: a few minutes
	$(SAY) 'Running the conformance suite'
	@$(BIN)/python -m tests.conformance.report

opinfo: $(VENV)/.dev ## Send PyTorch's databases of operators, modules and optimisers through the backend and write docs/data/operators.json: hours, resumable
	$(SAY) 'Running the operator database; the outcomes are kept in $(BUILD)/opinfo'
	@$(BIN)/python -m tests.opinfo
	$(SAY) 'Running what PyTorch refuses'
	@$(BIN)/python -W ignore -m tests.opinfo.errors
	$(SAY) 'Running the databases of modules and optimisers'
	@$(BIN)/python -W ignore -m tests.opinfo.modules

opinfo-numbers: $(VENV)/.dev ## Send operations on numbers through the backend and write their part of docs/data/operators.json: a few minutes
	$(SAY) 'Running operations on numbers'
	@$(BIN)/python -W ignore -m tests.opinfo --numbers

faults: $(VENV)/.dev ## Look for the known faults of ONNX Runtime in every supported version of it: a minute, and a download of 300 MB
	$(SAY) 'Looking for faults; the versions are installed in $(BUILD)/versions'
	@$(BIN)/python -m tests.faults --versions

seams: $(VENV)/.dev ## Have every function of ortlens fail once under each way of observing a program: an hour. SEAMS_ARGS chooses
	$(SAY) 'Failing on purpose'
	@$(BIN)/python -W ignore -m tests.seams $(SEAMS_ARGS)

integrations: $(VENV)/.dev ## Run the programs of docs/integrations.md and measure models of the libraries: half an hour, and a download. INTEGRATIONS_ARGS chooses
	$(SAY) 'Running the integrations; the libraries are installed in $(BUILD)/integrations'
	@$(BIN)/python -m tests.integrations $(INTEGRATIONS_ARGS)

fuzz: $(VENV)/.dev ## Load 100,000 damaged captures and journals, explain 2,000 damaged ONNX models: five minutes. FUZZ_ARGS='--files N --models N' for fewer
	$(SAY) 'Loading damaged files'
	@$(BIN)/python -m tests.hostile $(FUZZ_ARGS)

fuzz-programs: $(VENV)/.dev ## Judge random programs against PyTorch: views, writes, odd memory, training. Resumable; FUZZ_ARGS says how many, --graphs skips Dynamo
	$(SAY) 'Judging random programs; the verdicts are kept in $(BUILD)/fuzz'
	@$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

versions: $(VENV)/.dev ## Run a part of the suite with other versions of torch, onnxruntime and others and write docs/data/versions.json: an hour, and a download of 35 GB
	$(SAY) 'Trying other versions; they are installed in $(BUILD)/versions'
	@$(BIN)/python -m tests.versions

sbom: $(VENV)/.dev ## Write build/sbom.json: all that the tested environment consists of, as CycloneDX; a download
	@$(PYTHON) -m venv $(BUILD)/sbom
	@$(BUILD)/sbom/bin/python -m pip install --disable-pip-version-check --quiet cyclonedx-bom $(PIP_ARGS)
	@$(BUILD)/sbom/bin/cyclonedx-py environment --output-reproducible --output-file $(BUILD)/sbom.json $(BIN)/python
	@echo 'wrote $(BUILD)/sbom.json'

soak: $(VENV)/.dev ## Live long random lives of models, survey thirty, look for leaks: a quarter of an hour
	$(SAY) 'Soaking'
	@$(BIN)/python -m pytest $(SOAK) -p no:logging --durations=15

# ----------------------------------------------------------------------------------------------------------- the gates

# Two workers with one thread each. What measures runs alone, after them. Each test is in one selection: a test looks after that.
WORKERS ?= 2
FAST := -m 'not slow and not serial and not soak'
FAST_ALONE := -m 'serial and not slow and not soak'
SLOW := -m 'slow and not serial and not soak'
SLOW_ALONE := -m 'slow and serial and not soak'
SOAK := -m 'soak'
BESIDE := -n $(WORKERS) --dist worksteal
# COV=1, as in CI: count the branches that `make test` takes, so that `make coverage` need not run the tests again.
COV ?=
TRACE := $(if $(COV),--cov --cov-report=)
LOGS := $(BUILD)/logs
CLOSING_LINE = $(BIN)/python tests/closing_line.py
# Seconds since 1970 at which the slow tests end, and those that measure: what has not begun by then is skipped, and counted as such.
SLOW_UNTIL ?=
ALONE_UNTIL ?=

test: $(VENV)/.dev ## Run what every change must pass, in twelve minutes: lint, types, layers, docs, tests
	@mkdir -p $(LOGS) && rm -f $(LOGS)/fast*.log
	@$(MAKE) -j$(WORKERS) --output-sync=target lint docs
	@$(MAKE) tests
	$(SAY) 'All gates passed'
	@$(CLOSING_LINE) $(LOGS)/fast*.log

test-slow: $(VENV)/.dev ## Run the rest, as CI does: sweeps, browser, notebooks, benchmarks, coverage; twenty minutes
	@mkdir -p $(LOGS) && rm -f $(LOGS)/slow*.log
	@$(MAKE) slow-tests
	@$(MAKE) coverage
	$(SAY) 'All slow gates passed'
	@$(CLOSING_LINE) $(LOGS)/slow*.log

lint: ruff format-check types contracts dead-code deps ## Run the static gates only

ruff: $(VENV)/.dev
	$(SAY) 'Lint: ruff, every rule'
	@$(BIN)/ruff check .

format-check: $(VENV)/.dev
	$(SAY) 'Format: ruff format'
	@$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(SAY) 'Types: mypy, strict'
	@$(BIN)/mypy

contracts: $(VENV)/.dev
	$(SAY) 'Layers: import-linter'
	@$(BIN)/lint-imports

dead-code: $(VENV)/.dev
	$(SAY) 'Dead code: vulture'
	@$(BIN)/python tests/packaging/dead_code.py

deps: $(VENV)/.dev
	$(SAY) 'Declared dependencies: deptry'
	@$(BIN)/deptry .

docs: $(VENV)/.dev ## Build the documentation into build/site, warnings are errors
	$(SAY) 'Docs: mkdocs, strict'
	@$(BIN)/mkdocs build --strict 2>&1 | { grep -v '^INFO' || true; }
	@echo 'built $(BUILD)/site'

tests: $(VENV)/.dev ## Run the tests of `make test` only
	@mkdir -p $(LOGS)
	$(SAY) 'Tests, in random order, on $(WORKERS) workers'
	@rm -f $(BUILD)/coverage*
	@$(BIN)/python -m pytest $(FAST) $(BESIDE) $(TRACE) --durations=15 2>&1 | tee $(LOGS)/fast.log
	$(SAY) 'Tests that measure, one after another'
	@$(BIN)/python -m pytest $(FAST_ALONE) --durations=5 2>&1 | tee $(LOGS)/fast-alone.log

slow-tests: $(VENV)/.dev
	@mkdir -p $(LOGS)
	$(SAY) 'Slow tests: conformance and zoo in full, browser, notebooks, wheel'
	@$(BIN)/python -m pytest $(SLOW) $(BESIDE) $(if $(SLOW_UNTIL),--until $(SLOW_UNTIL)) --durations=15 2>&1 | tee $(LOGS)/slow.log
	$(SAY) 'Slow tests that measure: benchmarks, large models'
	@$(BIN)/python -m pytest $(SLOW_ALONE) $(if $(ALONE_UNTIL),--until $(ALONE_UNTIL)) --durations=5 2>&1 | tee $(LOGS)/slow-alone.log

# Counting branches slows the tests down. What `make test COV=1` counted is taken; otherwise its tests run once more.
coverage: $(VENV)/.dev ## Check branch coverage: 95 % in trace and analysis, 85 % in the rest
	$(SAY) 'Branch coverage: 95 % in trace and analysis, 85 % in the rest'
	@test -f $(BUILD)/coverage || $(BIN)/python -m pytest $(FAST) $(BESIDE) --cov --cov-report= --quiet --quiet
	@$(BIN)/coverage report --include='ortlens/trace/*,ortlens/analysis/*' --fail-under=95
	@$(BIN)/coverage report --omit='ortlens/trace/*,ortlens/analysis/*' --fail-under=85

clean: ## Remove everything that was built, the virtual environment included
	rm -rf $(VENV) $(BUILD) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
