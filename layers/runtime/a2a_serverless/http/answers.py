"""How long an answer in one piece may be.

Lambda takes an answer of at most 6 MB from a function, as JSON in which the body is one string:
quotation marks and backslashes count twice. A longer answer is lost, and its client gets an error
without details.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from a2a.types import Message, Task
from google.protobuf.json_format import MessageToDict

MAX_ANSWER_BYTES: Final = 5_000_000
"""The most bytes of one answer as Lambda sends it; the rest of 6 MB is for envelope and headers."""

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
    return len(text) + text.count(b'"') + text.count(b"\\") + 1  # and a comma between two
