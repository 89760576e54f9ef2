# sbxrun: the front door. `make run` and `make test` set up a fresh machine.

GO        ?= go
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS   := -s -w -X github.com/sbxrun/sbxrun/internal/engine.version=$(VERSION)
FUZZTIME  ?= 30s
RUNS      ?= 10000
DURATION  ?= 0s
CLIENTS   ?= 64
PACKAGES  := ./...
AT_ONCE   := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
# make test leaves these packages and tests to make test-rest, which runs them and
# no others; docs/testing.md says why. A package with one of the tests is in LONGIN.
LONGPKGS  := ./test/agents ./test/engine
LONGIN    := ./test/integration ./test/integration/conformance ./native ./internal/reexec ./pool ./driver/docker ./internal/files
LONG      := ^(TestBrokenLayers|TestMany(Runs|Sandboxes|Sessions)|TestSwapRaces|TestEvery(Step|Call)Fails|TestSupervisorKilledAtEvery(Step|Call)|TestHolderKilledAtEveryCall|TestThousandAtOnce|TestKilledAtRandom|TestPodman|TestOrdinaryUserEngines|TestLong(Jobs|Go|Learn|ProtectedRaces|ProtectedTwoRuns|PackStaysInside|ExtractFollowsNothing))$$|^TestWhy(Host)?IsTrue$$/^user$$|^Test(Python|Go|Java|Rust|Node|ExitCodes)$$/^root$$|^TestBattery$$/^(R05|R07)$$|^TestConformance$$/^(runc|crun|gvisor|docker|podman)$$
# The tests that take longest, to begin with.
FIRST     := ./test/integration ./test/integration/conformance ./native
# -count=1: the tests run programs that go test does not know they depend on. -vet=off:
# make lint and make test-long vet. -p: one more than there are processors, for a third of
# the time they wait; -parallel: those that wait say t.Parallel. -ldflags: no tables for
# debuggers, which take a third of the time to link.
GOTEST     = $(GO) test -count=1 -vet=off -ldflags=-w -p $(AT_ONCE) -parallel $$(($(AT_ONCE) + 1)) -timeout 30m $(TESTFLAGS)
CACHE     := $(CURDIR)/.cache
STATICCHECK := $(CACHE)/staticcheck

.PHONY: all
all: build

.PHONY: help
help: ## what the targets do
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-15s %s\n", $$1, $$2}'

.PHONY: run
run: ## build, and show the main job: a real command, confined, with its result
	@tools/deps run
	@$(MAKE) --no-print-directory build
	@tools/demo bin/sbxrun

# The binary that runs is static, so that it starts fast and runs anywhere. The
# compiler for seccomp profiles of one's own needs libseccomp and is a program
# beside it; without libseccomp everything else works.
.PHONY: build
build: ## bin/sbxrun, what does some of its work, and bin/sbxrun-seccomp where libseccomp is installed
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sbxrun ./cmd/sbxrun
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sbxrun-mcp ./cmd/sbxrun-mcp
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sbxrun-serve ./cmd/sbxrun-serve
	@if pkg-config --exists libseccomp 2>/dev/null; then \
		echo CGO_ENABLED=1 $(GO) build -o bin/sbxrun-seccomp ./cmd/sbxrun-seccomp; \
		CGO_ENABLED=1 $(GO) build -trimpath -ldflags '-s -w -linkmode external -extldflags -static' -o bin/sbxrun-seccomp ./cmd/sbxrun-seccomp; \
	else \
		echo 'bin/sbxrun-seccomp not built: it needs libseccomp (Debian: libseccomp-dev); only custom seccomp profiles need it'; \
	fi

.PHONY: test
test: ## install what the tests need, and run all that a change can easily break
	@tools/deps test
	@$(MAKE) --no-print-directory build
	$(GOTEST) -skip '$(LONG)' $(FIRST) $$($(GO) list $(PACKAGES) | grep -v $(LONGPKGS:./%=-e /%$$))

.PHONY: test-all
test-all: test test-rest ## make test and the rest: agents, engines, the soak, faults at every step, virtual machines

.PHONY: test-rest
test-rest: test-long vmtest ## what make test leaves out

.PHONY: test-long
test-long: ## the part of that which runs on this kernel
	@tools/deps all
	@tools/agents
	@$(MAKE) --no-print-directory build
	$(GO) vet $(PACKAGES)
	SBXRUN_SOAK_RUNS=$(RUNS) $(GOTEST) -run '$(LONG)' $(LONGIN)
	$(GOTEST) $(LONGPKGS)

.PHONY: security-report
security-report: ## what was tried against sbxrun, here and by make vmtest, and what came of it
	@tools/deps all
	$(GO) run ./test/report $(REPORTFLAGS)

.PHONY: soak
soak: ## RUNS runs (10000) and as many commands in sessions, for DURATION at least, that end in every way and leave nothing
	@tools/deps all
	SBXRUN_SOAK_RUNS=$(RUNS) SBXRUN_SOAK_TIME=$(DURATION) $(GO) test -count=1 -timeout 0 -v -run '^TestMany(Runs|Sandboxes|Sessions)$$' ./native ./test/integration

.PHONY: soak-serve
soak-serve: ## CLIENTS clients (64) of a server for DURATION; every byte compared, its memory watched
	SBXRUN_SOAK_TIME=$(DURATION) CLIENTS=$(CLIENTS) $(GO) test -count=1 -timeout 0 -v -run '^TestBytes$$' ./cmd/sbxrun-serve

.PHONY: soak-day
soak-day: ## a day by the clock of a virtual machine, in which all that can expire does; DURATION of work in its first hours
	@tools/deps vm
	$(GO) run ./test/vm -config day -timeout 180m -env SBXRUN_SOAK_TIME=$(DURATION)

.PHONY: faults
faults: ## what 10,000 kills leave of sbxrun, and 100 of each kind of its peers; as root, FAULTSFLAGS="-total 500 -kills 10"
	@tools/deps bench
	@$(MAKE) --no-print-directory build
	$(GO) run ./test/faults $(FAULTSFLAGS)

.PHONY: vmtest
vmtest: ## the tests on other kernels, in virtual machines; VMFLAGS="-config 6.1-root"
	@tools/deps vm
	$(GO) run ./test/vm $(VMFLAGS)

.PHONY: vmtest-nightly
vmtest-nightly: packages ## those that take too long for every change, on arm64 and newer kernels; VMFLAGS="-config 'arm64.*'"
	@tools/deps arm64
	$(GO) run ./test/vm -nightly -timeout 60m $(VMFLAGS)

.PHONY: race
race: ## the packages with concurrency, under the race detector
	$(GO) test -race -timeout 20m ./driver ./egress ./internal/... ./native ./cgroups ./driver/host ./pool ./session

.PHONY: lint
lint: $(STATICCHECK) ## gofmt, vet, staticcheck, and that generated files are current
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt:"; echo "$$out"; exit 1; fi
	$(GO) vet $(PACKAGES)
	GOOS=darwin $(GO) vet $$(GOOS=darwin $(GO) list $(PACKAGES) | grep -v -e /cmd/sbxrun-seccomp -e /seccomp/compile -e /seccomp/internal)
	$(STATICCHECK) $(PACKAGES)
	@before=$$(git diff -- profiles seccomp docs README.md | cksum); $(MAKE) --no-print-directory generate >/dev/null; \
		if [ "$$before" != "$$(git diff -- profiles seccomp docs README.md | cksum)" ]; then echo "make generate changes:"; git status --short -- profiles seccomp docs README.md; exit 1; fi

$(STATICCHECK): tools/go.mod
	cd tools && $(GO) build -o $@ honnef.co/go/tools/cmd/staticcheck

.PHONY: pictures
pictures: build ## docs/terminal.svg, from real runs, and docs/speed.svg, from docs/performance.md
	$(GO) run ./bench/picture bin/sbxrun

.PHONY: generate
generate: ## what is generated: presets, seccomp programs, the schema, the manual page
	$(GO) generate ./...

.PHONY: cross
cross: ## build and compile the tests for linux and darwin, amd64 and arm64
	@for os in linux darwin; do for arch in amd64 arm64; do \
		echo "$$os/$$arch"; \
		CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) build -o /dev/null ./cmd/sbxrun || exit 1; \
		CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) build -o /dev/null ./cmd/sbxrun-mcp || exit 1; \
		CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) build -o /dev/null ./cmd/sbxrun-serve || exit 1; \
		list=$$(CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) list $(PACKAGES) | grep -v -e /seccomp/compile -e /seccomp/internal -e /cmd/sbxrun-seccomp -e /test/); \
		CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) vet $$list || exit 1; \
	done; done

.PHONY: bench
bench: ## sbxrun beside bubblewrap, runc, firejail, gVisor and a C floor, in one run
	@tools/deps bench
	@$(MAKE) --no-print-directory build
	$(GO) run ./bench $(BENCHFLAGS)

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME
	@for f in $$(grep -rl --include='*_test.go' '^func Fuzz' . | sort); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$f); do \
			echo "$$target in $$(dirname $$f)"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5x $$(dirname $$f) || exit 1; \
		done; done

# A version of Debian's and RPM's form: 1.2.3, or 0.0.0 and the commit.
PACKAGE_VERSION ?= $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null | sed 's/^v//' | grep . || echo 0.0.0+git$$(git rev-list --count HEAD).$$(git rev-parse --short HEAD))
NFPM := $(CACHE)/nfpm

.PHONY: packages
packages: build $(NFPM) ## dist/*.deb and *.rpm for amd64 and arm64, with man pages, completions and the AppArmor profile
	@tools/deps packages
	@rm -rf dist && mkdir -p dist
	@for arch in amd64 arm64; do \
		packaging/stage $$arch $(VERSION) $(CACHE)/stage-$$arch || exit 1; \
		for kind in deb rpm; do \
			ARCH=$$arch PACKAGE_VERSION=$(PACKAGE_VERSION) STAGE=$(CACHE)/stage-$$arch $(NFPM) package -f packaging/nfpm.yaml -p $$kind -t dist/sbxrun_$$arch.$$kind || exit 1; \
		done; \
	done
	@packaging/check dist/sbxrun_$$($(GO) env GOHOSTARCH).deb dist/sbxrun_$$($(GO) env GOHOSTARCH).rpm

$(NFPM): tools/go.mod
	cd tools && $(GO) build -o $@ github.com/goreleaser/nfpm/v2/cmd/nfpm

.PHONY: clean
clean: ## what the other targets made here
	rm -rf bin dist $(CACHE)
