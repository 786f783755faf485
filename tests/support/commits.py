"""Short ways to commits, to the tasks that they are made on, and to what they leave."""

from dataclasses import replace
from typing import Any

from a2a.types import TaskPushNotificationConfig, TaskState, TaskStatus

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Caller,
    Entry,
    StatusChanged,
    StepId,
    TurnOpened,
)
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import ASLEEP, AttemptEnd, Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.tasks.waits import SLEEP, Until
from tests.support.messages import agent_message, artifact, request
from tests.support.present import present

WORKING = TaskState.TASK_STATE_WORKING
COMPLETED = TaskState.TASK_STATE_COMPLETED
FAILED = TaskState.TASK_STATE_FAILED
CANCELED = TaskState.TASK_STATE_CANCELED
INPUT_REQUIRED = TaskState.TASK_STATE_INPUT_REQUIRED
AUTH_REQUIRED = TaskState.TASK_STATE_AUTH_REQUIRED


def status(state: TaskState, text: str = "") -> StatusChanged:
    return StatusChanged(TaskStatus(state=state, message=agent_message(text) if text else None))


def wrote(text: str, *, name: str = "a") -> ArtifactWritten:
    return ArtifactWritten(artifact(name, text), append=True)


def to(state: TaskState, text: str = "", **options: Any) -> Commit:
    return Commit(entries=(status(state, text),), **options)


def claim(token: str = "one", *entries: Entry, **options: Any) -> Commit:
    return Commit(token=token, claims=True, entries=entries, **options)


def follow_up(text: str = "more", **options: Any) -> Commit:
    return Commit(entries=(TurnOpened(request(text)),), **options)


async def opened(storage: DurableStorage, text: str = "hello", **options: Any) -> Head:
    return (await storage.open_task("ctx", request(text), **options)).head


async def newest(storage: DurableStorage, head: Head) -> Head:
    return present(await storage.head(head.task_id))


async def log_of(storage: DurableStorage, head: Head, **options: Any) -> Log:
    return present(await storage.read(head.task_id, **options))


async def failed_task(
    storage: DurableStorage,
    task_id: str,
    *,
    url: str,
    caller: Caller,
    context_id: str = "talk",
    text: str = "go",
    reason: str = "ValueError",
) -> Head:
    """A task whose only attempt failed. Its webhook was told of the end, and not of the start."""
    hook = TaskPushNotificationConfig(id="hook", url=url)
    said = request(text)
    opened = await storage.open_task(context_id, said, task_id=task_id, caller=caller, push=hook)
    head = await storage.commit(opened.head, Commit(token="a", claims=True, worker="w"))
    end = AttemptEnd(token="a", reason=reason, correlation_id="c")
    head = await storage.commit(head, to(FAILED, token="a", failed=end))
    push = (await storage.webhooks.all(task_id))[0]
    lost = push.settled((1, 0), "status 503", 1, is_told=False)
    told = lost.settled((head.version, 0), "status 200", 2, is_told=True)
    assert await storage.webhooks.move(push, replace(told, is_open=False))
    return head


async def asleep(storage: DurableStorage, caller: str, until_ms: int) -> Head:
    """Let a message of a caller come, whose turn sleeps until a time; return its HEAD."""
    own = storage.for_scope(Scope.of("", caller))
    opened = await own.open_task("ctx", request("work"), caller=Caller(user=caller))
    end = AttemptEnd(token="t", reason=ASLEEP, at=storage.clock.now_ms(), until=until_ms)
    record = Until(until_ms).record(StepId(SLEEP, "", 1))
    parks = Commit(entries=(record,), claims=True, token="t", parks=end)
    return await own.commit(opened.head, parks)
