"""The form of a log line: Powertools' JSON, without the texts of other code's exceptions."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter

from a2a_serverless.observability.logs import with_context

_WITHHELD: Final = "(text withheld)"
_TRUSTED: Final = frozenset({"a2a_serverless", "botocore"})
_CAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_MOST: Final = 100
_LEFT_OUT: Final = "--- more exceptions are left out ---\n"
_CONTEXT: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"

_ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


def json_handler(stream: Any, service: str, *, shows_texts: bool = False) -> logging.Handler:
    """Return a handler that writes one JSON object on each line; see `_JsonLines`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonLines(service, shows_texts=shows_texts))
    handler.addFilter(with_context)
    if not shows_texts:
        handler.addFilter(_without_repr)
    return handler


def _without_repr(record: logging.LogRecord) -> bool:
    """Cut off what asyncio logs after its own sentence, which quotes exceptions; return True."""
    if record.name == "asyncio":
        record.msg, record.args = record.getMessage().partition("\n")[0], None
    return True


class _JsonLines(LambdaPowertoolsFormatter):
    """Formats a record as one JSON object.

    An exception is shown with its type and its frames. Its text is shown only if it is an exception
    of this runtime or of botocore: exceptions of agents and validators quote the data that they
    could not handle, and more people can read a log than a task. `shows_texts` shows all texts.
    """

    def __init__(self, service: str, *, shows_texts: bool = False) -> None:
        # Lambda's own filter by level only understands times in the form of RFC 3339.
        super().__init__(
            service=service,
            name="%(name)s",
            use_rfc3339=True,
            utc=True,
            serialize_stacktrace=False,
        )
        if not shows_texts:
            self.append_keys(exception_notes=None)  # notes are text, too
        self._shows_texts = shows_texts

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, even for readers that also end a line at other characters than LF.

        Unprintable characters, including those of Unicode, are escaped: so a client's value can
        neither colour a terminal nor change the direction of a text.
        """
        line = super().format(record)
        if line.isprintable():
            return line
        return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)

    def formatException(self, ei: _ExceptionInfo) -> str:  # noqa: N802 - logging's name
        if self._shows_texts or ei[1] is None:
            return super().formatException(ei)
        return "".join(_lines(ei[1], set())).rstrip("\n")


def _lines(error: BaseException, seen: set[int]) -> Iterator[str]:
    """Yield the lines of a traceback as Python prints it, after those of its causes.

    Of chains and groups, `_MOST` exceptions are told, so that none is too deep to be logged.
    """
    seen.add(id(error))
    earlier, link = error.__cause__, _CAUSE
    if earlier is None and not error.__suppress_context__:
        earlier, link = error.__context__, _CONTEXT
    if earlier is not None and len(seen) >= _MOST:
        yield _LEFT_OUT + link
    elif earlier is not None and id(earlier) not in seen:
        yield from _lines(earlier, seen)
        yield link
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(error.__traceback__)
    yield f"{_name(error)}: {_text(error)}\n"
    if isinstance(error, BaseExceptionGroup):
        for number, part in enumerate(error.exceptions, start=1):
            if len(seen) >= _MOST:
                yield _LEFT_OUT
                return
            yield f"--- {number} of the group ---\n"
            yield from _lines(part, seen)


def _name(error: BaseException) -> str:
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__


def _text(error: BaseException) -> str:
    is_trusted = type(error).__module__.partition(".")[0] in _TRUSTED
    return str(error) if is_trusted else _WITHHELD
