# The context is bin/images/logplane: the static program and an empty folder for temporary files.
FROM scratch
COPY logplane /logplane
COPY --chown=65532:65532 empty /tmp
USER 65532:65532
ENV HOME=/tmp
EXPOSE 7373
ENTRYPOINT ["/logplane"]
