# The context is bin/images/minio-ARCH: the static program, a program for health checks, and an empty folder for MinIO's
# data.
FROM scratch
COPY minio probe /
COPY --chown=65532:65532 empty /data
COPY --chown=65532:65532 empty /tmp
USER 65532:65532
# MinIO looks for its certificates and its configuration here.
ENV HOME=/tmp MINIO_BROWSER=off
EXPOSE 9000
VOLUME /data
ENTRYPOINT ["/minio"]
CMD ["server", "/data"]
