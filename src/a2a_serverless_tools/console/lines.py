"""Lines of the functions' logs about a task: how they are read, and those that `dev` keeps."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from a2a_serverless.observability.logs import ContextFields

_KEPT: Final = 20_000
"""The number of lines that `dev` keeps: the newest ones."""
_OURS: Final = "a2a_serverless"
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes that every log record has; all others of a record are fields of its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a function's log about a task."""

    at: int
    """Milliseconds since the epoch."""
    level: str
    action: str
    message: str
    fields: Mapping[str, Any]


class Logs(ABC):
    """The lines that the functions of one place have logged."""

    is_at_hand: bool
    """True if reading them costs nothing, so that pages read them without being asked."""

    @abstractmethod
    def about(self, task_id: str, since_ms: int) -> AsyncIterator[LogLine]:
        """Yield the lines about a task from a time on, in order.

        Raises:
            ConfigurationError: the logs cannot be read; one sentence says why.
        """


class KeptLines(logging.Handler, Logs):
    """The newest lines about tasks that this process has logged, in its memory."""

    is_at_hand = True

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[LogLine] = deque(maxlen=_KEPT)
        self.addFilter(ContextFields())

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record that is about a task, without the text of an exception."""
        if not hasattr(record, "task_id"):
            return
        try:
            self._lines.append(_line(record))
        except Exception:  # noqa: BLE001 - as in every handler: a bad line must not stop any work
            self.handleError(record)

    async def about(self, task_id: str, since_ms: int) -> AsyncIterator[LogLine]:
        self.acquire()  # as around `emit`
        try:
            kept = tuple(self._lines)
        finally:
            self.release()
        for line in kept:
            if line.at >= since_ms and line.fields["task_id"] == task_id:
                yield line


@contextmanager
def kept_lines() -> Iterator[KeptLines]:
    """Keep what the runtime logs about tasks during the block, even what is not printed."""
    ours, kept, printing = logging.getLogger(_OURS), KeptLines(), logging.getLogger().handlers[:]
    level, as_before = ours.level, _AsBefore(ours.getEffectiveLevel())
    for handler in printing:
        handler.addFilter(as_before)  # so that the same lines are printed
    ours.addHandler(kept)
    ours.setLevel(min(logging.INFO, ours.getEffectiveLevel()))
    try:
        yield kept
    finally:
        ours.removeHandler(kept)
        ours.setLevel(level)
        for handler in printing:
            handler.removeFilter(as_before)


class _AsBefore(logging.Filter):
    """Passes the records that the runtime's loggers passed at their former level.

    A logger with a level of its own still decides by that level.
    """

    def __init__(self, level: int) -> None:
        super().__init__()
        self._level = level

    def filter(self, record: logging.LogRecord) -> bool:
        logger = logging.getLogger(record.name)
        while logger.name != _OURS and not logger.level and logger.parent is not None:
            logger = logger.parent
        return logger.name != _OURS or record.levelno >= self._level


def _line(record: logging.LogRecord) -> LogLine:
    fields = {name: _simple(of) for name, of in vars(record).items() if name not in _PLAIN}
    return LogLine(
        at=round(record.created * 1000),
        level=record.levelname,
        action=str(fields.get("action", "")),
        message=record.getMessage(),
        fields=fields,
    )


def _simple(value: object) -> object:
    """Return a value in the form that it has in JSON."""
    return value if isinstance(value, str | int | float | bool | None) else str(value)
