# make serve · test · test-slow · test-peers · test-clients · simulate-faults · sanitize · lint · clean
#
# Every target does its own set-up on a fresh clone (virtual environment, packages, model) and skips it when nothing
# changed: the stamps in .make/ carry a hash of what the installation depends on.
#
#   PYTHON       interpreter the environment is made from (3.11 or newer)
#   TORCH_INDEX  package index to take PyTorch from, e.g. one of CPU-only builds; default: pip's own configuration
#   MODEL, PORT, PROMPT   what `make serve` serves, where, and what it asks first
#   JOBS         how many test files run at a time; default: one per core, as pytest-xdist counts them

PYTHON ?= python3
TORCH_INDEX ?=
MODEL ?= smollm2-135m
PORT ?= 8000
PROMPT ?= In one sentence, what is a shoal of fish?
JOBS ?= auto

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INPUTS := pyproject.toml $(wildcard setup.py) $(sort $(wildcard csrc/* csrc/*/*))
HASH := $(shell cat $(INPUTS) 2>/dev/null | cksum | tr ' ' '-')
TORCH := $(shell sed -n 's/^ *"\(torch[<>=][^"]*\)".*/\1/p' pyproject.toml)

.PHONY: serve test test-slow test-peers test-clients simulate-faults sanitize emulate lint clean models redis
.DELETE_ON_ERROR:

serve: .make/serve-$(HASH)
	$(BIN)/shoal pull --if-missing $(MODEL)
	exec $(BIN)/shoal serve $(MODEL) --port $(PORT) --demo-prompt "$(PROMPT)"

test: .make/dev-$(HASH) models redis
	$(BIN)/python -m pytest -m "not slow and not peers and not clients" -n $(JOBS) --dist loadfile

test-slow: .make/dev-$(HASH) models
	$(BIN)/python -m pytest -m "slow and not peers and not clients" --timeout 1800

test-peers: .make/dev-$(HASH) models
	$(BIN)/python -m pytest -m peers --timeout 1800

# One environment for each client stack: their pins contradict each other.
CLIENTS := $(basename $(notdir $(wildcard tests/clients/requirements/*.txt)))

test-clients: .make/dev-$(HASH) models $(CLIENTS:%=.make/clients/%/.done)
	$(BIN)/python -m pytest -m clients --timeout 900

.make/clients/%/.done: tests/clients/requirements/%.txt
	$(PYTHON) -m venv .make/clients/$*
	.make/clients/$*/bin/python -m pip --disable-pip-version-check install -U pip
	.make/clients/$*/bin/python -m pip --disable-pip-version-check install -r $<
	@touch $@

# The fleet's own code in virtual time, one run per seed: docs/fault-simulation.md.
SEEDS ?= 500
FIRST ?= 0
PROCESSES ?= $(shell nproc)

simulate-faults: .make/dev-$(HASH)
	PYTHONPATH=tests $(BIN)/python -m simulated --seeds $(SEEDS) --first $(FIRST) --jobs $(PROCESSES)

# The fuzz tests on kernels that watch every access to memory and every undefined operation. PyTorch's tensors are
# watched too, as its allocations go through the sanitizer's. Leaks are not looked for: the interpreter has its own.
SANITIZED := .make/sanitize/kernels.so
FUZZ ?= 100

sanitize: .make/dev-$(HASH) $(SANITIZED)
	SHOAL_KERNELS_LIBRARY=$(SANITIZED) SHOAL_FUZZ_EXAMPLES=$(FUZZ) PYTHONMALLOC=malloc \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(BIN)/python -m pytest -m "not slow" tests/unit/engine/test_kernels_*.py \
	  tests/unit/engine/test_ops_quantized.py --timeout 3000

$(SANITIZED): $(wildcard csrc/kernels/*)
	@mkdir -p $(@D)
	set -e; for source in csrc/kernels/*.cpp; do \
	  $(CXX) -std=c++20 -O1 -g -fno-math-errno -ffp-contract=fast -fno-omit-frame-pointer -fPIC -pthread \
	    -fsanitize=address,undefined -fno-sanitize-recover=all -c $$source -o $(@D)/$$(basename $$source .cpp).o; \
	done
	$(CXX) -shared -pthread -fsanitize=address,undefined $(@D)/*.o -o $@

# The AVX-512 kernels, instruction by instruction, on a processor with AVX2; needs Debian's libsimde-dev. GCC 12 has an
# internal error over one of them where it optimizes.
EMULATED := .make/emulate/kernels.so
SIMDE ?= /usr/include

emulate: .make/dev-$(HASH) $(EMULATED)
	SHOAL_KERNELS_LIBRARY=$(EMULATED) SHOAL_FUZZ_EXAMPLES=$(FUZZ) $(BIN)/python -m pytest -m "not slow" \
	  tests/unit/engine/test_kernels_*.py tests/unit/engine/test_ops_quantized.py --timeout 3000

$(EMULATED): $(wildcard csrc/kernels/* csrc/emulated/*)
	@mkdir -p $(@D)
	set -e; for source in csrc/kernels/*.cpp; do \
	  $(CXX) -std=c++20 -O0 -g0 -fno-math-errno -ffp-contract=fast -fPIC -pthread -mavx2 -mfma -mf16c -I$(SIMDE) \
	    -Wno-psabi -DSHOAL_EMULATE_AVX512 -c $$source -o $(@D)/$$(basename $$source .cpp).o; \
	done
	$(CXX) -shared -pthread $(@D)/*.o -o $@

lint: .make/dev-$(HASH)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# For the tests of what several gateways share; without it they are skipped, and say so.
redis:
	@command -v redis-server > /dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
	    && apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server; } > /dev/null 2>&1 \
	  || echo "redis-server is not installed and can't be: tests of shared state are skipped"

models: .make/dev-$(HASH)
	$(BIN)/shoal pull --if-missing smollm2-135m
	$(BIN)/shoal pull --if-missing gemma3-270m

clean:
	rm -rf .venv .make build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# A killed `venv` leaves a python without pip, so the stamp, not the interpreter, says that it is whole.
.make/venv:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Shoal needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	@mkdir -p .make && touch $@

# `dev` includes `serve`.
.make/serve-$(HASH): .make/venv
	@test -e .make/dev-$(HASH) || { set -ex; \
	  $(if $(TORCH_INDEX),$(PIP) install --index-url $(TORCH_INDEX) "$(TORCH)";) \
	  $(PIP) install -e ".[serve]"; }
	@touch $@

.make/dev-$(HASH): .make/venv
	$(if $(TORCH_INDEX),$(PIP) install --index-url $(TORCH_INDEX) "$(TORCH)")
	$(PIP) install -e ".[dev]"
	@touch $@
