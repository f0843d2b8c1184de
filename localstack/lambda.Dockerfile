# The image of logplane with an emulator of AWS Lambda. The emulated functions run the program as their 'bootstrap'.
ARG IMAGE
FROM $IMAGE
COPY lambda /
LABEL org.opencontainers.image.title=logplane-lambda \
      org.opencontainers.image.description="Logplane as functions of an emulated AWS Lambda, for one machine"
ENTRYPOINT ["/lambda"]
