"""What a client sees of a task, as lines at a terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TextIO

from a2a.helpers import new_text_message
from a2a.types import Message, Part, Role, StreamResponse, Task, TaskState, TaskStatus

_COLOURS = {
    TaskState.TASK_STATE_COMPLETED: "32",
    TaskState.TASK_STATE_INPUT_REQUIRED: "33",
    TaskState.TASK_STATE_AUTH_REQUIRED: "33",
    TaskState.TASK_STATE_FAILED: "31",
    TaskState.TASK_STATE_REJECTED: "31",
    TaskState.TASK_STATE_CANCELED: "31",
}
_QUIET, _STRONG, _ARTIFACT = "2", "1", "36"


class Transcript:
    """Three columns: seconds since the last message of the client, what came, its text.

    Colours are used at a terminal, unless `NO_COLOR` is set (no-color.org).
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_coloured = out.isatty() and not os.environ.get("NO_COLOR")
        self._sent_at = time.monotonic()

    def heading(self, text: str) -> None:
        self._line(f"\n{self._paint(_STRONG, text)}\n")

    def fact(self, label: str, text: str) -> None:
        self._row("", label, _QUIET, text)

    def plain(self, text: str) -> None:
        self._line(text)

    def client_says(self, text: str) -> None:
        """A message of the client; the clock starts anew."""
        self._sent_at = time.monotonic()
        self._row("", "client", _STRONG, text)

    def event(self, event: StreamResponse) -> None:
        """One event of a stream."""
        match event.WhichOneof("payload"):
            case "task":
                self._status(event.task.status)
            case "status_update":
                self._status(event.status_update.status)
            case "artifact_update":
                artifact = event.artifact_update.artifact
                name = artifact.name or artifact.artifact_id
                self._row(self._seconds(), name, _ARTIFACT, text_of(artifact.parts))
            case "message":
                self._row(self._seconds(), "agent", _STRONG, text_of(event.message.parts))

    def _status(self, status: TaskStatus) -> None:
        text = text_of(status.message.parts)
        self._row(self._seconds(), state_label(status.state), _COLOURS.get(status.state, "0"), text)

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._sent_at:.2f} s"

    def _row(self, first: str, label: str, colour: str, text: str) -> None:
        lines = text.strip().splitlines() or [""]
        start = f"  {self._paint(_QUIET, f'{first:>7}')}  {self._paint(colour, f'{label:<16}')}"
        self._line(f"{start}{lines[0]}".rstrip())
        for line in lines[1:]:
            self._line(f"{'':27}{line}".rstrip())

    def _paint(self, colour: str, text: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._is_coloured else text

    def _line(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()  # live, also through a pipe


def state_label(state: TaskState) -> str:
    """The state as people write it, such as `input-required`."""
    name: str = TaskState.Name(state)
    return name.removeprefix("TASK_STATE_").lower().replace("_", "-")


def text_of(parts: Sequence[Part]) -> str:
    """The text of the parts that have one."""
    return "".join(part.text for part in parts)


def artifact_text(task: Task) -> str:
    """The text of all of a task's artifacts."""
    return "".join(text_of(artifact.parts) for artifact in task.artifacts)


def message_of(text: str, *, task: Task | None = None) -> Message:
    """A user's message, a new task's or the next one of `task`."""
    return new_text_message(
        text,
        role=Role.ROLE_USER,
        task_id=task.id if task else None,
        context_id=task.context_id if task else None,
    )
