# What a release consists of, from nothing but this checkout and Go's module cache. Included by the Makefile.

DIST      ?= $(BIN)/dist
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64

# Each platform compiles Kubernetes once: ten minutes on two cores. The version is the commit's, which Go writes into
# the binary.
.PHONY: release-snapshot
release-snapshot: $(BIN)/release ## binaries, AWS Lambda zips, SBOMs and checksums of PLATFORMS in bin/dist, offline
	@rm -rf $(DIST) && mkdir -p $(DIST)
	@set -e; for platform in $(PLATFORMS); do \
	  os=$${platform%/*}; arch=$${platform#*/}; name=logplane-$$os-$$arch; built=$(DIST)/$$name; mkdir -p $$built; \
	  echo "building $$name"; \
	  GOOS=$$os GOARCH=$$arch $(RELEASE) go build -ldflags "-s -w $(STAMP)" -o $$built/logplane ./cmd/logplane; \
	  $(BIN)/release sbom $$built/logplane $(DIST)/$$name.spdx.json; \
	  $(BIN)/release tar $(DIST)/$$name.tar.gz $$built/logplane LICENSE README.md CHANGELOG.md; \
	  if [ $$os = linux ]; then mv $$built/logplane $$built/bootstrap; $(BIN)/release zip $(DIST)/logplane-lambda-$$arch.zip $$built/bootstrap; fi; \
	  rm -r $$built; \
	done
	@cd $(DIST) && $(BIN)/release checksums SHA256SUMS *.tar.gz *.zip *.spdx.json && cat SHA256SUMS

# A clone at another place links and packs everything anew.
.PHONY: release-test
release-test: ## two release snapshots of this commit, from two folders, have the same bytes
	@set -e; clone=$$(mktemp -d); trap 'rm -rf '$$clone EXIT; git clone -q . $$clone/logplane; \
	$(MAKE) --no-print-directory release-snapshot DIST=$$clone/first PLATFORMS="$(PLATFORMS)" >/dev/null; \
	$(MAKE) --no-print-directory -C $$clone/logplane release-snapshot DIST=$$clone/second PLATFORMS="$(PLATFORMS)" >/dev/null; \
	diff $$clone/first/SHA256SUMS $$clone/second/SHA256SUMS && echo "the same bytes twice"
