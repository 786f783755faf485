"""The events that a receiver is owed, and the body and headers of the request with each.

The protocol defines the body (A2A 1.0.1, section 4.3.3; 0.3, section 9.5: a Task); the page `push`
explains the headers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from a2a.types import (
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.constants import PROTOCOL_VERSION_1_0, VERSION_HEADER
from google.protobuf import json_format

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import Restarted, json_of
from a2a_serverless.tasks.fold import LAST, Log, extend, task_of_head
from a2a_serverless.tasks.head import TERMINAL, Head
from a2a_serverless.tasks.identity import Dialect, digest
from a2a_serverless.tasks.push import Push, Pushed, PushEvents, owed_events, pushed
from a2a_serverless.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """An event that a receiver is owed."""

    version: int
    index: int
    event: Pushed
    task: Task | None = None
    """The task as the event has left it; None unless the receiver gets it in the event's place."""

    @property
    def content(self) -> Pushed | Task:
        """Return what the receiver is shown. Not to be changed."""
        return self.task or self.event

    @property
    def tells_state(self) -> bool:
        """Return True if it tells of a status."""
        return isinstance(self.event, TaskStatusUpdateEvent)

    @property
    def position(self) -> tuple[int, int]:
        """Return the commit's version, and the place of the event among all of that commit."""
        return self.version, self.index

    @property
    def ends_task(self) -> bool:
        """Return True if no event follows."""
        event = self.event
        return isinstance(event, TaskStatusUpdateEvent) and event.status.state in TERMINAL

    @property
    def committed_at(self) -> int | None:
        """Return the time of the commit, in milliseconds since the epoch.

        None: unknown, as of an artifact, or long ago, as of a state that is told as it is.
        """
        if isinstance(self.event, TaskStatusUpdateEvent) and self.index <= LAST:
            return int(self.event.status.timestamp.ToMilliseconds())
        return None

    def event_id(self, push: Push) -> str:
        """Return 22 characters, the same for all attempts at the event for one configuration."""
        names = (push.scope, push.config.task_id, push.incarnation, push.config.id)
        return digest("push-event", *names, *map(str, self.position))

    def body(self, push: Push, content: Pushed | Task) -> bytes:
        """Return `content` as JSON of the configuration's dialect, whatever the task's binding.

        1.0 has a StreamResponse with exactly one field, 0.3 the Task, and 0.1 the event alone.

        Raises:
            InvalidArgumentError: the content has a value that JSON cannot express.
        """
        try:
            return _json(push.dialect, content).encode()
        except (json_format.Error, ValueError, TypeError) as error:
            raise InvalidArgumentError("The event cannot be written as JSON.") from error

    def headers(self, push: Push, signature: str) -> dict[str, str]:
        """Return the headers of one request: of the next attempt at an event, or of the small call.

        The deliverer adds those of the trace; the HTTP client adds host and length.
        """
        authentication = push.config.authentication
        fields = {
            "Content-Type": "application/a2a+json"
            if push.dialect == PROTOCOL_VERSION_1_0
            else "application/json",
            "User-Agent": "a2a-serverless",
            "X-A2A-Event-Id": self.event_id(push),
            "X-A2A-Delivery-Attempt": str(push.failures + 1),
            "X-A2A-Signature": signature,
        }
        if push.dialect != "0.1":  # which has no versions
            fields[VERSION_HEADER] = push.dialect
        if self.version == 0:
            fields["X-A2A-Consent"] = "asked"
        if authentication.scheme and authentication.credentials:
            fields["Authorization"] = f"{authentication.scheme} {authentication.credentials}"
        if push.config.token:
            fields["X-A2A-Notification-Token"] = push.config.token
        return fields


def _json(dialect: Dialect, content: Pushed | Task) -> str:
    if dialect == PROTOCOL_VERSION_1_0:
        if isinstance(content, TaskStatusUpdateEvent):
            response = StreamResponse(status_update=content)
        elif isinstance(content, TaskArtifactUpdateEvent):
            response = StreamResponse(artifact_update=content)
        else:
            response = StreamResponse(task=content)
        return json.dumps(json_of(response), ensure_ascii=False)
    # It loads the models of 0.3, which few processes need.
    from a2a_serverless.tasks.v0_1 import notification  # noqa: PLC0415

    return json.dumps(notification(content), ensure_ascii=False)


def consent_call(head: Head, push: Push) -> Notification:
    """Return the small call that asks a receiver for consent: a status that says nothing new.

    It has the form of a notification, so that a receiver that knows nothing of consent takes it.
    Its time is that of the creation: to a receiver that goes by times it is the oldest status.
    """
    status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
    status.timestamp.FromMilliseconds(head.created_at)
    said: dict[str, Any] = {
        "context_id": head.context_id,
        "status": status,
        "metadata": {"consent": "asked"},
    }
    return Notification(
        version=0,
        index=0,
        event=TaskStatusUpdateEvent(task_id=head.task_id, **said),
        task=Task(id=head.task_id, **said) if push.dialect == "0.3" else None,
    )


async def read_owed(storage: DurableStorage, push: Push, which: PushEvents) -> Log | None:
    """Return the log from the commit of the cursor on, or from its beginning if need be.

    None: the task is gone. The whole log alone knows the Task that a receiver of 0.3 gets, a state
    that HEAD has no room for, and the artifacts that a restart shows as they were when the turn
    began.
    """
    task_id, incarnation = push.config.task_id, push.incarnation
    # The cursor may be inside the next commit.
    after = push.version if push.index >= LAST else max(0, push.version - 1)
    if push.dialect == "0.3":
        after = 0
    log = await storage.read(task_id, after=after, incarnation=incarnation)
    if log is None or _is_whole(log):
        return log
    entries = (entry for record in log.records for entry in record.entries)
    restarts = which == "all" and any(isinstance(entry, Restarted) for entry in entries)
    if restarts or (push.set_mark and task_of_head(log.head) is None):
        return await storage.read(task_id, incarnation=incarnation)
    return log


def owed(log: Log, push: Push, which: PushEvents) -> Sequence[Notification]:
    """Return what the receiver of `push` is owed by `log`, which `read_owed` returned, in order."""
    head = log.head
    found = [
        Notification(version=version, index=index, event=event or _state_of(log))
        for (version, index), event in owed_events(
            push, head, pushed(head.task_id, head.context_id, log.records, which)
        )
    ]
    return list(_as_tasks(log, found)) if push.dialect == "0.3" else found


def _state_of(log: Log) -> TaskStatusUpdateEvent:
    task = task_of_head(log.head) or log.fold().task(0, include_artifacts=False)
    return TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)


def _as_tasks(log: Log, found: Sequence[Notification]) -> Iterator[Notification]:
    """Yield the notifications with the Task after each, for a receiver that gets Tasks.

    The Task after an event shows the artifacts before it, too: of chunks that follow one another
    the last one is enough.
    """
    fold = log.fold(0)
    for one, following in zip(found, [*found[1:], None], strict=True):
        if not one.tells_state and following is not None:
            continue
        version = one.version if one.index <= LAST else log.head.version
        task = extend(fold, log.between(fold.version, version)).task()
        if isinstance(one.event, TaskStatusUpdateEvent):  # its commit may have a later one
            task.status.CopyFrom(one.event.status)
        yield replace(one, task=task)


def _is_whole(log: Log) -> bool:
    return bool(log.records) and log.records[0].version == 1
