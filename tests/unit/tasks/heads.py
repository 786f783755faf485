"""HEADs as the rules make them, for tests of what is decided on them."""

from __future__ import annotations

from dataclasses import replace

from a2a.types import TaskState, TaskStatus

from a2a_serverless.tasks.entries import StatusChanged, TurnOpened
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit, NewTask, Timing, advance, canceling, open_task
from tests.support.messages import request


def opened(incarnation: str = "i") -> Head:
    """A new task: its first turn waits."""
    return open_task(replace(NEW, incarnation=incarnation), now_ms=0, timing=Timing()).head


def claimed(head: Head | None = None, token: str = "A") -> Head:
    """The turn of HEAD, by default of a new task, with an owner."""
    return stepped(head or opened(), Commit(token=token, claims=True))


def moved(head: Head, state: TaskState) -> Head:
    """HEAD after its owner, if it has one, has set a state."""
    entries = (StatusChanged(TaskStatus(state=state)),)
    return stepped(head, Commit(entries=entries, token=head.turn.token))


def followed(head: Head) -> Head:
    """HEAD after a message for its next turn."""
    return stepped(head, Commit(entries=(TurnOpened(request("hello", message_id="m2")),)))


def asked(head: Head, by: str = "") -> Head:
    return canceling(head, by=by, now_ms=0, timing=Timing())


def stepped(head: Head, commit: Commit) -> Head:
    return advance(head, commit, now_ms=0, timing=Timing()).head


NEW = NewTask(
    scope="s",
    task_id="t",
    context_id="c",
    incarnation="i",
    request=request("hello", message_id="m1"),
)
