"""HTTP+JSON of A2A 0.3 in the forms of its several SDKs, of which the SDK's server knows one.

Bodies: a message may have `parts` with their `kind`, as over JSON-RPC, instead of `content`; a push
configuration may come as it is returned, as the JavaScript SDK sends it, instead of inside a
CreateTaskPushNotificationConfigRequest. All errors have `code` and `message` at their top as well,
where the JavaScript SDK looks for them. A push configuration can be deleted. What the SDK's server
cannot write in 0.3 is an error of the protocol.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, cast

from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as types_v03
from a2a.compat.v0_3.context_builders import V03ServerCallContextBuilder
from a2a.compat.v0_3.proto_utils import ToProto
from a2a.compat.v0_3.rest_adapter import REST03Adapter
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types import DeleteTaskPushNotificationConfigRequest, Task
from a2a.utils.errors import (
    A2A_REASON_TO_ERROR,
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from a2a_serverless.http import V0_3_PREFIX
from a2a_serverless.http.checks import refused_field
from a2a_serverless.http.context import names_1_0
from a2a_serverless.http.errors import counted_errors, rest_error
from a2a_serverless.http.handler import DurableRequestHandler
from a2a_serverless.http.legacy import v0_3
from a2a_serverless.tasks.events import Event

if TYPE_CHECKING:
    from a2a.compat.v0_3 import a2a_v0_3_pb2 as pb2_v03
    from a2a.server.request_handlers.request_handler import RequestHandler

Json = dict[str, Any]
Form = Callable[[Json, str], Json]
"""Takes a body and the task in the request's path; returns the body for the SDK's server."""

_PUSH_CONFIGS: Final = "/v1/tasks/{id}/pushNotificationConfigs"
_KINDS: Final = ("text", "data", "file")
_ROLES: Final = {"ROLE_USER": "user", "ROLE_AGENT": "agent"}
_WHOLE: Final = re.compile("(-?[0-9]+)?")


def _message_form(body: Json, _: str) -> Json:
    """Return a body whose message has `content`.

    Raises:
        InvalidParamsError: the message has neither `content` nor `parts`, or a part has no kind.
    """
    name = "message" if "message" in body else "request"
    message = body.get(name)
    if not isinstance(message, dict) or "content" in message:
        return body
    if "parts" not in message:
        sentence = "is missing: in HTTP+JSON of A2A 0.3 it has the parts of the message."
        raise refused_field(f"{name}.content", sentence, "The message has no content.")
    role, parts = message.get("role"), message["parts"]
    sent = {**message, "role": _ROLES.get(str(role), role)}
    if isinstance(parts, list):
        sent["parts"] = [_with_kind(part) for part in parts]
    v0_3.check_params({"message": sent})
    # Its result is optional only where its argument is.
    converted = cast("pb2_v03.Message", ToProto.message(types_v03.Message.model_validate(sent)))
    return {**body, name: MessageToDict(converted)} | _configuration(body)


def _with_kind(part: Any) -> Any:
    """Return a part with its kind, which follows from the field that it has."""
    if not isinstance(part, dict) or "kind" in part:
        return part
    kinds = [kind for kind in _KINDS if part.get(kind) is not None]
    return {**part, "kind": kinds[0]} if len(kinds) == 1 else part


def _configuration(body: Json) -> Json:
    """Return the configuration of a send, with the push configuration under HTTP+JSON's name."""
    given = body.get("configuration")
    if not isinstance(given, dict) or "pushNotificationConfig" not in given:
        return {}
    renamed = {name: value for name, value in given.items() if name != "pushNotificationConfig"}
    return {"configuration": {**renamed, "pushNotification": given["pushNotificationConfig"]}}


def _push_form(body: Json, task_id: str) -> Json:
    parent = {"parent": f"tasks/{task_id}"}
    is_bare = "pushNotificationConfig" in body or "push_notification_config" in body
    return {**parent, "config": body} if is_bare and "config" not in body else {**parent, **body}


FORMS: Mapping[str, Form] = {
    "/v1/message:send": _message_form,
    "/v1/message:stream": _message_form,
    _PUSH_CONFIGS: _push_form,
}
"""The `Form` of each route whose body has several forms."""


def check_query(query: Mapping[str, str]) -> None:
    """Refuse a number in a form that 1.0 can read and the SDK's 0.3 cannot.

    Raises:
        InvalidParamsError: the number has an exponent.
    """
    if not _WHOLE.fullmatch(query.get("historyLength", "")):
        raise refused_field("historyLength", "is not a whole number.", "Not a whole number.")


def is_0_3(request: Request) -> bool:
    """Return True for a request under `/v1/` that does not say that it is of 1.0."""
    return bool(request.scope["path"].startswith(V0_3_PREFIX)) and not names_1_0(request)


def with_code(body: bytes) -> bytes:
    """Return the body of an error, the protocol's or HTTP's, with code and message at its top.

    The code is that of JSON-RPC (0.3, section 8); HTTP's own errors have no such code.
    """
    content = json.loads(body)
    error = content["error"]
    reasons = [detail.get("reason") for detail in error.get("details", [])]
    kinds = [A2A_REASON_TO_ERROR[reason] for reason in reasons if reason in A2A_REASON_TO_ERROR]
    codes = [JSON_RPC_ERROR_CODE_MAP[kind] for kind in kinds if kind in JSON_RPC_ERROR_CODE_MAP]
    top = {"code": codes[0] if codes else error["code"], "message": error["message"]}
    return json.dumps({**content, **top}).encode()


class _Written:
    """The handler for the SDK's routes of 0.3, which fail with what they cannot write.

    They copy a task's parts into messages of their own, where a list in a data part stands deeper
    than in 1.0: beyond what protobuf reads.
    """

    def __init__(self, handler: DurableRequestHandler) -> None:
        self._handler = handler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    async def on_message_send(self, *call: Any) -> Any:
        return _checked(await self._handler.on_message_send(*call))

    async def on_get_task(self, *call: Any) -> Any:
        return _checked(await self._handler.on_get_task(*call))

    async def on_cancel_task(self, *call: Any) -> Any:
        return _checked(await self._handler.on_cancel_task(*call))

    async def on_message_send_stream(self, *call: Any) -> AsyncIterator[Any]:
        async with aclosing(self._handler.on_message_send_stream(*call)) as events:
            async for event in events:
                yield _checked(event)

    async def on_subscribe_to_task(self, *call: Any) -> AsyncIterator[Any]:
        async with aclosing(self._handler.on_subscribe_to_task(*call)) as events:
            async for event in events:
                yield _checked(event)


def _checked(event: Event) -> Event:
    """Return a result or an event that the SDK can write in HTTP+JSON of 0.3.

    Raises:
        UnsupportedOperationError: a list in it is nested too deeply; names the ways to get it.
    """
    response = conversions.to_compat_stream_response(to_stream_response(event), "")
    try:
        ToProto.stream_response(response.result)
    except DecodeError as error:
        task_id = event.id if isinstance(event, Task) else event.task_id
        with counted_errors():
            raise UnsupportedOperationError(
                message=f"Task {task_id} has a list that is nested too deeply for HTTP+JSON of A2A "
                "0.3: get the task over JSON-RPC, or with A2A 1.0."
            ) from error
    return event


def routes(handler: DurableRequestHandler, context: ServerCallContextBuilder) -> list[BaseRoute]:
    """Return the SDK's routes of 0.3, and the one that it leaves out."""
    adapter = REST03Adapter(cast("RequestHandler", _Written(handler)), context)
    sdks: list[BaseRoute] = [
        Route(path, endpoint, methods=[method])
        for (path, method), endpoint in adapter.routes().items()
    ]
    return [_deletion(handler, context), *sdks]


def _deletion(handler: DurableRequestHandler, context: ServerCallContextBuilder) -> Route:
    """Return the route that deletes a push configuration (0.3, section 7.8)."""
    builder = V03ServerCallContextBuilder(context)

    async def delete(request: Request) -> Response:
        names = request.path_params
        named = DeleteTaskPushNotificationConfigRequest(task_id=names["id"], id=names["push_id"])
        try:
            await handler.on_delete_task_push_notification_config(named, builder.build(request))
        except A2AError as error:
            return rest_error(error)
        return JSONResponse({})

    return Route(f"{_PUSH_CONFIGS}/{{push_id}}", delete, methods=["DELETE"])
