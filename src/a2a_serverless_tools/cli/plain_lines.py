"""Lines of the log as text, for terminals: which task, turn and attempt each is about, and why."""

from __future__ import annotations

import logging
import sys
from typing import Final, TextIO

from a2a_serverless_tools.cli.text import printable
from a2a_serverless_tools.operate.log_fields import LEADS, WHICH, WHY, named

_CONTEXT: Final = "a2a_serverless.observability.logs"


class PlainLines(logging.Formatter):
    """Formats a record as one line with what it is about and why, and a traceback below, indented.

    A client can neither forge nor colour a line: characters that do not print, such as those that
    begin an escape sequence of a terminal, are shown as Python writes them in a string.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(map(printable, super().format(record).split("\n")))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        known = named(vars(record), (*WHICH, *WHY, LEADS))
        return printable("; ".join([super().formatMessage(record), *known]))


def plain_handler(stream: TextIO) -> logging.Handler:
    """Return a handler that writes records as plain lines, with the fields of their context."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainLines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(in_context)
    return handler


def in_context(record: logging.LogRecord) -> bool:
    """Give a record the fields of the work in which it was logged; a filter.

    It imports nothing: what has not been imported so far has set no fields.
    """
    logs = sys.modules.get(_CONTEXT)
    add = getattr(logs, "with_context", None)
    return True if add is None else bool(add(record))
