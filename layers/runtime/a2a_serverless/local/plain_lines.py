"""Log lines for a terminal, which what a client sends cannot forge or colour."""

from __future__ import annotations

import logging


class PlainLines(logging.Formatter):
    """Formats a record as one line, and a traceback below it, indented.

    Whatever does not print, such as the characters that begin an escape sequence of a terminal, is
    shown as Python writes it in a string.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(map(_printable, super().format(record).split("\n")))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return _printable(super().formatMessage(record))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
