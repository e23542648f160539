# Autojoin. `make help` lists what there is. Everything is set up on first use, in .venv and .cache of this folder.
PYTHON ?= python3
BIN := .venv/bin
KEEP ?=
export PYTHONPATH := $(CURDIR):$(CURDIR)/layers/autojoin
export SAM_CLI_TELEMETRY := 0

.DEFAULT_GOAL := help
.PHONY: help setup demo lab-down test check verify bench lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: .cache/dev.done .cache/runtime.done .cache/image.done .cache/tools.done ## install what the project needs into .venv and .cache

.cache/dev.done: requirements/bootstrap.txt requirements/dev.txt
	@tools/require-python "$(PYTHON)"
	@echo "setting up .venv"
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/bootstrap.txt
	@$(BIN)/uv pip install --quiet --require-hashes --python $(BIN)/python --requirement requirements/dev.txt
	@mkdir -p .cache && touch $@

# The Lambda runtime of the local region: nothing but boto3.
.cache/runtime.done: .cache/dev.done requirements/runtime.txt
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .cache/runtime
	@$(BIN)/uv pip install --quiet --require-hashes --python .cache/runtime/bin/python --requirement requirements/runtime.txt
	@touch $@

# The `aws` CLI that the golden image of the local region carries.
.cache/image.done: .cache/dev.done requirements/image.txt
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .cache/image
	@$(BIN)/uv pip install --quiet --require-hashes --python .cache/image/bin/python --requirement requirements/image.txt
	@touch $@

# curl, jq and openssl, as the golden image carries them: this machine's, or Debian's without root.
.cache/tools.done: .cache/dev.done tools/provide_tools.py
	@$(BIN)/python tools/provide_tools.py .cache/tools
	@touch $@

demo: setup ## the main job on the local region: a cluster comes up from empty groups (KEEP=1 keeps the region up)
	@KEEP=$(KEEP) $(BIN)/python -m lab demo

lab-down: setup ## end a region that KEEP=1 kept up
	@$(BIN)/python -m lab down

test: setup ## the tests, on virtual time where they can
	@$(BIN)/python -m pytest -n 2 -m "not lab and not slow" tests

check: setup ## lint, types, imports, templates, machines, scripts, docs
	@tools/check

verify: setup ## slow and real things: the local region, its conformance suite, the scenarios
	@tools/verify

bench: setup ## measure joins beside a polling baseline, imports, sizes; exit code 1 when a target is missed
	@$(BIN)/python -m benchmarks

lock: setup ## resolve requirements/*.in anew into hash-locked files
	@tools/lock

clean: ## remove what was built and installed
	@rm -rf .venv .cache .aws-sam .lab .pytest_cache .mypy_cache .ruff_cache .hypothesis
