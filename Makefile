# Two targets matter to a newcomer: `make demo` shows what ortlens does, `make test` runs what every change must pass.
# Both make .venv when it is missing. Debian 12 with python3 and make is enough to start.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=
VENV ?= .venv
BIN := $(VENV)/bin
BUILD := build
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt $(PIP_ARGS)
SAY := @printf '\n==> %s\n'

# What takes minutes to hours and is no gate; docs/contributing.md has a line on each.
SWEEPS := conformance errors faults fuzz hostile install integrations modules numbers opinfo seams soak strangers versions workloads zoo
SWEEP_conformance := -m tests.conformance.report
SWEEP_errors := -m tests.opinfo.errors
SWEEP_faults := -m tests.faults --versions
SWEEP_fuzz := -m tests.fuzz
SWEEP_hostile := -m tests.hostile
SWEEP_install := -m tests.install
SWEEP_integrations := -m tests.integrations
SWEEP_modules := -m tests.opinfo.modules
SWEEP_numbers := -m tests.opinfo --numbers
SWEEP_opinfo := -m tests.opinfo
SWEEP_seams := -m tests.seams
SWEEP_soak := -m pytest -m soak -p no:logging --durations=15
SWEEP_strangers := -m tests.strangers
SWEEP_versions := -m tests.versions
SWEEP_workloads := benchmarks/bench_workloads.py --keep
SWEEP_zoo := -m tests.zoo

.PHONY: help venv demo frontend notebooks browser test test-slow test-providers test-language lint docs coverage bench sweep $(SWEEPS:%=sweep-%) clean

help: ## Show this list
	@printf 'ortlens: PyTorch through ONNX Runtime, recorded and shown\n\n'
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
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

bench: $(VENV)/.dev ## Measure the figures that the docs quote: half an hour. ARGS goes to each script
	$(SAY) 'Running the benchmarks; the tables are kept in $(BUILD)/bench'
	@for script in benchmarks/bench_*.py; do \
		printf '\n-- %s\n' "$$script"; \
		$(BIN)/python "$$script" --json "$(BUILD)/bench/$$(basename "$$script" .py).json" $(ARGS); done

browser: $(VENV)/.dev ## Run what needs a browser: the report, JupyterLab, Notebook 7, light and dark; five minutes
	$(SAY) 'Walking the explorer in chromium'
	@$(BIN)/python -m pytest tests/browser -m slow --durations=15

sweep: ## List the long checks that are no gates: make sweep-NAME runs one, ARGS goes to it; docs/contributing.md says more
	@printf 'make sweep-%s\n' $(SWEEPS)

$(SWEEPS:%=sweep-%): sweep-%: $(VENV)/.dev
	$(SAY) 'Sweep: $*'
	@$(BIN)/python $(if $(filter soak,$*),,-W ignore) $(SWEEP_$*) $(ARGS)

# ----------------------------------------------------------------------------------------------------------- the gates

# Two workers with one thread each. What measures runs alone, after them. Each test is in one selection: a test looks after that.
WORKERS ?= 2
FAST := -m 'not slow and not serial and not soak'
FAST_ALONE := -m 'serial and not slow and not soak'
SLOW := -m 'slow and not serial and not soak'
SLOW_ALONE := -m 'slow and serial and not soak'
BESIDE := -n $(WORKERS) --dist worksteal
# COV=1, as in CI: count the branches that `make test` takes, so that `make coverage` need not run the tests again.
COV ?=
TRACE := $(if $(COV),--cov --cov-report=)
LOGS := $(BUILD)/logs
CLOSING_LINE = $(BIN)/python tests/closing_line.py
# Seconds since 1970 at which the slow tests end, and those that measure: what has not begun by then is skipped, and counted as such.
SLOW_UNTIL ?=
ALONE_UNTIL ?=

test: $(VENV)/.dev ## Run what every change must pass, in eight minutes: lint, types, layers, docs, tests
	@mkdir -p $(LOGS) && rm -f $(LOGS)/fast*.log $(BUILD)/coverage*
	@$(MAKE) -j$(WORKERS) --output-sync=target lint docs
	$(SAY) 'Tests, in random order, on $(WORKERS) workers'
	@$(BIN)/python -m pytest $(FAST) $(BESIDE) $(TRACE) --durations=15 2>&1 | tee $(LOGS)/fast.log
	$(SAY) 'Tests that measure, one after another'
	@$(BIN)/python -m pytest $(FAST_ALONE) --durations=5 2>&1 | tee $(LOGS)/fast-alone.log
	$(SAY) 'All gates passed'
	@$(CLOSING_LINE) $(LOGS)/fast*.log

# A plug-in of ONNX Runtime, and the release of ONNX Runtime that it is for, over the packages of the other environment. And what generates
# tokens with ONNX models, with the release of transformers that these are for; the builder of later ones of onnxruntime-genai needs another.
PACKAGES_providers := onnxruntime==1.30.0 onnxruntime-ggml==0.2.0
PACKAGES_language := optimum==2.1.0 optimum-onnx==0.1.0 onnxruntime-genai==0.14.1 transformers==4.57.6 tokenizers==0.22.2 huggingface-hub==0.36.2
.PRECIOUS: .venv-%/.ready
.venv-%/.ready: $(VENV)/.dev
	$(SAY) '.venv-$*: $(PACKAGES_$*)'
	@$(BIN)/python -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --no-deps $(PIP_ARGS) $(PACKAGES_$*)
	@$(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $@
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(cat $@)/tools.pth"
	@pwd >> "$$(cat $@)/tools.pth"

test-providers: .venv-providers/.ready ## Run the tests of plug-ins, execution providers that ONNX Runtime loads, in an environment of its own
	@mkdir -p $(LOGS)
	@.venv-providers/bin/python -m pytest tests/providers -n 0 2>&1 | tee $(LOGS)/slow-providers.log

test-language: .venv-language/.ready ## Run the tests of language models in optimum and onnxruntime-genai, likewise
	@mkdir -p $(LOGS)
	@.venv-language/bin/python -m pytest tests/language -n 0 2>&1 | tee $(LOGS)/slow-language.log

test-slow: $(VENV)/.dev ## Run the rest, as CI does: sweeps, browser, notebooks, benchmarks, coverage; a quarter of an hour
	@mkdir -p $(LOGS) && rm -f $(LOGS)/slow*.log
	$(SAY) 'Slow tests: samples of the sweeps, real models, browser, notebooks, wheel'
	@$(BIN)/python -m pytest $(SLOW) $(BESIDE) $(if $(SLOW_UNTIL),--until $(SLOW_UNTIL)) --durations=15 2>&1 | tee $(LOGS)/slow.log
	$(SAY) 'Slow tests that measure: benchmarks, large models'
	@$(BIN)/python -m pytest $(SLOW_ALONE) $(if $(ALONE_UNTIL),--until $(ALONE_UNTIL)) --durations=5 2>&1 | tee $(LOGS)/slow-alone.log
	@$(MAKE) test-providers
	@$(MAKE) test-language
	@$(MAKE) coverage
	$(SAY) 'All slow gates passed'
	@$(CLOSING_LINE) $(LOGS)/slow*.log

# Side by side, what each says in one piece. ruff: every rule, and the format; mypy: types; lint-imports: layers; vulture; deptry: dependencies.
LINT := mypy 'ruff check .' 'ruff format --check .' lint-imports 'python tests/packaging/dead_code.py' 'deptry .'
lint: $(VENV)/.dev ## Run the static gates only
	@printf '%s\0' $(LINT) | xargs -0 -P $(WORKERS) -I '{}' bash -c \
		'said=$$($(BIN)/{} 2>&1); status=$$?; printf "\n==> %s\n%s\n" "{}" "$$said"; exit $$status'

docs: $(VENV)/.dev ## Build the documentation into build/site, warnings are errors
	$(SAY) 'Docs: mkdocs, strict'
	@$(BIN)/mkdocs build --strict 2>&1 | { grep -v '^INFO' || true; }
	@echo 'built $(BUILD)/site'

# Counting branches slows the tests down. What `make test COV=1` counted is taken; otherwise its tests run once more.
coverage: $(VENV)/.dev ## Check branch coverage: 95 % in trace and analysis, 85 % in the rest
	$(SAY) 'Branch coverage: 95 % in trace and analysis, 85 % in the rest'
	@test -f $(BUILD)/coverage || $(BIN)/python -m pytest $(FAST) $(BESIDE) --cov --cov-report= --quiet --quiet
	@$(BIN)/coverage report --include='ortlens/trace/*,ortlens/analysis/*' --fail-under=95
	@$(BIN)/coverage report --omit='ortlens/trace/*,ortlens/analysis/*' --fail-under=85

clean: ## Remove everything that was built, the virtual environment included
	rm -rf $(VENV) .venv-providers .venv-language $(BUILD) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
