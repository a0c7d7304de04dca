# Every target goes through bootstrap.py, which builds or reuses the environment and then runs the command in it.
PYTHON ?= python3
PORT ?= 8000

RUN = $(PYTHON) bootstrap.py
DEV = $(PYTHON) bootstrap.py --dev

.DEFAULT_GOAL := help
.PHONY: help demo up test explore test-vllm test-vllm-parity lint types compile bench chaos lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F '\t' '{printf "  make %-16s %s\n", $$1, $$2}'

demo: ## start everything, run the demo experiment to its verdict, keep the dashboard (TRACE=file PORT=8000)
	@test -z "$(TRACE)" || test -f "$(TRACE)" || { echo "headway: TRACE=$(TRACE): there is no such file" >&2; exit 1; }
	@$(RUN) --need-port $(PORT) manage.py up --demo --port $(PORT)

up: ## start everything and keep the dashboard (PORT=8000)
	@$(RUN) --need-port $(PORT) manage.py up --port $(PORT)

test: ## lint, types, machine code, then every test
	@status=0; \
	$(MAKE) --no-print-directory lint || status=1; \
	checks=$$(mktemp); $(MAKE) --no-print-directory types compile >$$checks 2>&1 & checking=$$!; \
	$(DEV) -m tests.prepare || status=1; \
	if [ -n "$$HEADWAY_POSTGRES_URL" ]; then \
		echo "The control plane's tests on PostgreSQL:"; \
		DATABASE_URL="$$HEADWAY_POSTGRES_URL" $(DEV) -m pytest -q tests/controlplane tests/api || status=1; \
	fi; \
	wait $$checking || status=1; echo "Types and machine code, checked meanwhile on the other core:"; cat $$checks; rm -f $$checks; \
	echo "The tests that start real servers, workers and browsers:"; \
	$(DEV) -m pytest -q -m "(stack or browser) and not vllm" || status=1; \
	echo "All other tests, on two processes:"; \
	$(DEV) -m pytest -q -n 2 --dist loadfile -m "not stack and not browser and not vllm" || status=1; \
	exit $$status

explore: ## the property tests on examples that no run has drawn before
	@HYPOTHESIS_PROFILE=explore $(DEV) -m pytest -q -n 2 tests/core tests/cluster tests/engine tests/evidence tests/verdict

test-vllm-parity: ## vllm_v1 beside the scheduler of an installed vLLM (HEADWAY_VLLM_PYTHON=its interpreter)
	@test -x "$$HEADWAY_VLLM_PYTHON" || { echo "headway: HEADWAY_VLLM_PYTHON must be the Python of an environment with vLLM; docs/parity.md says how to make one" >&2; exit 1; }
	@$(DEV) -m pytest -q tests/parity

lint: ## ruff: rules and format
	@$(DEV) -m ruff check .
	@$(DEV) -m ruff format --check .

types: ## mypy, strict
	@HEADWAY_DEBUG=1 $(DEV) -m mypy .

compile: ## machine code of the scheduler core: simulations in a quarter to half of the CPU time (needs a C compiler)
	@$(DEV) -m headway compile

bench: ## every benchmark in quick mode
	@$(DEV) -m bench

test-vllm: ## only the tests against a real vLLM server (HEADWAY_VLLM_PYTHON, HEADWAY_VLLM_MODEL)
	@$(DEV) -m pytest -q -m vllm tests/server tests/stack

chaos: ## only the tests that kill processes
	@$(DEV) -m pytest -q tests/chaos tests/stack

lock: ## compile requirements/*.in into the locks
	@$(DEV) -m installer.lock

clean: ## remove environments, caches and built files; the home folder with your data stays
	@rm -rf .venv .venvs .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
