"""Lines of the log as text, for terminals: which task, turn and attempt each is about, and why."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TextIO

from a2a_serverless_tools.cli.text import printable

WHICH: Final = (
    *("task_id", "turn", "attempt", "attempts", "config_id", "version", "state"),
    *("message_id", "queue", "group", "tasks"),
)
"""Fields that name what a line is about."""
WHY: Final = ("reason", "error", "method", "event", "sends", "failures", "wait_s", "delay_s")
"""Fields that say why, and for how long."""
_LEADS: Final = "correlation_id"
"""The field that leads to the other lines of the same piece of work."""
_SHOWN: Final = {
    "task_id": "task",
    "config_id": "webhook",
    "message_id": "message",
    _LEADS: "correlation id",
}
"""Other names that a line has for some fields."""
_CONTEXT: Final = "a2a_serverless.observability.logs"


def named(fields: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    """Yield those fields of a line that have a value, each with its name."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, float):
            value = f"{value:.1f}"
        if name == "attempts" and value and (most := fields.get("max_attempts")):
            value = f"{value} of {most}"
        if value is not None and value != "":
            yield f"{_SHOWN.get(name, name)} {value}"


class PlainLines(logging.Formatter):
    """Formats a record as one line with what it is about and why, and a traceback below, indented.

    A client can neither forge nor colour a line: characters that do not print, such as those that
    begin an escape sequence of a terminal, are shown as Python writes them in a string.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(map(printable, super().format(record).split("\n")))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        known = named(vars(record), (*WHICH, *WHY, _LEADS))
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
