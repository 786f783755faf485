"""Answers in one piece, and how long they may be.

Lambda takes an answer of at most 6 MB from a function, as JSON in which the body is one string:
quotation marks and backslashes count twice. A longer answer is lost, and its client gets an error
without details.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from a2a.types import Message, Task
from google.protobuf.json_format import MessageToDict
from starlette.responses import JSONResponse

from a2a_serverless.errors import AnswerTooLargeError

MAX_ANSWER_BYTES: Final = 5_000_000
"""The most bytes of one answer as Lambda sends it; the rest of 6 MB is for envelope and headers."""

GET_STREAMED: Final = (
    "get it by its id with a smaller historyLength, or over JSON-RPC, whose answers are streamed"
)
GET_SENT: Final = "the message was accepted; get the task by its id"
"""What the client of an answer that is too long can do; the second one that of a send."""

_MOST_GROWTH: Final = 20
"""The most bytes that are sent for one byte of protobuf; names of enum values grow the most."""


def fitting(tasks: Sequence[Task | Message]) -> int:
    """Return how many of the first tasks, or messages, fit into one answer."""
    if _MOST_GROWTH * sum(task.ByteSize() for task in tasks) <= MAX_ANSWER_BYTES:
        return len(tasks)
    size = 0
    for number, task in enumerate(tasks):
        size += sent_bytes(task)
        if size > MAX_ANSWER_BYTES:
            return number
    return len(tasks)


def sent_bytes(task: Task | Message) -> int:
    """Return the bytes of a task or message in an answer, as Lambda sends it."""
    found = MessageToDict(task)
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
    return _sent(text) + 1  # and a comma between two


def in_one_piece(
    content: Any, *, task_id: str = "", advice: str = "", media_type: str | None = None
) -> JSONResponse:
    """Return the answer with this content.

    Raises:
        AnswerTooLargeError: the task `task_id` makes it longer than Lambda can send; `advice` says
            what its client can do. Without a task the answer may have any length.
    """
    response = JSONResponse(content, media_type=media_type)
    if task_id and _sent(bytes(response.body)) > MAX_ANSWER_BYTES:
        raise AnswerTooLargeError(task_id, advice)
    return response


def _sent(text: bytes) -> int:
    return len(text) + text.count(b'"') + text.count(b"\\")
