# An image with another build of its program, which is in the context's folder 'program'.
ARG IMAGE
FROM $IMAGE
COPY program /
