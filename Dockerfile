# The bandrank service. Needs BuildKit or buildah for the cache mounts.
#
#   dependencies   a virtual environment with what a lock file pins: torch and the other libraries
#   application    our packages with the default scorers, laid out as they go into that environment
#   (last)         both, on the plain Python image
#
# A code edit rebuilds our packages alone: the libraries are a layer of their own, in the image too.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS dependencies
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/bandrank
ENV PATH=/opt/bandrank/bin:$PATH
WORKDIR /src

# LOCK=gpu has torch as PyPI has it, with the CUDA libraries. LOCK=cpu is gigabytes smaller, and TORCH_INDEX_URL must then
# name PyTorch's own CPU index (deploy/README.md).
ARG LOCK=gpu
ARG TORCH_INDEX_URL=
COPY deploy/lock/both.txt deploy/lock/${LOCK}.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes --only-binary :all: ${TORCH_INDEX_URL:+--extra-index-url "${TORCH_INDEX_URL}"} --requirement ${LOCK}.txt

FROM dependencies AS application
COPY deploy/lock/build.txt build.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes --only-binary :all: --requirement build.txt
COPY pyproject.toml README.md LICENSE ./
COPY service service
COPY kernels kernels
COPY training training
COPY deploy/health.py health.py
RUN pip install --no-build-isolation --no-deps --no-cache-dir --prefix=/application . \
    && install --mode=644 health.py /application/
# The CPU kernels in every variant; the compiler stays in this stage.
RUN apt-get update && apt-get install --yes --no-install-recommends "g++=4:12.*" && rm -rf /var/lib/apt/lists/* \
    && PYTHONPATH=$(echo /application/lib/python*/site-packages) python -m bandrank_kernels.native.build

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="bandrank" \
      org.opencontainers.image.description="An online re-ranking microservice" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 bandrank \
    && useradd --uid 10001 --gid bandrank --no-log-init --no-create-home --home-dir /var/cache/bandrank \
       --shell /usr/sbin/nologin bandrank \
    && install --directory --owner=bandrank --group=bandrank /var/cache/bandrank
COPY --from=dependencies /opt/bandrank /opt/bandrank
COPY --from=application /application /opt/bandrank

# The root file system may be read-only: downloaded models and compiled kernels go to the volume, the rest to /tmp.
ENV PATH=/opt/bandrank/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    BANDRANK_HOST=0.0.0.0 \
    BANDRANK_PORT=8000 \
    XDG_CACHE_HOME=/var/cache/bandrank \
    HF_HOME=/var/cache/bandrank/huggingface \
    CUPY_CACHE_DIR=/var/cache/bandrank/cupy
VOLUME /var/cache/bandrank
WORKDIR /var/cache/bandrank
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM

# The start period covers a slow first download of a model; a process that ends meanwhile is noticed anyway.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python", "-I", "-S", "/opt/bandrank/health.py"]
CMD ["bandrank", "serve"]
