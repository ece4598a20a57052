# `make run` starts a node, `make test` runs the tests, `make help` lists all targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

DATA ?= ./data
RESP ?=
SERVE_ARGS ?=
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
FIGURES ?= copy move-model move-study move-cross mover persist device resp pool udma io attach tcp idle waf index recovery source large mixed cold tight rocksdb
FIGURES_ARGS ?= --quick
FUZZ_TARGETS := admin_command admission attach_message backup_message command_decode data_pointer resp media_recovery media_version2 superblock commit_record page_spare record_header config vfio_user tcp_target tcp_initiator psk_interchange nvme_driver
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help run build test test-tools test-loom test-tls test-vm test-clients fio test-fio rocksdb test-rocksdb test-instructions swarm mutants tamper test-media soak soak-node proof lab figures figures-twice fuzz header capi install-capi deny fmt clippy doc tidy check clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

run: build ## build in release and start a node on ./data (DATA=, RESP=, SERVE_ARGS= change it)
	exec $(TARGET_DIR)/release/headwater serve --data $(DATA) $(if $(RESP),--resp $(RESP)) $(SERVE_ARGS)

build: ## build the node, and the library of `headwater run`, in release
	cargo build --release --package headwater-node
	cargo build --release --package headwater-preload

test: test-tools ## install what tests need, run every test, the loom models and the fuzz corpora
	cargo test --workspace
	cargo test --package headwater-sim --features mutants --test mutants
	$(MAKE) --no-print-directory test-loom

# The C interface is tested by programs that gcc compiles. The differential tests compare with redis-server; without it they are skipped.
test-tools:
	@.ci/packages gcc=gcc
	@.ci/packages redis-server=redis-server redis-benchmark=redis-tools redis-cli=redis-tools \
	  || echo "redis-server is missing: the tests that compare with Redis are skipped"

# Loom explores every interleaving of lock-free code; it needs another build configuration, hence another target folder.
test-loom: ## every interleaving of lock-free code, by loom
	RUSTFLAGS="--cfg loom" cargo test --package headwater-host --package headwater-dma --package headwater-nvme --package headwater-io --lib --release --target-dir $(TARGET_DIR)/loom loom_

# The feature needs a C library, which takes about two minutes to build the first time; hence not part of `make test`.
test-tls: ## NVMe/TCP inside TLS 1.3, with the C library that the feature `tls` builds
	@.ci/packages cc=gcc cmake=cmake
	cargo clippy --package headwater-host --package headwater-frontend --package headwater-node --features headwater-host/tls,headwater-node/tls --all-targets -- -D warnings
	cargo test --package headwater-host --features tls --lib tls
	cargo test --package headwater-frontend --features tls --test nvme_tcp --test nvme_tcp_tls

test-vm: ## guests under QEMU, whose drivers use the device (VM_ARGS= names boots; tests/vm/README.md)
	@.ci/packages gcc=gcc python3=python3 depmod=kmod nvme=nvme-cli fio=fio mkfs.ext4=e2fsprogs ndctl=ndctl redis-cli=redis-tools
	cargo build --package headwater-node --package headwater-capi --package headwater-preload
	crates/preload/tests/programs $(TARGET_DIR)/debug
	plugins/fio/build $(TARGET_DIR)/debug $(TARGET_DIR)/debug/fio
	cargo build --package headwater-dma --example vfio_pool --example numa_pool
	cargo build --package headwater-nvme --example vfio_nvme
	cargo build --package headwater --example device_blocks --example device_keys --example nvme_ng --example shared_ssd
	python3 tests/vm/run.py --program $(TARGET_DIR)/debug/headwater --cache $(or $(HEADWATER_VM_CACHE),$(TARGET_DIR)/vm) $(VM_ARGS)

# The suites of Redis come from the package archive of the installed redis-server, those of the caches from the package registry.
test-clients: ## suites of Redis, Django's cache, dogpile and flask-caching, beside redis-server (SUITES="unit/multi django")
	@.ci/packages redis-server=redis-server tclsh=tcl python3=python3
	cargo build --package headwater-node
	python3 tests/clients/run.py --program $(TARGET_DIR)/debug/headwater --cache $(TARGET_DIR)/clients $(SUITES)

# Engines use fio's structs, so the source of the installed version is fetched from its package archive.
fio: ## fio's engine for every device, target/fio/headwater.so (plugins/fio/README.md)
	@.ci/packages gcc=gcc make=make fio=fio
	cargo build --release --package headwater-capi
	plugins/fio/build $(TARGET_DIR)/release $(TARGET_DIR)/fio

test-fio: ## fio writes and verifies through the engine, on every kind of device of this machine
	@.ci/packages gcc=gcc make=make fio=fio
	cargo build --package headwater-capi --package headwater-node
	plugins/fio/build $(TARGET_DIR)/debug $(TARGET_DIR)/debug/fio
	plugins/fio/verify $(abspath $(TARGET_DIR)/debug/fio/headwater.so) $(TARGET_DIR)/debug/headwater

rocksdb: ## RocksDB's file system with pinned buffers, target/rocksdb/headwater.so (plugins/rocksdb/README.md)
	@.ci/packages g++=g++ db_bench=rocksdb-tools
	@[ -e /usr/include/rocksdb/file_system.h ] || .ci/packages rocksdb/file_system.h=librocksdb-dev
	cargo build --release --package headwater-capi
	plugins/rocksdb/build $(TARGET_DIR)/release $(TARGET_DIR)/rocksdb

test-rocksdb: rocksdb ## db_bench writes, compacts, reads and verifies through the file system with each kind of memory
	plugins/rocksdb/verify $(abspath $(TARGET_DIR)/rocksdb/headwater.so)

# Unlike a time, a count does not depend on the load of the machine, so it guards the I/O path of a read.
test-instructions: ## instructions of a read through a handle, by callgrind, at most those recorded (RECORD=1 renews)
	@.ci/packages valgrind=valgrind || true
	cargo build --release --package headwater-io --example null_reads
	tests/instructions/run $(TARGET_DIR)/release/examples/null_reads $(if $(RECORD),--record)

# Without FROM= the seeds begin where no run began before; worlds that use their blocks again begin at 9223372036854775808.
# An example, because it builds in a fraction of the node's time.
swarm: ## fresh worlds of the simulator on all cores for a minute (SECONDS=, SEEDS=, FROM=); failures in target/swarm
	cargo build --release --package headwater-sim --example swarm
	$(TARGET_DIR)/release/examples/swarm $(TARGET_DIR)/swarm $(or $(SECONDS),$(if $(SEEDS),-,60)) $(or $(SEEDS),-) $(or $(FROM),-)

# Each planted change must be found; `make test` runs the same changes for a few worlds each, and most must be found.
mutants: ## plant each change of the device, and print the world that finds it (RUNS= worlds at most, MUTANTS=A,B)
	HEADWATER_MUTANT_RUNS=$(or $(RUNS),2000) $(if $(MUTANTS),HEADWATER_MUTANTS=$(MUTANTS)) \
	  cargo test --package headwater-sim --features mutants --test mutants -- --nocapture
	cargo test --package headwater-ssd --features mutants --lib without_the_guard
	cargo test --package headwater-ssd --features mutants --test contested_extents without_the_guard

tamper: build ## damage flash files that nodes wrote, 12,000 times, and judge every answer and the check: half an hour
	$(TARGET_DIR)/release/headwater lab run tamper

# `make test` damages few places of the same files; three minutes for all of them.
test-media: ## damage every structure of simulated flash files in turn: no damage may be silent
	HEADWATER_DAMAGE_ALL=1 cargo test --release --package headwater-sim --test lying_media -- --nocapture

soak: ## stress the pinned pool for a minute: threads, cancellations, cap changes and a failing node
	cargo test --release --package headwater-dma --test pool -- --ignored --nocapture soak_

# `make test` runs ten seconds of it.
soak-node: ## five minutes of kills, hostile clients and damage beside one client that checks every answer (SECONDS=, SEED=)
	HEADWATER_SOAK_SECONDS=$(or $(SECONDS),300) $(if $(SEED),HEADWATER_SOAK_SEED=$(SEED)) \
	  cargo test --release --package headwater-node --test soak -- --ignored --nocapture

proof: ## store every file of /usr/share, with kills, deletion, overwriting and damage: minutes (HEADWATER_PROOF_DIR=)
	cargo test --release --package headwater-node --test real_input -- --ignored --nocapture

lab: build ## list the experiments; `make lab RUN="resp --quick"` runs one
	$(TARGET_DIR)/release/headwater lab $(if $(RUN),run $(RUN),list)

# One file a run, so that a single experiment can be measured again; FIGURES_ARGS= measures full runs.
figures: build ## measure every experiment and write docs/figures.md (FIGURES="device io", FIGURES_ARGS=)
	@mkdir -p docs/figures
	@for name in $(FIGURES); do \
	  echo "== $$name"; \
	  $(TARGET_DIR)/release/headwater lab run $$name $(FIGURES_ARGS) --json >docs/figures/$$name.json.new; \
	  mv docs/figures/$$name.json.new docs/figures/$$name.json; \
	done
	$(TARGET_DIR)/release/headwater lab figures --plots docs/figures docs/figures/*.json >docs/figures.md

# Fails if the runs do not agree.
figures-twice: build ## measure an experiment twice and compare the runs (TWICE=resp, WITHIN=0.10, FIGURES_ARGS=)
	@mkdir -p $(TARGET_DIR)/figures-twice
	@for run in first second; do \
	  $(TARGET_DIR)/release/headwater lab run $(or $(TWICE),resp) $(FIGURES_ARGS) --json >$(TARGET_DIR)/figures-twice/$$run.json; \
	done
	$(TARGET_DIR)/release/headwater lab compare $(TARGET_DIR)/figures-twice/first.json $(TARGET_DIR)/figures-twice/second.json --within $(or $(WITHIN),0.10)

fuzz: ## fuzz every parser of untrusted bytes, 60 s each (FUZZ_SECONDS=, FUZZ_TARGETS=)
	@cargo +nightly --version >/dev/null 2>&1 || { echo "fuzzing needs a nightly toolchain: rustup toolchain install nightly"; exit 1; }
	@.ci/packages g++=g++
	@cargo fuzz --version >/dev/null 2>&1 || cargo install cargo-fuzz --locked
	@failed=; for target in $(FUZZ_TARGETS); do \
	  echo "== $$target for $(FUZZ_SECONDS) s"; \
	  scratch=$$(mktemp -d); \
	  cargo +nightly fuzz run "$$target" "$$scratch" "fuzz/corpus/$$target" -- -max_total_time=$(FUZZ_SECONDS) -timeout=10 -print_final_stats=1 \
	    || failed="$$failed $$target"; \
	  rm -rf "$$scratch"; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed; the failing inputs are in fuzz/artifacts/TARGET"; exit 1; }

header: ## write crates/capi/include/headwater.h from the sources of the C interface
	HEADWATER_WRITE_HEADER=1 cargo test --package headwater-capi --test header

# Only the C libraries in one run: together with a Rust library they would not be optimised as a whole.
capi: ## build the C libraries in release (docs/operating/c.md)
	cargo rustc --release --package headwater-capi --lib --crate-type cdylib,staticlib
	cargo rustc --release --package headwater-spdk-dma --lib --crate-type cdylib,staticlib

install-capi: capi ## install the C libraries, their headers and headwater.pc (PREFIX=)
	install -d $(PREFIX)/lib/pkgconfig $(PREFIX)/include/headwater
	install -m 644 $(foreach kind,so a,$(TARGET_DIR)/release/libheadwater_capi.$(kind) $(TARGET_DIR)/release/libheadwater_spdk_dma.$(kind)) $(PREFIX)/lib
	install -m 644 crates/capi/include/headwater.h $(PREFIX)/include
	install -m 644 crates/spdk-dma/include/headwater/spdk_dma.h $(PREFIX)/include/headwater
	version=$$(cargo pkgid --package headwater-capi | sed 's/.*[#@]//'); \
	sed -e 's|@PREFIX@|$(PREFIX)|' -e "s|@VERSION@|$$version|" crates/capi/headwater.pc.in >$(PREFIX)/lib/pkgconfig/headwater.pc

deny: ## licenses, sources and banned crates (installs cargo-deny: minutes)
	@cargo deny --version >/dev/null 2>&1 || cargo install cargo-deny --locked
	cargo deny check bans licenses sources

fmt: ## formatting, as CI checks it
	cargo fmt --all --check

clippy: ## lints, warnings as errors
	cargo clippy --workspace --all-targets -- -D warnings

doc: ## rustdoc, warnings as errors
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps

tidy: ## the project's rules that no compiler checks
	cargo xtask tidy

check: fmt clippy doc tidy ## all checks of CI except the tests

clean: ## delete build output, not data
	cargo clean
