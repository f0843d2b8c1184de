# The context is bin/images/logplane-ARCH: the static program, what it was built from, the authorities that sign for S3
# and others, a program for health checks, and an empty folder for temporary files.
FROM scratch
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY logplane.spdx.json /usr/share/sbom/logplane.spdx.json
COPY logplane probe /
COPY --chown=65532:65532 empty /tmp
USER 65532:65532
ENV HOME=/tmp
EXPOSE 7373
ENTRYPOINT ["/logplane"]
