"""Bodies and params of A2A 0.3, checked before the SDK's compatibility layer reads them.

This module also sets `final` on the last event of a turn, which that layer sets only if the task
has ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any

from a2a.compat.v0_3 import a2a_v0_3_pb2 as pb2_v03
from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as types_v03
from a2a.compat.v0_3.proto_utils import FromProto
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import ParseDict
from pydantic import BaseModel, ValidationError

from a2a_serverless.http.checks import check_values, refused_field, refusing
from a2a_serverless.http.fields import NOT_BASE64, is_base64


def check_params(params: Any) -> None:
    """Refuse params of `message/send` that 0.3 does not allow or 1.0 cannot express.

    The SDK's compatibility layer answers some of them with an internal error and its text.

    Raises:
        InvalidParamsError: the params are invalid.
    """
    with _conversion("message"):
        message = types_v03.MessageSendParams.model_validate(params)
        _check_files(message, "message.parts.file.bytes")
        _to_1_0(message)


def _check_body(body: Any) -> None:
    """Refuse a message in the body of an HTTP+JSON request as `check_params` does.

    HTTP+JSON of 0.3 has other names of fields than JSON-RPC of 0.3.
    """
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
        _check_files(message, "request.content.file.fileWithBytes")
        _to_1_0(message)


def _check_query(params: Any) -> None:
    """Refuse invalid params of `tasks/get`.

    The compatibility layer would log them as a failure, and answer with the parser's words, or, if
    a number is too large, with an internal error.

    Raises:
        InvalidParamsError: the params are invalid.
    """
    with _conversion("request"):
        query = types_v03.TaskQueryParams.model_validate(params)
        conversions.to_core_get_task_request(types_v03.GetTaskRequest(id="", params=query))


def _check_task(params: Any) -> None:
    """Refuse invalid params of `tasks/cancel` and `tasks/resubscribe`, as `_check_query` does."""
    with _conversion("request"):
        task = types_v03.TaskIdParams.model_validate(params)
        conversions.to_core_cancel_task_request(types_v03.CancelTaskRequest(id="", params=task))


def _check_push_params(params: Any) -> None:
    """Refuse invalid params of `tasks/pushNotificationConfig/set`.

    The compatibility layer would log and return them, including their secrets.

    Raises:
        InvalidParamsError: the params are invalid.
    """
    with _conversion("push configuration"):
        config = types_v03.TaskPushNotificationConfig.model_validate(params)
        conversions.to_core_task_push_notification_config(config)


def _check_push_body(body: Any) -> None:
    """Refuse a body of HTTP+JSON as `_check_push_params` does."""
    with _conversion("push configuration"):
        request = ParseDict(
            body, pb2_v03.CreateTaskPushNotificationConfigRequest(), ignore_unknown_fields=True
        )
        config = FromProto.task_push_notification_config_request(request)
        conversions.to_core_task_push_notification_config(config)


def _check_push_query(params: Any, *, names_config: bool = False) -> None:
    """Refuse invalid params of the other methods of push configurations.

    `names_config`: the params have to name a configuration, as for `delete`.

    Raises:
        InvalidParamsError: the params are invalid.
    """
    is_named = isinstance(params, dict) and "pushNotificationConfigId" in params
    model: type[BaseModel] = types_v03.TaskIdParams
    if names_config or is_named:
        model = types_v03.DeleteTaskPushNotificationConfigParams
    with _conversion("request"):
        model.model_validate(params).model_dump_json()  # refuses text that is not Unicode


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
    place = [
        *takewhile(lambda name: not (isinstance(name, str) and name[0].isupper()), first["loc"])
    ]
    at = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in place)[1:]
    is_of_one_kind = len(place) == len(first["loc"])
    if at and is_of_one_kind and first["type"] == "missing":
        return f"{at} is missing."
    if at and is_of_one_kind and first["type"] in ("enum", "literal_error"):
        return f"{at} has an unknown value: it is one of {first['ctx']['expected']}."
    return f"{at} is not as A2A 0.3 has it." if at else ""


def _to_1_0(params: types_v03.MessageSendParams) -> None:
    conversions.to_core_send_message_request(types_v03.SendMessageRequest(id="", params=params))


def _check_files(params: types_v03.MessageSendParams, path: str) -> None:
    """Refuse a file whose base64 has no padding, or characters outside the alphabet with + and /.

    The conversion to 1.0 would leave out such characters, and so shorten the file.
    """
    for part in params.message.parts:
        file = getattr(part.root, "file", None)
        if isinstance(file, types_v03.FileWithBytes) and not is_base64(file.bytes, strict=True):
            raise refused_field(path, *NOT_BASE64)


JSONRPC_PARAMS: Mapping[str, Callable[[Any], object]] = {
    "message/send": check_params,
    "message/stream": check_params,
    "tasks/pushNotificationConfig/set": _check_push_params,
    "tasks/pushNotificationConfig/get": _check_push_query,
    "tasks/pushNotificationConfig/list": _check_push_query,
    "tasks/pushNotificationConfig/delete": partial(_check_push_query, names_config=True),
}
"""The check of each method's params; it raises InvalidParamsError."""

JSONRPC_PARAMS_SHARED: Mapping[str, Callable[[Any], object]] = {
    "tasks/get": _check_query,
    "tasks/cancel": _check_task,
    "tasks/resubscribe": _check_task,
}
"""The same for methods that 0.1 has as well, but with other params."""

REST_BODIES: Mapping[str, Callable[[Any], object]] = {
    "/v1/message:send": _check_body,
    "/v1/message:stream": _check_body,
    "/v1/tasks/{id}/pushNotificationConfigs": _check_push_body,
}
"""The check of each route's body."""


def without_details(body: bytes) -> bytes:
    """Return the body of an error over JSON-RPC without the typed details, which only 1.0 has."""
    content = json.loads(body)
    if isinstance(content["error"].get("data"), list):
        del content["error"]["data"]
    return json.dumps(content).encode()


def final_in_jsonrpc(data: str) -> str:
    """Return an event of 0.3 over JSON-RPC with `final`, if it is a status (0.3, section 7.2.2).

    Events of 1.0 stay as they are; they have no such field.
    """
    answer = json.loads(data)
    event = answer.get("result", {})
    if event.get("kind") != "status-update":
        return data
    event["final"] = True
    return json.dumps(answer)


def final_in_rest(data: str) -> str:
    """Return an event of 0.3 over HTTP+JSON with `final`, as `final_in_jsonrpc` does."""
    event = json.loads(data)
    if "statusUpdate" not in event:
        return data
    event["statusUpdate"]["final"] = True
    return json.dumps(event)
