# Logplane: run 'make help'.
SHELL := /bin/bash
.DEFAULT_GOAL := help

KUBERNETES := $(shell awk '$$1 == "k8s.io/kubernetes" { print $$2 }' go.mod)
VERSION    := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
RELEASE    := CGO_ENABLED=0 GOFLAGS="-trimpath -tags=grpcnotrace"
# By default a race build sleeps a second at its end, to find races of goroutines that outlive main. Tests need no such
# sleep.
RACE       := GORACE=atexit_sleep_ms=0 CGO_ENABLED=1 GOFLAGS="-trimpath -tags=grpcnotrace"
STAMP      := -X k8s.io/component-base/version.gitVersion=$(KUBERNETES) \
              -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$(word 2,$(subst ., ,$(KUBERNETES)))
BIN        := $(CURDIR)/bin
# subscribe is a module of its own. The module test/subscribe tests it on a cell of this checkout, with the versions of
# this go.mod.
SUBSCRIBE  := . github.com/logplane/logplane/subscribe/...
FUZZTIME   ?= 20s
# Each event of a log is synced before it is acknowledged, which takes milliseconds on a disk. So tests put their files
# into memory if there is room for the files and for the tests themselves. GOTMPDIR is unset, because since Go 1.26
# tests would put their files there. Files that a killed test left behind are removed after a day.
MEMORY     := if [ -w /dev/shm ] && [ "$$(df --output=avail /dev/shm | tail -1)" -gt 6000000 ] 2>/dev/null; then \
                unset GOTMPDIR; export TMPDIR=/dev/shm/logplane-$$(id -u); mkdir -p $$TMPDIR; \
                find $$TMPDIR -mindepth 1 -maxdepth 1 -mmin +1440 -exec rm -rf {} +; fi;
# These tests take long under the race detector. With the race detector they do only a part of their work
# (eventlogtest.Slowdown); without the race detector they do all of it.
LONG       := ^(TestARestoreThatBreaksOff|TestCrashTable|TestDayOfHistory|TestForget|TestGarbage.*|TestInformers|TestKill|TestLargeLists|TestListsOfChunks|TestOptimisticIncrements|TestProcesses|TestRandomHistories.*|TestReplay|TestRequestsOfAMillionObjects|TestRestoreIsExact|TestRestoreOfATrimmedPast|TestThePastIsExact|TestTimesAreExactAmongWrongOnes|TestTrim|TestUndoThroughKills)$$
# PROGRESS counts the packages that 'go build -v' names, and prints all other output unchanged.
PROGRESS   := awk '/ / { print; next } { n++; if (n % 100 == 0) { print "  " n " packages compiled"; fflush() } }'

include localstack/localstack.mk
include test/bench/bench.mk
include test/chaos/chaos.mk
include tools/release/release.mk

.PHONY: help
help: ### list the targets that most changes need
	@grep -hE '^[a-z-]+:.* ## ' $(MAKEFILE_LIST) | awk -F':.* ## ' '{printf "  %-20s %s\n", $$1, $$2}'
	@echo "  help-all             list all targets"

.PHONY: help-all
help-all: ### list all targets
	@grep -hE '^[a-z-]+:.* ###? ' $(MAKEFILE_LIST) | awk -F':.* ###? ' '{printf "  %-20s %s\n", $$1, $$2}'

.PHONY: dev
dev: $(BIN)/logplane ## build and run a whole cell on 127.0.0.1:7373 (the first build takes minutes)
	@exec $(BIN)/logplane dev $(ARGS)

.PHONY: build
build: $(BIN)/logplane ## build bin/logplane, and bin/kubectl-logplane, by which kubectl finds it as a plug-in
	@ln -sf logplane $(BIN)/kubectl-logplane

# The binary is phony, because Go itself decides whether it is out of date.
.PHONY: $(BIN)/logplane
$(BIN)/logplane:
	@echo "building bin/logplane (the first build compiles Kubernetes: expect some minutes)"
	@set -o pipefail; $(RELEASE) go build -v -ldflags "-s -w $(STAMP)" -o $@ ./cmd/logplane 2>&1 | $(PROGRESS)

.PHONY: race-build
race-build: ### build bin/race/logplane, which the end-to-end tests run
	@echo "building bin/race/logplane with the race detector"
	@set -o pipefail; $(RACE) go build -race -v -ldflags "-w $(STAMP)" -o $(BIN)/race/logplane ./cmd/logplane 2>&1 | $(PROGRESS)

$(BIN)/kubectl: tools/kubectl/go.mod
	@echo "building bin/kubectl $(KUBERNETES)"
	@cd tools/kubectl && $(RELEASE) go build -ldflags "-s -w $(STAMP) -X k8s.io/client-go/pkg/version.gitVersion=$(KUBERNETES)" -o $@ k8s.io/kubernetes/cmd/kubectl

.PHONY: kubectl
kubectl: $(BIN)/kubectl ## build bin/kubectl from its module

# kwok simulates nodes and Pods. Its module also has the stages of that simulation, and the role that kwok needs.
.PHONY: controllers
controllers: ### build upstream's controller manager and scheduler, and kwok, into bin/controllers (ten minutes the first time)
	@mkdir -p $(BIN)/controllers
	@cd tools/controllers && $(RELEASE) go build -ldflags "-s -w $(STAMP)" -o $(BIN)/controllers/ tool
	@cd tools/controllers && kwok=$$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize && \
	  for f in $$kwok/stage/node/fast/node-initialize.yaml $$kwok/stage/pod/fast/pod-*.yaml; do echo ---; cat $$f; done > $(BIN)/controllers/stages.yaml && \
	  cat $$kwok/rbac/role.yaml > $(BIN)/controllers/kwok-role.yaml

.PHONY: controllers-test
controllers-test: controllers race-build ### workloads under upstream's controllers, on 'api' and 'watcher' processes
	@$(MEMORY) $(RACE) LOGPLANE_BINARY=$(BIN)/race/logplane go test -race -vet=off -ldflags=-w -timeout 40m -count 1 -v -run '^TestControllers$$' ./test/e2e

.PHONY: conformance
conformance: controllers $(BIN)/kubectl build ### upstream's conformance tests that need no container, under upstream's controllers, on 'api' and 'watcher' processes (an hour; builds for twenty minutes the first time)
	@cd tools/conformance && $(RELEASE) go test -c -ldflags "-s -w $(STAMP)" -o $(BIN)/conformance/e2e.test k8s.io/kubernetes/test/e2e
	@$(MEMORY) $(RELEASE) LOGPLANE_BINARY=$(BIN)/logplane KUBECTL=$(BIN)/kubectl go test -vet=off -ldflags=-w -timeout 2h -count 1 -v -run '^TestConformance$$' ./test/e2e

# The tests install the charts and the example that the modules contain.
.PHONY: products
products: ### build the processes of cert-manager and kro into bin/products, with their charts (twenty minutes the first time)
	@rm -rf $(BIN)/products && mkdir -p $(BIN)/products/cert-manager $(BIN)/products/kro
	@cd tools/certmanager && $(RELEASE) go build -ldflags "-s -w" -o $(BIN)/products/cert-manager/ ./... && \
	  cp -r --no-preserve=mode $$(go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)/deploy/charts/cert-manager $(BIN)/products/cert-manager/chart
	@cd tools/kro && $(RELEASE) go build -ldflags "-s -w" -o $(BIN)/products/kro/ tool && \
	  kro=$$(go list -m -f '{{.Dir}}' github.com/kubernetes-sigs/kro) && \
	  cp -r --no-preserve=mode $$kro/helm $(BIN)/products/kro/chart && cp -r --no-preserve=mode $$kro/examples/kubernetes/webapp $(BIN)/products/kro/

.PHONY: products-test
products-test: products build ### cert-manager, kro and Helm's SDK, on 'api' and 'watcher' processes
	@cd test/products && $(MEMORY) $(RELEASE) LOGPLANE_BINARY=$(BIN)/logplane go test -vet=off -ldflags=-w -timeout 40m -count 1 -v .

$(BIN)/golangci-lint $(BIN)/govulncheck $(BIN)/benchstat &: tools/go.mod
	@echo "building the tools"
	@cd tools && $(RELEASE) go build -o $(BIN)/ tool

$(BIN)/actionlint: tools/actionlint/go.mod
	@cd tools/actionlint && $(RELEASE) go build -o $@ tool

.PHONY: lint
lint: $(BIN)/golangci-lint $(BIN)/actionlint ## format and import rules, vet, static checks, workflows
	@$(BIN)/actionlint -shellcheck= -pyflakes= .github/workflows/*.yml
	@$(RELEASE) $(BIN)/golangci-lint run ./...
	@for module in subscribe logplanecmd test/subscribe test/history test/outside test/chaos infra/check; do (cd $$module && $(RELEASE) $(BIN)/golangci-lint run --config $(CURDIR)/.golangci.yml ./...) || exit 1; done

# The search for calls of vulnerable code takes a minute. It is skipped if no package has a vulnerability.
.PHONY: vulnerabilities
vulnerabilities: $(BIN)/govulncheck ### known vulnerabilities; says so and goes on where their database is out of reach
	@for scan in package symbol; do \
	  out=$$($(RELEASE) $(BIN)/govulncheck -scan=$$scan ./... 2>&1) && code=0 || code=$$?; \
	  if grep -qE 'fetching vulnerabilities|dial tcp|no such host|Forbidden' <<<"$$out"; then echo "vulnerabilities: database out of reach, not checked"; exit; fi; \
	  if [ $$code = 0 ]; then break; fi; \
	done; echo "$$out" | tail -20; exit $$code

# Tests of attacks measure costs, which the race detector multiplies, and tests of functions have deadlines. So both run
# the binary that is shipped. Vet runs only in 'lint', here and below.
RACE_TEST := $(MEMORY) $(RACE) LOGPLANE_BINARY=$(BIN)/race/logplane KUBECTL=$(BIN)/kubectl go test -race -vet=off -ldflags=-w $$(go list ./... | grep -vE '/test/(hostile|serverless)$$')

# MODULES runs the tests of other modules, two modules at a time, because these tests wait for processes more than they
# work.
MODULES  := $(MAKE) --no-print-directory -j2 -Otarget
LIMITS   ?= -timeout 40m
RACE_MOD := $(MEMORY) $(RACE) LOGPLANE_BINARY=$(BIN)/race/logplane go test -race -vet=off -ldflags=-w

.PHONY: history-test subscribe-test outside-test
history-test:
	@cd test/history && $(RACE_MOD) $(LIMITS) .
subscribe-test:
	@cd test/subscribe && $(RACE_MOD) -p 1 $(LIMITS) $(SUBSCRIBE)
outside-test:
	@cd test/outside && $(RACE_MOD) -timeout 10m ./...
	@cd logplanecmd && $(RACE_MOD) -timeout 10m .
	@cd tools/release && $(RELEASE) go test -vet=off ./...

.PHONY: check
check: lint vulnerabilities race-build $(BIN)/kubectl ## lint, vulnerabilities and the short race tests: before every commit
	@$(RACE_TEST) -short -timeout 10m
	@$(MODULES) history-test subscribe-test LIMITS='-short -timeout 10m'

.PHONY: test
test: lint race-build build $(BIN)/kubectl images-test ## everything CI runs
	@$(RACE_TEST) -timeout 40m
	@$(MODULES) history-test subscribe-test outside-test infra-test
	@$(MEMORY) $(RELEASE) LOGPLANE_BINARY=$(BIN)/logplane go test -vet=off -ldflags=-w -timeout 40m -run '$(LONG)' ./projection ./internal/apiserver ./functions/lifecycle ./test/e2e
	@$(MEMORY) $(RELEASE) LOGPLANE_BINARY=$(BIN)/logplane go test -vet=off -ldflags=-w -p 1 -timeout 40m ./test/hostile ./test/serverless
	@$(MAKE) --no-print-directory chaos-test

# Go's cache of test results does not know the files that infra-test checks.
.PHONY: infra-test
infra-test: build images-test ### infra/ against the binary, offline: Terraform, permissions, the chart, the log, cost
	@cd infra/check && $(MEMORY) $(RELEASE) LOGPLANE_BINARY=$(BIN)/logplane go test -vet=off -ldflags=-w -timeout 10m -count 1 ./...

.PHONY: fuzz
fuzz: ### fuzz every decoder for FUZZTIME each
	@grep -rlE '^func Fuzz' --include=*_test.go . | xargs -n1 dirname | sort -u | while read -r package; do \
	  for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' $$package/*_test.go | sed 's/func //'); do \
	    echo "$$package $$target"; $(RELEASE) go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5x $$package || exit 1; \
	  done; done

.PHONY: fuzz-http
FUZZ_HTTP ?= 1h
fuzz-http: build ### fuzz the built binary over HTTP for FUZZ_HTTP; FUZZ_HTTP_SEED repeats a run
	@set -o pipefail; $(RELEASE) FUZZ_HTTP=$(FUZZ_HTTP) go test ./test/hostile -run '^TestFuzzHTTP$$' -count 1 -v -timeout 0 | grep -vE '^=== |^    --- PASS'

ATTACK ?= 15s
.PHONY: attack
attack: build ### each attack for ATTACK beside a tenant and an administrator: what they notice of it; ATTACKS=name for some
	@set -o pipefail; $(RELEASE) ATTACK=$(ATTACK) go test ./test/hostile -run '^TestAttack$$' -count 1 -v -timeout 0 | grep -vE '^=== '

SOAK ?= 100000
.PHONY: soak
soak: images-test ### the simulation with SOAK reads, on memory, filesystem and MinIO
	@$(RELEASE) LOGPLANE_SOAK=$(SOAK) go test ./projection -run '^TestSimulation$$' -v -timeout 60m | grep -vE '^=== '

.PHONY: mutants
mutants: ### small mistakes in the code, one at a time, that tests must notice; MUTANT=purge for some (some minutes)
	@set -o pipefail; $(RELEASE) LOGPLANE_MUTANTS=1 go test ./test/mutants -run '^TestMistakesAreNoticed$$//$(MUTANT)' -count 1 -v -timeout 60m | grep -vE '^ *=== '

MINUTES ?= 10
.PHONY: history
history: race-build ### histories of MINUTES each, on one server and on three, with kills, pauses and fences, checked by porcupine
	@set -o pipefail; export LOGPLANE_HISTORIES=$(MINUTES)m; cd test/history && $(RACE_MOD) -run '^TestHistory$$' -v -timeout $$((3 * $(MINUTES) + 20))m . | grep -vE '^=== '

SIMULATE ?= 10m
BUCKET ?= memory
.PHONY: simulate
simulate: ### what clients are told, in cells simulated for SIMULATE on a BUCKET (memory, filesystem or minio), one at a time on each core; replay with LOGPLANE_SIMULATE_SEED, go on after a finding with SIMULATE_ALL=1, and with one affliction with SIMULATE_ONLY='the log goes back'
	@$(RELEASE) go test -c -o $(BIN)/simulate ./test/simulate
	@set -o pipefail; for core in $$(seq $$(nproc)); do \
	  (cd test/simulate && SIMULATE=$(SIMULATE) BUCKET=$(BUCKET) $(BIN)/simulate -test.run '^TestSimulate$$' -test.v -test.timeout 0 | grep -vE '^=== ') & runs+=($$!); \
	done; for run in $${runs[@]}; do wait $$run || failed=1; done; exit $${failed:-0}

.PHONY: bench
bench: build ### benchmarks, in the form benchstat reads; not those of 'make bench-memory'
	@$(RELEASE) LOGPLANE_BINARY=$(BIN)/logplane go test -run '^$$' -bench . -skip '^Benchmark(MemoryAfterLoad|ManyPods)$$' -benchmem -timeout 60m ./eventlog/... ./projection/... ./internal/... ./test/bench/...

.PHONY: replay
replay: ### a million events at 1,000 a second of simulated time: requests, write amplification, what it costs
	@$(RELEASE) LOGPLANE_REPLAY=$${LOGPLANE_REPLAY:-1000000} go test ./projection -run '^TestReplay$$' -v -timeout 60m | grep -vE '^=== '

.PHONY: replay-day
replay-day: ### a day of history of 20 nodes in five minutes: what it takes in the bucket, with rules and without
	@$(MEMORY) $(RELEASE) LOGPLANE_DAY_NODES=20 LOGPLANE_DAY_HOURS=24 LOGPLANE_DAY_MILLISECONDS=4000 go test ./projection -run '^TestDayOfHistory$$' -v -timeout 30m | grep -vE '^=== '

.PHONY: archive
archive: ### a gigabyte of events that are kept, in some minutes: what a root, a commit, a checkpoint and the projector's memory are meanwhile
	@$(RELEASE) GOMEMLIMIT=256MiB LOGPLANE_ARCHIVE=1024 LOGPLANE_ARCHIVE_SEGMENTS=32 go test ./projection -run '^TestGrowingArchive$$' -v -timeout 60m | grep -vE '^=== '

.PHONY: bench-watch
bench-watch: build ### ten thousand watches: rolling restarts, fan-out, a million events; memory of one watch (about 8 minutes)
	@set -o pipefail; $(RELEASE) LOGPLANE_BINARY=$(BIN)/logplane LOGPLANE_BENCH_WATCHES=10000 go test -run '^$$' -bench 'Rolling|FanOut|UpdateStorm' -benchtime 1x -v -timeout 30m ./test/bench | grep -vE '^=== '
	@$(RELEASE) go test -run '^$$' -bench FanOut -benchtime 100x ./internal/kubestore

.PHONY: bench-memory
bench-memory: build ### resident memory at the start, at the peak of a load and after it (about 12 minutes)
	@set -o pipefail; $(RELEASE) LOGPLANE_BINARY=$(BIN)/logplane go test -run '^$$' -bench 'MemoryAfterLoad|ManyPods' -benchtime 1x -v -timeout 60m ./test/bench | grep -vE '^=== '

.PHONY: bench-scale
bench-scale: build ### a cell as large as the largest clusters, and what each thing costs as it grows (about 13 minutes, 3 GB of disk; some 5 with LOGPLANE_SCALE=8000)
	@set -o pipefail; $(RELEASE) LOGPLANE_BINARY=$(BIN)/logplane LOGPLANE_SCALE=$${LOGPLANE_SCALE:-100000} go test -run '^$$' -bench '^BenchmarkScale$$' -benchtime 1x -v -timeout 30m ./test/bench | grep -vE '^=== '
	@$(RELEASE) go test -run '^$$' -bench AppendByMany -benchtime 3s ./eventlog

.PHONY: upgrade
upgrade: ### move every module to Kubernetes VERSION (docs/upgrading-kubernetes.md)
	@test -n "$(TO)" || { echo "name the version: make upgrade TO=1.38.0"; exit 2; }
	@tools/upgrade.sh $(TO)

.PHONY: generate
generate: ## rebuild what is embedded: OpenAPI and discovery of the built-ins, and who manages what a new cluster has
	@$(RELEASE) go generate ./...
