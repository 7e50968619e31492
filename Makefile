# Postroad. `make help` lists the targets. Needed: Python 3.11 to 3.13, pip, make and g++.

# The interpreter that .venv is made from: the first of these that runs.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p -c '' 2>/dev/null && echo $$p && break; done)
# Asked for torch's CPU build when pip's own sources do not have it.
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu
export TORCH_INDEX_URL

VENV_PYTHON := .venv/bin/python
INSTALL := $(or $(PYTHON),python3) requirements/install.py

# make serve
MODEL ?=
PORT ?=
GATEWAY_FLAGS ?=
TOKENIZER_FLAGS ?=
ENGINE_FLAGS ?=
DETOKENIZER_FLAGS ?=
LAUNCHER_FLAGS ?=
# make chat
URL ?= http://127.0.0.1:$(or $(PORT),$(POSTROAD_LAUNCHER_PORT),8000)
CHAT_FLAGS ?=
# make test
TESTS ?= tests
PYTEST_FLAGS ?=
# make sanitize; or `thread`
SANITIZERS ?= address,undefined
# make bench, bench-peers, bench-step and bench-pipe
BENCH_FLAGS ?=
# where bench-peers keeps other servers and their models
PEERS ?= build/peers
# make lock, for instance LOCK_FLAGS=--upgrade
LOCK_FLAGS ?=

CHECKED := services tests protos requirements deploy
LOCK_ENV := build/lock-env
COMPILE_ALONE = CUSTOM_COMPILE_COMMAND='make lock' $(LOCK_ENV)/bin/pip-compile --quiet --no-emit-options --strip-extras \
	--annotation-style=line --unsafe-package=torch $(LOCK_FLAGS)
COMPILE = $(COMPILE_ALONE) --constraint=requirements/torch.txt $(addprefix --extra-index-url=,$(TORCH_INDEX_URL))
extras = $(addprefix --extra=,$(1))

.DEFAULT_GOAL := help
.PHONY: help serve chat test test-all test-clients test-containers sanitize test-sanitize check format protos native \
	env-example lock bench bench-peers bench-step bench-pipe bench-gaps bench-grammar bench-ranks clean serve-env dev-env \
	clients-env

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-23s %s\n", $$1, $$2}'

serve: serve-env ## run the four services here (MODEL=, PORT=, ENGINE_FLAGS=, …; see README)
	@$(VENV_PYTHON) -m services.launcher $(if $(PORT),--port=$(PORT)) $(if $(MODEL),--model='$(MODEL)') \
		$(if $(GATEWAY_FLAGS),--gateway-flags='$(GATEWAY_FLAGS)') \
		$(if $(TOKENIZER_FLAGS),--tokenizer-flags='$(TOKENIZER_FLAGS)') \
		$(if $(ENGINE_FLAGS),--engine-flags='$(ENGINE_FLAGS)') \
		$(if $(DETOKENIZER_FLAGS),--detokenizer-flags='$(DETOKENIZER_FLAGS)') $(LAUNCHER_FLAGS)

chat: serve-env ## chat in the terminal with the running gateway (URL=, PORT=)
	@$(VENV_PYTHON) -m services.chat --url='$(URL)' $(CHAT_FLAGS)

test: dev-env ## the fast tests, about 15 minutes (TESTS=tests/engine, PYTEST_FLAGS=…)
	$(VENV_PYTHON) -m pytest -q -m 'not slow and not containers and not clients' $(PYTEST_FLAGS) $(TESTS)

test-all: dev-env clients-env ## every test that needs no containers
	$(VENV_PYTHON) -m pytest -q -m 'not containers' $(PYTEST_FLAGS) $(TESTS)

test-clients: dev-env clients-env ## other projects' clients and tools against the running product
	$(VENV_PYTHON) -m pytest -q -m clients $(PYTEST_FLAGS) tests/e2e/clients tests/deploy

test-containers: dev-env ## builds the images, brings them up and tests them; needs Docker with compose
	$(VENV_PYTHON) -m pytest -q -m containers --timeout=1800 $(PYTEST_FLAGS) tests/containers

sanitize: dev-env ## the native executor's tests under sanitizers (SANITIZERS=, PYTEST_FLAGS=)
	$(VENV_PYTHON) -m tests.engine.native.sanitized $(SANITIZERS) $(PYTEST_FLAGS) tests/engine/native

test-sanitize: dev-env ## a part of what `make sanitize` runs, in about a minute, as CI does
	$(VENV_PYTHON) -m tests.engine.native.sanitized address,undefined -k 'fuzz or arguments or sampler' tests/engine/native

check: dev-env ## format, lint and types, as the pre-commit hooks do
	$(VENV_PYTHON) -m ruff format --check $(CHECKED)
	$(VENV_PYTHON) -m ruff check $(CHECKED)
	$(VENV_PYTHON) -m mypy

format: dev-env ## format the code
	$(VENV_PYTHON) -m ruff format $(CHECKED)
	$(VENV_PYTHON) -m ruff check --fix $(CHECKED)

protos: dev-env ## generate services/pb from protos/
	$(VENV_PYTHON) protos/build.py

native: serve-env ## build and install the native CPU executor anew
	$(VENV_PYTHON) -m pip install --disable-pip-version-check --no-deps --force-reinstall services/engine/native

bench: dev-env ## the served product under load (MODEL=, ENGINE_FLAGS=, BENCH_FLAGS=)
	$(VENV_PYTHON) -m tests.bench.served --root='$(PEERS)' $(if $(MODEL),--model='$(MODEL)') \
		$(if $(ENGINE_FLAGS),--engine-flags='$(ENGINE_FLAGS)') $(BENCH_FLAGS)

bench-peers: dev-env ## beside llama.cpp, vLLM and OpenVINO, interleaved (PEERS=, BENCH_FLAGS=)
	$(VENV_PYTHON) -m tests.bench.against_peers --root='$(PEERS)' $(BENCH_FLAGS)

bench-step: dev-env ## the native step alone, beside what memory and cores allow (BENCH_FLAGS=)
	$(VENV_PYTHON) -m tests.bench.step $(BENCH_FLAGS)

bench-pipe: dev-env ## what the road costs per token, without a model (BENCH_FLAGS=…)
	$(VENV_PYTHON) -m tests.bench.pipe $(BENCH_FLAGS)

bench-gaps: dev-env ## how evenly a stream's tokens come while long prompts arrive (BENCH_FLAGS=…)
	$(VENV_PYTHON) -m tests.bench.gaps $(if $(MODEL),--model='$(MODEL)') $(BENCH_FLAGS)

bench-grammar: dev-env ## what structured output costs per token (BENCH_FLAGS=…)
	$(VENV_PYTHON) -m tests.bench.grammar $(BENCH_FLAGS)

bench-ranks: dev-env ## what the step plans cost between ranks, without a model (BENCH_FLAGS=…)
	$(VENV_PYTHON) -m tests.bench.ranks $(BENCH_FLAGS)

env-example: dev-env ## write .env.example anew, after a setting has changed
	$(VENV_PYTHON) deploy/env_example.py

lock: $(LOCK_ENV)/bin/pip-compile ## pin the dependencies of pyproject.toml anew (LOCK_FLAGS=--upgrade)
	$(COMPILE) $(call extras,gateway tokenizer detokenizer engine tools dev) -o requirements/dev.txt pyproject.toml
	$(COMPILE) -c requirements/dev.txt --no-annotate $(call extras,gateway tokenizer detokenizer engine tools) \
		-o requirements/serve.txt pyproject.toml
	$(COMPILE) --no-annotate -o requirements/clients.txt requirements/clients.in
	for service in gateway tokenizer detokenizer engine; do \
		$(COMPILE) -c requirements/dev.txt --no-annotate --extra=$$service \
			-o requirements/$$service.txt pyproject.toml || exit 1; \
	done
	sed -n 's/^torch==\(.*\)+cpu$$/torch==\1,!=\1+cpu/p' requirements/torch.txt > build/cuda.in
	grep '^flashinfer-python' requirements/gpu.txt >> build/cuda.in
	$(COMPILE_ALONE) -c requirements/engine.txt --no-annotate -o requirements/cuda.txt build/cuda.in

$(LOCK_ENV)/bin/pip-compile:
	$(PYTHON) -m venv $(LOCK_ENV)
	$(LOCK_ENV)/bin/python -m pip install --quiet --disable-pip-version-check pip-tools==7.6.2

clean: ## remove what was generated and installed
	rm -rf .venv .run build dist services/pb services/engine/native/build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find services tests protos requirements -name __pycache__ -type d -prune -exec rm -rf {} +

serve-env: ## set .venv up for serving, and nothing more
	@$(INSTALL) serve

dev-env:
	@$(INSTALL) dev

clients-env:
	@$(INSTALL) clients
