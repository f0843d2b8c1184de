# FROM scratch: the static program, the list of what it was built from, certificate authorities (for S3 and others), a
# program for health checks, and an empty folder for temporary files. 'make' has all of them in one folder, a release in
# several. The first step must copy a file: the classic builder would give any other first step its own architecture.
FROM scratch
COPY logplane /
ARG FILES=.
ARG SBOM=logplane.spdx.json
LABEL org.opencontainers.image.title=logplane \
      org.opencontainers.image.description="The Kubernetes API as stateless functions on a log and a bucket" \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.source=https://github.com/logplane/logplane
COPY ${FILES}/probe /
COPY ${FILES}/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY ${SBOM} /usr/share/sbom/logplane.spdx.json
COPY --chown=65532:65532 ${FILES}/empty /tmp
USER 65532:65532
ENV HOME=/tmp
EXPOSE 7373
ENTRYPOINT ["/logplane"]
