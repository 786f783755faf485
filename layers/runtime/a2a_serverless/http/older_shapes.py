"""What the clients of A2A 0.1 read and write, on both sides of the translation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from a2a.compat.v0_3 import conversions
from a2a.types import (
    SendMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from a2a.types import Message as Message1
from a2a.utils.errors import InvalidParamsError
from pydantic import BaseModel

from a2a_serverless.http.bodies import parsed
from a2a_serverless.tasks.events import Event
from a2a_serverless.tasks.identity import digest
from a2a_serverless.tasks.states import is_interrupted, is_terminal

Json = dict[str, Any]

_ROLES = {"user": "ROLE_USER", "agent": "ROLE_AGENT", None: "ROLE_USER"}
_STATES_OF_0_1 = {"rejected": "failed", "auth-required": "input-required"}
"""States that came later, and what a client of 0.1 does the right thing with."""


def request_of(params: Mapping[str, Any]) -> SendMessageRequest:
    """The message of `tasks/send` or `tasks/submit` (0.1: TaskSendParams).

    Parts may also have the form of 1.0. A message without id gets one that follows from its
    content, so that a client that repeats itself is recognised. 0.1 sends no history back unless
    it is asked for.

    Raises:
        InvalidParamsError: there is no message, or none that 1.0 could express.
    """
    message = params.get("message")
    if not isinstance(message, Mapping):
        raise InvalidParamsError(message="message is missing.")
    parts = message.get("parts")
    if not isinstance(parts, list):
        raise InvalidParamsError(message="message.parts is missing: a list.")
    content = json.dumps(message, sort_keys=True)
    return parsed(
        {
            "message": {
                "messageId": message.get("messageId") or digest("older-message", content),
                "contextId": params.get("sessionId") or message.get("contextId"),
                "role": _ROLES.get(_hashable(message.get("role")), message.get("role")),
                "parts": [_part_of(part) for part in parts],
                "metadata": message.get("metadata"),
            },
            "configuration": {
                "historyLength": params.get("historyLength") or 0,
                "acceptedOutputModes": params.get("acceptedOutputModes"),
            },
            "metadata": params.get("metadata"),
        },
        SendMessageRequest,
    )


def _part_of(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    metadata = part.get("metadata")
    match part.get("type", part.get("kind")):
        case "text":
            return {"text": part.get("text"), "metadata": metadata}
        case "data":
            return {"data": part.get("data"), "metadata": metadata}
        case "file" if isinstance(file := part.get("file"), Mapping):
            return {
                "raw": file.get("bytes"),
                "url": file.get("uri"),
                "filename": file.get("name"),
                "mediaType": file.get("mimeType"),
                "metadata": metadata,
            }
        case None:
            return part
        case kind:
            raise InvalidParamsError(message=f"A part of type {str(kind)[:20]!r} is unknown.")


def _hashable(role: Any) -> Any:
    return role if role is None or isinstance(role, str) else str(role)


class Shapes:
    """Turns tasks and events into JSON: that of 0.3, with the names of 0.1 beside its own.

    One instance serves one answer: it numbers the artifacts, which have no ids in 0.1.

    Args:
        is_0_1: whether the client can only be one of 0.1, which knows fewer states.
    """

    def __init__(self, *, is_0_1: bool = False) -> None:
        self._is_0_1 = is_0_1
        self._numbers: dict[str, int] = {}

    def task(self, task: Task) -> Json:
        shown = _dumped(conversions.to_compat_task(task))
        shown |= {"sessionId": task.context_id, "status": self._status(shown["status"])}
        for name, translated in (("artifacts", self._artifact), ("history", _message)):
            if name in shown:
                shown[name] = [translated(item) for item in shown[name]]
        return shown

    def events(self, event: Event) -> Json:
        """An event of a subscription, which begins with the Task."""
        match event:
            case Task():
                return self.task(event)
            case TaskStatusUpdateEvent():
                shown = _dumped(conversions.to_compat_task_status_update_event(event))
                shown["status"] = self._status(shown["status"])
                return self._named(shown, "TaskStatusUpdateEvent")
            case TaskArtifactUpdateEvent():
                shown = _dumped(conversions.to_compat_task_artifact_update_event(event))
                artifact = self._artifact(shown["artifact"])
                artifact |= {"append": event.append, "lastChunk": event.last_chunk}
                return self._named({**shown, "artifact": artifact}, "TaskArtifactUpdateEvent")
            case Message1():  # pragma: no cover - the handler streams tasks only
                return _message(_dumped(conversions.to_compat_message(event)))

    def own_events(self, event: Event) -> Json:
        """An event of `tasks/sendSubscribe`, which has no Task and says `final` at a pause too."""
        match event:
            case Task():
                opening = TaskStatusUpdateEvent(
                    task_id=event.id, context_id=event.context_id, status=event.status
                )
                return self.own_events(opening)
            case TaskStatusUpdateEvent(status=status):
                final = is_terminal(status.state) or is_interrupted(status.state)
                return {**self.events(event), "final": final}
            case _:
                return self.events(event)

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
    """The task of `tasks/submit` and `tasks/status`: a flat status and the newest artifact.

    An agent that answered in words alone has said them in its status: they are the artifact then.
    """
    shown = Shapes(is_0_1=True).task(task)
    artifact = shown["artifacts"][-1] if "artifacts" in shown else None
    said = shown["status"].get("message")
    if artifact is None and said is not None:
        artifact = {"parts": said["parts"]}
    return {"id": task.id, "status": shown["status"]["state"], "artifact": artifact}


def _message(message: Json) -> Json:
    return {**message, "parts": [_part(part) for part in message["parts"]]}


def _part(part: Json) -> Json:
    return {**part, "type": part["kind"]}


def _dumped(model: BaseModel) -> Json:
    dumped: Json = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
