"""The events that a receiver is owed, and the body and headers of the request with each.

The protocol defines the body (A2A 1.0.1, section 4.3.3); the page `push` explains the headers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from a2a.types import (
    StreamResponse,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf import json_format

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import Restarted, json_of
from a2a_serverless.tasks.fold import LAST, Log
from a2a_serverless.tasks.head import TERMINAL, Head
from a2a_serverless.tasks.identity import digest
from a2a_serverless.tasks.push import CONFIG_ID_OF_0_1, Push, Pushed, PushEvents, pushed


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """An event that a receiver is owed."""

    version: int
    index: int
    event: Pushed

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
        """Return the time of the status, in milliseconds since the epoch; None for an artifact."""
        if isinstance(self.event, TaskStatusUpdateEvent):
            return int(self.event.status.timestamp.ToMilliseconds())
        return None

    def event_id(self, push: Push) -> str:
        """Return 22 characters, the same for all attempts at the event for one configuration."""
        names = (push.scope, push.config.task_id, push.incarnation, push.config.id)
        return digest("push-event", *names, *map(str, self.position))

    def body(self, push: Push) -> bytes:
        """Return a StreamResponse with exactly one field, as JSON of 1.0 for every binding.

        The configuration of a client of 0.1 gets the event alone, as 0.1 has it.

        Raises:
            InvalidArgumentError: the event has a value that JSON cannot express.
        """
        try:
            return self._json(push).encode()
        except (json_format.Error, ValueError, TypeError) as error:
            raise InvalidArgumentError("The event cannot be written as JSON.") from error

    def _json(self, push: Push) -> str:
        if _is_of_0_1(push):
            # It loads the models of 0.3, which few processes need.
            from a2a_serverless.tasks.v0_1 import notification  # noqa: PLC0415

            return json.dumps(notification(self.event), ensure_ascii=False)
        if isinstance(self.event, TaskStatusUpdateEvent):
            response = StreamResponse(status_update=self.event)
        else:
            response = StreamResponse(artifact_update=self.event)
        return json.dumps(json_of(response), ensure_ascii=False)

    def headers(self, push: Push, signature: str) -> dict[str, str]:
        """Return the headers of the next attempt that depend on configuration and event.

        The deliverer adds those of the trace, the connection host and length.
        """
        authentication = push.config.authentication
        fields = {
            "Content-Type": "application/json" if _is_of_0_1(push) else "application/a2a+json",
            "User-Agent": "a2a-serverless",
            "X-A2A-Event-Id": self.event_id(push),
            "X-A2A-Delivery-Attempt": str(push.failures + 1),
            "X-A2A-Signature": signature,
        }
        if self.version == 0:
            fields["X-A2A-Consent"] = "asked"
        if authentication.scheme and authentication.credentials:
            fields["Authorization"] = f"{authentication.scheme} {authentication.credentials}"
        if push.config.token:
            fields["X-A2A-Notification-Token"] = push.config.token
        return fields


def _is_of_0_1(push: Push) -> bool:
    return push.config.id == CONFIG_ID_OF_0_1


def consent_call(head: Head) -> Notification:
    """Return the small call that asks a receiver for consent: a status that says nothing new.

    It has the form of a notification, so that a receiver that knows nothing of consent takes it.
    Its time is that of the creation: to a receiver that goes by times it is the oldest status.
    """
    status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
    status.timestamp.FromMilliseconds(head.created_at)
    event = TaskStatusUpdateEvent(
        task_id=head.task_id,
        context_id=head.context_id,
        status=status,
        metadata={"consent": "asked"},
    )
    return Notification(version=0, index=0, event=event)


async def read_owed(storage: DurableStorage, push: Push, which: PushEvents) -> Log | None:
    """Return the log from the commit of the cursor on, or from its beginning if need be.

    None: the task is gone. Where artifacts are pushed, a restart shows them as they were when the
    turn began, which only a fold of the whole log has.
    """
    task_id, incarnation = push.config.task_id, push.incarnation
    # The cursor may be inside the next commit.
    after = push.version if push.index >= LAST else max(0, push.version - 1)
    log = await storage.read(task_id, after=after, incarnation=incarnation)
    if log is None or _is_whole(log) or which != "all":
        return log
    restarts = (isinstance(entry, Restarted) for record in log.records for entry in record.entries)
    return await storage.read(task_id, incarnation=incarnation) if any(restarts) else log


def owed(log: Log, push: Push, which: PushEvents) -> Iterator[Notification]:
    """Yield the events of `log`, which `read_owed` returned, after the cursor of `push`."""
    for place, event in pushed(log.head.task_id, log.head.context_id, log.records, which):
        if place > push.cursor:
            version, index = place
            yield Notification(version=version, index=index, event=event)


def _is_whole(log: Log) -> bool:
    return bool(log.records) and log.records[0].version == 1
