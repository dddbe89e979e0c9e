# Two images from one file: `docker build --target api .` and `docker build --target worker .`
# Each is built in a stage of its own, so that neither carries the tools or the parts of the other.

FROM python:3.11-slim AS base
ENV PATH=/opt/hpo/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1
RUN useradd --create-home --no-log-init --uid 1000 --user-group hpo

FROM base AS source
WORKDIR /src
COPY . .
RUN python -m venv /opt/hpo

FROM source AS api-build
RUN pip install -c constraints.txt '.[server,postgres]'

FROM source AS worker-build
# PyPI's torch carries CUDA; the driver of the host is all that the image needs besides.
ARG TORCH_VERSION=2.13.0
RUN pip install "torch==${TORCH_VERSION}" && pip install -c constraints.txt '.[torch]'

FROM base AS api
COPY --from=api-build /opt/hpo /opt/hpo
# A new volume takes over the owner of the folder it is mounted on.
RUN install --directory --owner=hpo --group=hpo /artifacts
USER 1000:1000
WORKDIR /home/hpo
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/readyz', timeout=4)"]
ENTRYPOINT ["hpo"]
CMD ["api"]

FROM base AS worker
COPY --from=worker-build /opt/hpo /opt/hpo
RUN install --directory --owner=hpo --group=hpo /checkpoints
USER 1000:1000
WORKDIR /home/hpo
ENV HPO_CHECKPOINTS=/checkpoints
ENTRYPOINT ["hpo"]
CMD ["worker"]
