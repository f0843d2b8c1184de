# Images without a registry, and the whole of Logplane in containers. Included by the Makefile.

IMAGES := bin/images
MINIO_VERSION := v0.0.0-20260212201848-7aac2a2c5b7c
NATS_VERSION := v2.15.2
# An image is a static program on nothing: no base to pull, no shell in it. The classic builder needs nothing
# from a registry; what it says about its age is not the reader's business.
DOCKER_BUILD := DOCKER_BUILDKIT=0 docker build --quiet
# A second stack beside the first needs another name and other ports.
STACK        ?= logplane
API_PORT     ?= 7380
WATCHER_PORT ?= 7381
NATS_PORT    ?= 4222
S3_PORT      ?= 9000
STATE        := localstack/.state/$(STACK)
# Docker's own compose, or the program of before.
COMPOSE = env LOGPLANE_UID=$$(id -u) LOGPLANE_STATE=$(CURDIR)/$(STATE) LOGPLANE_API_PORT=$(API_PORT) \
          LOGPLANE_WATCHER_PORT=$(WATCHER_PORT) LOGPLANE_NATS_PORT=$(NATS_PORT) LOGPLANE_S3_PORT=$(S3_PORT) \
          $$(docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose) \
          -p $(STACK) -f localstack/docker-compose.yml

.PHONY: images images-minio images-nats images-logplane
images: images-minio images-nats images-logplane ## build all container images from Go modules, without a registry

# What 'make test' needs: without Docker its container tests are skipped, but never in CI.
.PHONY: images-test
images-test:
	@if docker version >/dev/null 2>&1 || [ "$$CI" = true ]; then $(MAKE) --no-print-directory images-minio; \
	else echo "no Docker here: tests in containers will be skipped"; fi

images-minio: $(IMAGES)/minio/$(MINIO_VERSION)
	@echo "image logplane/minio:dev"
	@mkdir -p $(IMAGES)/minio/empty
	@$(DOCKER_BUILD) -t logplane/minio:dev -f localstack/minio.Dockerfile $(IMAGES)/minio >/dev/null 2>$(IMAGES)/minio.log || { cat $(IMAGES)/minio.log; exit 1; }

images-nats: $(IMAGES)/nats/$(NATS_VERSION)
	@echo "image logplane/nats:dev"
	@mkdir -p $(IMAGES)/nats/empty
	@cp localstack/nats.conf $(IMAGES)/nats/
	@$(DOCKER_BUILD) -t logplane/nats:dev -f localstack/nats.Dockerfile $(IMAGES)/nats >/dev/null 2>$(IMAGES)/nats.log || { cat $(IMAGES)/nats.log; exit 1; }

images-logplane:
	@echo "image logplane/logplane:dev"
	@mkdir -p $(IMAGES)/logplane/empty
	@$(RELEASE) go build -ldflags "-s -w $(STAMP)" -o $(IMAGES)/logplane/logplane ./cmd/logplane
	@$(DOCKER_BUILD) -t logplane/logplane:dev -f localstack/logplane.Dockerfile $(IMAGES)/logplane >/dev/null 2>$(IMAGES)/logplane.log || { cat $(IMAGES)/logplane.log; exit 1; }

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
up: images $(BIN)/kubectl ## run NATS, MinIO, api, watcher, projector and lifecycle in containers
	@$(RELEASE) go run ./localstack/credentials $(STATE) https://127.0.0.1:$(API_PORT)
	@$(COMPOSE) up -d --remove-orphans
	@KUBECONFIG=$(STATE)/kubeconfig; export KUBECONFIG; \
	for i in $$(seq 60); do $(BIN)/kubectl get namespace default >/dev/null 2>&1 && break; sleep 1; done; \
	$(BIN)/kubectl get namespace default >/dev/null || { $(COMPOSE) logs --tail 20; exit 1; }
	@echo "The API is up. There are no nodes and no workload controllers behind it."
	@echo "export KUBECONFIG=$(CURDIR)/$(STATE)/kubeconfig"

smoke: ## drive what 'make up' started with kubectl
	@COMPOSE="$(COMPOSE)" KUBECONFIG=$(STATE)/kubeconfig KUBECTL=$(BIN)/kubectl localstack/smoke.sh

logs: ## follow the containers' logs
	@$(COMPOSE) logs -f --tail 100

down: ## stop what 'make up' started and delete its data
	@test ! -e $(STATE) || $(COMPOSE) down --volumes --remove-orphans --timeout 5
	@rm -rf $(STATE)

# All three on a stack of its own, which leaves a running one alone.
.PHONY: smoke-test
smoke-test:
	@own="$(MAKE) --no-print-directory STACK=logplane-smoke API_PORT=17380 WATCHER_PORT=17381 NATS_PORT=14222 S3_PORT=19000"; \
	$$own up && $$own smoke; code=$$?; $$own down; exit $$code
