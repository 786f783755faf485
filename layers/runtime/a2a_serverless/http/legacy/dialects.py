"""Clients from before A2A 0.2: their JSON-RPC methods, translated onto the handler.

`tasks/send`, `tasks/sendSubscribe`, `tasks/get`, `tasks/cancel`, `tasks/resubscribe` and
`tasks/pushNotification/set` and `get` are those of A2A 0.1; `tasks/list` and
`tasks/pushNotification/delete` and `list` are additions of its client simple_a2a; `tasks/submit`
and `tasks/status` are a dialect whose clients submit a task under an id of their own and ask for
the result later. All of them serve only requests that name no version, by which their clients are
recognised; a request with `A2A-Version` is answered as if this module did not exist.

Three of the names are also methods of 0.3. Their answer is that of 0.3 with the names of 0.1 beside
it, so that clients of both find their own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils import json_utils
from a2a.utils.constants import VERSION_HEADER
from a2a.utils.errors import A2AError, InvalidParamsError, InvalidRequestError
from starlette.requests import Request
from starlette.responses import Response

from a2a_serverless.http.checks import parsed
from a2a_serverless.http.context import CallContext, protocol_errors
from a2a_serverless.http.errors import jsonrpc_error, quoted
from a2a_serverless.http.operations import GET_SENT, GET_STREAMED, DurableRequestHandler
from a2a_serverless.http.streams import StreamEvent, StreamItems, event_source
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.identity import digest, is_unicode
from a2a_serverless.tasks.push import CONFIG_ID_OF_0_1
from a2a_serverless.tasks.v0_1 import Json, Shapes, push_config, submitted
from a2a_serverless.values import dataclass

_Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Stream:
    """A handler's items, and the function that shows an event."""

    items: StreamItems
    show: Callable[[Any], Json]


_Result = Json | list[Json] | _Stream | None

_LISTED = 100
"""The most tasks of `tasks/list`, whose answer has no place for a page token."""
_LISTED_WITH_PUSH = 20
"""The most tasks of `tasks/pushNotification/list`: each costs a read of its configurations."""

_SENDS = frozenset({"tasks/send", "tasks/submit"})
_ROLES = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}


class LegacyDialects:
    """The legacy methods over a handler."""

    def __init__(self, handler: DurableRequestHandler, settings: Settings) -> None:
        self._handler = handler
        self._settings = settings
        self._methods: Mapping[str, Callable[[_Params, CallContext], Awaitable[_Result]]] = {
            "tasks/send": self._send,
            "tasks/sendSubscribe": self._send_subscribe,
            "tasks/get": self._get,
            "tasks/list": self._list,
            "tasks/cancel": self._cancel,
            "tasks/resubscribe": self._resubscribe,
            "tasks/pushNotification/set": self._push_set,
            "tasks/pushNotification/get": self._push_get,
            "tasks/pushNotification/delete": self._push_delete,
            "tasks/pushNotification/list": self._push_list,
            "tasks/submit": self._submit,
            "tasks/status": self._status,
        }

    def serve(self, request: Request, method: str) -> bool:
        """Return True for a method of these that a request names without a version."""
        if method not in self._methods:
            return False
        names = {name.lower() for name in (*request.headers, *request.query_params)}
        return VERSION_HEADER.lower() not in names

    async def answer(
        self, request: Request, envelope: _Params, request_id: str | int | None
    ) -> Response:
        """Answer a request for a method that is served.

        Raises:
            A2AError: the method refuses it, or fails.
        """
        method = envelope["method"]
        with protocol_errors("older_dialect"):
            context = CallContext(request, dialect="0.1")
            result = await self._methods[method](_params(envelope), context)
            if not isinstance(result, _Stream):
                content = {"jsonrpc": "2.0", "id": request_id, "result": result}
                advice = GET_SENT if method in _SENDS else GET_STREAMED
                return self._handler.in_one_piece(content, _task_in(result), advice)

        def show(item: StreamEvent) -> Json:
            return {"jsonrpc": "2.0", "id": request_id, "result": result.show(item.event)}

        def show_error(error: A2AError) -> Json:
            content = jsonrpc_error(error, request_id, is_1_0=False)
            return {"event": "error", "data": json_utils.dumps(content)}

        keep_alive_s = self._settings.keep_alive_s
        return await event_source(result.items, show, show_error, keep_alive_s=keep_alive_s)

    # -- A2A 0.1 -------------------------------------------------------------------------------

    async def _send(self, params: _Params, context: CallContext) -> _Result:
        return Shapes(is_0_1=True).task(await self._finished(self._sent(params, context), context))

    async def _send_subscribe(self, params: _Params, context: CallContext) -> _Result:
        items = self._handler.on_message_send_stream(self._sent(params, context), context)
        return _Stream(items, Shapes(is_0_1=True).own_events)

    async def _get(self, params: _Params, context: CallContext) -> _Result:
        asked = {"id": _task_id(params), "historyLength": params.get("historyLength")}
        task = await self._handler.on_get_task(parsed(asked, GetTaskRequest), context)
        return Shapes().task(task)

    async def _list(self, params: _Params, context: CallContext) -> _Result:
        """Return the caller's newest tasks, whole, at most `_LISTED` of them."""
        request = ListTasksRequest(page_size=_LISTED, include_artifacts=True)
        if _or(params.get("contextId"), None) is not None:
            request.context_id = _text(params, "contextId", of="conversation")
        found = await self._handler.on_list_tasks(request, context)
        return [Shapes(is_0_1=True).task(task) for task in found.tasks]

    async def _cancel(self, params: _Params, context: CallContext) -> _Result:
        request = CancelTaskRequest(id=_task_id(params))
        return Shapes().task(await self._handler.on_cancel_task(request, context))

    async def _resubscribe(self, params: _Params, context: CallContext) -> _Result:
        request = SubscribeToTaskRequest(id=_task_id(params))
        return _Stream(self._handler.on_subscribe_to_task(request, context), Shapes().events)

    def _sent(self, params: _Params, context: CallContext) -> SendMessageRequest:
        if params.get("id") is not None:
            context.chosen_id = _text(params, "id")
        return _message_of(params)

    async def _push_set(self, params: _Params, context: CallContext) -> _Result:
        task_id = _task_id(params)
        config = parsed(_config_of(params, "pushNotificationConfig"), TaskPushNotificationConfig)
        config.task_id = task_id
        made = await self._handler.on_create_task_push_notification_config(config, context)
        return push_config(made)

    async def _push_get(self, params: _Params, context: CallContext) -> _Result:
        """Return the task's configuration of 0.1; None, as in 0.1, if it has none."""
        return next(iter(await self._pushes(_task_id(params), context)), None)

    async def _push_delete(self, params: _Params, context: CallContext) -> _Result:
        request = DeleteTaskPushNotificationConfigRequest(
            task_id=_task_id(params), id=CONFIG_ID_OF_0_1
        )
        await self._handler.on_delete_task_push_notification_config(request, context)
        return None

    async def _push_list(self, params: _Params, context: CallContext) -> _Result:
        """Return the configurations of the caller's newest tasks, or of the task that is named."""
        if params.get("id", params.get("taskId")) is not None:
            return await self._pushes(_task_id(params), context)
        request = ListTasksRequest(page_size=_LISTED_WITH_PUSH, history_length=0)
        found = await self._handler.on_list_tasks(request, context)
        return [push for task in found.tasks for push in await self._pushes(task.id, context)]

    async def _pushes(self, task_id: str, context: CallContext) -> list[Json]:
        request = ListTaskPushNotificationConfigsRequest(task_id=task_id)
        found = await self._handler.on_list_task_push_notification_configs(request, context)
        return [push_config(one) for one in found.configs if one.id == CONFIG_ID_OF_0_1]

    # -- submit and ask later ------------------------------------------------------------------

    async def _submit(self, params: _Params, context: CallContext) -> _Result:
        await self._named(params, context)
        task = await self._finished(_message_of({"message": params.get("message")}), context)
        return {"task": submitted(task)}

    async def _status(self, params: _Params, context: CallContext) -> _Result:
        task_id = await self._named(params, context)
        asked = GetTaskRequest(id=task_id, history_length=0)
        task = await self._handler.find_task(asked, context)
        if task is None:
            return {"task": {"id": task_id, "status": "not_found"}}
        return {"task": submitted(task)}

    async def _named(self, params: _Params, context: CallContext) -> str:
        """Return the id of the client's task, which is gone if its result was kept for its time.

        The key tells tasks that were submitted from all others, which are kept as ever.
        """
        task_id = _text(params, "taskId")
        context.chosen_id, context.creation_key = task_id, digest("submitted-task", task_id)
        # Before the id is used: the time to live of the table counts from a task's beginning, and
        # nothing else frees the id of a result that was kept for its time.
        await self._handler.forget_result(context, kept_s=self._settings.submitted_ttl_s)
        return task_id

    async def _finished(self, request: SendMessageRequest, context: CallContext) -> Task:
        """Return the task after its turn, even if the agent has answered with a Message alone."""
        answer = await self._handler.on_message_send(request, context)
        if isinstance(answer, Task):
            return answer
        length = request.configuration.history_length
        asked = GetTaskRequest(id=answer.task_id, history_length=length)
        task: Task = await self._handler.on_get_task(asked, context)
        return task


def _task_in(result: Json | list[Json] | None) -> str:
    """Return the id of the task that a result shows; empty if it shows none."""
    return str(result.get("task", result).get("id", "")) if isinstance(result, dict) else ""


def _params(envelope: _Params) -> _Params:
    params = envelope.get("params", [])
    if not isinstance(params, dict | list):
        raise InvalidRequestError(message="The parameters must be an object or a list.")
    if not isinstance(params, dict):
        raise InvalidParamsError(message="The method needs params, an object.")
    return params


def _task_id(params: _Params) -> str:
    is_simple = params.get("id") is None and "taskId" in params
    return _text(params, "taskId" if is_simple else "id")


def _text(params: _Params, name: str, *, of: str = "task") -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value or not is_unicode(value):
        raise InvalidParamsError(message=f"{name} is missing or not a text: it names the {of}.")
    return value


def _message_of(params: Mapping[str, Any]) -> SendMessageRequest:
    """Convert the params of `tasks/send` or `tasks/submit` (0.1: TaskSendParams).

    Parts may also have the form of 1.0. A message without an id gets one that is made of its
    content, so that a repetition is recognised. 0.1 returns a history only on request.

    Raises:
        InvalidParamsError: there is no message, or one that 1.0 cannot express.
    """
    message = params.get("message")
    if not isinstance(message, Mapping):
        raise InvalidParamsError(message="message is missing.")
    parts = message.get("parts")
    if not isinstance(parts, list):
        raise InvalidParamsError(message="message.parts is missing or not a list.")
    content = json.dumps(message, sort_keys=True)
    contexts = (params.get("sessionId"), params.get("contextId"), message.get("contextId"))
    return parsed(
        {
            "message": {
                "messageId": _or(message.get("messageId"), digest("older-message", content)),
                "contextId": next((c for c in contexts if c is not None), None),
                "role": _ROLES.get(str(message.get("role", "user")), message.get("role")),
                "parts": [_part_of(part) for part in parts],
                "metadata": message.get("metadata"),
            },
            "configuration": {
                "historyLength": _or(params.get("historyLength"), 0),
                "acceptedOutputModes": params.get("acceptedOutputModes"),
                "taskPushNotificationConfig": _config_of(params, "pushNotification"),
            },
            "metadata": params.get("metadata"),
        },
        SendMessageRequest,
    )


def _or(given: Any, default: Any) -> Any:
    """Return what was given, or `default` if that is None or an empty text."""
    return default if given is None or given == "" else given


def _config_of(params: _Params, name: str) -> Json | None:
    """Return the push configuration in the params in the form of 1.0; None if there is none.

    simple_a2a has other names than 0.1: `webhookUrl`, and one scheme in `authenticationInfo`.
    """
    given = params.get(name)
    if given is None and name == "pushNotification":
        return None
    if not isinstance(given, Mapping):
        raise InvalidParamsError(message=f"{name} is missing or not an object.")
    config = {"id": CONFIG_ID_OF_0_1, "token": given.get("token")}
    config["url"] = given.get("url", given.get("webhookUrl"))
    own, simple = given.get("authentication"), given.get("authenticationInfo")
    if isinstance(own, Mapping):
        schemes = own.get("schemes")
        if not isinstance(schemes, list):
            raise InvalidParamsError(message=f"{name}.authentication.schemes is no list of names.")
        if schemes or own.get("credentials"):
            scheme = schemes[0] if schemes else ""
            config["authentication"] = {"scheme": scheme, "credentials": own.get("credentials")}
    elif isinstance(simple, Mapping):
        config["authentication"] = {
            "scheme": simple.get("scheme"),
            "credentials": simple.get("value"),
        }
    elif (own, simple) != (None, None):
        raise InvalidParamsError(message=f"{name}.authentication is not an object.")
    return config


def _part_of(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    kind = part.get("type", part.get("kind"))
    file = part.get("file")
    match kind:
        case None:
            return part
        case "text" | "data":
            fields = {kind: part.get(kind)}
        case "file":
            if not isinstance(file, Mapping):
                raise InvalidParamsError(message="A part of the type file has no file, an object.")
            names = {"bytes": "raw", "uri": "url", "name": "filename", "mimeType": "mediaType"}
            fields = {ours: file.get(name) for name, ours in names.items()}
        case _:
            raise InvalidParamsError(message=f"The part type {quoted(str(kind), 20)} is unknown.")
    fields["metadata"] = part.get("metadata")
    return {name: value for name, value in fields.items() if value is not None}
