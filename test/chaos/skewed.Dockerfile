# An image with another build of its program. The context's folder 'program' has that.
ARG IMAGE
FROM $IMAGE
COPY program /
