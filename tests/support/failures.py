"""Tasks as operators find them: failed, with a webhook that was not told of all."""

from __future__ import annotations

from dataclasses import replace

from a2a.types import TaskPushNotificationConfig, TaskState, TaskStatus

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import Caller, StatusChanged
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.rules import Commit
from tests.support.messages import request


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
    opened = await storage.open_task(
        context_id, request(text), task_id=task_id, caller=caller, push=hook
    )
    head = await storage.commit(opened.head, Commit(token="a", claims=True, worker="w"))
    status = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_FAILED))
    end = AttemptEnd(token="a", reason=reason, correlation_id="c")
    head = await storage.commit(head, Commit(entries=(status,), token="a", failed=end))
    push = (await storage.webhooks.all(task_id))[0]
    lost = push.settled((1, 0), "status 503", 1, is_told=False)
    told = lost.settled((head.version, 0), "status 200", 2, is_told=True)
    assert await storage.webhooks.move(push, replace(told, is_open=False))
    return head
