"""Log lines as JSON, each with the ids of the current task, turn and delivery."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, Protocol, TextIO

LIBRARIES: Final[Mapping[str, int]] = {
    "a2a": logging.INFO,
    "asyncio": logging.INFO,
    "aws_lambda_powertools": logging.INFO,
    "boto3": logging.INFO,
    "botocore": logging.INFO,
    "httpcore": logging.INFO,
    "httpx": logging.WARNING,  # a line for each request, with its URL
    "mangum": logging.WARNING,  # as httpx; API Gateway has a log of its own
    "sse_starlette": logging.INFO,
    "urllib3": logging.INFO,
    "uvicorn": logging.INFO,
}
"""Libraries that log data of requests, and the level from which on they do not."""

_WEB_SERVER: Final = ("uvicorn", "uvicorn.error", "uvicorn.access")

_fields: ContextVar[Mapping[str, object]] = ContextVar(
    "a2a_serverless_log_fields", default=MappingProxyType({})
)


@contextmanager
def log_context(**fields: object) -> Iterator[None]:
    """Put fields on every line that is logged in the block, also by the agent and its libraries.

    asyncio tasks and `aws.call` inherit them. A value that is None or empty is left out. A field in
    a line's own `extra` replaces the field here.
    """
    known = {name: value for name, value in fields.items() if value not in {None, ""}}
    token = _fields.set(MappingProxyType({**_fields.get(), **known}))
    try:
        yield
    finally:
        _fields.reset(token)


class _Output(Protocol):
    """Takes the lines of a log."""

    def write(self, text: str, /) -> object:
        """Write `text`, which ends with the line."""
        ...

    def flush(self) -> object:
        """Write out all that is buffered."""
        ...


class Stdout:
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


class ContextFields(logging.Filter):
    """Gives a record the fields of its context, and removes the name of its asyncio task."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.taskName = None
        for name, value in _fields.get().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


def write_json(
    *, service: str, level: str, shows_texts: bool = False, stream: _Output | None = None
) -> None:
    """Make every logger of the process write JSON lines to `stream`, by default stdout.

    Args:
        service: the value of the field `service`.
        level: the lowest level that is logged, by name; an unknown one counts as INFO.
        shows_texts: True to show the text of each exception, see `JsonLines`.
        stream: gets the lines.
    """
    lowest = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    root = logging.getLogger()
    root.handlers[:] = [json_handler(stream or Stdout(), service, shows_texts=shows_texts)]
    root.setLevel(lowest)
    quiet_libraries(lowest)
    for name in _WEB_SERVER:  # uvicorn sets up its own loggers before it imports the application
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def quiet_libraries(lowest: int) -> None:
    """Keep data of requests out of the log of this process, whose lowest level is `lowest`."""
    for name, harmless in LIBRARIES.items():
        logging.getLogger(name).setLevel(max(lowest, harmless))


def json_handler(
    stream: _Output, service: str, *, shows_texts: bool = False
) -> logging.StreamHandler[_Output]:
    """Return a handler that writes one JSON object on each line."""
    # Imported here: only a process that writes JSON loads Powertools.
    from a2a_serverless.observability.json_lines import JsonLines  # noqa: PLC0415

    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(service, shows_texts=shows_texts))
    handler.addFilter(ContextFields())
    if not shows_texts:
        handler.addFilter(_without_repr)
    return handler


def _without_repr(record: logging.LogRecord) -> bool:
    """Cut off what asyncio logs after its own sentence, which quotes exceptions; return True."""
    if record.name == "asyncio":
        record.msg, record.args = record.getMessage().partition("\n")[0], None
    return True
