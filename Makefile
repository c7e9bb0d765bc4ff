# `make demo` and `make test` are all a newcomer needs; `make help` lists the rest.
# Everything is installed into $(VENV); a second call only redoes what changed.

PYTHON ?= python3
VENV ?= .venv
# Which PyTorch: with an NVIDIA GPU the newest that the package supports, otherwise a fixed one.
ifeq ($(origin TORCH),undefined)
TORCH := $(shell if nvidia-smi -L >/dev/null 2>&1; then echo 'torch>=2.11'; else echo 'torch==2.13.0'; fi)
endif
CUTLASS ?= nvidia-cutlass==4.2.0.0
# Test processes. Each runs torch on one thread unless OMP_NUM_THREADS says otherwise.
WORKERS ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := $(abspath $(VENV))/bin
PY := $(BIN)/python
# ninja, clang-format and friends come from the environment, also for setup.py.
export PATH := $(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What the build depends on besides files. A change (nvcc appears, other architectures) rebuilds.
ifneq ($(CUTLASS_OPS_SKIP_CUDA),1)
NVCC := $(shell $(PYTHON) -c 'from buildtools import toolchain; print(toolchain.find_nvcc() or "")' 2>/dev/null)
endif
CONFIG := torch=$(TORCH) cutlass=$(CUTLASS) nvcc=$(NVCC) cuda_home=$(CUDA_HOME) cutlass_dir=$(CUTLASS_DIR) archs=$(CUTLASS_OPS_CUDA_ARCHS),$(TORCH_CUDA_ARCH_LIST) skip=$(CUTLASS_OPS_SKIP_CUDA)

STAMPS := $(VENV)/.stamps
SOURCES := $(wildcard setup.py pyproject.toml) $(shell find include csrc buildtools -type f -not -name '*.pyc' 2>/dev/null)
CPP_FILES := $(shell find include csrc tests/cpp examples -name '*.h' -o -name '*.hpp' -o -name '*.cuh' -o -name '*.cu' -o -name '*.cpp' 2>/dev/null)
PYTHON_DIRS := $(wildcard setup.py buildtools cutlass_ops tests benchmarks examples scripts)

ifeq ($(CI),true)
PROFILE := --hypothesis-profile=ci
endif

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1 \t\2/' | expand -t 24
	@echo
	@echo 'Variables: PYTHON, VENV, TORCH (a pip requirement), CUTLASS, WORKERS, PYTEST_ARGS, BENCH_ARGS;'
	@echo 'the build reads CUTLASS_OPS_CUDA_ARCHS, TORCH_CUDA_ARCH_LIST, MAX_JOBS, CUDA_HOME, CUTLASS_DIR, CUTLASS_OPS_SKIP_CUDA.'

.PHONY: demo
demo: $(STAMPS)/install ## set up, then run both ops on real input against PyTorch
	@$(PY) -m cutlass_ops

.PHONY: test
test: $(STAMPS)/dev ## set up, then lint, types and the tests
	@$(MAKE) lint typecheck
	@$(MAKE) pytest

.PHONY: pytest
pytest: $(STAMPS)/dev ## the tests alone
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(PY) -m pytest tests -n $(WORKERS) $(PROFILE) $(PYTEST_ARGS)

.PHONY: lint
lint: $(STAMPS)/dev ## ruff, clang-format, and that the pinned versions agree
	@$(PY) scripts/check_pins.py
	@$(BIN)/ruff check $(PYTHON_DIRS)
	@$(BIN)/ruff format --check $(PYTHON_DIRS)
	@$(if $(CPP_FILES),$(BIN)/clang-format --dry-run -Werror $(CPP_FILES))

.PHONY: typecheck
typecheck: $(STAMPS)/dev ## mypy
	@$(BIN)/mypy

.PHONY: format
format: $(STAMPS)/dev ## rewrite the sources as lint wants them
	@$(BIN)/ruff check --fix $(PYTHON_DIRS)
	@$(BIN)/ruff format $(PYTHON_DIRS)
	@$(if $(CPP_FILES),$(BIN)/clang-format -i $(CPP_FILES))

.PHONY: install
install: $(STAMPS)/install ## the environment and the package (editable), without the test tools

.PHONY: wheel
wheel: $(STAMPS)/base ## build dist/*.whl
	@$(PY) -m pip wheel --no-deps --no-build-isolation --wheel-dir dist .

.PHONY: bench
bench: $(STAMPS)/dev ## python -m benchmarks $(BENCH_ARGS)
	@$(PY) -m benchmarks $(BENCH_ARGS)

.PHONY: bench-errors
bench-errors: $(STAMPS)/dev ## errors against float64: python -m benchmarks.error_report $(BENCH_ARGS)
	@$(PY) -m benchmarks.error_report $(BENCH_ARGS)

.PHONY: gpu-test
gpu-test: wheel ## test the wheel on this machine's GPU: suite, deep, sanitizers
	@PYTHON=$(PY) scripts/gpu_tests.sh all

.PHONY: gpu-sanitize
gpu-sanitize: wheel ## compute-sanitizer (memcheck, racecheck, initcheck) over the reduced set
	@PYTHON=$(PY) scripts/gpu_tests.sh sanitize

.PHONY: clean
clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info cutlass_ops/*.so .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# --- the environment, in three steps -----------------------------------------------------------

$(STAMPS)/config: force
	@mkdir -p $(@D)
	@echo '$(CONFIG)' | cmp -s - $@ || echo '$(CONFIG)' > $@

.PHONY: force
force:

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "cutlass_ops needs Python 3.10 or newer, this is " + sys.version)'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo 'No venv module: install it (Debian and Ubuntu: apt install python3-venv).' >&2; exit 1; }

# The numpy line silences a warning of torch without it. CUTLASS comes without its dependencies,
# which are for its Python generator: only its headers are used.
$(STAMPS)/base: $(STAMPS)/config | $(PY)
	@echo 'Installing $(TORCH) into $(VENV) ...'
	@$(PY) -m pip install --quiet 'setuptools>=77' wheel ninja numpy '$(TORCH)'
	@$(PY) -m pip install --quiet --no-deps '$(CUTLASS)'
	@touch $@

$(STAMPS)/install: $(STAMPS)/base $(SOURCES)
	@echo 'Building cutlass_ops ($(if $(NVCC),with $(NVCC): this takes minutes,without CUDA: for the CPU alone)) ...'
	@$(PY) -m pip install --quiet --no-build-isolation --editable .
	@touch $@

$(STAMPS)/dev: $(STAMPS)/install
	@echo 'Installing the test tools ...'
	@$(PY) scripts/extras.py test bench dev | xargs -d '\n' $(PY) -m pip install --quiet
	@touch $@
