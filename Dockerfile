# promptcal with its commands. On a CPU:
#     docker build --tag promptcal .
# On an NVIDIA GPU:
#     docker build --tag promptcal:cuda --build-arg BASE=pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime .
# A base without PyTorch gets it from pip, which includes CUDA's libraries on Linux. For a smaller image, give the address
# of PyTorch's wheels for CPUs as TORCH_INDEX.
ARG BASE=python:3.12-slim-bookworm

# hadolint ignore=DL3006
FROM ${BASE}
ARG TORCH_INDEX=""
ARG EXTRAS="app,parquet,heic,huggingface,onnx"

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
# pyproject.toml bounds the versions.
# hadolint ignore=DL3013
RUN python -c "import torch, torchvision" 2> /dev/null \
    || pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch>=2.6,<3" "torchvision>=0.21,<1"
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ".[${EXTRAS}]" && promptcal --version

# Weights that timm downloads are kept in /cache, if a folder is mounted there.
ENV HF_HOME=/cache/huggingface TORCH_HOME=/cache/torch MPLCONFIGDIR=/tmp/matplotlib
RUN useradd --create-home --uid 10001 promptcal && install --directory --mode 1777 /data /cache
USER 10001
WORKDIR /data
ENTRYPOINT ["promptcal"]
CMD ["--help"]
