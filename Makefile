# Everything from a clean clone: `make run` does the main job, `make test` checks it all.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A CPU-only PyTorch: make run TORCH="torch --index-url https://download.pytorch.org/whl/cpu"
TORCH ?=

# How many spoiled files `make fuzz` tries; of run folders and command lines, half as many.
CASES ?= 20000

.PHONY: run test test-ray lint fuzz docs clean

run: $(VENV)/.installed
	$(BIN)/c4rl demo

test: $(VENV)/.installed-dev lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

# Ray (240 MB) and Optuna are not development tools: without them their tests are skipped.
test-ray: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --editable '.[ray,search]'
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/training/test_ray_engine.py tests/test_optuna_search.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The documentation, in build/site; look at it with: python3 -m http.server --directory build/site
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

fuzz: $(VENV)/.installed-dev
	C4RL_FUZZ=$(CASES) OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal tests/data/test_fuzzed_files.py tests/cli/test_fuzzed_commands.py

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "c4rl needs Python 3.11 or newer; name one with: make run PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml
	$(if $(TORCH),$(BIN)/pip install --quiet $(TORCH))
	$(BIN)/pip install --quiet --editable '.[simulators,figures,tensorboard]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist src/*.egg-info
