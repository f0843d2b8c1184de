# Images without a registry, and the whole of Logplane in containers. Included by the Makefile.

IMAGES := bin/images
MINIO_VERSION := v0.0.0-20260212201848-7aac2a2c5b7c
NATS_VERSION := v2.15.2
# An image is a static program on nothing: no base to pull, no shell in it.
STATIC := CGO_ENABLED=0 GOFLAGS="-buildvcs=false -trimpath -tags=grpcnotrace"
DOCKER_BUILD := DOCKER_BUILDKIT=0 docker build --quiet

.PHONY: images images-minio images-nats images-logplane
images: images-minio images-nats images-logplane ## build all container images from Go modules, without a registry

images-minio: $(IMAGES)/minio/minio
	@echo "image logplane/minio:dev"
	@mkdir -p $(IMAGES)/minio/empty
	@$(DOCKER_BUILD) -t logplane/minio:dev -f localstack/minio.Dockerfile $(IMAGES)/minio

images-nats: $(IMAGES)/nats/nats-server
	@echo "image logplane/nats:dev"
	@mkdir -p $(IMAGES)/nats/empty
	@cp localstack/nats.conf $(IMAGES)/nats/
	@$(DOCKER_BUILD) -t logplane/nats:dev -f localstack/nats.Dockerfile $(IMAGES)/nats

images-logplane:
	@echo "image logplane/logplane:dev"
	@mkdir -p $(IMAGES)/logplane/empty
	@$(STATIC) go build -ldflags "-s -w $(LDFLAGS)" -o $(IMAGES)/logplane/logplane ./cmd/logplane
	@$(DOCKER_BUILD) -t logplane/logplane:dev -f localstack/logplane.Dockerfile $(IMAGES)/logplane

# The first build compiles all of MinIO. Its version is in the rule, so a new version needs this file to change.
$(IMAGES)/minio/minio: localstack/localstack.mk
	@echo "building MinIO from its Go module: some minutes, once"
	@$(STATIC) GOBIN=$(CURDIR)/$(IMAGES)/minio go install -ldflags "-s -w" github.com/minio/minio@$(MINIO_VERSION)
	@touch $@

$(IMAGES)/nats/nats-server: localstack/localstack.mk
	@$(STATIC) GOBIN=$(CURDIR)/$(IMAGES)/nats go install -ldflags "-s -w" github.com/nats-io/nats-server/v2@$(NATS_VERSION)
	@touch $@
