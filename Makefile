# Front door of the build. Everything real is in CMakeLists.txt; this file only names the usual ways in.
#   make run [DEVICE=uri]   quick profile, by default against a software TPU
#   make test               all tests of the suite itself
#   DEPS=skip               do not install packages
PRESET ?= release
BUILD := $(if $(filter release,$(PRESET)),build,build-$(PRESET))
BIN := $(BUILD)/bin
DEVICE ?= softtpu:
PROFILE ?= quick
ARGS ?=
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local

.PHONY: all deps configure build programs run test lab lab-test lab-debug lab-changes bench bench-load check asan tsan clang fuzz chaos gauntlet install clean
all: build

deps:
	@tools/dev/deps.sh build test

configure: deps
	@cmake --preset $(PRESET) --log-level=WARNING -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null

build: configure
	@cmake --build $(BUILD) -j $(JOBS)

programs: configure
	@cmake --build $(BUILD) -j $(JOBS) --target kz-programs

run: programs
	@$(BIN)/kangzao run --device $(DEVICE) --profile $(PROFILE) $(ARGS)

test: build
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error $(ARGS)

bench: build
	@$(BIN)/kz-bench $(ARGS)

# The load generator beside fio, t/io_uring and a bare liburing loop.
bench-load: configure
	@tools/dev/deps.sh bench
	@cmake --build $(BUILD) -j $(JOBS) --target kz-bench-load
	@if peer=$$(tests/bench/load/get-t-io-uring.sh 2>$(BUILD)/t-io-uring.why); then \
	  $(BIN)/kz-bench-load --t-io-uring "$$peer" $(ARGS); \
	else \
	  $(BIN)/kz-bench-load --t-io-uring-missing "$$(tail -n 1 $(BUILD)/t-io-uring.why)" $(ARGS); \
	fi

gauntlet: programs
	@$(BIN)/kangzao gauntlet $(ARGS)

# Real kernels in QEMU: the driver's own tests and the quick profile on four stock kernels. Needs root and an archive; the
# first time about 5 GB of cache.
lab: programs
	@tools/dev/deps.sh build lab
	@$(BIN)/kangzao lab $(ARGS)

# The lab's own tests: what the PCI core does when the device goes wrong, drivers and kernels that break, drivers that are not
# ours, kills of a running guest.
lab-test: programs
	@tools/dev/deps.sh build lab bench
	@python3 tests/lab/guests.py --bin $(BIN)
	@python3 tests/lab/broken.py --bin $(BIN)
	@python3 tests/lab/vendor.py --bin $(BIN)
	@python3 tests/lab/foreign.py --bin $(BIN)
	@python3 tests/lab/kill.py --bin $(BIN) --rounds $(ROUNDS)
ROUNDS ?= 3

# The table of kernel changes against the lab's kernels: both forms of every row, six refused modules and their cured twins,
# a module of the oldest kernel offered to the newest.
lab-changes: programs
	@tools/dev/deps.sh build lab
	@python3 tests/lab/changes.py --bin $(BIN) $(ARGS)

# Kernels with every checker on, built once: quick profile and LOAD_TIME seconds of mixed load, no report of any kind.
LOAD_TIME ?= 300
lab-debug: programs
	@tools/dev/deps.sh build lab
	@$(BIN)/kangzao lab --kernels stable-1-debug,backports-debug --load docs/load-examples/mixed-closed.load --load-time $(LOAD_TIME) --limit 3600 $(ARGS)

# Random kill -9 of runner, tests and device: 200 rounds.
chaos: build
	@python3 tests/e2e/chaos.py --bin $(BIN) --rounds 200 $(ARGS)

# The whole suite under the sanitizers, and with the other compiler.
check: clang asan tsan
# Freed memory that AddressSanitizer holds back would look like a leak of the test's process.
asan: export ASAN_OPTIONS := quarantine_size_mb=8
tsan: export TSAN_OPTIONS := suppressions=$(CURDIR)/tests/tsan.supp
asan tsan clang:
	@$(MAKE) --no-print-directory test PRESET=$@

# Each fuzzer for SECONDS; corpora and regressions are in tests/fuzz/corpus.
SECONDS_EACH ?= 600
fuzz:
	@tools/dev/deps.sh build fuzz
	@cmake --preset fuzz --log-level=WARNING >/dev/null
	@cmake --build build-fuzz -j $(JOBS) --target kz-fuzzers
	@tests/fuzz/run.sh build-fuzz/bin $(SECONDS_EACH)

install: build
	@cmake --install $(BUILD)

clean:
	rm -rf build build-clang build-asan build-tsan build-fuzz
