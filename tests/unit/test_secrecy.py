"""The watch over the log of every test: that it watches, and what it finds."""

from __future__ import annotations

import logging

import pytest
from a2a.types import Message, Part, Role, TaskStatus
from google.protobuf.struct_pb2 import Struct, Value

from a2a_serverless.observability import _LIBRARIES
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.wiring import memory_backends
from tests.support.messages import request
from tests.support.secrecy import WATCH, LogWatch

SENTENCE = "the patient's name is Ada"


def record(text: str, *args: object, error: Exception | None = None, **extra: object) -> object:
    return logging.getLogger("a2a_serverless.test").makeRecord(
        "a2a_serverless.test",
        logging.INFO,
        __file__,
        1,
        text,
        args,
        (type(error), error, None) if error else None,
        extra=extra,
    )


def committed(text: str = SENTENCE) -> StatusChanged:
    message = Message(role=Role.ROLE_AGENT, parts=[Part(text=text)])
    return StatusChanged(TaskStatus(message=message))


def data(text: str) -> StatusChanged:
    struct = Struct()
    struct.update({"a": [{"b": text}]})
    value = Value(struct_value=struct)
    return StatusChanged(TaskStatus(message=Message(parts=[Part(data=value)])))


def leaks(content: object, line: object) -> int:
    watch = LogWatch()
    watch.saw([content])
    assert isinstance(line, logging.LogRecord)
    watch.handle(line)
    return len(watch.leaks())


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (committed(), record(f"failed on {SENTENCE}")),
        (committed("hello"), record("failed on %s", "hello")),
        (committed("hello"), record("failed", task="hello world")),
        (committed("zwölf Monate"), record("failed", error_text="zwölf Monate")),
        (data("hello"), record("failed on %s", {"b": "hello"})),
    ],
)
def test_content_is_found(content: StatusChanged, line: object) -> None:
    """A text is found in the words of a line, in its values, and inside of a larger value."""
    assert leaks(content, line) == 1


def test_the_watch_hears_what_a_deployment_writes_down() -> None:
    """A library says as much in the suite as in a function whose POWERTOOLS_LOG_LEVEL is DEBUG."""
    own = {"aws_lambda_powertools"}  # keeps its lines to itself, here and in a deployment
    WATCH.saw([committed()])
    for library in _LIBRARIES.keys() - own:
        logging.getLogger(library).log(_LIBRARIES[library], "accepted: %s", SENTENCE)
    found = WATCH.leaks()
    WATCH.begin()
    assert len(found) == len(_LIBRARIES.keys() - own)


async def test_the_watch_is_on() -> None:
    """The watch over all tests finds a committed text in a log line."""
    storage = memory_backends(Settings()).storage
    await storage.open_task("ctx", request(SENTENCE))
    logging.getLogger("a2a_serverless.test").debug("accepted: %s", SENTENCE)
    logging.getLogger("agent").warning("accepted: %s", SENTENCE)
    found = WATCH.leaks()
    WATCH.begin()
    assert len(found) == 2
    assert all(SENTENCE in leak for leak in found)
