# The front door. What each target does is said by `make help`; the work is done by CMake, CTest and the scripts called here.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# nproc would answer OMP_NUM_THREADS where that is set.
JOBS ?= $(shell env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
# Further arguments to every configuration, for example -DSHARDBENCH_WERROR=ON.
SHARDBENCH_CMAKE_ARGS ?=

ctest = python3 tests/run.py build/$(1) --no-tests=error --output-on-failure -j $(JOBS)
SOURCES = find src kernels tests -type f \( -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print0
# g++'s warning options may be unknown to clang.
CLANG_TIDY = run-clang-tidy -quiet -p build/release -j $(JOBS) -extra-arg=-Wno-unknown-warning-option
# Of run-clang-tidy's noise only the file names are kept: no colours, command lines or counts of suppressed warnings.
QUIETLY = sed -u -E 's/\x1b\[[0-9;]*m//g; s/^clang-tidy.* -quiet //; /^[0-9]+ warnings?.* (generated|treated as errors?)\.?$$/d'

define configure
@echo "== configure $(1)"
@mkdir -p build
@cmake --preset $(1) $(SHARDBENCH_CMAKE_ARGS) >build/configure-$(1).log || { cat build/configure-$(1).log; exit 1; }
endef

define compile
@echo "== compile $(1)"
@cmake --build --preset $(1) -j $(JOBS)
endef

.PHONY: help deps build run test test-all test-asan test-current reliability bench lint format clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

deps: ## install what is missing (Debian 12 as root; otherwise name it) and create build/venv
	@cmake/deps.sh

build: deps ## build presets release and sim, and the command build/venv/bin/shardbench
	$(call configure,release)
	$(call compile,release)
	$(call configure,sim)
	$(call compile,sim)

# matplotlib's font cache stays in the checkout, and out of a home that may not be writable.
run: export MPLCONFIGDIR ?= $(CURDIR)/build/matplotlib
# Threads that spin for each other stand still for milliseconds whenever something else runs on the machine. Where nothing
# guarantees that they are alone they had better sleep. The choice is recorded in each file.
run: export OMP_WAIT_POLICY ?= passive
run: build ## run a local scaling study of every scenario and write results/demo/report.html
	@mkdir -p $(MPLCONFIGDIR) results/demo
	@rm -f results/demo/*_n[0-9]*.h5 results/demo/*_n[0-9]*.log results/demo/report.html # measured anew, not resumed
	@build/venv/bin/shardbench sweep jobs/studies/demo.toml
	@build/venv/bin/shardbench validate results/demo/*_n[0-9]*.h5
	@build/venv/bin/shardbench report results/demo --predict-to 4096 -o results/demo/report.html

test: build ## run every test but those labelled slow
	@$(call ctest,release) -LE slow

test-all: build ## run every test
	@$(call ctest,release)

test-asan: deps ## run the unit and MPI tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call configure,asan)
	$(call compile,asan)
	@$(call ctest,asan) -L 'unit|mpi' -LE 'slow|paper'

# Debian's versions are what `make test` runs on. With these tests warnings are errors, so that what a newer version is about
# to drop is noticed.
test-current: build ## run the tests of analysis/ with the newest versions of its libraries, from PyPI
	@python3 -m venv --clear build/venv-current
	@build/venv-current/bin/pip install -q --disable-pip-version-check -e 'analysis[test,parquet]'
	@build/venv-current/bin/pip --disable-pip-version-check list --format=freeze
	@MPLCONFIGDIR=$(CURDIR)/build/matplotlib build/venv-current/bin/python -m pytest -q -p no:cacheprovider analysis/tests

reliability: build ## run every case of docs/reliability.md on the release and the sanitizer build and write it anew
	$(call configure,asan)
	$(call compile,asan)
	@build/venv/bin/python tests/reliability/suite.py

bench: build ## measure speed
	@jobs/bench.sh

lint: ## check format and run clang-tidy over src and kernels
	@cmake/deps.sh --lint
	@echo "== clang-format"
	@$(SOURCES) | xargs -0 -r clang-format --dry-run --Werror
	$(call configure,release)
	@echo "== clang-tidy"
	@$(CLANG_TIDY) "^$$(sed 's/[][\.*+?^$$(){}|]/\\&/g' <<<"$$PWD")/(src|kernels)/" 2>&1 | $(QUIETLY)

format: ## rewrite the sources in the project's format
	@cmake/deps.sh --lint
	@$(SOURCES) | xargs -0 -r clang-format -i

clean: ## remove build/ (results/ stays)
	@rm -rf build
