# Each target sets up what it needs in .venv; a second call finds it done.
#
# Variables: PYTHON (3.10 or newer), TORCH (the requirement installed first), TORCH_INDEX (a package index that holds
# that torch build: on Linux without a GPU, point it at the CPU wheels to save gigabytes).

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
VENV ?= .venv

BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo space test test-slow experiments-smoke format clean
.DEFAULT_GOAL := demo

demo: $(READY)
	@$(BIN)/warrant-hf demo --text
	@echo; echo "Fine-tuning it on 240 generated questions (about a minute):"
	@$(BIN)/warrant-hf train --config training/recipes/evidence_world.yaml --train world:240:1 --eval world:100:2

space: $(READY)
	$(BIN)/warrant-hf demo

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow"

# The whole grid of the permission study in small, on generated data: that it runs, not what it finds.
experiments-smoke: $(READY)
	$(BIN)/python -m training.experiments.run --grid smoke --out runs/smoke

test-slow: $(READY)
	$(BIN)/python -m pytest -q -m slow

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)

# torch goes first and alone, so that no later requirement picks another build of it.
$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import sys; sys.exit(sys.version_info < (3, 10) and 'Python 3.10 or newer is needed: make PYTHON=python3.11')"
	$(BIN)/python -m pip install --quiet "$(TORCH)" $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)")
	$(BIN)/python -m pip install --quiet -e ".[offline,train,dev,space]"
	@touch $@
