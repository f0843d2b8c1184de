# FROM scratch: the static program, the list of what it was built from, certificate authorities (for S3 and others), a
# program for health checks, and an empty folder for temporary files. 'make' has all of them in one folder, a release in
# several. The first step must copy a file: the classic builder would give any other first step its own architecture.
# Without arguments the image serves a whole cell, which is in the volume. The health check is for that command: who runs
# another command gives another check, or none.
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
COPY --chown=65532:65532 ${FILES}/empty /var/lib/logplane
USER 65532:65532
# container is how a program knows that it runs in one: 'serve' then says how its kubeconfig gets out.
ENV HOME=/tmp container=oci
EXPOSE 7373
VOLUME /var/lib/logplane
HEALTHCHECK --interval=2s --start-period=30s CMD ["/probe", "https://127.0.0.1:7373/readyz"]
ENTRYPOINT ["/logplane"]
CMD ["serve", "--data", "/var/lib/logplane"]
