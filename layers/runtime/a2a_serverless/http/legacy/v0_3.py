"""Requests and results of A2A 0.3, converted to those of 1.0 and back.

HTTP+JSON of 0.3 has the forms of several SDKs. A message may have `parts` with their `kind`, as
over JSON-RPC, instead of `content`. A push configuration may come as it is returned, as the
JavaScript SDK sends it, instead of inside a CreateTaskPushNotificationConfigRequest.

This module loads the models of 0.3, a tenth of a cold start. The rest of `http/` imports it at the
first request of 0.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, Final, cast

from a2a.compat.v0_3 import a2a_v0_3_pb2 as pb2_v03
from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as types_v03
from a2a.compat.v0_3.proto_utils import FromProto, ToProto
from a2a.types import (
    AgentCard,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsResponse,
    Message,
    SendMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError, InvalidRequestError, UnsupportedOperationError
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as AnyMessage
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from a2a_serverless.http.checks import NOT_BASE64, check_values, is_base64, refused_field, refusing
from a2a_serverless.http.operations import task_of
from a2a_serverless.http.streams import StreamEvent
from a2a_serverless.tasks.entries import json_of
from a2a_serverless.tasks.fold import Event
from a2a_serverless.tasks.v0_1 import dumped

Json = dict[str, Any]

_KINDS: Final = ("text", "data", "file")
_ROLES: Final = {"ROLE_USER": "user", "ROLE_AGENT": "agent"}
_WHOLE: Final = re.compile("(-?[0-9]+)?")


Form = tuple[AnyMessage, Callable[[Any], Any], Callable[[StreamEvent], Json]]
"""The request of 1.0 for one of 0.3, and the functions that show its result, and its events."""


def over_jsonrpc(name: str, params: Any) -> Form:
    """Return the form of the operation `name` with these params over JSON-RPC.

    Raises:
        InvalidParamsError: 0.3 does not allow them, or 1.0 cannot express them.
        InvalidRequestError: they are neither an object nor a list.
    """
    return _read_params(name, params), _shown, _shown_event


def over_rest(name: str, request: Request, body: Json) -> Form:
    """Return the form of the operation `name` over HTTP+JSON.

    Raises:
        InvalidParamsError: 0.3 does not allow the request, or 1.0 cannot express it.
    """
    _check_query(request.query_params)
    return _read_request(name, request, body), _shown_in_rest(name), _shown_event_in_rest


# -- requests over JSON-RPC ------------------------------------------------------------------

_REQUESTS: Final[Mapping[str, tuple[type[BaseModel], Callable[[Any], AnyMessage]]]] = {
    "GetTask": (types_v03.GetTaskRequest, conversions.to_core_get_task_request),
    "CancelTask": (types_v03.CancelTaskRequest, conversions.to_core_cancel_task_request),
    "SubscribeToTask": (
        types_v03.TaskResubscriptionRequest,
        conversions.to_core_subscribe_to_task_request,
    ),
    "ListTaskPushNotificationConfigs": (
        types_v03.ListTaskPushNotificationConfigRequest,
        conversions.to_core_list_task_push_notification_config_request,
    ),
    "GetTaskPushNotificationConfig": (
        types_v03.GetTaskPushNotificationConfigRequest,
        conversions.to_core_get_task_push_notification_config_request,
    ),
    "DeleteTaskPushNotificationConfig": (
        types_v03.DeleteTaskPushNotificationConfigRequest,
        conversions.to_core_delete_task_push_notification_config_request,
    ),
}
"""By operation: the request of 0.3, and its conversion to that of 1.0."""


def _read_params(name: str, params: Any) -> AnyMessage:
    match name:
        case "SendMessage" | "SendStreamingMessage":
            with _conversion("message"):
                message = types_v03.MessageSendParams.model_validate(params)
                sent = _sent(message, "message.parts.file.bytes")
                if message.configuration and message.configuration.history_length == 0:
                    sent.configuration.history_length = 0  # the SDK takes it for all messages
                return sent
        case "CreateTaskPushNotificationConfig":
            with _conversion("push configuration"):
                return _registered(types_v03.TaskPushNotificationConfig.model_validate(params))
        case "GetExtendedAgentCard":
            if not isinstance(params, dict | list):
                raise InvalidRequestError(message="The parameters must be an object or a list.")
            return GetExtendedAgentCardRequest()
    model, convert = _REQUESTS[name]
    with _conversion("request"):
        if isinstance(params, dict) and "pushNotificationConfigId" in params:
            types_v03.DeleteTaskPushNotificationConfigParams.model_validate(params)
        read = model.model_validate({"id": "", "params": params})
        if isinstance(read, types_v03.GetTaskRequest) and read.params.history_length == 0:
            return GetTaskRequest(id=read.params.id, history_length=0)  # the SDK: all messages
        return convert(read)


def _registered(config: types_v03.TaskPushNotificationConfig) -> TaskPushNotificationConfig:
    registered = conversions.to_core_task_push_notification_config(config)
    _drop_empty_authentication(registered)
    return registered


def _drop_empty_authentication(config: TaskPushNotificationConfig) -> None:
    """Take an authentication without schemes, which 0.3 allows, for none."""
    if not config.authentication.ByteSize():
        config.ClearField("authentication")


def _sent(message: types_v03.MessageSendParams, path: str) -> SendMessageRequest:
    """Return a send of 1.0.

    Raises:
        InvalidParamsError: a file, at `path`, whose base64 has no padding, or characters outside
            the alphabet with + and /. The conversion would leave out such characters, and so
            shorten the file.
    """
    for part in message.message.parts:
        file = getattr(part.root, "file", None)
        if isinstance(file, types_v03.FileWithBytes) and not is_base64(file.bytes, strict=True):
            raise refused_field(path, *NOT_BASE64)
    sent = conversions.to_core_send_message_request(
        types_v03.SendMessageRequest(id="", params=message)
    )
    if sent.configuration.HasField("task_push_notification_config"):
        _drop_empty_authentication(sent.configuration.task_push_notification_config)
    return sent


@contextmanager
def _conversion(kind: str) -> Iterator[None]:
    with refusing(f"The {kind} is not one of A2A 0.3."):
        try:
            yield
        except ValidationError as error:
            sentence = _sentence_of(error)
            raise (InvalidParamsError(message=sentence) if sentence else error) from error


def _sentence_of(error: ValidationError) -> str:
    """Return which field is wrong, in the names of the JSON that was sent; empty for the whole."""
    first = error.errors(include_url=False, include_input=False)[0]
    loc = first["loc"][first["loc"][:1] == ("params",) :]
    place = [*takewhile(lambda name: not (isinstance(name, str) and name[0].isupper()), loc)]
    at = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in place)[1:]
    is_of_one_kind = len(place) == len(loc)
    if at and is_of_one_kind and first["type"] == "missing":
        return f"{at} is missing."
    if at and is_of_one_kind and first["type"] in ("enum", "literal_error"):
        return f"{at} has an unknown value: it is one of {first['ctx']['expected']}."
    return f"{at} is not as A2A 0.3 has it." if at else ""


# -- requests over HTTP+JSON -----------------------------------------------------------------


def _check_query(query: Mapping[str, str]) -> None:
    """Refuse a number with an exponent, which 1.0 can read and the SDK's 0.3 cannot."""
    if not _WHOLE.fullmatch(query.get("historyLength", "")):
        raise refused_field("historyLength", "is not a whole number.", "Not a whole number.")


def _read_request(name: str, request: Request, body: Json) -> AnyMessage:
    task_id = request.path_params.get("id", "")
    match name:
        case "SendMessage" | "SendStreamingMessage":
            return _sent_in_rest(_message_form(body))
        case "CreateTaskPushNotificationConfig":
            return _config_in_rest(_push_form(body, task_id))
    named = {"id": task_id, "historyLength": request.query_params.get("historyLength") or None}
    if "push_id" in request.path_params:
        named["pushNotificationConfigId"] = request.path_params["push_id"]
    return _read_params(name, named)


def _sent_in_rest(body: Json) -> AnyMessage:
    check_values(body, pb2_v03.SendMessageRequest)
    with _conversion("message"):
        request = ParseDict(body, pb2_v03.SendMessageRequest(), ignore_unknown_fields=True)
        for part in request.request.content:
            if part.HasField("file") and part.file.WhichOneof("file") is None:
                raise InvalidParamsError(
                    message="A file must have either fileWithUri or fileWithBytes."
                )
        message = FromProto.message_send_params(request)
        # The SDK's 0.3 keeps a file's base64 in this field, and not its bytes.
        return _sent(message, "request.content.file.fileWithBytes")


def _config_in_rest(body: Json) -> AnyMessage:
    with _conversion("push configuration"):
        request = ParseDict(
            body, pb2_v03.CreateTaskPushNotificationConfigRequest(), ignore_unknown_fields=True
        )
        return _registered(FromProto.task_push_notification_config_request(request))


def _message_form(body: Json) -> Json:
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
    _read_params("SendMessage", {"message": sent})
    # Its result is optional only where its argument is.
    converted = cast("pb2_v03.Message", ToProto.message(types_v03.Message.model_validate(sent)))
    return {**body, name: json_of(converted)} | _configuration(body)


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


# -- results ---------------------------------------------------------------------------------


def _shown(result: Any) -> Any:
    if isinstance(result, ListTaskPushNotificationConfigsResponse):
        return [dumped(_of_0_3(config)) for config in result.configs]
    return None if result is None else dumped(_of_0_3(result))


def _shown_event(item: StreamEvent) -> Json:
    """Return the JSON of an event over JSON-RPC; the last status of a turn has `final`.

    The SDK's layer sets it only if the task has ended (0.3, section 7.2.2).
    """
    event = dumped(_of_0_3(item.event))
    if item.is_last and "final" in event:
        event["final"] = True
    return event


def _shown_in_rest(name: str) -> Callable[[Any], Any]:
    def show(result: Any) -> Any:
        match result:
            case Task() | Message():
                return _written(result, ToProto.task_or_message if is_send else ToProto.task)
            case TaskPushNotificationConfig():
                return json_of(ToProto.task_push_notification_config(_of_0_3(result)))
            case ListTaskPushNotificationConfigsResponse():
                return json_of(
                    pb2_v03.ListTaskPushNotificationConfigResponse(
                        configs=[
                            ToProto.task_push_notification_config(_of_0_3(config))
                            for config in result.configs
                        ]
                    )
                )
            case _:
                return _shown(result)

    is_send = name == "SendMessage"
    return show


def _shown_event_in_rest(item: StreamEvent) -> Json:
    """Return the JSON of an event over HTTP+JSON, with `final` as over JSON-RPC."""
    event = _written(item.event, ToProto.stream_response)
    if item.is_last and "statusUpdate" in event:
        event["statusUpdate"]["final"] = True
    return event


_MODELS: Final[Mapping[type[AnyMessage], Callable[[Any], BaseModel]]] = {
    Task: conversions.to_compat_task,
    Message: conversions.to_compat_message,
    TaskStatusUpdateEvent: conversions.to_compat_task_status_update_event,
    TaskArtifactUpdateEvent: conversions.to_compat_task_artifact_update_event,
    TaskPushNotificationConfig: conversions.to_compat_task_push_notification_config,
    AgentCard: conversions.to_compat_agent_card,
}


def _of_0_3(result: AnyMessage) -> Any:
    return _MODELS[type(result)](result)


def _written(event: Event, write: Callable[[Any], AnyMessage]) -> Json:
    """Return the JSON of a task or an event over HTTP+JSON.

    The SDK copies its parts into messages of 0.3, where a list in a data part stands deeper than in
    1.0: beyond what protobuf reads.

    Raises:
        UnsupportedOperationError: a list in it is nested too deeply; names the ways to get it.
    """
    try:
        written: Json = json_of(write(_of_0_3(event)))
    except DecodeError as error:
        raise UnsupportedOperationError(
            message=f"Task {task_of(event)} has a list that is nested too deeply for HTTP+JSON of"
            " A2A 0.3: get the task over JSON-RPC, or with A2A 1.0."
        ) from error
    return written
