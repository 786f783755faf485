"""Reading a request's JSON more strictly than the SDK does.

The SDK turns the name of an unknown enum value into the value 0, so that a filter for a state that
does not exist finds every task; it drops from a file what is no base64, so that the agent gets
another file; it takes NaN, which it cannot print again; and it answers what its parser did not
foresee with the parser's words.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from a2a.compat.v0_3 import a2a_v0_3_pb2 as pb2_v03
from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as types_v03
from a2a.compat.v0_3.proto_utils import FromProto
from a2a.types import ListTasksRequest
from a2a.utils.errors import InvalidParamsError, JSONParseError
from a2a.utils.proto_utils import parse_params
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from pydantic import BaseModel

M = TypeVar("M", bound=Message)

MAX_VALUES = 50_000
"""Values in one body: protobuf's parser takes tens of microseconds for each of them."""


_LINE_BREAKS = str.maketrans("", "", "\r\n")
_BASE64 = re.compile(r"([A-Za-z0-9+/_-]*)(={0,2})")
"""Digits of either alphabet, and padding."""
_NO_BASE64 = ("is not base64.", "Not base64 (RFC 4648).")


def read_json(body: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        JSONParseError: no JSON, no UTF-8, nested beyond reason, or a number that is none.
    """
    try:
        value = json.loads(
            body, parse_constant=_refuse, parse_float=_finite, parse_int=_representable
        )
    except (ValueError, RecursionError, OverflowError) as error:
        raise JSONParseError(message="The body is not valid JSON.") from error
    _check_size(value)
    return value


def _check_size(value: Any) -> None:
    """Refuse more values than the parser of protobuf takes in a moment: it blocks the event loop.

    Raises:
        InvalidParamsError: names the limit.
    """
    count, waiting = 0, [value]
    while waiting:
        count += 1
        if count > MAX_VALUES:
            raise InvalidParamsError(message=f"The body holds more than {MAX_VALUES} values.")
        inner = waiting.pop()
        if isinstance(inner, dict):
            waiting.extend(inner.values())
        elif isinstance(inner, list):
            waiting.extend(inner)


def check_query(query: Any) -> None:
    """Refuse query parameters of the wrong form, in words of our own.

    Raises:
        InvalidParamsError: a number or a time that is none.
    """
    try:
        parse_params(query, ListTasksRequest())
    except Exception as error:
        # `parse_params` promises nothing about what it raises.
        raise InvalidParamsError(
            message="A query parameter does not have the form of its field."
        ) from error


def check_values(value: Any, model: type[Message]) -> None:
    """Refuse enum values and bytes that are none; unknown fields are ignored (section 5.7).

    Raises:
        InvalidParamsError: names the first such field.
    """
    for path, (sentence, problem) in _wrong_values(value, model.DESCRIPTOR):
        raise _refused(path, sentence, problem)


def parsed(value: Any, model: type[M]) -> M:
    """The message that a ProtoJSON value stands for; unknown fields are ignored.

    Raises:
        InvalidParamsError: a field of another type, an unknown enum value, or no base64.
    """
    check_values(value, model)
    if not isinstance(value, dict):
        # ParseDict takes the letters of a text for the names of unknown fields.
        raise InvalidParamsError(message=f"The body is not a {model.DESCRIPTOR.name}.")
    try:
        return ParseDict(value, model(), ignore_unknown_fields=True)
    except Exception as error:
        # ParseDict promises ParseError and lets more through: OverflowError, AttributeError, …
        raise InvalidParamsError(message=f"The body is not a {model.DESCRIPTOR.name}.") from error


def check_0_3_params(params: Any) -> None:
    """Refuse params of 0.3's `message/send` that 0.3 does not have, or 1.0 cannot express.

    The SDK's compatibility layer answers some of them with an internal error and its text.

    Raises:
        InvalidParamsError: as it says.
    """
    with _conversion("message"):
        message = types_v03.MessageSendParams.model_validate(params)
        _check_files(message, "message.parts.file.bytes")
        _to_1_0(message)


def check_0_3_body(body: Any) -> None:
    """The same for HTTP+JSON, whose 0.3 is another JSON."""
    check_values(body, pb2_v03.SendMessageRequest)
    with _conversion("message"):
        request = ParseDict(body, pb2_v03.SendMessageRequest(), ignore_unknown_fields=True)
        for part in request.request.content:
            if part.HasField("file") and part.file.WhichOneof("file") is None:
                raise InvalidParamsError(message="A file has one of fileWithUri, fileWithBytes.")
        message = FromProto.message_send_params(request)
        # The SDK's 0.3 has the base64 of a file in this field, and not its bytes.
        _check_files(message, "request.content.file.fileWithBytes")
        _to_1_0(message)


def check_0_3_query(params: Any) -> None:
    """Refuse params of 0.3's `tasks/get` that are none.

    The compatibility layer would log them as a failure, and answer with the parser's words, or with
    an internal error where a number is too large. `tasks/cancel` and `tasks/resubscribe` likewise.

    Raises:
        InvalidParamsError: as it says.
    """
    with _conversion("request"):
        query = types_v03.TaskQueryParams.model_validate(params)
        conversions.to_core_get_task_request(types_v03.GetTaskRequest(id="", params=query))


def check_0_3_task(params: Any) -> None:
    """The same for `tasks/cancel` and `tasks/resubscribe`."""
    with _conversion("request"):
        task = types_v03.TaskIdParams.model_validate(params)
        conversions.to_core_cancel_task_request(types_v03.CancelTaskRequest(id="", params=task))


def check_0_3_push_params(params: Any) -> None:
    """Refuse params of 0.3's `tasks/pushNotificationConfig/set` that are none.

    The compatibility layer would log them, and answer with them: there are secrets in them.

    Raises:
        InvalidParamsError: as it says.
    """
    with _conversion("push configuration"):
        config = types_v03.TaskPushNotificationConfig.model_validate(params)
        conversions.to_core_task_push_notification_config(config)


def check_0_3_push_body(body: Any) -> None:
    """The same for HTTP+JSON."""
    with _conversion("push configuration"):
        request = ParseDict(
            body, pb2_v03.CreateTaskPushNotificationConfigRequest(), ignore_unknown_fields=True
        )
        config = FromProto.task_push_notification_config_request(request)
        conversions.to_core_task_push_notification_config(config)


def check_0_3_push_query(params: Any, *, names_config: bool = False) -> None:
    """Refuse params of 0.3's other methods of push configurations that are none.

    Only delete has to say which configuration it means.

    Raises:
        InvalidParamsError: as it says.
    """
    is_named = isinstance(params, dict) and "pushNotificationConfigId" in params
    model: type[BaseModel] = types_v03.TaskIdParams
    if names_config or is_named:
        model = types_v03.DeleteTaskPushNotificationConfigParams
    with _conversion("request"):
        model.model_validate(params).model_dump_json()  # refuses what is not Unicode


@contextmanager
def _conversion(kind: str) -> Iterator[None]:
    try:
        yield
    except InvalidParamsError:
        raise
    except Exception as error:
        # Whatever it stumbles over: pydantic, protobuf, base64, Unicode.
        raise InvalidParamsError(message=f"This is no {kind} of A2A 0.3.") from error


def _to_1_0(params: types_v03.MessageSendParams) -> None:
    conversions.to_core_send_message_request(types_v03.SendMessageRequest(id="", params=params))


def _check_files(params: types_v03.MessageSendParams, path: str) -> None:
    """Refuse a file that the conversion to 1.0 would shorten: it knows one alphabet alone."""
    for part in params.message.parts:
        file = getattr(part.root, "file", None)
        if isinstance(file, types_v03.FileWithBytes) and not _is_base64(file.bytes, strict=True):
            raise _refused(path, *_NO_BASE64)


def _is_base64(text: str, *, strict: bool = False) -> bool:
    """Whether all of `text` is base64, line breaks aside: as ProtoJSON has it.

    That is in either alphabet, with or without padding; `strict`: in the first one, with it.
    """
    found = _BASE64.fullmatch(text.translate(_LINE_BREAKS))
    if found is None:
        return False
    digits, padding = found.groups()
    missing = -len(digits) % 4
    if strict:
        return len(padding) == missing and not {"-", "_"} & set(digits)
    return len(padding) <= missing < 3  # noqa: PLR2004 - one digit is less than a byte


def _refused(path: str, sentence: str, problem: str) -> InvalidParamsError:
    data = {"errors": [{"field": path, "message": problem}]}
    return InvalidParamsError(message=f"{path} {sentence}", data=data)


def _wrong_values(
    value: Any, descriptor: Any, path: str = ""
) -> Iterator[tuple[str, tuple[str, str]]]:
    if not isinstance(value, Mapping):
        return
    for field in descriptor.fields:
        for name in {field.json_name, field.name}:
            if name not in value:
                continue
            inner = value[name] if isinstance(value[name], list) else [value[name]]
            for item in inner:
                yield from _wrong_in_field(item, field, f"{path}{name}")


def _wrong_in_field(
    value: Any, field: FieldDescriptor, path: str
) -> Iterator[tuple[str, tuple[str, str]]]:
    if field.enum_type is not None:
        is_known = value is None or (
            value in field.enum_type.values_by_name
            if isinstance(value, str)
            else value in field.enum_type.values_by_number
        )
        if not is_known:
            yield path, ("has an unknown value.", f"Not a value of {field.enum_type.name}.")
    elif field.type == FieldDescriptor.TYPE_BYTES:
        if isinstance(value, str) and not _is_base64(value):
            yield path, _NO_BASE64
    elif field.message_type is not None and _is_ours(field.message_type):
        yield from _wrong_values(value, field.message_type, f"{path}.")


def _is_ours(descriptor: Any) -> bool:
    """Whether a message is of the protocol, and not one of protobuf's (Struct, Value, …)."""
    return not descriptor.full_name.startswith("google.protobuf.")


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _representable(text: str) -> int:
    number = int(text)
    float(number)
    return number
