"""What an operator would see: log lines, metrics and segments, caught in this process."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from a2a_serverless import observability
from a2a_serverless.observability import metrics

Line = dict[str, Any]


@dataclass
class Metrics:
    """The lines of CloudWatch's embedded metric format."""

    lines: list[Line] = field(default_factory=list)

    def write(self, line: str) -> None:
        self.lines.append(json.loads(line))

    def values(self, name: str, **dimensions: str) -> list[float]:
        """All values of a metric under these dimensions, beside that of the service."""
        return [
            value
            for line in self.lines
            for value in line.get(name, [])
            if _dimensions(line) - {("service", line["service"])} == set(dimensions.items())
        ]

    def total(self, name: str, **dimensions: str) -> float:
        return sum(self.values(name, **dimensions))


def _dimensions(line: Line) -> set[tuple[str, str]]:
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    (names,) = directive["Dimensions"]
    return {(name, line[name]) for name in names}


@contextmanager
def counted(service: str = "agent") -> Iterator[Metrics]:
    """Metrics as a function emits them, for the time of a block."""
    caught = Metrics()
    metrics.start("A2AServerless", service=service, write=caught.write)
    try:
        yield caught
        metrics.flush()
    finally:
        metrics.stop()


@contextmanager
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, of which a block may make what it likes, and whose level is everybody's."""
    root = logging.getLogger()
    names = [*observability.LIBRARIES, "a2a_serverless"]
    levels = {name: logging.getLogger(name).level for name in names}
    logging.getLogger("a2a_serverless").setLevel(logging.NOTSET)
    handlers, level = root.handlers[:], root.level
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name, was in levels.items():
            logging.getLogger(name).setLevel(was)


@contextmanager
def logged(level: str = "INFO", *, shows_texts: bool = False) -> Iterator[list[Line]]:
    """The lines that a function writes, complete at the end of the block."""
    lines: list[Line] = []
    out = io.StringIO()
    with root_logger():
        observability.write_json(out, service="agent", level=level, shows_texts=shows_texts)
        yield lines
    lines += [json.loads(line) for line in out.getvalue().splitlines()]


class Daemon:
    """An X-Ray daemon: the segment documents that were sent to it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)  # noqa: FBT003 - has no name
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def documents(self) -> list[Line]:
        """What has arrived since the last time; a datagram on this machine is there at once."""
        found: list[Line] = []
        while True:
            try:
                datagram = self._socket.recv(65_536)
            except BlockingIOError:
                return found
            header, _, document = datagram.partition(b"\n")
            assert json.loads(header) == {"format": "json", "version": 1}
            found.append(json.loads(document))

    def close(self) -> None:
        self._socket.close()
