PYTHON ?= python3
BIN := .venv/bin
SETUP := .stamps/setup
ENGINE := .stamps/engine
DOCS_SETUP := .stamps/docs

# Tests start hundreds of processes: none of them compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

# Tests run side by side: a process for each core, which takes tests from others when it is idle.
PYTEST := $(BIN)/python -m pytest -q -n auto --dist worksteal

.PHONY: help setup demo peers test-peers mutate test test-slow test-dawn fuzz lint format bench wheel clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

# virtual environment, package and a Vulkan adapter; made again when pyproject.toml changes
$(SETUP): pyproject.toml scripts/ensure_adapter.sh
	@mkdir -p .stamps
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@sh scripts/ensure_adapter.sh $(BIN)/python
	@touch $@

# the CPU engine and its module, in place; made again when their sources change
$(ENGINE): $(SETUP) $(wildcard llmgpu/cpu/*.[ch] llmgpu/cpu/python/*.[ch] llmgpu/cpu/build.py)
	@$(BIN)/python -m llmgpu.cpu.build
	@touch $@

setup: $(SETUP) $(ENGINE) ## install everything into .venv

demo: $(ENGINE) ## train, tokenize and decode on every backend here, then train a small model
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/demo.sh

peers: $(ENGINE) ## install what models are compared with
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[torch,lm-eval]' -c .ci/peers.txt

test-peers: peers ## compare models and tokenizers with PyTorch and transformers
	LLMGPU_REQUIRE_PEERS=1 $(PYTEST) tests/lm tests/test_lm_eval.py tests/test_fast_transformers.py tests/test_tokenizer.py -m 'not slow' -k 'torch or transformers or library or huggingface or peft or lm_eval'

mutate: $(ENGINE) ## change the exact paths in 800 places: tests have to fail
	nice $(BIN)/python scripts/mutate.py --sample 800

test: $(ENGINE) ## run the tests, but for the slow ones
	$(PYTEST) -m 'not slow'

test-slow: $(ENGINE) ## run the slow tests, and property tests with more examples
	LLMGPU_TEST_EXAMPLES=$${LLMGPU_TEST_EXAMPLES:-30} $(PYTEST) -m 'slow or hypothesis'

test-dawn: $(ENGINE) ## run the tests of kernels on Dawn instead of wgpu
	LLMGPU_DRIVER=dawn LLMGPU_REQUIRE_GPU=1 $(PYTEST) -m 'not slow' tests/gpu tests/lm/ops tests/bpe

FUZZ_CASES ?= 100000
PEER_SHARE ?= 1
fuzz: export OPENBLAS_NUM_THREADS = 1# whose threads a forked process lacks, and would wait for
fuzz: $(ENGINE) ## faults at every call, FUZZ_CASES damaged files and options, limits, a million strings
	$(BIN)/python -m tests.harness.faults
	$(BIN)/python -m tests.harness.fuzz --cases $(FUZZ_CASES)
	$(BIN)/python -m tests.harness.limits --cases $$(($(FUZZ_CASES) / 100))
	$(BIN)/python -m tests.harness.peers --share $(PEER_SHARE)
	$(MAKE) mutate

lint: $(SETUP) ## linter, formatter check, type checker, warnings of the C compiler
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/prose.py --limit
	$${CC:-cc} -std=c99 -O3 -Wall -Wextra -Wconversion -Werror -fsyntax-only llmgpu/cpu/*.c
	$${CC:-cc} -std=c99 -O3 -Wall -Wextra -Wconversion -Werror -fsyntax-only -DLLMGPU_SOURCES=0 -DPy_LIMITED_API=0x030B0000 \
		-isystem "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')" llmgpu/cpu/python/*.c

format: $(SETUP) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(DOCS_SETUP): $(SETUP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

.PHONY: docs
docs: $(DOCS_SETUP) ## build the guide into build/docs; a dead link fails
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html docs build/docs
	@echo "The guide is in build/docs/index.html."

bench: $(ENGINE) ## measure on this machine
	$(BIN)/llmgpu bench --quick

wheel: $(SETUP) ## build the wheel into dist/
	$(BIN)/python -m build --wheel

clean: ## remove what make made
	rm -rf llmgpu/cpu/engine.so llmgpu/cpu/calls.*.so .venv .stamps dist build demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
