"""A task as a few byte strings, and what one save changes of them.

The first has the task without history and artifacts, the second its history, and each artifact has
one of its own. Their protobuf is deterministic, so that a save that adds a part or a message adds
bytes at one place, and only those are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from a2a.types import Task
from google.protobuf.message import Message


class Change(NamedTuple):
    """What turns the contents of one version into those of the next one."""

    length: int
    """The contents afterwards: those behind are dropped, and new ones begin empty."""
    cuts: Sequence[tuple[int, int, int, int, int]]
    """For each content that changes: its place, how many bytes stay at its beginning and at its
    end, and where the bytes between them begin and end in `body`."""
    body: bytes
    """The event of the save, if there is one, and then the new bytes that are not in the event."""


def contents_of(task: Task) -> list[bytes]:
    """Return the contents of a task."""
    rest = Task()
    rest.CopyFrom(task)
    rest.ClearField("artifacts")
    history = Task(history=rest.history)
    rest.ClearField("history")
    return [_bytes(rest), _bytes(history), *map(_bytes, task.artifacts)]


def task_of(contents: Sequence[bytes]) -> Task:
    """Return the task that has these contents.

    Raises:
        DecodeError: they are not those of a task.
    """
    task = Task.FromString(b"".join(contents[:2]))
    for artifact in contents[2:]:
        task.artifacts.add().ParseFromString(artifact)
    return task


def size_of(contents: Sequence[bytes]) -> int:
    """Return the bytes of contents."""
    return sum(map(len, contents))


def change_of(before: Sequence[bytes], after: Sequence[bytes], event: bytes) -> Change:
    """Return what a save changes.

    Args:
        before: the contents that are stored; empty: all that the task has is stored anew.
        after: the contents that are saved.
        event: the event that is stored with them. What it brings is not stored twice.
    """
    body = bytearray(event)
    cuts: list[tuple[int, int, int, int, int]] = []
    for place, new in enumerate(after):
        old = before[place] if place < len(before) else b""
        if new == old:
            continue
        head = _shared(old, new)
        tail = _shared(old[head:][::-1], new[head:][::-1])
        middle = new[head : len(new) - tail]
        start = event.find(middle)
        if start < 0:
            start = len(body)
            body += middle
        cuts.append((place, head, tail, start, start + len(middle)))
    return Change(len(after), cuts, bytes(body))


def apply(contents: list[bytearray], change: Change) -> None:
    """Turn contents into those of the next version, in place."""
    del contents[change.length :]
    contents.extend(bytearray() for _ in range(change.length - len(contents)))
    for place, head, tail, start, end in change.cuts:
        content = contents[place]
        content[head : len(content) - tail] = change.body[start:end]


def _bytes(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def _shared(one: bytes, other: bytes) -> int:
    """Return how many bytes both begin with.

    Each step compares half of what is open, so that all of them take as long as reading it once.
    """
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
