"""How long an answer may be that is given in one piece.

Lambda takes an answer of 6 MB from a function, as JSON in which the body is one text: quotation
marks and backslashes count twice. A longer one is lost, and its client gets a bare error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from a2a.types import Message, Task
from google.protobuf.json_format import MessageToDict

MAX_ANSWER_BYTES: Final = 5_000_000
"""The most bytes of one answer, as Lambda sends it; envelope and headers have the rest of 6 MB."""

_MOST_GROWTH: Final = 20
"""Bytes that are sent for one of protobuf, at most: the names of enums are the longest."""


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
