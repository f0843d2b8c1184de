# The targets that build a release, only from this checkout and Go's module cache. .goreleaser.yaml lists the parts of a
# release. The Makefile includes this file.

GORELEASER ?= $(BIN)/goreleaser
PLATFORMS  ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
# The allowed signers of releases, in the format of ssh-keygen.
SIGNERS    ?= tools/release/signers
# SKIP lists the parts that goreleaser leaves out: images, if there is no Docker, and packages, if Linux is left out.
SKIP       ?= $(shell docker version >/dev/null 2>&1 || echo docker) $(if $(filter linux/%,$(PLATFORMS)),,nfpm)
# Times in zips are local, so TZ is set. Platforms are built one after another, because two at once would compile the
# same packages twice.
RELEASING  := $(RELEASE) TZ=UTC DOCKER_BUILDKIT=0 STAMP="$(STAMP)" PLATFORMS="$(PLATFORMS)" TAG=$(TAG) VERSION=$(VERSION) \
              COMMIT=$(COMMIT) COMMIT_TIME=$(COMMIT_TIME) COMMIT_SECONDS=$(COMMIT_SECONDS) $(GORELEASER)

$(BIN)/goreleaser: tools/goreleaser/go.mod
	@echo "building goreleaser from its Go module: some minutes, once"
	@cd tools/goreleaser && $(RELEASE) go build -ldflags "-s -w" -o $@ tool

# The packages have the completions, which are the same for all platforms.
.PHONY: completions
completions: $(BIN)/logplane
	@mkdir -p bin/completions
	@for shell in bash zsh fish; do $(BIN)/logplane completion $$shell >bin/completions/logplane.$$shell || exit 1; done

# Each platform compiles Kubernetes once: ten minutes on two cores.
.PHONY: release-snapshot
release-snapshot: $(GORELEASER) completions ### binaries, packages, AWS Lambda zips, SBOMs and checksums of PLATFORMS in bin/dist, and their images, offline
	@for arch in $(patsubst linux/%,%,$(filter linux/%,$(PLATFORMS))); do $(MAKE) --no-print-directory images-logplane-files ARCH=$$arch || exit 1; done
	@$(RELEASING) release --snapshot --clean --parallelism 1 --timeout 4h $(addprefix --skip=,$(SKIP))
	@cat bin/dist/SHA256SUMS

.PHONY: release-notes
release-notes: ### write the section of VERSION in CHANGELOG.md, for people who read what a release changes, to bin/RELEASE-NOTES.md
	@mkdir -p $(BIN)
	@cd tools/release && $(RELEASE) go run . notes $(CURDIR)/CHANGELOG.md $(VERSION) $(BIN)/RELEASE-NOTES.md

# KEY is a file with the private key, or with a public key whose private key is in an agent or a hardware token.
DIST ?= bin/dist
.PHONY: release-sign
release-sign: ### sign SHA256SUMS of a release snapshot with the OpenSSH key KEY
	@test -n "$(KEY)" || { echo "name the key: make release-sign KEY=FILE"; exit 2; }
	@rm -f $(DIST)/SHA256SUMS.sig
	@ssh-keygen -Y sign -q -n logplane-release -f $(KEY) $(DIST)/SHA256SUMS

.PHONY: release-verify
release-verify: ### whether DIST is what a maintainer has signed, as docs/security.md says
	@ssh-keygen -Y verify -f $(SIGNERS) -I release -n logplane-release -s $(DIST)/SHA256SUMS.sig < $(DIST)/SHA256SUMS
	@cd $(DIST) && sha256sum --check --strict --ignore-missing --quiet SHA256SUMS

.PHONY: release-check
release-check: $(GORELEASER) ### whether goreleaser takes .goreleaser.yaml
	@$(RELEASING) check

# release-test links and packs a release in two clones, in different folders and with different umasks. Changes that are
# not committed are in neither clone.
.PHONY: release-test
release-test: $(GORELEASER) ### two release snapshots of this commit, from two folders, have the same bytes
	@set -e; clones=$$(mktemp -d); trap 'rm -rf '$$clones EXIT; \
	for umask in 022 077; do \
	  umask $$umask; git clone -q . $$clones/$$umask; \
	  $(MAKE) --no-print-directory -C $$clones/$$umask release-snapshot GORELEASER=$(GORELEASER) PLATFORMS="$(PLATFORMS)" SKIP="docker $(SKIP)" >/dev/null; \
	done; \
	cat $$clones/022/bin/dist/SHA256SUMS; diff $$clones/*/bin/dist/SHA256SUMS; diff -r $$clones/*/bin/dist/homebrew; echo "the same bytes twice"

# A machine's files, made by debootstrap, which runs as root.
DEBIAN := bin/debian.tar
$(DEBIAN):
	@command -v debootstrap >/dev/null || { echo "debootstrap is missing: install it"; exit 1; }
	@set -e; tree=$$(mktemp -d); trap 'rm -rf '$$tree EXIT; \
	debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,rpm bookworm $$tree >/dev/null; \
	tar -C $$tree -cf $@.new .; mv $@.new $@

.PHONY: package-test
package-test: $(BIN)/kubectl $(DEBIAN) ### install, use, upgrade and remove this tree's packages in containers that run systemd; each step is timed
	@$(MAKE) --no-print-directory release-snapshot PLATFORMS=linux/$(ARCH) SKIP=docker >/dev/null
	@DIST=bin/dist TREE=$(DEBIAN) KUBECTL=$(BIN)/kubectl tools/release/package-test.sh

.PHONY: image-test
image-test: $(BIN)/kubectl images-logplane ### docs/run/install.md's commands about the image
	@KUBECTL=$(BIN)/kubectl tools/release/image-test.sh
