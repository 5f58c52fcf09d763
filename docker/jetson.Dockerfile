# zo_sweeps for Jetson Orin with JetPack 6 (L4T r36, Ubuntu 22.04, Python 3.10.12). Build it on the Jetson:
#   docker build --file docker/jetson.Dockerfile --tag zo-sweeps:jetson .
#   docker run --runtime nvidia --network host ... zo-sweeps:jetson worker join HEAD:6379 --device jetson-orin-nano --token-file FILE
# PyPI's torch for aarch64 does not drive JetPack 6's CUDA; the wheels of the index below do. JetPack 5 and older: no Python 3.10.
# JetPack 7.2 takes cuda.Dockerfile: see docs/JETSON.md.
FROM nvcr.io/nvidia/l4t-jetpack:r36.4.0

# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends cmake g++ gcc libc6-dev libopenblas0 make python3-dev python3-pip python3-venv \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/zo-sweeps
COPY constraints.txt ./
ARG TORCH_INDEX=https://pypi.jetson-ai-lab.io/jp6/cu126
# The index has its own versions of torch, so everything except torch is pinned.
RUN python3 -m venv /opt/venv \
 && grep -v '^torch==' constraints.txt > jetson.txt \
 && /opt/venv/bin/pip install --no-cache-dir --upgrade 'pip>=25.1' \
 && /opt/venv/bin/pip install --no-cache-dir --constraint jetson.txt --index-url "${TORCH_INDEX}" \
    --extra-index-url https://pypi.org/simple 'torch>=2.8'
COPY pyproject.toml README.md LICENSE ./
COPY conf ./conf
COPY zo_sweeps ./zo_sweeps
COPY packages ./packages
RUN /opt/venv/bin/pip install --no-cache-dir --constraint jetson.txt . ./packages/*

# bitsandbytes' own wheel is linked with a server's CUDA: here it imports, and its first kernel fails.
ADD https://github.com/bitsandbytes-foundation/bitsandbytes.git#0.50.2 /opt/bitsandbytes
WORKDIR /opt/bitsandbytes
RUN cmake -DCOMPUTE_BACKEND=cuda -DCOMPUTE_CAPABILITY=87 -S . \
 && make -j4 \
 && /opt/venv/bin/pip install --no-cache-dir --constraint /opt/zo-sweeps/jetson.txt --force-reinstall --no-deps .

ARG UID=1000
RUN useradd --create-home --uid "${UID}" --groups video zo && install --directory --owner=zo --mode=700 /srv/zo
USER ${UID}
WORKDIR /srv/zo
ENV PATH=/opt/venv/bin:$PATH \
    RAY_AUTH_MODE=token \
    RAY_USAGE_STATS_ENABLED=0 \
    PYTHONUNBUFFERED=1
VOLUME /srv/zo
ENTRYPOINT ["zo-sweeps"]
CMD ["doctor"]
