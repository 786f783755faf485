"""The operations of A2A: what each is called, what it reads, who answers it, and what it shows.

Both bindings read this one table. `a2a_serverless.http.legacy.v0_3` has the forms of 0.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import isasyncgenfunction
from typing import Any, Final

from a2a.server.context import ServerCallContext
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as AnyMessage

from a2a_serverless.http.answers import GET_SENT, GET_STREAMED
from a2a_serverless.http.handler import DurableRequestHandler
from a2a_serverless.http.streams import StreamEvent
from a2a_serverless.tasks.events import Event

Json = dict[str, Any]

_KINDS: Final[Mapping[type[AnyMessage], str]] = {
    Task: "task",
    Message: "message",
    TaskStatusUpdateEvent: "statusUpdate",
    TaskArtifactUpdateEvent: "artifactUpdate",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of A2A 1.0.

    `name` is its method in JSON-RPC, and `name_0_3` that of 0.3, empty if 0.3 has none. `verbs` and
    `path` are those of HTTP+JSON.
    """

    name: str
    name_0_3: str
    request: type[AnyMessage]
    handle: Callable[[DurableRequestHandler, Any, ServerCallContext], Any]
    verbs: tuple[str, ...]
    path: str

    @property
    def streams(self) -> bool:
        """Whether its answer is a stream."""
        return isasyncgenfunction(self.handle)

    @property
    def has_body(self) -> bool:
        """Whether HTTP+JSON has its request in the body, and not in path and query."""
        return self.request in (SendMessageRequest, TaskPushNotificationConfig)

    @property
    def if_too_large(self) -> str:
        """What its client can do if the task is larger than an answer may be."""
        if self.request is CancelTaskRequest:
            return f"it has ended; {GET_STREAMED}"
        return GET_SENT if self.request is SendMessageRequest else GET_STREAMED

    def show(self, result: Any) -> Json | None:
        """Return the JSON of a result."""
        if self.request is SendMessageRequest:
            return _by_kind(result)
        if isinstance(result, ListTasksResponse):
            return shown_page(result)
        return None if result is None else MessageToDict(result)


def shown_event(item: StreamEvent) -> Json:
    """Return the JSON of an event in a stream."""
    return _by_kind(item.event)


def shown_page(found: ListTasksResponse) -> Json:
    """Return a page: all its own fields, but only those of a task that are not empty.

    So a task has the fields that GetTask shows of it. Artifacts that were not asked for are not in
    `found` (A2A 1.0.1, section 3.1.4).
    """
    return {
        "tasks": [MessageToDict(task) for task in found.tasks],
        "nextPageToken": found.next_page_token,
        "pageSize": found.page_size,
        "totalSize": found.total_size,
    }


def _by_kind(event: Event) -> Json:
    """Return an event, or the result of a send, under the name of its kind."""
    return {_KINDS[type(event)]: MessageToDict(event)}


def task_of(result: Any) -> str:
    """Return the id of the task that a result shows; empty if it shows none."""
    return result.id if isinstance(result, Task) else getattr(result, "task_id", "")


_CONFIGS: Final = "/tasks/{id}/pushNotificationConfigs"
_CONFIG: Final = "/tasks/{id}/pushNotificationConfigs/{push_id}"

# SubscribeToTask stands before GetTask, whose path matches its path, too.
OPERATIONS: Final = (
    Operation(
        "SendMessage",
        "message/send",
        SendMessageRequest,
        DurableRequestHandler.on_message_send,
        ("POST",),
        "/message:send",
    ),
    Operation(
        "SendStreamingMessage",
        "message/stream",
        SendMessageRequest,
        DurableRequestHandler.on_message_send_stream,
        ("POST",),
        "/message:stream",
    ),
    Operation(
        "ListTasks", "", ListTasksRequest, DurableRequestHandler.on_list_tasks, ("GET",), "/tasks"
    ),
    Operation(
        "CancelTask",
        "tasks/cancel",
        CancelTaskRequest,
        DurableRequestHandler.on_cancel_task,
        ("POST",),
        "/tasks/{id}:cancel",
    ),
    Operation(
        "SubscribeToTask",
        "tasks/resubscribe",
        SubscribeToTaskRequest,
        DurableRequestHandler.on_subscribe_to_task,
        ("POST", "GET"),
        "/tasks/{id}:subscribe",
    ),
    Operation(
        "GetTask",
        "tasks/get",
        GetTaskRequest,
        DurableRequestHandler.on_get_task,
        ("GET",),
        "/tasks/{id}",
    ),
    Operation(
        "CreateTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/set",
        TaskPushNotificationConfig,
        DurableRequestHandler.on_create_task_push_notification_config,
        ("POST",),
        _CONFIGS,
    ),
    Operation(
        "ListTaskPushNotificationConfigs",
        "tasks/pushNotificationConfig/list",
        ListTaskPushNotificationConfigsRequest,
        DurableRequestHandler.on_list_task_push_notification_configs,
        ("GET",),
        _CONFIGS,
    ),
    Operation(
        "GetTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/get",
        GetTaskPushNotificationConfigRequest,
        DurableRequestHandler.on_get_task_push_notification_config,
        ("GET",),
        _CONFIG,
    ),
    Operation(
        "DeleteTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/delete",
        DeleteTaskPushNotificationConfigRequest,
        DurableRequestHandler.on_delete_task_push_notification_config,
        ("DELETE",),
        _CONFIG,
    ),
    Operation(
        "GetExtendedAgentCard",
        "agent/getAuthenticatedExtendedCard",
        GetExtendedAgentCardRequest,
        DurableRequestHandler.on_get_extended_agent_card,
        ("GET",),
        "/extendedAgentCard",
    ),
)
