"""What clients from before A2A 0.2 read: tasks, events, push configurations, notifications.

The API answers with it, PushFunction sends it. It knows no web framework.
"""

from __future__ import annotations

from typing import Any

from a2a.compat.v0_3 import conversions
from a2a.types import (
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatusUpdateEvent,
)
from pydantic import BaseModel

from a2a_serverless.tasks.entries import whole
from a2a_serverless.tasks.head import is_terminal

Json = dict[str, Any]
_Shown = Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent

_STATES_OF_0_1 = {"rejected": "failed", "auth-required": "input-required"}
"""For each state that 0.1 lacks, the state of 0.1 on which its clients do the right thing."""


class Shapes:
    """Turns tasks and events into JSON: that of 0.3, with the names of 0.1 beside its own.

    One instance serves one answer: it numbers the artifacts, which have no ids in 0.1.

    Args:
        is_0_1: True if the client is certainly of 0.1, which knows fewer states.
    """

    def __init__(self, *, is_0_1: bool = False) -> None:
        self._is_0_1 = is_0_1
        self._numbers: dict[str, int] = {}

    def task(self, task: Task) -> Json:
        shape = dumped(conversions.to_compat_task(task))
        shape |= {"sessionId": task.context_id, "status": self._status(shape["status"])}
        for name, translated in (("artifacts", self._artifact), ("history", _message)):
            if name in shape:
                shape[name] = [translated(item) for item in shape[name]]
        return shape

    def events(self, event: _Shown) -> Json:
        """Convert an event of a subscription, which begins with the Task."""
        if isinstance(event, Task):
            return self.task(event)
        if isinstance(event, TaskStatusUpdateEvent):
            shape = dumped(conversions.to_compat_task_status_update_event(event))
            shape["status"] = self._status(shape["status"])
            return self._named(shape, "TaskStatusUpdateEvent")
        shape = dumped(conversions.to_compat_task_artifact_update_event(event))
        artifact = self._artifact(shape["artifact"])
        artifact |= {"append": event.append, "lastChunk": event.last_chunk}
        return self._named({**shape, "artifact": artifact}, "TaskArtifactUpdateEvent")

    def own_events(self, event: _Shown) -> Json:
        """Convert an event of `tasks/sendSubscribe`, where a pause is `final`, too.

        The Task that opens the stream has `final` as well: clients of 0.1 read it as a status.
        """
        shape = self.events(event)
        if isinstance(event, Task | TaskStatusUpdateEvent):
            state = event.status.state
            shape["final"] = is_terminal(state) or state == TaskState.TASK_STATE_INPUT_REQUIRED
        return shape

    def _named(self, event: Json, kind: str) -> Json:
        return {**event, "id": event["taskId"], "sessionId": event["contextId"], "type": kind}

    def _status(self, status: Json) -> Json:
        if self._is_0_1:
            status = {**status, "state": _STATES_OF_0_1.get(status["state"], status["state"])}
        if "message" in status:
            status = {**status, "message": _message(status["message"])}
        return status

    def _artifact(self, artifact: Json) -> Json:
        number = self._numbers.setdefault(artifact["artifactId"], len(self._numbers))
        return {**artifact, "index": number, "parts": [_part(p) for p in artifact["parts"]]}


def submitted(task: Task) -> Json:
    """Convert a task for `tasks/submit` and `tasks/status`: its state and newest artifact.

    If the agent made no artifact, its status message takes the artifact's place.
    """
    shape = Shapes(is_0_1=True).task(task)
    artifact = shape["artifacts"][-1] if "artifacts" in shape else None
    said = shape["status"].get("message")
    if artifact is None and said is not None:
        artifact = {"parts": said["parts"]}
    return {"id": task.id, "status": shape["status"]["state"], "artifact": artifact}


def push_config(config: TaskPushNotificationConfig) -> Json:
    """Convert a push configuration, with the names of 0.1 and those of simple_a2a beside them."""
    shape: Json = {"url": config.url, "webhookUrl": config.url}
    scheme = config.authentication.scheme
    if scheme:
        shape |= {"authentication": {"schemes": [scheme]}, "authenticationInfo": {"scheme": scheme}}
    return {"id": config.task_id, "pushNotificationConfig": shape}


def notification(event: _Shown) -> Json:
    """Convert what a webhook is told: a Task for 0.3, an event for 0.1.

    The event is as in a stream of `tasks/sendSubscribe`, without envelope. An artifact can only be
    recognised by its `artifactId`: its number only counts within a stream.
    """
    if isinstance(event, Task):
        return dumped(conversions.to_compat_task(event))
    shape = Shapes(is_0_1=True).own_events(event)
    if "artifact" in shape:
        del shape["artifact"]["index"]
    return shape


def _message(message: Json) -> Json:
    return {**message, "parts": [_part(part) for part in message["parts"]]}


def _part(part: Json) -> Json:
    return {**part, "type": part["kind"]}


def dumped(model: BaseModel) -> Json:
    """Return the JSON of a model."""
    found: Json = whole(model.model_dump(mode="json", by_alias=True, exclude_none=True))
    return found
