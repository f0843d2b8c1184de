# The context is bin/images/nats-ARCH: the static program, a program for health checks, the server's configurations, and
# an empty folder for the log.
FROM scratch
COPY nats-server probe /
COPY nats.conf users.conf three.conf /
COPY --chown=65532:65532 empty /data
USER 65532:65532
EXPOSE 4222 8222
VOLUME /data
ENTRYPOINT ["/nats-server"]
CMD ["--config", "/nats.conf"]
