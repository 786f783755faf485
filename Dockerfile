# The image of an external worker (fargate.yaml): the runtime, its command line and your agent.
#
#   docker build --platform linux/arm64 -t a2a-worker .
#
# All packages are installed by their hashes: the framework's of requirements/worker.txt, and the
# agent's of functions/worker/requirements.txt. The framework itself comes from layers/runtime and src
# in its own repository, and with the lock in a project. As in Lambda the agent's packages go first.
FROM public.ecr.aws/docker/library/python:3.13-slim AS build
COPY requirements/worker.txt /build/worker.txt
COPY layers/runtime src* /build/runtime/
COPY functions/worker /build/agent
ENV PIP_FIND_LINKS=/build/agent/wheels
RUN mkdir -p /site /app /build/agent/wheels \
    && pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: \
        --target /site --requirement /build/worker.txt \
    && pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: \
        --target /app --requirement /build/agent/requirements.txt
RUN rm -f /build/runtime/Makefile && cp -R /build/runtime/. /site \
    && rm -rf /app/bin && cp -R /build/agent/. /app \
    && cd /app && rm -rf Makefile worker.py requirements.in requirements.txt wheels \
    && python -m compileall -q --invalidation-mode unchecked-hash /site /app

FROM public.ecr.aws/docker/library/python:3.13-slim
RUN useradd --system --uid 10001 --no-create-home worker
COPY --from=build /site /site
COPY --from=build /app /app
ENV PYTHONPATH=/app:/site PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
# ECS mounts a volume here. It gets this folder's mode, by which everyone may write, only if declared.
VOLUME /tmp
USER 10001
# The first process of the container: it drains on SIGTERM, as `docker stop` and ECS send it.
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "a2a_serverless_tools.cli", "worker", "--agent", "/app/agent.py:agent"]
CMD ["--concurrency", "64", "--drain", "100", "--health-port", "8080"]
