# Faults in containers. Included by the Makefile.

CHAOS ?= 30m

.PHONY: chaos
chaos: images images-chaos ## faults of CHAOS in containers, one after another, under clients whose history porcupine checks; CHAOS_SEED repeats their order
	@cd test/chaos && run=chaos-$$$$; $(MEMORY) set -o pipefail; \
	trap 'docker ps -aq --filter label=logplane.chaos='$$run' | xargs -r docker rm -fv >/dev/null' EXIT; \
	$(RELEASE) CHAOS_RUN=$$run CHAOS=$(CHAOS) go test -run '^TestChaos$$' -count 1 -v -timeout 0 . | grep -vE '^=== '

# A container has the clock of its machine. So a nats-server is built with another time.Now, which CLOCK_SKEW moves by
# that many seconds. Everything else is the release's, sources too.
.PHONY: images-chaos
images-chaos: $(IMAGES)/skewed/$(NATS_VERSION)
	@echo "image logplane/nats:skewed"
	@mkdir -p $(IMAGES)/skewed/empty
	@cp localstack/nats.conf $(IMAGES)/skewed/
	@$(DOCKER_BUILD) -t logplane/nats:skewed -f localstack/nats.Dockerfile $(IMAGES)/skewed >/dev/null 2>$(IMAGES)/skewed.log || { cat $(IMAGES)/skewed.log; exit 1; }

$(IMAGES)/skewed/$(NATS_VERSION): test/chaos/skew/skew.go.txt
	@echo "building nats-server with a clock that can be moved"
	@mkdir -p $(@D)
	@root=$$(go env GOROOT)/src/time; folder=$(CURDIR)/$(@D); \
	sed 's/^\tsec, nsec, mono := runtimeNow()$$/&\n\tsec += clockSkew/' $$root/time.go > $$folder/time.go.txt; \
	grep -q clockSkew $$folder/time.go.txt || { echo "this Go has another time.Now: see test/chaos/chaos.mk"; exit 1; }; \
	printf '{"Replace": {"%s": "%s", "%s": "%s"}}' $$root/time.go $$folder/time.go.txt $$root/skew.go $(CURDIR)/$< > $$folder/overlay.json
	@$(RELEASE) GOBIN=$(CURDIR)/$(@D) go install -overlay $(CURDIR)/$(@D)/overlay.json -ldflags "-s -w" github.com/nats-io/nats-server/v2@$(@F)
	@rm -f $(@D)/v* && touch $@
