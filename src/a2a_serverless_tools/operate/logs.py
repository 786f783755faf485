"""Lines of the functions' logs about a task: how they are read, and those that `dev` keeps."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

from a2a_serverless.observability.logs import with_context
from a2a_serverless_tools.operate.lines import LogLine

MOST_BYTES: Final = 5_000_000
"""Bytes after which `dev` begins the other of the two files with its newest lines."""
_OURS: Final = "a2a_serverless"
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes that every log record has; all others of a record are fields of its line."""


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


class KeptLines(Logs):
    """The newest lines about tasks that `dev` has logged, in a file that any process can read.

    Args:
        path: the file; the lines before them are beside it.
    """

    is_at_hand = True

    def __init__(self, path: Path) -> None:
        self._path = path

    async def about(self, task_id: str, since_ms: int) -> AsyncIterator[LogLine]:
        for path in (_older(self._path), self._path):
            for line in _lines(path, task_id):
                if line.at >= since_ms:
                    yield line


@contextmanager
def kept_lines(path: Path) -> Iterator[KeptLines]:
    """Keep what the runtime logs about tasks during the block, even what is not printed."""
    ours, printing = logging.getLogger(_OURS), logging.getLogger().handlers[:]
    level, as_before = ours.level, _AsBefore(ours.getEffectiveLevel())
    for handler in printing:
        handler.addFilter(as_before)  # so that the same lines are printed
    with closing(_Keeping(path)) as keeping:
        ours.addHandler(keeping)
        ours.setLevel(min(logging.INFO, ours.getEffectiveLevel()))
        try:
            yield KeptLines(path)
        finally:
            ours.removeHandler(keeping)
            ours.setLevel(level)
            for handler in printing:
                handler.removeFilter(as_before)


class _Keeping(RotatingFileHandler):
    """Writes records that are about a task to a file of this user alone, without tracebacks."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self.setLevel(logging.INFO)
        self.addFilter(with_context)
        self.addFilter(lambda record: hasattr(record, "task_id"))

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_line(record))

    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: ARG002, N802 - logging's name
        """Return True if the file is full. logging's own way formats each record twice.

        After an edit two processes write for a while: each goes on in a file that the other begins.
        """
        if self.stream and not self._is_newest(self.stream):
            self.stream.close()
            self.stream = self._open()
        self.stream = self.stream or self._open()
        return os.fstat(self.stream.fileno()).st_size >= self.maxBytes

    def _is_newest(self, stream: TextIOWrapper) -> bool:
        """Return False if the file that is written has another name by now, or none."""
        try:
            return os.path.samestat(os.fstat(stream.fileno()), os.stat(self.baseFilename))  # noqa: PTH116
        except FileNotFoundError:
            return False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Leave the record out: the terminal has it, and a full disk must not stop any work."""

    def _open(self) -> TextIOWrapper:
        file = os.open(self.baseFilename, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        return os.fdopen(file, "a", encoding="utf-8")


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


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _lines(path: Path, task_id: str) -> Iterator[LogLine]:
    """Yield the lines of a file about a task; those that are cut or damaged are left out."""
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            if task_id in text:
                with suppress(TypeError, ValueError):
                    line = LogLine(**json.loads(text))
                    if line.fields["task_id"] == task_id:
                        yield line


def _line(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of the `LogLine` that tells of a record."""
    fields = {name: _simple(of) for name, of in vars(record).items() if name not in _PLAIN}
    return {
        "at": round(record.created * 1000),
        "level": record.levelname,
        "action": str(fields.get("action", "")),
        "message": record.getMessage(),
        "fields": fields,
    }


def _simple(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
