# One entry for everyone: `make` alone says what there is.
#
# PYTHON     the interpreter that makes .venv (or, for `make gpu` and `gpu-lessons`, the one to run with): make PYTHON=python3.12 lab
# TORCH      auto, cpu, cuda or rocm: the build of torch to install; auto looks for a GPU
# LAB_ARGS   more arguments for JupyterLab:  make lab LAB_ARGS="--no-browser --port 8899"
# TEST_ARGS  more arguments for pytest:      make test TEST_ARGS="-k roofline"
# CASES      daily or all cases of a test:    make test CASES=all
# SECONDS    how long `make gpu-fuzz` runs:  make gpu-fuzz SECONDS=300
# FUZZ_ARGS  more arguments for the fuzz:    make gpu-fuzz FUZZ_ARGS="--seed 7 --operators sum conv2d"

PYTHON ?= python3
TORCH ?= auto
LAB_ARGS ?=
TEST_ARGS ?=
CASES ?= daily
SECONDS ?= 300
FUZZ_ARGS ?=

GIVEN := $(filter-out file,$(origin PYTHON))
SETUP := $(PYTHON) tools/setup_environment.py --torch $(TORCH) $(if $(GIVEN),--this-python)
RUN := .venv/bin/python
# Both cores of a laptop; a file of tests, and the lab or worker that it starts, stays in one process. Files begin in
# the order of tests/conftest.py, and not those of most tests first.
PYTEST := $(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder
DAILY = $(if $(filter daily,$(CASES)),--daily)

.DEFAULT_GOAL := help
.PHONY: help setup lab test test-all test-nightly test-fast test-matrix check format pictures gpu gpu-lessons gpu-fuzz clean

help: ## say what there is
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile
	@sed -n '/^# [A-Z_]*  /s/^# //p' Makefile

setup: ## create or update .venv, and nothing else
	@$(SETUP) lab

lab: ## open JupyterLab with the first lesson
	@$(SETUP) lab
	@$(RUN) -m workbench lab 00_start_here $(LAB_ARGS)

test: ## run the tests: unit, lessons, browser; of slow tests some cases; those for a GPU are skipped where there is none
	@$(SETUP) lab test
	@browser=$$($(RUN) tools/ensure_browser.py) && \
	WORKBENCH_BROWSER="$$browser" $(PYTEST) $(DAILY) $(TEST_ARGS)

test-fast: ## run those of them that need no browser and no notebook
	@$(SETUP) lab test
	@$(PYTEST) $(DAILY) -m "not browser and not lesson" $(TEST_ARGS)

test-all: ## run every case of every test, every lesson in a browser, every generated wrong answer, all random examples: hours
	@WORKBENCH_TEST_ALL=1 $(MAKE) test CASES=all

test-nightly: ## run test-all unattended, with a report in build/nightly
	@$(SETUP) lab test
	@$(RUN) -m tools.nightly $(TEST_ARGS)

test-matrix: ## the tests of what depends on Triton's version, on the oldest and the pinned one
	@$(SETUP) lab test
	@$(RUN) tools/matrix.py

check: ## lint, format, types, direction of imports, lessons in step with their sources
	@$(SETUP) lab test dev
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(RUN) -m pytest -q tests/test_import_direction.py
	@$(RUN) -m tools.lessons check

format: ## format the code
	@$(SETUP) lab test dev
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

pictures: ## draw the README's pictures anew, from the package
	@$(SETUP) lab
	@TRITON_INTERPRET=1 $(RUN) -m tools.pictures

gpu: ## on a machine with a GPU: its tests, the lessons, the benchmarks (which write a recording)
ifeq ($(GIVEN),)
	@$(SETUP) lab test
	@$(RUN) tools/gpu.py
else
	@$(PYTHON) tools/gpu.py
endif

gpu-lessons: ## on a machine with a GPU: every lesson runs, four at a time, and prints what is stored in it
ifeq ($(GIVEN),)
	@$(SETUP) lab test
	@$(RUN) tools/gpu.py lessons
else
	@$(PYTHON) tools/gpu.py lessons
endif

gpu-fuzz: ## on a machine with a GPU: every operator against torch, on problems drawn at random
ifeq ($(GIVEN),)
	@$(SETUP) lab test
	@$(RUN) -m tools.fuzz --seconds $(SECONDS) $(FUZZ_ARGS)
else
	@$(PYTHON) -m tools.fuzz --seconds $(SECONDS) $(FUZZ_ARGS)
endif

clean: ## remove .venv and every cache
	rm -rf .venv .venv.lock .matrix build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis tests/artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
