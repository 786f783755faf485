"""Short ways to commits, and to the tasks that they are made on."""

from __future__ import annotations

from typing import Any

from a2a.types import TaskState, TaskStatus

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import ArtifactWritten, Entry, StatusChanged, TurnOpened
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from tests.support.messages import agent_message, artifact, request
from tests.support.present import present

WORKING = TaskState.TASK_STATE_WORKING
COMPLETED = TaskState.TASK_STATE_COMPLETED
FAILED = TaskState.TASK_STATE_FAILED
CANCELED = TaskState.TASK_STATE_CANCELED
INPUT_REQUIRED = TaskState.TASK_STATE_INPUT_REQUIRED
AUTH_REQUIRED = TaskState.TASK_STATE_AUTH_REQUIRED


def status(state: TaskState, text: str = "") -> StatusChanged:
    """A status, with a message if there is a text."""
    return StatusChanged(TaskStatus(state=state, message=agent_message(text) if text else None))


def wrote(text: str, *, name: str = "a") -> ArtifactWritten:
    """A chunk of an artifact."""
    return ArtifactWritten(artifact(name, text), append=True)


def to(state: TaskState, text: str = "", **options: Any) -> Commit:
    """A commit that sets a state."""
    return Commit(entries=(status(state, text),), **options)


def claim(token: str = "one", *entries: Entry, **options: Any) -> Commit:
    """A commit that claims the turn."""
    return Commit(token=token, claims=True, entries=entries, **options)


def follow_up(text: str = "more", **options: Any) -> Commit:
    """A commit of a client's next message."""
    return Commit(entries=(TurnOpened(request(text)),), **options)


async def opened(storage: DurableStorage, text: str = "hello", **options: Any) -> Head:
    """A new task."""
    return (await storage.open_task("ctx", request(text), **options)).head


async def newest(storage: DurableStorage, head: Head) -> Head:
    """HEAD of a task as it is stored now."""
    return present(await storage.head(head.task_id))


async def log_of(storage: DurableStorage, head: Head, **options: Any) -> Log:
    """The log of a task as it is stored now."""
    return present(await storage.read(head.task_id, **options))
