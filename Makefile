# vnic: see `make help`. Every target runs from a clean clone on Debian 12 with Go 1.26.

GO      ?= go
TOOLS   := $(GO) tool -modfile=tools/go.mod
BIN     := build/vnic
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
# How long each fuzz target gets.
FUZZTIME ?= 60s
# Which benchmarks: all, or one of falcon tunnel uplink ports rdma roce iwarp driver record credits fleet guest.
BENCH   ?= all
# Everything is compiled in one way, which takes minutes on a new machine, once more with the race
# detector, which needs cgo, and the program once more for speed (cmd/vnic/default.pgo).
export GOFLAGS     := -trimpath -pgo=off $(GOFLAGS)
export CGO_ENABLED := 0

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the one static binary, build/vnic
	$(GO) build -pgo=auto -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/vnic

# Packages that use nothing of the host: their tests run on another processor, too.
PURE := ./internal/... ./falcon/wire ./falcon/psp ./queues/ring ./rdma/ib ./rdma/rof/wire ./rdma/roce/wire

.PHONY: cross
cross: deps ## build/vnic-arm64, and the tests of packets, rings and containers on an emulated arm64 processor
	GOARCH=arm64 $(GO) build -ldflags '$(LDFLAGS)' -o build/vnic-arm64 ./cmd/vnic
	GOARCH=arm64 $(GO) test -short -exec qemu-aarch64-static $(PURE)

.PHONY: demo
demo: build ## two QEMU guests do RDMA through two NICs, without root over UDP; without QEMU, two bare clients do
	@./tools/demo.sh $(BIN)

.PHONY: demo-pci
demo-pci: build ## the demo with functions that are PCI devices (vfio-user), in a newer QEMU that it downloads
	@./tools/demo.sh $(BIN) --pci --qemu "$$(./tools/qemu.sh)"

.PHONY: check
check: lint ## what to run before a commit: format, vet, staticcheck, import rules, all tests but the long ones with -race
	$(RACE) -shuffle=on -timeout 15m -skip '^Test(Long|Release|Inside)' ./...

.PHONY: lint
lint: ## gofumpt, vet, staticcheck, depguard
	@out=$$($(TOOLS) gofumpt -l $$(git ls-files -co --exclude-standard '*.go')); \
	  if [ -n "$$out" ]; then echo "not gofumpt-formatted (make fmt mends it):"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(TOOLS) staticcheck ./...
	$(TOOLS) depguard ./...

.PHONY: fmt
fmt: ## format all Go files
	$(TOOLS) gofumpt -w $$(git ls-files -co --exclude-standard '*.go')

.PHONY: generate
generate: ## regenerate the Go types, C header and reference of the device ABI, and the reference of the configuration
	$(GO) generate ./queues/abi ./device/config

.PHONY: deps
deps: ## install what the full tests and the demo need (Debian packages, by apt, as root)
	@./tools/deps.sh

.PHONY: fetch
fetch: ## download Go modules and the guests' kernel: nothing is downloaded later
	@GO='$(GO)' ./tools/fetch.sh

# Tests named TestLong… take more than half a minute on two processors. So do those named TestRelease…, and
# each differs from a TestLong… in one setting only. TestInside… run in the guest of another test. Packages in virtual time, where one thread plays all, and what counts allocations run
# without the race detector, which makes them ten times as slow and finds nothing where there is one thread;
# `make check` runs them with it. It lets each process wait a second before it ends, for races of goroutines
# that go on; tests leave none.
TESTENV  := VNIC_TEST_REQUIRE=1 VNIC_TEST_PROGRAM=$(CURDIR)/$(BIN)
RACE     := CGO_ENABLED=1 GORACE=atexit_sleep_ms=0 $(GO) test -race
VIRTUAL  := ./cmd/vnic/sim/scenario ./cmd/vnic/sim ./falcon/sim ./device/shard ./rdma
UNRACED  := $(VIRTUAL) ./queues
RACED     = $$($(GO) list ./... | grep -Ev '/(scenario|sim|shard|rdma)$$')

.PHONY: test
test: deps fetch build ## all tests but the long ones, with -race, TAPs and QEMU guests among them; fails rather than skips
	@$(GO) -C tools build -o ../build/report ./report
	$(TESTENV) $(RACE) -json -shuffle=on -timeout 30m -skip '^Test(Long|Release|Inside)' $(RACED) | build/report
	$(TESTENV) $(GO) test -json -shuffle=on -skip '^Test(Long|Release|Inside)' $(UNRACED) | build/report
	$(GO) -C tools test ./...

# The packages with long tests. The one whose tests take longest begins first: others run beside it.
LONGEST  := ./cmd/vnic/linuxtest
LONG      = $$(grep -rl --include='*_test.go' '^func TestLong' . | xargs -n 1 dirname | sort -u | grep -Ev '/(sim|shard|rdma)$$')

# How long test-long runs each fuzz target, and how many packets it simulates under faults.
FUZZED   ?= 5s
PACKETS  ?= 1e7

.PHONY: test-long
test-long: deps fetch build cross ## the long tests, each fuzz target for FUZZED (5s), and PACKETS (1e7) simulated packets under faults
	@$(GO) -C tools build -o ../build/report ./report
	$(TESTENV) $(RACE) -json -shuffle=on -timeout 60m -run '^TestLong' $(LONGEST) $(LONG) | build/report
	@./tools/fuzz.sh $(FUZZED)
	$(TESTENV) VNIC_SIM_PACKETS=$(PACKETS) $(GO) test -json -timeout 24h -run '^TestLong' $(VIRTUAL) | build/report

.PHONY: test-release
test-release: deps fetch build ## test-long with a minute of fuzzing and 1e9 packets, and its tests in settings that it leaves out: three hours
	@$(GO) -C tools build -o ../build/report ./report
	$(TESTENV) $(RACE) -json -timeout 60m -run '^TestRelease' ./cmd/vnic/linuxtest | build/report
	$(MAKE) test-long FUZZED=60s PACKETS=1e9

# How long soak goes on, and with which seed; none: another each time.
SOAK      ?= 10m
SOAK_SEED ?=

.PHONY: soak
soak: deps fetch build ## kills, upgrades, resets, VF changes and guest reboots in random order, twice for SOAK (10m): nothing may leak
	VNIC_TEST_REQUIRE=1 VNIC_SOAK=$(SOAK) VNIC_SOAK_SEED=$(SOAK_SEED) $(GO) test -count=1 -v -timeout 24h -run '^Test(Long)?(Soak|Settles)' ./cmd/vnic/run

.PHONY: pyverbs
pyverbs: deps fetch ## rdma-core's Python tests in a guest with the Linux driver, and with Soft-RoCE: how many succeed, and which do not
	$(GO) test -run '^$$' -bench '^BenchmarkPyverbs$$' -benchtime 1x -timeout 60m -v ./cmd/vnic/linuxtest

# How long stress goes on, how often each test is to run (0: until the time is over), and which tests.
STRESS ?= 10m
RUNS   ?= 0
MATCH  ?= .

.PHONY: stress
stress: deps fetch ## repeat the tests that use threads, sockets, TAPs, clocks or guests for STRESS (10m), on a quiet machine and a busy one
	$(GO) -C tools run ./stress -root .. -for $(STRESS) -runs $(RUNS) -match '$(MATCH)'

.PHONY: cover
cover: deps fetch ## statement coverage of the tests that `make test` runs, with the program that they start: a table by room, build/cover.html
	@GO='$(GO)' ./tools/cover.sh

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (60s); what it learns is kept in Go's build cache
	@./tools/fuzz.sh $(FUZZTIME)

.PHONY: bench
bench: ## benchmarks (it installs the peers that are missing), BENCH=all|falcon|tunnel|uplink|ports|rdma|roce|iwarp|driver|record|credits|fleet|guest; a table and build/bench.json
	@mkdir -p build
	-@./tools/deps.sh
	-@GO='$(GO)' ./tools/fetch.sh
	$(GO) -C tools run ./bench -root .. -rooms $(BENCH) -o ../build/bench.json

# What the profile is made of.
PROFILED := DataPath(Write|Read|Send).*|(RoCE|IWARP)Write.*

.PHONY: profile
profile: deps ## measure anew what runs most on the data path: cmd/vnic/default.pgo, with which the program is compiled
	VNIC_TEST_REQUIRE=1 $(GO) test -run '^$$' -bench '$(PROFILED)' -benchtime 20000x -cpuprofile cmd/vnic/default.pgo -o build/device.test ./device

.PHONY: driver
driver: ## the driver for Linux guests: kernel module and rdma-core provider, in build/linux
	$(MAKE) -C guestlib/linux

.PHONY: driver-series
driver-series: deps fetch ## the driver as patches for the newest kernel and rdma-core of Debian (sid), built there, in build/driver-series
	@./tools/deps.sh series
	./guestlib/linux/series.sh build/driver-series

# Which of the driver's tests run on the kernel that finds fault with it.
DRIVER_TESTS ?= ^TestLongDriver(Programs|PCI|NVMe|IWARPNVMe|Unload|Hostile|Stall)?$$

.PHONY: driver-debug
driver-debug: deps fetch build ## the driver's tests in guests whose kernel has KASAN, lockdep and more; it is built the first time, which may take most of an hour
	@./tools/deps.sh kernel
	kernel=$$(./guestlib/linux/debug-kernel.sh) && \
	  VNIC_DRIVER_KERNEL=$$kernel $(TESTENV) $(GO) test -count=1 -v -timeout 4h -run '$(DRIVER_TESTS)' ./cmd/vnic/linuxtest

.PHONY: pictures
pictures: deps ## take the pictures of the page in docs/img anew
	VNIC_PICTURES=$(CURDIR)/docs/img $(GO) test -count=1 -run '^TestThePageOfANICWithTraffic$$' ./cmd/vnic/webtest

.PHONY: packages
packages: build ## Debian packages in build/packages: vnic, vnic-dkms, ibverbs-provider-vnic
	@./guestlib/linux/packages.sh build/packages

.PHONY: image
image: build ## an OCI image with the program, build/vnic.oci.tar, for podman, docker and skopeo; docs/operations.md runs it
	$(GO) -C tools build -o ../build/oci ./oci
	build/oci -program $(BIN) -arch $$($(GO) env GOARCH) -version $(VERSION) -out build/vnic.oci.tar

.PHONY: packages-test
packages-test: deps fetch packages ## install the packages in a new Debian, in a folder and in a guest, dkms and all, and purge them; as root
	@./guestlib/linux/packages-test.sh build/packages

.PHONY: clean-machine
clean-machine: ## test and bench from a clean clone with empty caches and package lists
	@./tools/clean-machine.sh

.PHONY: clean
clean: ## remove what the targets made
	rm -rf build demo-out
