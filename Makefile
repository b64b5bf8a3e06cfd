PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED_CORE := $(VENV)/.installed-core
INSTALLED := $(VENV)/.installed
INSTALLED_BENCH := $(VENV)/.installed-bench
INSTALLED_MOTO := $(VENV)/.installed-moto
INSTALLED_SLOW := $(VENV)/.installed-slow
INSTALLED_SLIM := $(VENV)/.installed-slim
# What keeps the promises of read mode `index`; allowed_skips.txt names the tests among them that need tensorflow.
SLIM_TESTS ?= tests/demo/test_preparation.py tests/parsers/test_index_mode.py tests/plan/test_resume.py \
	tests/torch_data/test_worlds.py tests/torch_data/test_loader.py tests/loaders/test_multi_loader.py
# Each process keeps one of two cores busy, about. Neighbours, which share what they build, stay in one process, and
# the one that is through first takes tests from the other.
IN_TWO := -n 2 --dist worksteal
# Compiled files are kept where the environment forbids it, too: compiling the tests anew takes each process ten seconds.
export PYTHONDONTWRITEBYTECODE =
# Options of pip for torch and torchvision, which must come from one build: TORCH_OPTIONS="--index-url ..." names the index
# of a build. Without them, both come from pip's own index.
TORCH_OPTIONS ?=
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow slow test-slim test-gpu campaign mutants wheels lint docs bench clean azurite

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED_CORE): pyproject.toml constraints.txt
	@echo "Installing tfds_torch into $(VENV) (minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(if $(TORCH_OPTIONS),$(INSTALL) --no-deps $(TORCH_OPTIONS) torch torchvision)
	@$(INSTALL) -e .
	@touch $@

$(INSTALLED): $(INSTALLED_CORE)
	@echo "Installing what the tests need (minutes, once)"
	@$(INSTALL) -e '.[dev]'
	@$(BIN)/python -W ignore -c "import torchvision" 2>/dev/null || echo "torchvision cannot be imported beside this torch:" \
		"the tests declare its operators. docs/install.md says how both come from one build (TORCH_OPTIONS)"
	@touch $@

$(INSTALLED_MOTO): $(INSTALLED) requirements/moto.txt
	@echo "Installing moto, the tests' server of s3://, into $(VENV)/moto"
	@$(BIN)/python -m venv $(VENV)/moto
	@timeout 300 $(VENV)/moto/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 20 \
		-r requirements/moto.txt \
		|| { rm -rf $(VENV)/moto; echo "moto cannot be installed: its tests are skipped (to try again: rm $@)"; }
	@touch $@

$(INSTALLED_SLOW): $(INSTALLED) requirements/slow.txt
	@$(INSTALL) -r requirements/slow.txt
	@touch $@

demo: $(INSTALLED_CORE) ## read the embedded handwritten digits and check every promise
	@$(BIN)/python -m tfds_torch.check

# Azurite, the tests' server of az://.
azurite:
	@test -e $(VENV)/azurite || ! command -v npm >/dev/null \
		|| timeout 300 npm install --silent --no-audit --no-fund --prefix $(VENV)/azurite azurite@3.35.0 </dev/null >/dev/null \
		|| { rm -rf $(VENV)/azurite; echo "Azurite cannot be installed: its tests are skipped"; }

test: $(INSTALLED_MOTO) ## the quick tests
	@$(BIN)/python -m pytest -m "not slow and not campaign" $(IN_TWO)

test-slow: azurite slow test-slim ## the rest of the tests, with all that they need

# Those of some folders: SLOW_TESTS="tests/plan tests/parsers". A folder may have none: 5 is pytest's word for that.
SLOW_TESTS ?= tests
slow: $(INSTALLED_MOTO) $(INSTALLED_SLOW)
	@$(BIN)/python -m pytest -m "slow and not campaign" $(IN_TWO) $(SLOW_TESTS) || [ $$? -eq 5 ]

# What they read is built with tensorflow, by the other environment.
$(INSTALLED_SLIM): $(INSTALLED) requirements/slim.txt
	@echo "Installing tfds_torch without tensorflow into $(VENV)/slim"
	@$(PYTHON) -m venv $(VENV)/slim
	@$(VENV)/slim/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements/slim.txt \
		array-record hypothesis psutil pytest pytest-timeout pytest-xdist pyzmq torchdata
	@$(VENV)/slim/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@rm -rf $(VENV)/slim/datasets && mkdir $(VENV)/slim/datasets
	@cd tests && TF_CPP_MIN_LOG_LEVEL=3 ../$(BIN)/python -c \
		"import pathlib, sys, tfds_fixtures, zygote; tfds_fixtures.prepare_datasets(pathlib.Path(sys.argv[1])); zygote.close_all()" \
		../$(VENV)/slim/datasets >/dev/null 2>&1
	@touch $@

test-slim: $(INSTALLED_SLIM) ## where tensorflow is not installed: check, and the quick tests of read mode index
	@$(VENV)/slim/bin/python -m tfds_torch.check
	@TFDS_TORCH_TEST_DATASETS=$(VENV)/slim/datasets $(VENV)/slim/bin/python -m pytest -m "not slow and not campaign" $(IN_TWO) $(SLIM_TESTS)

wheels: $(INSTALLED) ## install the wheel without constraints on every Python here, and with the lowest versions; gigabytes
	@.ci/wheels

test-gpu: $(INSTALLED) ## the tests that need a CUDA device
	@$(BIN)/python -m pytest -m gpu -s tests/gpu

ROOM ?= plan
mutants: $(INSTALLED_MOTO) ## what the quick tests of a room catch of small changes to its code: ROOM=plan
	@$(BIN)/python tests/mutants.py $(ROOM)

campaign: $(INSTALLED_MOTO) ## what takes long: hundreds of kills, grids of triples, every kind of fault (an hour or more)
	@$(BIN)/python -m pytest -m campaign
	@cd tests && TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 ../$(BIN)/python -m grids

lint: $(INSTALLED) ## style, format, types, import order
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(INSTALLED) ## build the documentation into site/, without a network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

$(INSTALLED_BENCH): $(INSTALLED)
	@echo "Installing what tfds_torch is measured against (minutes, once)"
	@$(INSTALL) -e '.[dev,bench]' || { echo "That failed: installing them one by one"; \
		$(BIN)/python -c "from importlib.metadata import requires as r; print(*(x.split(';')[0] for x in r('tfds-torch') if 'bench' in x.partition(';')[2]), sep='\n')" \
		| while read -r peer; do $(INSTALL) "$$peer" </dev/null || echo "$$peer will be reported as missing"; done; }
	@$(INSTALL) -e '.[ffcv]' || echo "FFCV will be reported as missing; it is built from its source, which needs: apt install libopencv-dev libturbojpeg0-dev pkg-config"
	@touch $@

bench: $(INSTALLED_BENCH) ## measure this machine against timm and others; or one suite: SUITE=jpeg
	@$(BIN)/python -m benchmarks $(SUITE)

clean: ## remove the environment, caches and build outputs
	@rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
