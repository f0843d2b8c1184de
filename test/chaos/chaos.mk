# The targets for tests of faults in containers. The Makefile includes this file.

CHAOS  ?= 30m
SKEWED := $(IMAGES)/skewed
# A killed test leaves its containers, so they are removed here, by the label of the run.
CHAOS_TEST = run=chaos-$$$$; trap 'docker ps -aq --filter label=logplane.chaos='$$run' 2>/dev/null | xargs -r docker rm -fv >/dev/null' EXIT; \
             cd test/chaos; set -o pipefail; $(RELEASE) CHAOS_RUN=$$run CHAOS_SEED=$(CHAOS_SEED)

.PHONY: chaos
chaos: images-minio images-skewed-nats images-skewed-logplane ### faults of CHAOS in containers, one after another, under clients whose history porcupine checks; CHAOS_SEED repeats their order
	@$(CHAOS_TEST) CHAOS=$(CHAOS) CHAOS_IMAGE=logplane/logplane:skewed go test -vet=off -run '^TestChaos$$' -count 1 -v -timeout 0 . | grep -vE '^=== '

# chaos-test takes less than three minutes. It does not build all of Kubernetes again, because the processes' own clocks
# are right.
.PHONY: chaos-test
chaos-test:
	@if docker version >/dev/null 2>&1 || [ "$$CI" = true ]; then $(MAKE) --no-print-directory images-minio images-logplane images-skewed-nats; fi
	@$(CHAOS_TEST) go test -vet=off -run '^TestChaos$$' -count 1 -v -timeout 10m . | grep -vE '^=== '

# A container has the clock of its machine. So programs are built with another time.Now, which is wrong by CLOCK_SKEW
# seconds. Otherwise these images are like the other images.
$(SKEWED)/overlay.json: test/chaos/skew.go.txt test/chaos/chaos.mk
	@mkdir -p $(@D)
	@root=$$(go env GOROOT)/src/time; folder=$(CURDIR)/$(@D); \
	sed 's/^\tsec, nsec, mono := runtimeNow()$$/&\n\tsec += clockSkew/' $$root/time.go > $$folder/time.go.txt; \
	grep -q clockSkew $$folder/time.go.txt || { echo "this Go has another time.Now: see test/chaos/chaos.mk"; exit 1; }; \
	printf '{"Replace": {"%s": "%s", "%s": "%s"}}' $$root/time.go $$folder/time.go.txt $$root/skew.go $(CURDIR)/$< > $@

SKEW = $(DOCKER_BUILD) --build-arg IMAGE=logplane/$(1):$(TAG) -t logplane/$(1):skewed -f test/chaos/skewed.Dockerfile $(SKEWED)/$(1) \
       >/dev/null 2>$(SKEWED)/$(1).log || { cat $(SKEWED)/$(1).log; exit 1; }

.PHONY: images-skewed-nats images-skewed-logplane
images-skewed-nats: images-nats $(SKEWED)/nats/$(NATS_VERSION)
	@echo "image logplane/nats:skewed"
	@$(call SKEW,nats)

$(SKEWED)/nats/$(NATS_VERSION): $(SKEWED)/overlay.json
	@echo "building nats-server with a clock that can be moved"
	@rm -rf $(@D) && mkdir -p $(@D)/program
	@$(RELEASE) GOBIN=$(CURDIR)/$(@D)/program go install -overlay $(CURDIR)/$< -ldflags "-s -w" github.com/nats-io/nats-server/v2@$(@F)
	@touch $@

images-skewed-logplane: images-logplane $(SKEWED)/overlay.json
	@echo "image logplane/logplane:skewed, whose clock can be moved (the first build compiles all of Kubernetes again)"
	@mkdir -p $(SKEWED)/logplane/program
	@$(RELEASE) go build -overlay $(CURDIR)/$(SKEWED)/overlay.json -ldflags "-s -w $(STAMP)" -o $(SKEWED)/logplane/program/logplane ./cmd/logplane
	@$(call SKEW,logplane)
