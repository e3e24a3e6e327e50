# Every target sets up what it needs, in VENV, and does nothing twice. PYTHON=… and TORCH=… choose what goes into it.
VENV ?= .venv
ARGS ?=
export PYTHON TORCH

# $(call files_of,NAME …): tests/ROOM/test_NAME.py, whatever the room. Without such a file it is a pattern, which pytest
# refuses.
files_of = $(foreach name,$(1),$(or $(wildcard tests/*/test_$(name).py),tests/*/test_$(name).py))

# What needs no more than pufferlib[test]; single tests in these files that do are marked extras. The versions leave out
# what is slow, too: each of them has the rest.
CORE_TESTS := $(call files_of,action_values architecture by_agent compat_collisions compat_emulation compat_names \
	compat_vector compat_wrappers contract emulation failures \
	layout layout_actions layout_fit layout_kinds misuse native native_pack ocean_gymnasium odd_envs one_row philox \
	population restarts squared state_leaf tag_continuous tag_grid transfer trigonometry vectorization wrong_calls)

# Of these, what both paths share: rules and draws of kernels' references, imports, and what scripts register.
SHARED_TESTS := $(call files_of,architecture philox tag_continuous tag_grid transfer trigonometry)

# What is about the compiled path.
NATIVE_TESTS := $(call files_of,paths paths_hostile stage)

# Random calls and samples; `make fuzz` looks longer.
FUZZ_TESTS := $(call files_of,fuzz_api fuzz_pack)

# What starts processes by the hundred and imports little runs first, as it forks many times faster where torch is not
# imported. Those that import it come last.
LEAN_TESTS := $(CORE_TESTS) $(NATIVE_TESTS) $(FUZZ_TESTS) $(call files_of,faults \
	gymnasium_defects orphans peer_defects portable platform infos recording real_envs ring leaks pettingzoo frames \
	frames_agents registry host_threads vectorized_envs reward_processing autotune testing telemetry gymnasium_vector sharing)

# What takes long comes next, so that no process is left alone with it.
DEAR_TESTS := $(call files_of,ray_cluster ray ray_supervisor appo session ppo dqn cli pages ppo_processes project \
	suite mutants ocean_newcomer kernel_faults kernel_tools kernels every_kernel)

# The libraries that pufferlib.adapters has faces for. `make test` has those of DEV_ADAPTERS already.
DEV_ADAPTERS := sb3 torchrl skrl dm_env
OTHER_ADAPTERS := tianshou rllib cleanrl envpool gymnax
ADAPTERS ?= $(DEV_ADAPTERS) $(OTHER_ADAPTERS)
# Of these our own trainer learns.
SOURCES := envpool gymnax
# CleanRL's scripts, which ask for Python 3.10 and what went with it, and run without.
SCRIPTS := --no-deps --ignore-requires-python cleanrl==1.2.0

# The families of environments, one file each; those of OLD_FAMILIES need an older Python and what it ran with.
FAMILIES ?= $(filter-out __init__,$(basename $(notdir $(wildcard pufferlib/environments/*.py))))
OLD_FAMILIES := nmmo

# What runs tests: in several processes, or in one, where pytest is given something.
RUNNER = $(if $(ARGS),pytest,tests.deal)
ALL_TESTS = $(if $(ARGS),$(ARGS),$(LEAN_TESTS) $(DEAR_TESTS) tests)

# $(call core_venv,NAME): make these versions an environment of their own; 3 says that there is no python for it.
PYTHONS_oldest := 3.10 3.11
PYTHONS_newest := 3.14 3.13
PYTHONS_coverage := 3.14 3.13 3.12
PINS_oldest := tests/oldest.txt
core_venv = PYTHON= VERSIONS="$(PYTHONS_$(1))" .ci/venv .venv-$(1) test $(PINS_$(1))

# What needs CPython 3.12 for most of its tests, which the python of VENV may not be.
VERSION_TESTS := $(call files_of,line_coverage)

# What trains programs for PufferLib needs packages that the versions leave out; its tests run there once
# `.venv-oldest/bin/python -m pip install torch rich pillow` has installed these.
TORCH_TESTS := $(call files_of,compat_cleanrl compat_models compat_pufferl compat_pytorch)

# $(call core_tests,NAME): run the tests of the core there.
define core_tests
$(core_venv); case $$? in \
	0) .venv-$(1)/bin/python -m $(RUNNER) -m "not extras and not slow and not long" $(CORE_TESTS) $(NATIVE_TESTS) \
		$(VERSION_TESTS) $(ARGS) && \
		if .venv-$(1)/bin/python -c "import torch, rich, PIL" 2> /dev/null; then \
			.venv-$(1)/bin/python -m $(RUNNER) -m "not slow and not long" $(TORCH_TESTS) $(ARGS); fi ;; \
	3) echo "Not tried: the $(1) versions" ;; \
	*) exit 1 ;; esac
endef

docs_venv = TORCH=none .ci/venv .venv-docs docs

# Make an environment for the adapter $$name.
define adapter_venv
case " $(SOURCES) " in *" $$name "*) with=train,test ;; *) with=test ;; esac; \
.ci/venv .venv-adapters/$$name $$(echo $$name | tr _ -),$$with && \
case $$name in cleanrl) .venv-adapters/cleanrl/bin/python -m pip install --quiet $(SCRIPTS) ;; esac
endef

.DEFAULT_GOAL := help
.PHONY: help demo test test-long coverage lint style types format versions portable sanitize fuzz leaks chaos gpu \
	test-adapters test-envs container docs release clean dev train venvs venv-oldest venv-newest venv-docs \
	$(addprefix venv-,$(OTHER_ADAPTERS))

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: train  ## Train a learner on ocean/squared, under a minute
	@$(VENV)/bin/python -m cleanrl_demo.ppo --env ocean/squared $(ARGS)

test: style $(if $(ARGS),types)  ## Check style and types, run all tests in their short form; ARGS="-k name" goes to pytest
	@$(VENV)/bin/python -m $(RUNNER) -m "not long" $(if $(ARGS),,--check $(VENV)/bin/mypy) $(ALL_TESTS)

test-long: dev  ## Run the long forms of tests, which `make test` leaves out; LIMIT in seconds; ARGS="-k name" goes to pytest
	@$(VENV)/bin/python -m $(RUNNER) -m long $(if $(ARGS),,$(addprefix --limit ,$(LIMIT))) $(ALL_TESTS)

coverage:  ## Run the tests of `make test` on CPython 3.12 or newer; print the share of lines that ran, by package
	@PYTHON= VERSIONS="$(PYTHONS_coverage)" .ci/venv .venv-coverage dev; case $$? in \
		0) .venv-coverage/bin/python -m tests.line_coverage $(RUNNER) -m "not long" $(ALL_TESTS) ;; \
		3) echo "Not tried: coverage, for want of a python of $(PYTHONS_coverage)" ;; \
		*) exit 1 ;; esac

lint: style types  ## Check style and types

style: dev
	@$(VENV)/bin/hadolint Dockerfile
	@$(VENV)/bin/ruff check --quiet
	@$(VENV)/bin/ruff format --check --quiet || { echo "make format would mend that"; exit 1; }

types: dev
	@$(VENV)/bin/mypy

format: dev  ## Format the code
	@$(VENV)/bin/ruff check --quiet --fix
	@$(VENV)/bin/ruff format

versions:  ## Run the tests of the core on the oldest and the newest supported versions
	@$(call core_tests,oldest)
	@$(call core_tests,newest)

portable: dev  ## Run the tests of the core without the compiled path
	@PUFFERLIB_NATIVE=0 $(VENV)/bin/python -m $(RUNNER) -m "not long" $(filter-out $(SHARED_TESTS),$(CORE_TESTS)) $(FUZZ_TESTS) \
		$(call files_of,sharing) $(ARGS)

sanitize: dev  ## Run the tests of the compiled path under AddressSanitizer and UBSan, minutes; ARGS goes to pytest
	@$(VENV)/bin/python tests/sanitize.py -m "not extras" $(CORE_TESTS) $(NATIVE_TESTS) $(FUZZ_TESTS) $(ARGS)

fuzz: dev  ## Make random calls and samples, different ones each time, minutes; ARGS goes to pytest
	@$(VENV)/bin/python -m pytest --hypothesis-profile thorough -o timeout=3600 $(FUZZ_TESTS) $(ARGS)

gpu:  ## Test and measure the kernels on a GPU, without a network, in ten minutes; OUT, LIMIT, STAGES, WHEELS, DEVICE=host
	@PYTHONPATH=".$${PYTHONPATH:+:$$PYTHONPATH}" $(firstword $(wildcard $(VENV)/bin/python) python3) -m benchmarks.gpu_stages \
		$(foreach name,DEVICE OUT LIMIT STAGES WHEELS,$(if $($(name)),--$(shell echo $(name) | tr A-Z a-z) $($(name))))

leaks: dev  ## Check that nothing grows over a thousand cycles and 50 million steps, about 40 minutes
	@PUFFERLIB_LEAKS=long $(VENV)/bin/python -m pytest -rP tests/failures/test_leaks.py $(ARGS)
	@$(VENV)/bin/python -m benchmarks.leaks

chaos: dev  ## Check every row of millions of steps while workers are killed and environments fail, half an hour
	@$(VENV)/bin/python -m tests.laws.chaos.run --out benchmarks/results/chaos.json --page docs/chaos.md $(ARGS)

test-adapters:  ## Test each adapter in a separate environment; ADAPTERS="sb3" chooses some
	@for name in $(ADAPTERS); do \
		$(adapter_venv) && .venv-adapters/$$name/bin/python -m pytest tests/adapters/test_adapter_$$name*.py $(ARGS) || exit 1; \
	done

test-envs:  ## Play each family of environments in a separate Python environment, and write the table; FAMILIES="atari" chooses some
	@status=0; for name in $(FAMILIES); do folder=.venv-envs/$$name; \
		extra=$$(sed -n 's/^    extra="\(.*\)",/\1/p' pufferlib/environments/$$name.py); \
		case " $(OLD_FAMILIES) " in *" $$name "*) versions=3.10 with=tests/$$name.txt ;; *) versions=3.11 with= ;; esac; \
		PYTHON= TORCH=none VERSIONS=$$versions .ci/venv $$folder $$extra $$with; case $$? in \
			0) $$folder/bin/python tests/helpers/check_family.py $$name $(ARGS) || status=1 ;; \
			3) echo "Not tried: $$name, for want of Python $$versions"; status=1 ;; \
			*) python3 tests/helpers/check_family.py $$name --failed $$folder/install.log; status=1 ;; esac; \
	done; \
	for python in .venv-envs/*/bin/python; do $$python tests/helpers/check_family.py --page 2> /dev/null && break; done || \
		{ echo "No python in .venv-envs could write the table"; status=1; }; exit $$status

container: dev  ## Build and run the container's targets, half an hour the first time; TARGETS="core" chooses some
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" tests/container.sh $(TARGETS)

docs:  ## Build the documentation site into site/, in a separate environment; a warning fails
	@$(docs_venv)
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build > .venv-docs/build.log 2>&1 \
		|| { grep -v '^INFO' .venv-docs/build.log; exit 1; }  # --quiet would let warnings pass, strict or not
	@echo "Built; to read it: python3 -m http.server --directory site"

release:  ## Build the sdist and a wheel for each CPython, and try each in a fresh environment; ARGS="--versions 3.12"
	@TORCH=none .ci/venv .venv-release release
	@.venv-release/bin/python .ci/release.py $(ARGS)

clean:  ## Remove everything that these targets made
	@rm -rf $(VENV) .venv-oldest .venv-newest .venv-coverage .venv-adapters .venv-docs .venv-envs .venv-release benchmarks/.venvs build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@rm -f pufferlib/_native/*.so cuda_ext/*.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

dev train:
	@.ci/venv $(VENV) $@

# All that .ci/run needs, two at once: what they share is compiled for the first.
venvs: dev
	@$(MAKE) --no-print-directory --jobs 2 $(addprefix venv-,oldest newest $(OTHER_ADAPTERS) docs)

venv-oldest venv-newest: venv-%:
	@$(call core_venv,$*) || [ $$? -eq 3 ]

venv-docs:
	@$(docs_venv)

$(addprefix venv-,$(OTHER_ADAPTERS)): venv-%:
	@name=$*; $(adapter_venv)
