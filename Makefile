# Two commands: `make run` starts a node, `make test` proves it. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

DATA ?= ./data
RESP ?=
SERVE_ARGS ?=
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
FUZZ_TARGETS := admin_command admission attach_message command_decode data_pointer resp media_recovery config vfio_user tcp_target tcp_initiator psk_interchange nvme_driver
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help run build test test-tools test-loom test-tls test-vm fio test-fio test-instructions soak proof lab fuzz header capi install-capi deny fmt clippy doc tidy check clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

run: build ## build in release and start a node on ./data (DATA=, RESP=, SERVE_ARGS= change it)
	exec $(TARGET_DIR)/release/headwater serve --data $(DATA) $(if $(RESP),--resp $(RESP)) $(SERVE_ARGS)

build: ## build the node in release
	cargo build --release --package headwater-node

test: test-tools ## install what tests need, run every test, the loom models and the fuzz corpora
	cargo test --workspace
	$(MAKE) --no-print-directory test-loom

# The C face is tested by programs that gcc compiles. The differential tests compare us with redis-server; without it they say so and skip.
test-tools:
	@.ci/packages gcc=gcc
	@.ci/packages redis-server=redis-server redis-benchmark=redis-tools redis-cli=redis-tools \
	  || echo "without redis-server the tests that compare with Redis skip, and say so"

# Loom explores every interleaving of what is lock-free; it is another build world, hence another target folder.
test-loom: ## every interleaving of what threads share without a lock
	RUSTFLAGS="--cfg loom" cargo test --package headwater-host --package headwater-dma --package headwater-nvme --package headwater-io --lib --release --target-dir $(TARGET_DIR)/loom loom_

# The feature brings a C library: about two minutes of building the first time, hence no part of `make test`.
test-tls: ## NVMe/TCP inside TLS 1.3, with the C library that the feature `tls` builds
	@.ci/packages cc=gcc cmake=cmake
	cargo clippy --package headwater-host --package headwater-frontend --package headwater-node --features headwater-host/tls,headwater-node/tls --all-targets -- -D warnings
	cargo test --package headwater-host --features tls --lib tls
	cargo test --package headwater-frontend --features tls --test nvme_tcp --test nvme_tcp_tls

test-vm: ## guests under QEMU whose own drivers use the device (VM_ARGS= names boots; tests/vm/README.md)
	@.ci/packages python3=python3 depmod=kmod nvme=nvme-cli fio=fio mkfs.ext4=e2fsprogs redis-cli=redis-tools
	cargo build --package headwater-node --package headwater-capi
	plugins/fio/build $(TARGET_DIR)/debug $(TARGET_DIR)/debug/fio
	cargo build --package headwater-dma --example vfio_pool --example numa_pool
	cargo build --package headwater-nvme --example vfio_nvme
	cargo build --package headwater --example device_blocks --example device_keys --example nvme_ng --example shared_ssd
	python3 tests/vm/run.py --program $(TARGET_DIR)/debug/headwater --cache $(or $(HEADWATER_VM_CACHE),$(TARGET_DIR)/vm) $(VM_ARGS)

# fio's engines are built into its structs, so the source of the installed version is fetched from its package archive.
fio: ## fio's engine for every device, target/fio/headwater.so (plugins/fio/README.md)
	@.ci/packages gcc=gcc make=make fio=fio
	cargo build --release --package headwater-capi
	plugins/fio/build $(TARGET_DIR)/release $(TARGET_DIR)/fio

test-fio: ## fio verifies what it writes through the engine, on every kind of device that is here
	@.ci/packages gcc=gcc make=make fio=fio
	cargo build --package headwater-capi --package headwater-node
	plugins/fio/build $(TARGET_DIR)/debug $(TARGET_DIR)/debug/fio
	plugins/fio/verify $(abspath $(TARGET_DIR)/debug/fio/headwater.so) $(TARGET_DIR)/debug/headwater

# A count is the same on a machine at rest and on a busy one, which no time is: it is what a change of the way of a read is held to.
test-instructions: ## instructions of a read through a handle, by callgrind, no more than recorded (RECORD=1 renews)
	@.ci/packages valgrind=valgrind || true
	cargo build --release --package headwater-io --example null_reads
	tests/instructions/run $(TARGET_DIR)/release/examples/null_reads $(if $(RECORD),--record)

soak: ## a minute of the pinned pool under threads, cancellations, cap changes and a failing node
	cargo test --release --package headwater-dma --test pool -- --ignored --nocapture soak_

proof: ## every file of /usr/share through kills, deletion and overwriting: minutes (HEADWATER_PROOF_DIR=)
	cargo test --release --package headwater-node --test real_input -- --ignored --nocapture

lab: build ## list the experiments; `make lab RUN="resp --quick"` runs one
	$(TARGET_DIR)/release/headwater lab $(if $(RUN),run $(RUN),list)

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
	[ -z "$$failed" ] || { echo "failed:$$failed; the inputs that did it are in fuzz/artifacts/TARGET"; exit 1; }

header: ## write crates/capi/include/headwater.h from the sources of the C face
	HEADWATER_WRITE_HEADER=1 cargo test --package headwater-capi --test header

# One kind of library a run: only without a Rust library beside them are the C ones optimised as a whole.
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

tidy: ## the house rules that no compiler checks
	cargo xtask tidy

check: fmt clippy doc tidy ## everything CI asks for beside the tests

clean: ## throw build output away; the data stays
	cargo clean
