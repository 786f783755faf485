"""The operations of A2A over durable tasks, and the table of them that both bindings read.

Any process can answer for any task. The table says what an operation is called, what it reads, who
answers it, and what it shows; `a2a_serverless.http.legacy.v0_3` has the forms of 0.3.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from inspect import isasyncgenfunction
from operator import attrgetter
from typing import Any, Final, Literal, TypeVar, cast

from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import ContentTypeNotSupportedError, UnsupportedOperationError
from google.protobuf.message import Message as AnyMessage
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse

from a2a_serverless.errors import AnswerTooLargeError, TaskNotFoundError
from a2a_serverless.http.checks import invalid_field
from a2a_serverless.http.context import CallContext, base_url, operation, protocol_errors
from a2a_serverless.http.errors import quoted
from a2a_serverless.http.intake import Intake, SendResult, Wait, cancel
from a2a_serverless.http.receivers import Receivers
from a2a_serverless.http.streams import StreamEvent, StreamItems, followed
from a2a_serverless.http.uploads import Uploads
from a2a_serverless.propagated import propagated_variables
from a2a_serverless.settings import Settings
from a2a_serverless.storage.blobs import InlineLimits, inlined
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.blobs import FOREIGN, SCHEME
from a2a_serverless.tasks.entries import contents_of, is_plain, json_of, parts_of
from a2a_serverless.tasks.fold import bound
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import check_context_id
from a2a_serverless.tasks.rules import key_digest, terminal_error
from a2a_serverless.values import dataclass
from a2a_serverless.wiring import Backends

M = TypeVar("M", bound=AnyMessage)

Entrypoint = Literal["api", "stream"]
"""How the application's answers go out.

`api`: each in one piece (Mangum), so that a stream ends after `blocking_limit_s` with the events
until then. `stream`: as they are made (uvicorn); a stream ends after `stream_limit_s`. A blocking
send waits for `blocking_limit_s` in both: a longer one would meet the time-outs of clients.
"""

_STOP_MARGIN_S = 5.0
"""Seconds before the function's end at which a stream ends by itself."""


class DurableRequestHandler:
    """A2A over the backends, in the scope of each call's tenant and principal.

    It keeps nothing between calls and raises only the protocol's errors. A task goes on when its
    client leaves.

    Args:
        extended_card: returns the card for authenticated callers, given the request for it.
    """

    def __init__(
        self,
        backends: Backends,
        card: AgentCard,
        settings: Settings,
        *,
        entrypoint: Entrypoint = "api",
        extended_card: Callable[[Request], AgentCard] | None = None,
    ) -> None:
        self._backends = backends
        self._card = card
        self._settings = settings
        self._entrypoint = entrypoint
        self._extended_card = extended_card
        self._intake = Intake(
            backends,
            propagated_variables(settings.context_variables),
            most_asleep=settings.sleeping_turns_per_caller,
        )
        self._receivers = Receivers(backends, card, settings)
        self.uploads = Uploads(backends, settings)

    # -- messages ------------------------------------------------------------------------------

    @operation("send_message")
    async def on_message_send(
        self, params: SendMessageRequest, context: CallContext
    ) -> Task | Message:
        """Accept a message; wait for its turn unless told otherwise (sections 3.1.1, 3.2.2).

        If the turn takes longer than `blocking_limit_s`, return the task as it is, at work; after a
        second already if the caller has as many waits and streams as it may have.
        """
        deadline = self._backends.storage.clock.monotonic() + self._settings.blocking_limit_s
        accepted = await self._accept(params, context, 0)  # no answer shows the opening Task
        tail = accepted.tail
        if not params.configuration.return_immediately:
            wait = self._wait(context)
            await wait.settle(tail, until=accepted.is_answered, deadline=deadline)
        if tail.fold.reply is not None:
            reply = bound(tail.fold.reply, tail.head.task_id, tail.head.context_id)
            return await self._shown(reply, context)
        length = _history_length(params.configuration, self._settings)
        return await self._shown(tail.fold.task(length), context)

    async def _accept(
        self, params: SendMessageRequest, context: CallContext, length: int
    ) -> SendResult:
        _check_send(params, self._card, self._settings)
        if params.configuration.HasField("task_push_notification_config"):
            await self._receivers.check_inline(params, context)
        if not {part.url for part in params.message.parts} - {""}:
            return await self._intake.accept(params, context, length)
        copies = await self.uploads.count_copies(params.message, context)
        accepted = None
        try:
            accepted = await self._intake.accept(params, context, length)
            return accepted
        finally:
            if accepted is None or accepted.is_repeated:
                await self.uploads.give_back(copies)

    @operation("send_streaming_message")
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: CallContext
    ) -> StreamItems:
        """Accept a message and stream its turn: the Task, then what happens (section 3.1.2)."""
        limits = self._stream_limits(context)
        self._check_streaming()
        length = _history_length(params.configuration, self._settings)
        accepted = await self._accept(params, context, length)
        async for item in self._followed(accepted, accepted.is_over, limits, context):
            yield item

    @operation("subscribe_to_task")
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: CallContext
    ) -> StreamItems:
        """Stream a task to its end, through pauses (section 3.1.6).

        With `Last-Event-ID` the stream opens with the Task as of that event, also on a task that
        has ended, and goes on with what followed. An id of another task is ignored. With `Prefer:
        until=turn` the stream ends with the turn in which it opens, as the stream of a message.
        """
        limits = self._stream_limits(context)
        self._check_streaming()
        storage, cursor = self._storage(context), context.last_event_id
        length = self._settings.max_history
        if cursor is None:
            tail = await Tail.open(storage, params.id)
            if tail.head.is_terminal:
                raise terminal_error(tail.head, "It has no more events: get it instead.")
            opening = tail.snapshot(length)
        else:
            tail, opening = await Tail.resume(storage, params.id, cursor, length)
        turn = SendResult(
            turn=tail.fold.turn_at(opening.cursor.version), opening=opening, tail=tail
        )
        until = turn.is_over if context.ends_with_turn else attrgetter("is_terminal")
        async for item in self._followed(turn, until, limits, context):
            yield item

    # -- tasks ---------------------------------------------------------------------------------

    @operation("get_task")
    async def on_get_task(self, params: GetTaskRequest, context: CallContext) -> Task:
        """Return the task as it is now (section 3.1.3)."""
        task = await self.find_task(params, context)
        if task is None:
            raise TaskNotFoundError
        return task

    async def find_task(self, params: GetTaskRequest, context: CallContext) -> Task | None:
        """Return the task as it is now; None if the caller sees no such task."""
        with protocol_errors("get_task", params.id):
            length = _history_length(params, self._settings)
            inline = self._inline(context)
            return await self._storage(context).load_task(params.id, length, inline=inline)

    async def forget_result(self, context: CallContext, *, kept_s: float) -> None:
        """Delete the task that the context names, so that its id is free again.

        Do so only if it was created with the context's key, and has ended `kept_s` seconds ago, or
        earlier.
        """
        storage, task_id = self._storage(context), context.chosen_id or ""
        head = await storage.head(task_id)
        if head is None or head.key_digest != key_digest(context.creation_key):
            return
        if head.is_terminal and head.status_at + kept_s * 1000 <= storage.clock.now_ms():
            # Not a task that another request has created under the id since.
            await delete_task(storage, task_id, incarnation=head.incarnation)

    @operation("list_tasks")
    async def on_list_tasks(
        self, params: ListTasksRequest, context: CallContext
    ) -> ListTasksResponse:
        """List the caller's tasks, newest status first (section 3.1.4)."""
        query, storage = _list_query(params, self._settings), self._storage(context)

        async def fitting(tasks: Sequence[Task]) -> int:
            return await _fitting(tasks, storage, self._inline(context))

        return await list_tasks(storage, query, fitting=fitting)

    @operation("cancel_task")
    async def on_cancel_task(self, params: CancelTaskRequest, context: CallContext) -> Task:
        """Cancel a task, by its agent or without it (section 3.1.5).

        If the caller has as many waits as it may have, return the task after a second, still at
        work: its worker, or else the sweeper, ends it by the cancel's deadline.
        """
        tail = await cancel(
            self._backends,
            context.scope,
            params.id,
            wait=self._wait(context),
            timeout_s=self._settings.cancel_timeout_s,
            by=context.user_name,
        )
        return await self._shown(tail.fold.task(self._settings.max_history), context)

    # -- push notifications and the extended card ----------------------------------------------

    @operation("create_push_config")
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Notify a receiver of the task from now on (section 3.1.7)."""
        return await self._receivers.create(params, context)

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Return a push configuration without its secrets (section 3.1.8)."""
        with protocol_errors("get_push_config", params.task_id):
            return await self._receivers.get(params, context)

    @operation("list_push_configs")
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: CallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """List a task's push configurations without their secrets (section 3.1.9)."""
        return await self._receivers.list(params, context)

    @operation("delete_push_config")
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: CallContext
    ) -> None:
        """Stop notifying a receiver (section 3.1.10)."""
        await self._receivers.delete(params, context)

    async def on_get_extended_agent_card(
        self, _: GetExtendedAgentCardRequest, context: CallContext
    ) -> AgentCard:
        """Return the card for authenticated callers (sections 3.1.11, 13.3)."""
        with protocol_errors("get_extended_card"):
            if self._extended_card is None:
                raise UnsupportedOperationError(message="The agent has no extended card.")
            return self._extended_card(context.request)

    # ------------------------------------------------------------------------------------------

    def in_one_piece(
        self, content: Any, task_id: str, advice: str, media_type: str | None = None
    ) -> JSONResponse:
        """Return the answer with this content, which shows the task `task_id`, if it has an id.

        Raises:
            AnswerTooLargeError: the task makes it longer than Lambda can send; `advice` says what
                its client can do. A streamed answer, and one without a task, may have any length.
        """
        response = JSONResponse(content, media_type=media_type)
        body, most = bytes(response.body), _MAX_ANSWER_BYTES
        is_limited = self._entrypoint == "api" and bool(task_id)
        # Twice its bytes is the most that an answer can have as it is sent.
        if is_limited and 2 * len(body) > most and _sent(body) > most:
            raise AnswerTooLargeError(task_id, advice)
        return response

    def _wait(self, context: CallContext) -> Wait:
        """Return what counts a wait or stream of a call among its caller's."""
        return Wait(self._backends.streams, context.user_name)

    def _check_streaming(self) -> None:
        if not self._card.capabilities.streaming:  # section 3.3.4
            raise UnsupportedOperationError(message="The agent does not stream.")

    def _followed(
        self,
        turn: SendResult,
        until: Callable[[Head], bool],
        limits: tuple[float, float],
        context: CallContext,
    ) -> StreamItems:
        return followed(
            turn.opening,
            turn.tail,
            until,
            deadline=limits[0],
            stop=limits[1],
            wait=self._wait(context),
            flush_s=self._settings.flush_ms / 1000,
            show=lambda event: self._shown(event, context),
        )

    async def _shown(self, message: M, context: CallContext) -> M:
        """Return a task, message or event as the client gets it: with contents and links."""
        if not is_plain(message):
            await self._backends.storage.show(message, self._inline(context))
        return message

    def _inline(self, context: CallContext) -> InlineLimits:
        inline = self._settings.inline(base_url(context.request, self._settings))
        return replace(inline, tells_refusals=True)

    def _stream_limits(self, context: CallContext) -> tuple[float, float]:
        """Return deadline and stop of a stream that begins now, see `streams.followed`."""
        limit_s = self._settings.stream_limit_s
        if self._entrypoint == "api":
            limit_s = self._settings.blocking_limit_s
        stop_s, now = math.inf, self._backends.storage.clock.monotonic()
        stopped_at_ms = context.function_deadline_ms
        if stopped_at_ms is not None:
            left_ms = stopped_at_ms - self._backends.storage.clock.now_ms()
            stop_s = left_ms / 1000 - _STOP_MARGIN_S
        return now + min(limit_s, stop_s), now + stop_s

    def _storage(self, context: CallContext) -> DurableStorage:
        return self._backends.storage.for_scope(context.scope)


# -- checks ----------------------------------------------------------------------------------

_AsksForHistory = SendMessageConfiguration | GetTaskRequest | ListTasksRequest


def _check_send(request: SendMessageRequest, card: AgentCard, settings: Settings) -> None:
    """Refuse a message that cannot become a turn.

    Raises:
        InvalidArgumentError: a context id that is too long.
        InvalidParamsError: a role that is not the client's (section 4.1.5), a part without content
            or with a reference, too many or too long parts, or a negative history length.
        ContentTypeNotSupportedError: the card does not list a part's media type (section 3.1.1).
    """
    _history_length(request.configuration, settings)
    if request.message.role != Role.ROLE_USER:
        # In the history it would look like a message of the agent.
        raise invalid_field(
            "message.role", "A message from a client must have the role ROLE_USER (user)."
        )
    if request.message.context_id:
        check_context_id(request.message.context_id, "message.contextId")
    parts = request.message.parts
    if len(parts) > settings.max_parts:
        raise invalid_field(
            "message.parts", f"A message may have at most {settings.max_parts} parts."
        )
    for number, part in enumerate(parts):
        if part.WhichOneof("content") is None:
            raise invalid_field(
                f"message.parts[{number}]", "A part must have one of text, raw, url and data."
            )
        if part.ByteSize() > settings.max_part_bytes:
            limit = f"A part may have at most {settings.max_part_bytes} bytes."
            raise invalid_field(f"message.parts[{number}]", limit)
        if part.url.startswith(f"{SCHEME}:"):  # a text would be shown whole, however large
            raise invalid_field(f"message.parts[{number}]", FOREIGN)
    for part in parts:
        if part.media_type:
            _check_media_type(part.media_type, card)


def _history_length(request: _AsksForHistory, settings: Settings) -> int:
    """Return the most messages that an answer's history may have (section 3.2.4).

    That is A2A_MAX_HISTORY, or less if the `request` asks for less.

    Raises:
        InvalidParamsError: a negative number.
    """
    if not request.HasField("history_length"):
        return settings.max_history
    asked = request.history_length
    if asked < 0:
        raise invalid_field("historyLength", "historyLength must be 0 or more.")
    return min(asked, settings.max_history)


def _list_query(request: ListTasksRequest, settings: Settings) -> ListTasksQuery:
    """Return the storage's query for a request (A2A 1.0.1, section 3.1.4).

    Raises:
        InvalidParamsError: a page size outside of its limits, or a negative history length.
    """
    fields = {
        "context_id": request.context_id or None,
        "status": request.status or None,
        "page_token": request.page_token or None,
        "include_artifacts": request.include_artifacts,
        "history_length": _history_length(request, settings),
    }
    if request.HasField("page_size"):
        fields["page_size"] = request.page_size
    if request.HasField("status_timestamp_after"):
        fields["status_timestamp_after"] = request.status_timestamp_after.ToJsonString()
    try:
        return ListTasksQuery.model_validate(fields)
    except ValidationError as error:
        raise invalid_field("pageSize", "pageSize must be from 1 to 100.") from error


def _check_media_type(media_type: str, card: AgentCard) -> None:
    modes = {*card.default_input_modes}
    modes.update(mode for skill in card.skills for mode in skill.input_modes)
    if modes and not _is_accepted(media_type, modes):
        raise ContentTypeNotSupportedError(
            message=f"The agent does not accept {quoted(media_type)}, "
            f"but {', '.join(sorted(modes))}."
        )


def _is_accepted(media_type: str, modes: Iterable[str]) -> bool:
    """Return True if one of `modes`, which may be ranges, covers a type; parameters are ignored."""
    essence = media_type.partition(";")[0].strip().lower()
    family = essence.partition("/")[0]
    accepted = {mode.partition(";")[0].strip().lower() for mode in modes}
    return not accepted.isdisjoint({essence, f"{family}/*", "*/*", "*"})


# -- the table -------------------------------------------------------------------------------

_Json = dict[str, Any]

_KINDS: Final[Mapping[type[AnyMessage], str]] = {
    Task: "task",
    Message: "message",
    TaskStatusUpdateEvent: "statusUpdate",
    TaskArtifactUpdateEvent: "artifactUpdate",
}


@dataclass(frozen=True)
class A2AOperation:
    """An operation of A2A 1.0.

    `name` is its method in JSON-RPC, and `name_0_3` that of 0.3, empty if 0.3 has none. `verbs` and
    `path` are those of HTTP+JSON.
    """

    name: str
    name_0_3: str
    request: type[AnyMessage]
    handle: Callable[[DurableRequestHandler, Any, CallContext], Any]
    verbs: tuple[str, ...]
    path: str

    @cached_property
    def streams(self) -> bool:
        """Return True if its answer is a stream."""
        return isasyncgenfunction(self.handle)

    @cached_property
    def has_body(self) -> bool:
        """Return True if HTTP+JSON has its request in the body, and not in path and query."""
        return self.request in (SendMessageRequest, TaskPushNotificationConfig)

    @cached_property
    def if_too_large(self) -> str:
        """Return what its client can do if the task is larger than an answer may be."""
        if self.request is CancelTaskRequest:
            return f"it has ended; {GET_STREAMED}"
        return GET_SENT if self.request is SendMessageRequest else GET_STREAMED

    def show(self, result: Any) -> _Json | None:
        """Return the JSON of a result; None: it has none."""
        if result is None:
            return None
        if isinstance(result, ListTasksResponse):
            return _shown_page(result)
        is_long = isinstance(result, Task) and len(result.history) >= _LONG
        shown = _shown_task(result) if is_long else json_of(result)
        return {_KINDS[type(result)]: shown} if self.request is SendMessageRequest else shown


def shown_event(item: StreamEvent) -> _Json:
    """Return the JSON of an event in a stream."""
    return {_KINDS[type(item.event)]: json_of(item.event)}


_LONG: Final = 8
"""Messages of a history from which on it is worth while to look for their JSON."""
_SHORT_BYTES: Final = 1000
_FEW: Final = 8
"""The most bytes of a message or task whose JSON is kept, and the most messages, artifacts and
parts that it has: 4,096 of them take less than 20 MB."""


def _shown_task(task: Task) -> _Json:
    """Return the JSON of a task, which nobody changes; that of its history was perhaps kept."""
    rest = Task(id=task.id, context_id=task.context_id, artifacts=task.artifacts)
    for name in ("status", "metadata"):
        if task.HasField(name):
            getattr(rest, name).CopyFrom(getattr(task, name))
    shown = {"history": list(map(_shown_again, task.history))} if task.history else {}
    return {**json_of(rest), **shown}


def _shown_again(message: Message | Task) -> Any:
    """Return the JSON of what was perhaps shown before, which nobody changes."""
    kept = _kept(message)
    if kept is not None:
        return kept
    return _shown_task(message) if isinstance(message, Task) else json_of(message)


def _kept(message: Message | Task) -> _Json | None:
    """Return the JSON of what is plain, and was perhaps shown before; None: it is not kept."""
    content, kind = message.SerializeToString(), cast("Any", type(message))
    return _kept_json(kind, content) if len(content) <= _SHORT_BYTES else None


@lru_cache(4096)
def _kept_json(kind: type[Any], content: bytes) -> _Json | None:
    """Return the JSON of a message or task of these bytes; None: it may be many times as long.

    None also if it is not plain.
    """
    message = kind.FromString(content)
    contents, parts = [*contents_of(message)], [*parts_of(message)]
    if len(contents) + len(parts) > _FEW or any(part.HasField("data") for part in parts):
        return None
    if not is_plain(message):
        return None
    has_metadata = any(each.HasField("metadata") for each in (message, *contents, *parts))
    return None if has_metadata else json_of(message)


def _shown_page(found: ListTasksResponse) -> _Json:
    """Return a page: all its own fields, but only those of a task that are not empty.

    So a task has the fields that GetTask shows of it. Artifacts that were not asked for are not in
    `found` (A2A 1.0.1, section 3.1.4).
    """
    return {
        "tasks": list(map(_shown_again, found.tasks)),
        "nextPageToken": found.next_page_token,
        "pageSize": found.page_size,
        "totalSize": found.total_size,
    }


def task_of(result: Any) -> str:
    """Return the id of the task that a result shows; empty if it shows none."""
    return result.id if isinstance(result, Task) else getattr(result, "task_id", "")


_CONFIGS: Final = "/tasks/{id}/pushNotificationConfigs"
_CONFIG: Final = _CONFIGS + "/{push_id}"
_Handler = DurableRequestHandler

# SubscribeToTask stands before GetTask, whose path matches its path, too.
OPERATIONS: Final = (
    A2AOperation(
        "SendMessage",
        "message/send",
        SendMessageRequest,
        _Handler.on_message_send,
        ("POST",),
        "/message:send",
    ),
    A2AOperation(
        "SendStreamingMessage",
        "message/stream",
        SendMessageRequest,
        _Handler.on_message_send_stream,
        ("POST",),
        "/message:stream",
    ),
    A2AOperation("ListTasks", "", ListTasksRequest, _Handler.on_list_tasks, ("GET",), "/tasks"),
    A2AOperation(
        "CancelTask",
        "tasks/cancel",
        CancelTaskRequest,
        _Handler.on_cancel_task,
        ("POST",),
        "/tasks/{id}:cancel",
    ),
    A2AOperation(
        "SubscribeToTask",
        "tasks/resubscribe",
        SubscribeToTaskRequest,
        _Handler.on_subscribe_to_task,
        ("POST", "GET"),
        "/tasks/{id}:subscribe",
    ),
    A2AOperation(
        "GetTask", "tasks/get", GetTaskRequest, _Handler.on_get_task, ("GET",), "/tasks/{id}"
    ),
    A2AOperation(
        "CreateTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/set",
        TaskPushNotificationConfig,
        _Handler.on_create_task_push_notification_config,
        ("POST",),
        _CONFIGS,
    ),
    A2AOperation(
        "ListTaskPushNotificationConfigs",
        "tasks/pushNotificationConfig/list",
        ListTaskPushNotificationConfigsRequest,
        _Handler.on_list_task_push_notification_configs,
        ("GET",),
        _CONFIGS,
    ),
    A2AOperation(
        "GetTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/get",
        GetTaskPushNotificationConfigRequest,
        _Handler.on_get_task_push_notification_config,
        ("GET",),
        _CONFIG,
    ),
    A2AOperation(
        "DeleteTaskPushNotificationConfig",
        "tasks/pushNotificationConfig/delete",
        DeleteTaskPushNotificationConfigRequest,
        _Handler.on_delete_task_push_notification_config,
        ("DELETE",),
        _CONFIG,
    ),
    A2AOperation(
        "GetExtendedAgentCard",
        "agent/getAuthenticatedExtendedCard",
        GetExtendedAgentCardRequest,
        _Handler.on_get_extended_agent_card,
        ("GET",),
        "/extendedAgentCard",
    ),
)


# -- answers in one piece --------------------------------------------------------------------

_MAX_ANSWER_BYTES: Final = 5_000_000
"""The most bytes of one answer as Lambda sends it; the rest of 6 MB is for envelope and headers."""

_MOST_READS: Final = 500
"""The objects that a page reads, unless its first task alone has more."""

GET_STREAMED: Final = (
    "get it by its id with a smaller historyLength, or over JSON-RPC, whose answers are streamed"
)
GET_SENT: Final = "the message was accepted; get the task by its id"
"""What the client of an answer that is too long can do; the second one that of a send."""

_MOST_GROWTH: Final = 20
"""The most bytes that are sent for one byte of protobuf; names of enum values grow the most."""


async def _fitting(tasks: Sequence[Task], storage: DurableStorage, inline: InlineLimits) -> int:
    """Return how many of the first tasks fit into one answer, and make them what is sent."""
    size = counted = stored = reads = 0
    for number, task in enumerate(tasks):
        if _kept(task) is None and not is_plain(task):
            blobs = inlined(task, inline)
            reads += len({blob.key for blob in blobs})
            adds = sum(blob.size for blob in blobs)  # before JSON makes them more
            if number and (size + adds > _MAX_ANSWER_BYTES or reads > _MOST_READS):
                return number
            await storage.show(task, inline)
        stored += task.ByteSize()
        if _MOST_GROWTH * stored <= _MAX_ANSWER_BYTES:
            continue
        size += sum(map(_sent_bytes, tasks[counted : number + 1]))
        counted = number + 1
        if size > _MAX_ANSWER_BYTES:
            return number
    return len(tasks)


def _sent_bytes(task: Task | Message) -> int:
    """Return the bytes of a task or message in an answer, as Lambda sends it."""
    found = _shown_task(task) if isinstance(task, Task) else json_of(task)
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
    return _sent(text) + 1  # and a comma between two


def _sent(text: bytes) -> int:
    return len(text) + text.count(b'"') + text.count(b"\\")
