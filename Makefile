# Everything a person or a machine does with Fairlane. `make demo` and `make test` install or build what they need.

CARGO ?= cargo
HOST := x86_64-unknown-linux-gnu
TARGET := $(or $(CARGO_TARGET_DIR),target)
PLUGIN := $(TARGET)/$(HOST)/agent/path-length.so
MPI := $(TARGET)/$(HOST)/agent/all-to-all

.PHONY: all demo lab platforms claims test tools debug python lint dependencies deny cargo-deny cargo-deb deb deb-test extras restarts bench fuzz soak soak-guests \
	kills race miri proofs agent plugin mpi guests peers clean

all: agent plugin mpi
	$(CARGO) build --release --bins

# Programs that run in an initramfs, statically linked: the guests' init, Fairlane for a driver domain, and the frontend that it is
# tested with.
STATIC := CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static"
GUESTS := $(STATIC) $(CARGO) build --target $(HOST) --bins --package fairlane-agent --package fairlane
agent:
	$(GUESTS) --quiet --profile agent --package fairlane-hostile

# The emulator's plugin that counts instructions, built beside the agent.
plugin: $(PLUGIN)

$(PLUGIN): crates/lab/plugin/path-length.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_POSIX_C_SOURCE=200809L -O2 -Wall -Wextra -Werror -shared -fPIC -s -o $@ $<

# The MPI exchange program, for guests that have Open MPI, built beside the agent.
mpi: $(MPI)

$(MPI): crates/lab/mpi/all-to-all.c
	@deploy/need /usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h libopenmpi-dev
	@mkdir -p $(@D)
	mpicc.openmpi -std=c11 -O2 -Wall -Wextra -Werror -s -o $@ $<

# Programs that run guests; installed only if they are missing.
guests:
	@deploy/need linux.uml user-mode-linux  qemu-system-x86_64 qemu-system-x86  ethtool ethtool  ip iproute2

# The systems that the bench compares with.
peers: guests
	@deploy/need dpdk-testpmd dpdk-dev  ovs-vswitchd openvswitch-switch-dpdk  setpriv util-linux  nft nftables  tc iproute2 \
		wrk wrk  ab apache2-utils  h2load nghttp2-client  valgrind valgrind

# Real guests on a shared link, before and after: about two minutes after the first build, which is a quick one. Writes
# out/demo/report.html.
DEMO = $(TARGET)/$(HOST)/demo
demo: guests
	@start=$$(date +%s); \
	$(GUESTS) --profile demo && built=$$(date +%s) && \
	FAIRLANE_AGENT=$(DEMO)/fairlane-agent $(DEMO)/fairlane demo --out out/demo && \
	echo "out/demo/report.html was written after $$(($$(date +%s) - start)) s, $$((built - start)) s of them for the build"

# The papers' experiments on the emulated Xen host, and one page with all of them: under an hour. Writes out/lab.
EXPERIMENTS := isolation-equal-rate isolation-two-rates isolation-unlimited isolation-overactive isolation-disk \
	delay-ping delay-packet transfer alltoall
lab: guests all
	$(TARGET)/release/fairlane lab setup
	status=0; \
	for name in $(EXPERIMENTS); do $(TARGET)/release/fairlane lab run $$name --machine xen || status=1; done; \
	$(TARGET)/release/fairlane lab run path-length --machine xen --clock instructions || status=1; \
	$(TARGET)/release/fairlane report out/lab --out out/lab/report.html || status=1; \
	exit $$status
	FAIRLANE_GUESTS=required $(CARGO) test --package fairlane-lab --test repeatable

# Connections a second and HTTP by object size, system by system on the same emulated hardware, and on guests of this host, with both
# backends; instructions per connection on Xen and KVM; and pages that compare them. Writes out/lab.
platforms: guests all
	$(TARGET)/release/fairlane lab setup
	status=0; \
	for name in accept-rate http-sizes; do \
		for machine in box kvm xen; do $(TARGET)/release/fairlane lab run $$name --machine $$machine || status=1; done; \
		for machine in kvm xen; do \
			$(TARGET)/release/fairlane lab run $$name --machine $$machine --backend fairlane || status=1; \
		done; \
		out=out/lab/$$name; \
		$(TARGET)/release/fairlane compare $$out-box $$out-kvm $$out-kvm-fairlane $$out-xen $$out-xen-fairlane \
			--out $$out-compared || status=1; \
		for machine in uml qemu; do \
			for backend in kernel fairlane; do \
				$(TARGET)/release/fairlane lab run $$name --machine $$machine --backend $$backend || status=1; \
			done; \
			$(TARGET)/release/fairlane compare $$out-$$machine $$out-$$machine-fairlane --out $$out-$$machine-compared || status=1; \
		done; \
		$(TARGET)/release/fairlane lab run $$name --machine qemu-e1000 || status=1; \
		$(TARGET)/release/fairlane compare $$out-qemu $$out-qemu-e1000 --out $$out-cards-compared || status=1; \
		for backend in kernel fairlane; do \
			$(TARGET)/release/fairlane lab run $$name --machine xen --backend $$backend --clock instructions --repeats 1 || status=1; \
			$(TARGET)/release/fairlane lab run $$name --machine kvm --backend $$backend --clock instructions || status=1; \
		done; \
	done; \
	exit $$status

# Every experiment that claims something about Fairlane, served by Fairlane; fails if such a claim does not hold. On Xen's virtual clock,
# which takes hours, `restart` on its real one, and with guests of this host. `platforms` and `lab` run accept-rate and path-length, which
# claim something, too.
ON_XEN := isolation-equal-rate isolation-two-rates isolation-unlimited isolation-overactive isolation-disk isolation-cpu \
	priority-change min-rate early-ack-overhead
ON_UML := receive-stall receive-flood receive-shares tenants
claims: guests all
	$(TARGET)/release/fairlane lab setup
	status=0; \
	for name in $(ON_XEN); do \
		$(TARGET)/release/fairlane lab run $$name --machine xen --backend fairlane --clock instructions --repeats 1 || status=1; \
	done; \
	$(TARGET)/release/fairlane lab run restart --machine xen --backend fairlane || status=1; \
	for name in $(ON_UML); do $(TARGET)/release/fairlane lab run $$name --machine uml --backend fairlane || status=1; done; \
	exit $$status

# Suites that mostly wait for guests, and run beside all others; one of them that runs beside the last of these; and one that compares
# speeds, and runs alone.
WAIT := lab machines path pc
LATE := repeatable
ALONE := neighbours
WORK := $(filter-out $(WAIT) $(LATE) $(ALONE),$(basename $(notdir $(wildcard crates/*/tests/*.rs))) \
	$(notdir $(patsubst %/main.rs,%,$(wildcard crates/*/tests/*/main.rs))))
# What tests and their guests run is built once: statically, and for guests without symbols, beside what cargo does not build.
DEBUG := $(TARGET)/$(HOST)/debug
TESTED := $(DEBUG)/guests
# A test that waits for ever says so each minute, and fails here.
TEST := $(STATIC) timeout --verbose --kill-after=60 2700 $(CARGO) test --target $(HOST) --workspace --no-fail-fast

# The lab's packages are fetched, and tests wait for guests, while the linters run and fuzz targets are built.
test: export FAIRLANE_GUESTS := required
test: export FAIRLANE_AGENT := $(abspath $(TESTED))/fairlane-agent
test:
	$(MAKE) --jobs=2 tools debug
	$(MAKE) plugin mpi && cp $(PLUGIN) $(MPI) $(TESTED)
	{ $(DEBUG)/fairlane lab setup && $(TEST) $(WAIT:%=--test %); } > $(TARGET)/wait.log 2>&1 & wait=$$!; status=0; \
	$(MAKE) lint python || status=1; \
	nice fuzz/run --build 2 & \
	$(TEST) --lib --bins $(WORK:%=--test %) || status=1; \
	$(TEST) --doc || status=1; \
	fuzz/run 2 || status=1; \
	$(TEST) --test $(LATE) || status=1; \
	wait $$wait || status=1; cat $(TARGET)/wait.log; exit $$status
	$(TEST) --test $(ALONE)

PYTHON := $(foreach module,pandas matplotlib prometheus_client pytest mypy nbclient ipykernel,\
	/usr/lib/python3/dist-packages/$(module) python3-$(subst _,-,$(module)))
# All that tests run beside Fairlane.
tools: guests
	@deploy/need dpdk-testpmd dpdk-dev  haproxy haproxy  orterun openmpi-bin  nft nftables  prometheus prometheus \
		/usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h libopenmpi-dev \
		/usr/lib/python3/dist-packages/jsonschema python3-jsonschema  chromedriver chromium-driver \
		libvirtd libvirt-daemon-system  virsh libvirt-clients  bpftrace bpftrace  nats-server nats-server  openssl openssl \
		$(PYTHON)

debug:
	$(STATIC) $(CARGO) build --quiet --target $(HOST) --workspace --bins --tests
	@mkdir -p $(TESTED)
	for program in fairlane fairlane-agent hostile; do strip -o $(TESTED)/$$program $(DEBUG)/$$program || exit 1; done

# The Python package: its types, and its tests beside the command that a debug build made.
python:
	@deploy/need $(PYTHON)
	cd python && /usr/bin/python3 -m mypy
	cd python && FAIRLANE=$(abspath $(DEBUG))/fairlane /usr/bin/python3 -m pytest --quiet

lint: dependencies
	$(CARGO) fmt --check
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml
	$(CARGO) clippy --workspace --all-targets -- --deny warnings
	$(CARGO) clippy --manifest-path fuzz/Cargo.toml --target-dir $(TARGET) -- --deny warnings

# Checks the dependencies if they are not as they were when they were last found good: the checker takes minutes to build.
MANIFESTS := Cargo.lock Cargo.toml deny.toml $(wildcard crates/*/Cargo.toml crates/port/hostile/Cargo.toml)
dependencies:
	@sha256sum --check --status dependencies.sha256 || $(MAKE) dependencies.sha256

.PHONY: dependencies.sha256
dependencies.sha256: cargo-deny
	$(CARGO) deny --offline check bans licenses sources
	sha256sum $(MANIFESTS) > $@

# The same, and known vulnerabilities: fetches the list of advisories over the network.
deny: cargo-deny
	$(CARGO) deny check

cargo-deny:
	@command -v cargo-deny > /dev/null || $(CARGO) install --quiet --locked --debug cargo-deny

# The Debian packages fairlane and fairlane-lab, in $(TARGET)/debian. PROFILE=debug makes the first of the build that tests use.
PROFILE ?= release
EXTRAS := $(TARGET)/$(PROFILE)/deb
DEB := $(CARGO) deb --quiet --no-build --offline --locked --output $(TARGET)/debian/
deb: cargo-deb agent plugin mpi
	$(CARGO) build --quiet --package fairlane $(if $(filter release,$(PROFILE)),--release)
	$(MAKE) extras
	$(DEB) --package fairlane $(if $(filter release,$(PROFILE)),,--profile dev --fast) --strip
	$(DEB) --package fairlane-lab --target $(HOST) --profile agent

# What the program itself prints for its package.
extras:
	rm -rf $(EXTRAS)
	mkdir -p $(EXTRAS)/man
	$(TARGET)/$(PROFILE)/fairlane man $(EXTRAS)/man
	gzip -9n $(EXTRAS)/man/*
	gzip -9n < CHANGELOG.md > $(EXTRAS)/changelog.gz
	$(TARGET)/$(PROFILE)/fairlane schema > $(EXTRAS)/policy.schema.json
	for shell in bash zsh fish; do \
		$(TARGET)/$(PROFILE)/fairlane completions $$shell > $(EXTRAS)/fairlane.$$shell || exit 1; \
	done

# Both packages by lintian, and fairlane on a clean Debian 12 under systemd, in namespaces: needs root. Debian is fetched once.
# FAIRLANE_DEB_ROOT=/ takes a copy-on-write view of this machine instead.
FAIRLANE_DEB_ROOT ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fairlane/debian-12
deb-test: guests
	@deploy/need lintian lintian  mmdebstrap mmdebstrap  apparmor_parser apparmor
	$(MAKE) deb PROFILE=debug
	apparmor_parser --skip-kernel-load --skip-cache deploy/apparmor/fairlane
	lintian --allow-root --fail-on error $(TARGET)/debian/*.deb
	[ -d $(FAIRLANE_DEB_ROOT) ] || { mmdebstrap --quiet --variant=apt --include=systemd,systemd-sysv,dbus,iproute2 bookworm \
		$(FAIRLANE_DEB_ROOT).new && mv $(FAIRLANE_DEB_ROOT).new $(FAIRLANE_DEB_ROOT); }
	FAIRLANE_DEB_ROOT=$(FAIRLANE_DEB_ROOT) FAIRLANE_GUESTS=required $(CARGO) test --package fairlane --test package

cargo-deb:
	@command -v cargo-deb > /dev/null || $(CARGO) install --quiet --locked --debug cargo-deb

# Fairlane beside its peers: about seven minutes after the build, by its own estimate. Writes out/bench/result.json and report.html.
bench: peers all
	$(CARGO) run --quiet --release --package fairlane-bench -- --out out/bench

# A minute of arbitrary input for each fuzz target; `make test` runs each for some seconds.
fuzz:
	fuzz/run 60

# Simulated hours of 1,000 guests that start, stop, pause and attack, with kills, upgrades and moves: HOURS=72 SEED=1. `make test` runs
# a minute of it. Then 40,000 guests come and go beside a stream.
HOURS ?= 72
SEED ?= 1
soak:
	FAIRLANE_SOAK_HOURS=$(HOURS) FAIRLANE_SOAK_SEED=$(SEED) \
		$(CARGO) test --release --package fairlane-engine --test soak -- nothing_breaks
	FAIRLANE_GUESTS_COME=20000 $(CARGO) test --release --package fairlane-engine --test guests

# The gap that a guest sees while the backend is stopped and started: RESTARTS=50. Writes out/restart.
RESTARTS ?= 50
restarts: guests agent
	FAIRLANE_RESTARTS=$(RESTARTS) FAIRLANE_GUESTS=required $(CARGO) test --package fairlane --test restart -- --nocapture

# An hour of real guests on a daemon that is attacked, reconfigured, killed and upgraded: HOURS=1 SEED=1. `make test` runs some seconds
# of it.
soak-guests: HOURS = 1
soak-guests: guests agent
	FAIRLANE_SOAK_HOURS=$(HOURS) FAIRLANE_SOAK_SEED=$(SEED) FAIRLANE_GUESTS=required \
		$(CARGO) test --package fairlane --test soak_guests -- --nocapture

# 10,000 transfers, in each of which the backend is killed after random stores of early ack.
kills:
	FAIRLANE_TRANSFERS=10000 $(CARGO) test --package fairlane-port --test kills -- --nocapture transfers

# Serves rings while their guests race, under ThreadSanitizer.
race:
	TSAN_OPTIONS=suppressions=$(CURDIR)/crates/port/race.supp RUSTC_BOOTSTRAP=1 \
		RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg race" \
		$(CARGO) test --target $(HOST) --package fairlane-port --lib -- race --test-threads=1

# The same under Miri, which needs a nightly toolchain.
miri:
	MIRIFLAGS=-Zmiri-tree-borrows cargo +nightly miri test --package fairlane-port --lib -- race

# Proves the arithmetic of ring indices by trying its whole domain.
proofs:
	$(CARGO) test --release --package fairlane-port --lib -- --ignored proof_

clean:
	$(CARGO) clean
	rm -rf out
