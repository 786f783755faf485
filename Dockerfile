# The image of an external worker (fargate.yaml): the runtime, its command line and your agent.
#
#   docker build --platform linux/arm64 -t a2a-worker .
#
# The packages are those of requirements/worker.txt, by their hashes, and those that your agent names
# in functions/worker/requirements.txt.
FROM public.ecr.aws/docker/library/python:3.13-slim AS build
COPY requirements/worker.txt functions/worker/requirements.txt /build/
RUN pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: \
        --target /site --requirement /build/worker.txt \
    && pip install --no-cache-dir --only-binary :all: \
        --target /site --upgrade-strategy only-if-needed --requirement /build/requirements.txt
COPY layers/runtime/a2a_serverless /site/a2a_serverless
COPY functions/worker /app
RUN rm -rf /site/a2a_serverless/local /app/Makefile /app/worker.py \
    && python -m compileall -q --invalidation-mode unchecked-hash /site /app

FROM public.ecr.aws/docker/library/python:3.13-slim
RUN useradd --system --uid 10001 --no-create-home worker
COPY --from=build /site /site
COPY --from=build /app /app
ENV PYTHONPATH=/site PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
USER 10001
# The first process of the container: it ends by SIGTERM, as `docker stop` and ECS send it.
ENTRYPOINT ["python", "-m", "a2a_serverless.cli", "worker", "--agent", "/app/agent.py:agent"]
CMD ["--concurrency", "64", "--drain", "100", "--health-port", "8080"]
