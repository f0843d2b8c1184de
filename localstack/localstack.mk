# The targets for images without a registry, and for the whole of Logplane in containers. The Makefile includes this
# file.

IMAGES := bin/images
MINIO_VERSION := v0.0.0-20260212201848-7aac2a2c5b7c
NATS_VERSION := v2.15.2
# An image is FROM scratch with a static program: there is no base to pull, and no shell. The classic builder needs
# nothing from a registry. The builder's warning that it is deprecated goes only to a log file (IMAGE, below).
DOCKER_BUILD := DOCKER_BUILDKIT=0 docker build --quiet
# The tag of the images that are built and run, and their processor architecture.
TAG          ?= dev
ARCH         ?= $(shell go env GOARCH)
COMMIT       := $(shell git rev-parse HEAD 2>/dev/null)
COMMIT_TIME  := $(shell TZ=UTC git show -s --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd HEAD 2>/dev/null)
COMMIT_SECONDS := $(shell git show -s --format=%ct HEAD 2>/dev/null)
OCI          := org.opencontainers.image
LABELS       := --label $(OCI).version=$(VERSION) --label $(OCI).revision=$(COMMIT) --label $(OCI).created=$(COMMIT_TIME)
# A second stack beside the first needs another name and another port.
STACK        ?= logplane
API_PORT     ?= 7380
# LAMBDA=1 serves the cell a second time, through functions of an emulated AWS Lambda.
LAMBDA       ?= 0
LAMBDA_PORT  ?= $(shell expr $(API_PORT) + 1)
# The number of 'api' processes, and of NATS servers, which is one or three.
APIS         ?= 2
NATS_SERVERS ?= 1
STATE        := localstack/.state/$(STACK)
NATS_NAMES_1 := nats
NATS_NAMES_3 := nats nats-2 nats-3
# Docker's own compose, or else the older program docker-compose.
COMPOSE_OF = env LOGPLANE_STATE=$(CURDIR)/$(STATE) LOGPLANE_API_PORT=$(API_PORT) LOGPLANE_TAG=$(TAG) \
             LOGPLANE_NATS_SERVERS=$(NATS_SERVERS) LOGPLANE_LAMBDA_PORT=$(LAMBDA_PORT) \
             $$(docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose) \
             -p $(STACK) -f localstack/docker-compose.yml
THREE   := -f localstack/three.yml
PROFILE := --profile lambda
COMPOSE  = $(COMPOSE_OF) $(if $(filter 3,$(NATS_SERVERS)),$(THREE)) $(if $(filter 1,$(LAMBDA)),$(PROFILE))

# The files of each image are in a folder for each processor architecture.
MINIO    := $(IMAGES)/minio-$(ARCH)
NATS     := $(IMAGES)/nats-$(ARCH)
OF_ARCH  := $(IMAGES)/logplane-$(ARCH)
EMULATOR := $(IMAGES)/lambda-$(ARCH)
FOR_ARCH := $(RELEASE) GOOS=linux GOARCH=$(ARCH)
# IMAGE builds an image: $(1) is the image's name, $(2) its folder, and $(3) has further arguments of 'docker build'.
IMAGE     = $(DOCKER_BUILD) --platform linux/$(ARCH) $(3) -t logplane/$(1):$(TAG) -f localstack/$(1).Dockerfile $(2) >/dev/null 2>$(2).log || { cat $(2).log; exit 1; }

.PHONY: images images-minio images-nats images-logplane images-lambda
images: images-minio images-nats images-logplane images-lambda ### build all container images from Go modules, without a registry; ARCH=arm64 for that processor

# The images that 'make test' needs. Without Docker the container tests are skipped, but never in CI.
.PHONY: images-test
images-test:
	@if docker version >/dev/null 2>&1 || [ "$$CI" = true ]; then $(MAKE) --no-print-directory images-minio; \
	else echo "no Docker here: tests in containers will be skipped"; fi

images-minio: $(MINIO)/$(MINIO_VERSION)
	@echo "image logplane/minio:$(TAG) for linux/$(ARCH)"
	@mkdir -p $(MINIO)/empty
	@$(FOR_ARCH) go build -ldflags "-s -w" -o $(MINIO)/probe ./localstack/probe
	@$(call IMAGE,minio,$(MINIO))

images-nats: $(NATS)/$(NATS_VERSION)
	@echo "image logplane/nats:$(TAG) for linux/$(ARCH)"
	@mkdir -p $(NATS)/empty
	@cp localstack/nats.conf localstack/users.conf localstack/three.conf $(NATS)/
	@$(FOR_ARCH) go build -ldflags "-s -w" -o $(NATS)/probe ./localstack/probe
	@$(call IMAGE,nats,$(NATS))

# The list of the modules in the program is in the image, and in bin/images/logplane-ARCH/logplane.spdx.json.
images-logplane: images-logplane-files
	@echo "image logplane/logplane:$(TAG) for linux/$(ARCH)"
	@$(FOR_ARCH) go build -ldflags "-s -w $(STAMP)" -o $(OF_ARCH)/logplane ./cmd/logplane
	@$(BIN)/release sbom $(OF_ARCH)/logplane $(OF_ARCH)/logplane.spdx.json
	@$(call IMAGE,logplane,$(OF_ARCH),$(LABELS))

images-lambda: images-logplane
	@echo "image logplane/lambda:$(TAG) for linux/$(ARCH)"
	@mkdir -p $(EMULATOR)
	@$(FOR_ARCH) go build -ldflags "-s -w" -o $(EMULATOR)/lambda ./localstack/lambda
	@$(call IMAGE,lambda,$(EMULATOR),--build-arg IMAGE=logplane/logplane:$(TAG))

# These are the image's files besides the program. A release's images have the same files.
.PHONY: images-logplane-files
images-logplane-files: $(BIN)/release
	@mkdir -p $(OF_ARCH)/empty
	@$(FOR_ARCH) go build -ldflags "-s -w" -o $(OF_ARCH)/probe ./localstack/probe
	@$(BIN)/release roots $(OF_ARCH)/ca-certificates.crt

.PHONY: $(BIN)/release
$(BIN)/release:
	@cd tools/release && $(RELEASE) go build -o $@ .

# An empty file, whose name is the version, stands for each program. 'go install' refuses GOBIN for another processor,
# and puts the program one folder deeper; hence the find.
INSTALL = $(FOR_ARCH) GOBIN= GOMODCACHE=$$(go env GOMODCACHE) GOPATH=$(CURDIR)/$(@D)/go go install -ldflags "-s -w" $(1)@$(@F) && \
          find $(@D)/go/bin -type f -exec mv {} $(@D)/ \; && rm -rf $(@D)/go $(@D)/v* && touch $@

$(MINIO)/$(MINIO_VERSION):
	@echo "building MinIO for linux/$(ARCH) from its Go module: some minutes, once"
	@mkdir -p $(@D)
	@$(call INSTALL,github.com/minio/minio)

$(NATS)/$(NATS_VERSION):
	@echo "building nats-server for linux/$(ARCH) from its Go module"
	@mkdir -p $(@D)
	@$(call INSTALL,github.com/nats-io/nats-server/v2)

.PHONY: up smoke logs down
up: up-possible images $(BIN)/kubectl ## run NATS, MinIO, two api, watcher, front, projector and lifecycle in containers; LAMBDA=1 adds functions
	@$(RELEASE) go run ./localstack/credentials $(STATE) https://127.0.0.1:$(API_PORT) $(NATS_NAMES_$(NATS_SERVERS))
	@docker run --rm --network none logplane/logplane:$(TAG) permissions --roles >$(STATE)/nats/authorization.conf
	@$(COMPOSE) up -d --remove-orphans --scale api=$(APIS)
	@KUBECONFIG=$(STATE)/kubeconfig; export KUBECONFIG; \
	for port in $(API_PORT) $(if $(filter 1,$(LAMBDA)),$(LAMBDA_PORT)); do \
	  for i in $$(seq 60); do $(BIN)/kubectl --server https://127.0.0.1:$$port get --raw /readyz >/dev/null 2>&1 && break; sleep 1; done; \
	  $(BIN)/kubectl --server https://127.0.0.1:$$port get namespace default >/dev/null || { $(COMPOSE) logs --tail 20; exit 1; }; \
	done
	@echo "The API is up. There are no nodes and no workload controllers behind it."
	@[ "$(LAMBDA)" = 0 ] || echo "Functions serve it as well: kubectl --server https://127.0.0.1:$(LAMBDA_PORT)"
	@echo "export KUBECONFIG=$(CURDIR)/$(STATE)/kubeconfig"

# up-possible refuses, before anything is built or started, settings that cannot work.
.PHONY: up-possible
up-possible:
	@[ -n "$(NATS_NAMES_$(NATS_SERVERS))" ] || { echo "NATS_SERVERS is '$(NATS_SERVERS)': it must be 1 or 3"; exit 1; }
	@[ "$(LAMBDA)" = 0 ] || [ "$(LAMBDA)" = 1 ] || { echo "LAMBDA is '$(LAMBDA)': it must be 0 or 1"; exit 1; }
	@for port in $(API_PORT) $(if $(filter 1,$(LAMBDA)),$(LAMBDA_PORT)); do \
	  if [ -z "$$(docker ps --quiet --filter label=com.docker.compose.project=$(STACK) --filter publish=$$port)" ] && (exec 3<>/dev/tcp/127.0.0.1/$$port) 2>/dev/null; then \
	    echo "port $$port is in use: choose another with API_PORT, of which LAMBDA=1 takes the next one too"; exit 1; fi; \
	done

smoke: ### drive what 'make up' started with kubectl
	@[ -e $(STATE)/kubeconfig ] || { echo "nothing is up: run 'make up' first, with the same STACK"; exit 1; }
	@COMPOSE="$(COMPOSE) $(PROFILE)" KUBECONFIG=$(STATE)/kubeconfig KUBECTL=$(BIN)/kubectl STACK=$(STACK) localstack/smoke.sh

.PHONY: doctor
doctor: ### examine what 'make up' started, and say what to do
	@[ -e $(STATE)/kubeconfig ] || { echo "nothing is up: run 'make up' first, with the same STACK"; exit 1; }
	@$(COMPOSE) run --rm --no-deps init doctor --nats-monitoring http://nats:8222

logs: ### follow the containers' logs
	@$(COMPOSE) $(PROFILE) logs -f --tail 100

# 'make down' works for any settings of 'make up': it hides the message about a volume that does not exist.
down: ### stop what 'make up' started and delete its data
	@set -o pipefail; test ! -e $(STATE) || $(COMPOSE_OF) $(THREE) $(PROFILE) down --volumes --remove-orphans --timeout 5 2>&1 | { grep -vE '^(Removing volume|Volume) .*log-[23]' || true; }
	@rm -rf $(STATE)

# smoke-test runs all three targets on a separate stack, so that a running stack is not touched. Nothing of the separate
# stack may be left.
.PHONY: smoke-test
smoke-test: ### 'up', 'smoke' and 'down' of a stack of its own
	@own="$(MAKE) --no-print-directory STACK=logplane-smoke API_PORT=17380"; \
	$$own up && $$own smoke; code=$$?; $$own down; \
	for kind in container volume network; do \
	  left=$$(docker $$kind ls --quiet $$([ $$kind = container ] && echo --all) --filter label=com.docker.compose.project=logplane-smoke); \
	  [ -z "$$left" ] || { echo "a $$kind is left: $$left"; code=1; }; \
	done; \
	[ ! -e localstack/.state/logplane-smoke ] || { echo "localstack/.state/logplane-smoke is left"; code=1; }; exit $$code
