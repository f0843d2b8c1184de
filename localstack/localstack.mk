# Images without a registry, and the whole of Logplane in containers. Included by the Makefile.

IMAGES := bin/images
MINIO_VERSION := v0.0.0-20260212201848-7aac2a2c5b7c
NATS_VERSION := v2.15.2
# An image is a static program on nothing: no base to pull, no shell in it. The classic builder needs nothing
# from a registry; what it says about its age is not the reader's business.
DOCKER_BUILD := DOCKER_BUILDKIT=0 docker build --quiet
# The tag of the images that are built and run, and the processor of 'logplane'.
TAG          ?= dev
ARCH         ?= $(shell go env GOARCH)
COMMIT       := $(shell git rev-parse HEAD 2>/dev/null)
COMMIT_TIME  := $(shell TZ=UTC git show -s --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd HEAD 2>/dev/null)
OCI          := org.opencontainers.image
LABELS       := --label $(OCI).version=$(VERSION) --label $(OCI).revision=$(COMMIT) --label $(OCI).created=$(COMMIT_TIME)
# A second stack beside the first needs another name and another port.
STACK        ?= logplane
API_PORT     ?= 7380
# How many 'api' there are, and how many NATS servers: one or three.
APIS         ?= 2
NATS_SERVERS ?= 1
STATE        := localstack/.state/$(STACK)
NATS_URLS_1  := nats://nats:4222
NATS_URLS_3  := nats://nats:4222,nats://nats-2:4222,nats://nats-3:4222
# Docker's own compose, or the program of before.
COMPOSE_OF = env LOGPLANE_STATE=$(CURDIR)/$(STATE) LOGPLANE_API_PORT=$(API_PORT) LOGPLANE_TAG=$(TAG) \
             LOGPLANE_NATS_SERVERS=$(NATS_SERVERS) LOGPLANE_NATS_URLS=$(NATS_URLS_$(NATS_SERVERS)) \
             $$(docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose) \
             -p $(STACK) -f localstack/docker-compose.yml
THREE   := -f localstack/three.yml
COMPOSE  = $(COMPOSE_OF) $(if $(filter 3,$(NATS_SERVERS)),$(THREE))

.PHONY: images images-minio images-nats images-logplane
images: images-minio images-nats images-logplane ## build all container images from Go modules, without a registry

# What 'make test' needs: without Docker its container tests are skipped, but never in CI.
.PHONY: images-test
images-test:
	@if docker version >/dev/null 2>&1 || [ "$$CI" = true ]; then $(MAKE) --no-print-directory images-minio; \
	else echo "no Docker here: tests in containers will be skipped"; fi

images-minio: $(IMAGES)/minio/$(MINIO_VERSION)
	@echo "image logplane/minio:$(TAG)"
	@mkdir -p $(IMAGES)/minio/empty
	@$(RELEASE) go build -ldflags "-s -w" -o $(IMAGES)/minio/probe ./localstack/probe
	@$(DOCKER_BUILD) -t logplane/minio:$(TAG) -f localstack/minio.Dockerfile $(IMAGES)/minio >/dev/null 2>$(IMAGES)/minio.log || { cat $(IMAGES)/minio.log; exit 1; }

images-nats: $(IMAGES)/nats/$(NATS_VERSION)
	@echo "image logplane/nats:$(TAG)"
	@mkdir -p $(IMAGES)/nats/empty
	@cp localstack/nats.conf $(IMAGES)/nats/
	@$(RELEASE) go build -ldflags "-s -w" -o $(IMAGES)/nats/probe ./localstack/probe
	@$(DOCKER_BUILD) -t logplane/nats:$(TAG) -f localstack/nats.Dockerfile $(IMAGES)/nats >/dev/null 2>$(IMAGES)/nats.log || { cat $(IMAGES)/nats.log; exit 1; }

# What the program was built from is in the image, and beside it as bin/images/logplane-ARCH/logplane.spdx.json.
OF_ARCH := $(IMAGES)/logplane-$(ARCH)
images-logplane: images-logplane-files
	@echo "image logplane/logplane:$(TAG) for linux/$(ARCH)"
	@$(RELEASE) GOOS=linux GOARCH=$(ARCH) go build -ldflags "-s -w $(STAMP)" -o $(OF_ARCH)/logplane ./cmd/logplane
	@$(BIN)/release sbom $(OF_ARCH)/logplane $(OF_ARCH)/logplane.spdx.json
	@$(DOCKER_BUILD) --platform linux/$(ARCH) $(LABELS) -t logplane/logplane:$(TAG) -f localstack/logplane.Dockerfile $(OF_ARCH) >/dev/null 2>$(IMAGES)/logplane.log || { cat $(IMAGES)/logplane.log; exit 1; }

# What the image has beside the program, for a release's images too.
.PHONY: images-logplane-files
images-logplane-files: $(BIN)/release
	@mkdir -p $(OF_ARCH)/empty
	@$(RELEASE) GOOS=linux GOARCH=$(ARCH) go build -ldflags "-s -w" -o $(OF_ARCH)/probe ./localstack/probe
	@$(BIN)/release roots $(OF_ARCH)/ca-certificates.crt

.PHONY: $(BIN)/release
$(BIN)/release:
	@cd tools/release && $(RELEASE) go build -o $@ .

# An empty file named by its version stands for each program.
$(IMAGES)/minio/$(MINIO_VERSION):
	@echo "building MinIO from its Go module: some minutes, once"
	@$(RELEASE) GOBIN=$(CURDIR)/$(@D) go install -ldflags "-s -w" github.com/minio/minio@$(@F)
	@rm -f $(@D)/v* && touch $@

$(IMAGES)/nats/$(NATS_VERSION):
	@echo "building nats-server from its Go module"
	@$(RELEASE) GOBIN=$(CURDIR)/$(@D) go install -ldflags "-s -w" github.com/nats-io/nats-server/v2@$(@F)
	@rm -f $(@D)/v* && touch $@

.PHONY: up smoke logs down
up: images $(BIN)/kubectl ## run NATS, MinIO, two api, watcher, front, projector and lifecycle in containers
	@[ -n "$(NATS_URLS_$(NATS_SERVERS))" ] || { echo "NATS_SERVERS is '$(NATS_SERVERS)': it must be 1 or 3"; exit 1; }
	@$(RELEASE) go run ./localstack/credentials $(STATE) https://127.0.0.1:$(API_PORT)
	@$(COMPOSE) up -d --remove-orphans --scale api=$(APIS)
	@KUBECONFIG=$(STATE)/kubeconfig; export KUBECONFIG; \
	for i in $$(seq 60); do $(BIN)/kubectl get --raw /readyz >/dev/null 2>&1 && break; sleep 1; done; \
	$(BIN)/kubectl get namespace default >/dev/null || { $(COMPOSE) logs --tail 20; exit 1; }
	@echo "The API is up. There are no nodes and no workload controllers behind it."
	@echo "export KUBECONFIG=$(CURDIR)/$(STATE)/kubeconfig"

smoke: ## drive what 'make up' started with kubectl
	@COMPOSE="$(COMPOSE)" KUBECONFIG=$(STATE)/kubeconfig KUBECTL=$(BIN)/kubectl STACK=$(STACK) localstack/smoke.sh

logs: ## follow the containers' logs
	@$(COMPOSE) logs -f --tail 100

# Whatever it was started with: a volume that is not there is no error.
down: ## stop what 'make up' started and delete its data
	@set -o pipefail; test ! -e $(STATE) || $(COMPOSE_OF) $(THREE) down --volumes --remove-orphans --timeout 5 2>&1 | { grep -vE '^(Removing volume|Volume) .*log-[23]' || true; }
	@rm -rf $(STATE)

# All three on a stack of its own, which leaves a running one alone. Nothing of it may be left.
.PHONY: smoke-test
smoke-test: ## 'up', 'smoke' and 'down' of a stack of its own
	@own="$(MAKE) --no-print-directory STACK=logplane-smoke API_PORT=17380"; \
	$$own up && $$own smoke; code=$$?; $$own down; \
	for kind in container volume network; do \
	  left=$$(docker $$kind ls --quiet $$([ $$kind = container ] && echo --all) --filter label=com.docker.compose.project=logplane-smoke); \
	  [ -z "$$left" ] || { echo "a $$kind is left: $$left"; code=1; }; \
	done; \
	[ ! -e localstack/.state/logplane-smoke ] || { echo "localstack/.state/logplane-smoke is left"; code=1; }; exit $$code
