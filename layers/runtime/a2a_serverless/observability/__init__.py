"""Log lines, metrics and traces for operators, without the content of tasks.

A process is observed if it calls `start`. A Lambda function does so at its `cold_start`, and so
does a command that does a function's work. Otherwise the library logs with the standard library,
and its metrics are dropped.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Final, TextIO

from a2a_serverless.observability import metrics, spans

_LIBRARIES: Final[Mapping[str, int]] = {
    "a2a": logging.INFO,
    "asyncio": logging.INFO,
    "aws_lambda_powertools": logging.INFO,
    "boto3": logging.INFO,
    "botocore": logging.INFO,
    "botocore.configprovider": logging.WARNING,  # a line at each start, of an endpoint of its own
    "botocore.credentials": logging.WARNING,  # a line at each start: where it has found them
    "httpcore": logging.INFO,
    "httpx": logging.WARNING,  # a line for each request, with its URL
    "mangum": logging.WARNING,  # as httpx; API Gateway has a log of its own
    "sse_starlette": logging.INFO,
    "urllib3": logging.INFO,
    "uvicorn": logging.INFO,
}
"""Libraries that log data of requests, and the level from which on they do not."""

_WEB_SERVER: Final = ("uvicorn", "uvicorn.error", "uvicorn.access")

_FUNCTION: Final = "AWS_LAMBDA_FUNCTION_NAME"
_SERVICE: Final = "POWERTOOLS_SERVICE_NAME"
"""The variable that a Lambda function has, and the one that names any other observed process."""


def start(environment: MutableMapping[str, str] = os.environ) -> None:
    """Observe this process: JSON lines, Python's warnings among them, and metrics, on stdout.

    A Lambda function is observed, and so is any other process that has POWERTOOLS_SERVICE_NAME; in
    other processes nothing is written. `start` reads the variables of Powertools for AWS Lambda:
    POWERTOOLS_SERVICE_NAME, POWERTOOLS_LOG_LEVEL, POWERTOOLS_METRICS_NAMESPACE and
    POWERTOOLS_METRICS_DISABLED. Without a namespace no metrics are written. `A2A_LOG_ERROR_TEXTS`
    is explained at `_write_json`.

    Every process that OTEL_EXPORTER_OTLP_ENDPOINT tells where to exports its spans; outside of
    Lambda its metrics too, beside the lines or without them. What A2A_SETTINGS has is set as
    variables of the environment before.

    Raises:
        ConfigurationError: A2A_SETTINGS has what it must not have.
    """
    if environment.get("A2A_SETTINGS"):
        from a2a_serverless.settings import with_chosen  # noqa: PLC0415 - it needs pydantic

        environment.update(with_chosen(environment))
    sinks: list[metrics.Sink] = []
    if environment.get(_SERVICE) or _FUNCTION in environment:
        sinks += _lines(environment)
    sinks += _exported(environment)
    if sinks:
        metrics.start(*sinks, needs_others=environment.get("A2A_ALARM_CALLERS") == "2")


def _lines(environment: Mapping[str, str]) -> list[metrics.Sink]:
    """Make loggers write JSON lines; return what writes metrics as lines, if that is on."""
    service, stdout = environment.get(_SERVICE) or "a2a-serverless", _Stdout()
    _write_json(
        stdout,
        service=service,
        level=environment.get("POWERTOOLS_LOG_LEVEL") or "INFO",
        shows_texts=_is_true(environment.get("A2A_LOG_ERROR_TEXTS")),
    )
    logging.captureWarnings(capture=True)  # for example that a coroutine was never awaited
    namespace = environment.get("POWERTOOLS_METRICS_NAMESPACE")
    if not namespace or _is_true(environment.get("POWERTOOLS_METRICS_DISABLED")):
        return []
    return [metrics.Emf(namespace, service=service, write=stdout.write_line)]


def _exported(environment: Mapping[str, str]) -> list[metrics.Sink]:
    """Export what the variables want; return what takes metrics, outside of Lambda.

    Whatever of it cannot be used ends no process: a warning says so.
    """
    try:
        # Imported here: only a process that exports loads the SDK.
        if spans.is_wanted(environment):
            from a2a_serverless.observability import otel  # noqa: PLC0415

            otel.set_up(environment)
        if spans.is_wanted(environment, "METRICS") and _FUNCTION not in environment:
            from a2a_serverless.observability.otlp_metrics import OtlpMetrics  # noqa: PLC0415

            return [OtlpMetrics(environment)]
    except ModuleNotFoundError as error:
        logging.getLogger(__name__).warning(
            "Nothing is exported, though OTEL_EXPORTER_OTLP_ENDPOINT is set: %s is missing;"
            ' pip install "a2a-serverless[otel]".',
            error.name,
            extra={"action": "otel_missing"},
        )
    except Exception as error:  # noqa: BLE001 - of the SDK, which is not what ends a worker
        # The SDK raises ValueError for a variable; all else is no fault of the reader's.
        what = "a variable OTEL_*" if isinstance(error, ValueError) else "this OpenTelemetry"
        text = "Not everything is exported, as %s cannot be used: %s"
        logging.getLogger(__name__).warning(text, what, error, extra={"action": "otel_not_used"})
    return []


def _is_true(value: str | None) -> bool:
    """Return True if an environment variable, which may be missing, says yes."""
    return (value or "").strip().lower() in {"1", "true", "yes", "on"}


def _write_json(
    stream: TextIO | _Stdout, *, service: str, level: str, shows_texts: bool = False
) -> None:
    """Make every logger of the process write JSON lines.

    Args:
        stream: gets the lines.
        service: the value of the field `service`.
        level: the lowest level that is logged, by name; an unknown one counts as INFO.
        shows_texts: True to show the text of each exception, see `json_lines`.
    """
    # Imported here: only a process that writes JSON loads Powertools.
    from a2a_serverless.observability.json_lines import json_handler  # noqa: PLC0415

    lowest = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    root = logging.getLogger()
    root.handlers[:] = [json_handler(stream, service, shows_texts=shows_texts)]
    root.setLevel(lowest)
    quiet_libraries(lowest)
    for name in _WEB_SERVER:  # uvicorn sets up its own loggers before it imports the application
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def quiet_libraries(lowest: int) -> None:
    """Keep data of requests out of the log of this process, whose lowest level is `lowest`."""
    for name, harmless in _LIBRARIES.items():
        logging.getLogger(name).setLevel(max(lowest, harmless))


class _Stdout:
    """The `sys.stdout` of the moment at which this is made; the current one once that is closed.

    Turns share a process. An agent that redirects stdout for a while would get the lines about its
    neighbours, and after two that do so at the same time stdout stays redirected.
    """

    def __init__(self) -> None:
        self._first = sys.stdout

    def write(self, text: str) -> None:
        self._open().write(text)

    def flush(self) -> None:
        self._open().flush()

    def write_line(self, line: str) -> None:
        """Write `line` and its end, and write out all that is buffered."""
        self.write(f"{line}\n")
        self.flush()

    def _open(self) -> TextIO:
        return sys.stdout if self._first.closed else self._first
