"""The events that a receiver is owed, and the body and headers of the request with each.

The protocol defines the body (A2A 1.0.1, section 4.3.3); docs/push.md explains the headers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from a2a.types import StreamResponse, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from google.protobuf import json_format

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.storage.log import Log
from a2a_serverless.tasks.entries import Restarted
from a2a_serverless.tasks.events import LAST, events_of
from a2a_serverless.tasks.fold import Fold
from a2a_serverless.tasks.head import INTERRUPTED, TERMINAL
from a2a_serverless.tasks.identity import digest
from a2a_serverless.tasks.push import CONFIG_ID_OF_0_1, Push

PushEvents = Literal["ends", "statuses", "all"]
"""The events to push: interrupted and terminal states, all states, or artifacts too."""

CONTENT_TYPE: Final = "application/a2a+json"
CONTENT_TYPE_OF_0_1: Final = "application/json"
USER_AGENT: Final = "a2a-serverless"

_NO_JSON: Final = "The event cannot be written as JSON."

Pushed = TaskStatusUpdateEvent | TaskArtifactUpdateEvent
Position = tuple[int, int]
"""A commit's version, and the place of an event among all events of that commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """An event that a receiver is owed."""

    version: int
    index: int
    event: Pushed

    @property
    def position(self) -> Position:
        return self.version, self.index

    @property
    def committed_at(self) -> int | None:
        """Return the time of the status, in milliseconds since the epoch; None for an artifact."""
        if isinstance(self.event, TaskStatusUpdateEvent):
            return int(self.event.status.timestamp.ToMilliseconds())
        return None

    def body(self, config_id: str) -> bytes:
        """Return a StreamResponse with exactly one field, as JSON of 1.0 for every binding.

        The configuration of a client of 0.1 gets the event alone, as 0.1 has it.

        Raises:
            InvalidArgumentError: the event has a value that JSON cannot express.
        """
        if config_id == CONFIG_ID_OF_0_1:
            return self._body_of_0_1()
        if isinstance(self.event, TaskStatusUpdateEvent):
            response = StreamResponse(status_update=self.event)
        else:
            response = StreamResponse(artifact_update=self.event)
        try:
            return json_format.MessageToJson(response, indent=None, ensure_ascii=False).encode()
        except (json_format.Error, UnicodeEncodeError) as error:
            raise InvalidArgumentError(_NO_JSON) from error

    def _body_of_0_1(self) -> bytes:
        # It loads the models of 0.3, which few processes need.
        from a2a_serverless.http.legacy.v0_1 import notification  # noqa: PLC0415

        try:
            return json.dumps(notification(self.event), ensure_ascii=False).encode()
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(_NO_JSON) from error


def first_version(push: Push) -> int:
    """Return the version after which to read the log; the cursor may be inside the next commit."""
    return push.version if push.index >= LAST else max(0, push.version - 1)


def needs_beginning(log: Log) -> bool:
    """Return True if the log's events can only be counted by a fold of the whole log.

    A restart shows the artifacts as they were when the turn began; they are not in a later part of
    the log.
    """
    is_whole = bool(log.records) and log.records[0].version == 1
    restarts = (isinstance(entry, Restarted) for record in log.records for entry in record.entries)
    return not is_whole and any(restarts)


def owed(log: Log, push: Push, which: PushEvents) -> Iterator[Notification]:
    """Yield the events of `log` after the cursor of `push`, in order.

    `log` begins at `first_version` or earlier, and at its beginning if it `needs_beginning`.
    """
    is_whole = bool(log.records) and log.records[0].version == 1
    fold = Fold(log.head.task_id, log.head.context_id)
    for record in log.records:
        if is_whole:
            fold.add(record)
        for index, event in enumerate(events_of(record, fold)):
            is_behind = (record.version, index) > (push.version, push.index)
            if is_behind and isinstance(event, Pushed) and is_pushed(event, which):
                yield Notification(version=record.version, index=index, event=event)


def is_pushed(event: Pushed, which: PushEvents) -> bool:
    """Return True if `event` is pushed to receivers."""
    if not isinstance(event, TaskStatusUpdateEvent):
        return which == "all"
    return which != "ends" or event.status.state in TERMINAL | INTERRUPTED


def event_id(push: Push, position: Position) -> str:
    """Return 22 characters, the same for all attempts at one event of one configuration."""
    names = (push.scope, push.config.task_id, push.incarnation, push.config.id)
    return digest("push-event", *names, *map(str, position))


def headers(push: Push, *, event_id: str, attempt: int, signature: str) -> dict[str, str]:
    """Return the headers of one attempt that depend on configuration and event.

    The deliverer adds those of the trace, the connection host and length.
    """
    authentication = push.config.authentication
    is_0_1 = push.config.id == CONFIG_ID_OF_0_1
    fields = {
        "Content-Type": CONTENT_TYPE_OF_0_1 if is_0_1 else CONTENT_TYPE,
        "User-Agent": USER_AGENT,
        "X-A2A-Event-Id": event_id,
        "X-A2A-Delivery-Attempt": str(attempt),
        "X-A2A-Signature": signature,
    }
    if authentication.scheme and authentication.credentials:
        fields["Authorization"] = f"{authentication.scheme} {authentication.credentials}"
    if push.config.token:
        fields["X-A2A-Notification-Token"] = push.config.token
    return fields
