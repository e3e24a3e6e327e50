# pufferlib in a container: docs/container.md has the commands. Three targets, each with what the one before it has:
#   core   pufferlib alone
#   train  torch, and what cleanrl_demo and `puffer` need besides
#   tank   the families of environments whose pins agree
# Files that change often come late, so that a change of a source installs nothing anew.

# Any image of Debian or Ubuntu with Python 3.11 or later, or with none: then it gets the system's.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS base
SHELL ["/bin/sh", "-eu", "-c"]
# No versions: what a distribution offers of a package is one, and an older one is gone.
# hadolint ignore=DL3008
RUN python3 -m ensurepip --version || { \
        apt-get update; \
        apt-get install --yes --no-install-recommends python3 python3-venv; \
        rm -rf /var/lib/apt/lists/*; \
    }
ENV PATH=/opt/pufferlib/bin:$PATH

# What pyproject.toml asks for, in files that change only if that does.
FROM base AS requirements
WORKDIR /requirements
COPY .ci/requirements.py pyproject.toml ./
# More extras for `train`, with spaces between: "track sweep", or "cuda".
ARG EXTRAS=""
ARG FAMILIES="classic box2d atari minigrid pettingzoo butterfly mpe magent lbforaging rware sisl pettingzoo-classic open-spiel mujoco crafter vizdoom minatar popgym games"
RUN python3 requirements.py > core.txt; \
    python3 requirements.py train $EXTRAS > train.txt; \
    python3 requirements.py $FAMILIES > tank.txt

# From here to `runtime` nothing but /opt/pufferlib and /installed gets into an image: no compiler, no pip.conf.
FROM base AS core-packages
# hadolint ignore=DL3008
RUN apt-get update; \
    apt-get install --yes --no-install-recommends g++ gcc libc6-dev python3-dev; \
    rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/pufferlib
COPY --from=requirements /requirements/core.txt /requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-cache-dir --requirement /requirements/core.txt

# One exact torch first, as a bare requirement may fetch gigabytes of CUDA packages.
FROM core-packages AS train-packages
ARG TORCH=torch==2.13.0
# hadolint ignore=DL3013
RUN --mount=type=secret,id=pip,target=/etc/pip.conf pip install --no-cache-dir "$TORCH"
COPY --from=requirements /requirements/train.txt /requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-cache-dir --requirement /requirements/train.txt

FROM train-packages AS tank-packages
COPY --from=requirements /requirements/tank.txt /requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-cache-dir --requirement /requirements/tank.txt

# The wheel, compiled and unpacked in a folder of its own. What may be left out elsewhere must be compiled here.
FROM core-packages AS wheel
WORKDIR /source
COPY LICENSE MANIFEST.in README.md pyproject.toml setup.py ./
COPY ocean ocean
COPY cleanrl_demo cleanrl_demo
COPY cuda_ext cuda_ext
COPY pufferlib pufferlib
RUN --mount=type=secret,id=pip,target=/etc/pip.conf pip install --no-cache-dir --no-deps --root /installed .
ARG VERSION=""
WORKDIR /
RUN cp -a /installed/. /; \
    PUFFERLIB_NATIVE=1 python -c "import pufferlib; from cuda_ext import report; assert ';' not in report.built()"; \
    puffer doctor; \
    test -z "$VERSION" || test "$(puffer --version)" = "puffer $VERSION"

FROM base AS runtime
# Any user may write: with `docker run --user "$(id -u)"` the files of a run belong to whoever started it.
RUN useradd --uid 10001 --create-home puffer; \
    mkdir /work; \
    chown puffer:puffer /work; \
    chmod 1777 /home/puffer /work
# USER is what Python calls a user who has no line in /etc/passwd.
ENV HOME=/home/puffer USER=puffer PYTHONUNBUFFERED=1
ARG VERSION=""
LABEL org.opencontainers.image.title="pufferlib" \
      org.opencontainers.image.description="Wrap any reinforcement-learning environment, and step many of them" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="$VERSION"
# By number, which Kubernetes wants of a user that is not root.
USER 10001
WORKDIR /work
# As Ctrl-C: Python heeds that as process 1, too, and ends its workers and its run.
STOPSIGNAL SIGINT
# A worker starts, steps two environments and ends. Without torch, for it runs beside what the container is for.
HEALTHCHECK --interval=5m --timeout=60s --start-period=10s CMD ["python", "-c", "import pufferlib; \
    vec = pufferlib.make('ocean/squared', backend='multiprocessing', num_envs=2, num_workers=1); \
    vec.reset(); vec.step(vec.action_space.sample()); vec.close()"]
CMD ["puffer", "doctor"]

FROM runtime AS core
COPY --from=core-packages /opt/pufferlib /opt/pufferlib
COPY --from=wheel /installed /

FROM runtime AS train
COPY --from=train-packages /opt/pufferlib /opt/pufferlib
COPY --from=wheel /installed /

FROM runtime AS tank
COPY --from=tank-packages /opt/pufferlib /opt/pufferlib
COPY --from=wheel /installed /
