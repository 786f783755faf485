"""Log lines, metrics and traces for operators, without the content of tasks.

A process is observed if it calls `start`. A Lambda function does so at its `cold_start`, and so
does a command that does a function's work. Otherwise the library logs with the standard library,
and its metrics are dropped.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from a2a_serverless.observability import logs, metrics

__all__ = ["cold_start", "is_true", "start"]


_FUNCTION: Final = "AWS_LAMBDA_FUNCTION_NAME"
_SERVICE: Final = "POWERTOOLS_SERVICE_NAME"
"""The variable that a Lambda function has, and the one that names any other observed process."""


@contextmanager
def cold_start() -> Iterator[None]:
    """Observe the process, and speed up the imports in the block by a tenth.

    The garbage collector is off during the block: imports leave next to no garbage, but it would
    search through all objects that they make. In a function, later collections also leave out these
    objects.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        start()
        yield
    finally:
        if _FUNCTION in os.environ:
            gc.freeze()
        if was_enabled:
            gc.enable()


def start(environment: Mapping[str, str] = os.environ) -> None:
    """Observe this process: JSON lines, Python's warnings among them, and metrics, on stdout.

    A Lambda function is observed, and so is any other process that has POWERTOOLS_SERVICE_NAME; in
    other processes nothing happens. `start` reads the variables of Powertools for AWS Lambda:
    POWERTOOLS_SERVICE_NAME, POWERTOOLS_LOG_LEVEL, POWERTOOLS_METRICS_NAMESPACE and
    POWERTOOLS_METRICS_DISABLED. Without a namespace there are no metrics. `A2A_LOG_ERROR_TEXTS` is
    explained at `logs.write_json`. Traces need no start, see `tracing`.
    """
    service = environment.get(_SERVICE, "")
    if not service and _FUNCTION not in environment:
        return
    service, stdout = service or "a2a-serverless", logs.Stdout()
    logs.write_json(
        service=service,
        level=environment.get("POWERTOOLS_LOG_LEVEL") or "INFO",
        shows_texts=is_true(environment.get("A2A_LOG_ERROR_TEXTS")),
        stream=stdout,
    )
    logging.captureWarnings(capture=True)  # for example that a coroutine was never awaited
    namespace = environment.get("POWERTOOLS_METRICS_NAMESPACE")
    if namespace and not is_true(environment.get("POWERTOOLS_METRICS_DISABLED")):
        metrics.start(namespace, service=service, write=stdout.write_line)


def is_true(value: str | None) -> bool:
    """Return True if an environment variable, which may be missing, says yes."""
    return (value or "").strip().lower() in {"1", "true", "yes", "on"}
