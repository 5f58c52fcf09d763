# zo_sweeps for CUDA GPUs, and for Jetson Orin with JetPack 7.2 (build it there: docs/JETSON.md).    docker build --file docker/cuda.Dockerfile --tag zo-sweeps:cuda .
# torch's wheels bring CUDA's libraries; the host gives the driver: docker run --gpus all (NVIDIA container toolkit).
# All nodes of a Ray cluster need the same Python, to the patch level: with Jetsons, --build-arg PYTHON=3.10.12.
ARG PYTHON=3.11.13
FROM python:${PYTHON}-slim-bookworm

# A C compiler: Triton needs one.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/zo-sweeps
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY conf ./conf
COPY zo_sweeps ./zo_sweeps
COPY packages ./packages
RUN pip install --no-cache-dir --constraint constraints.txt . ./packages/*

# The user's id must own the host's files that are mounted as secrets.
ARG UID=1000
RUN useradd --create-home --uid "${UID}" zo && install --directory --owner=zo --mode=700 /srv/zo
USER ${UID}
WORKDIR /srv/zo
ENV RAY_AUTH_MODE=token \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    RAY_USAGE_STATS_ENABLED=0 \
    PYTHONUNBUFFERED=1
VOLUME /srv/zo
ENTRYPOINT ["zo-sweeps"]
CMD ["doctor"]
