"""Reading a request's JSON more strictly than the SDK does.

The SDK turns the name of an unknown enum value into the value 0, so that a filter for a state that
does not exist finds every task; it drops characters that are not base64 from a file, so that the
agent gets another file; it accepts NaN, which it cannot print again; and it shows clients its
parser's own words.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from a2a.types import ListTasksRequest
from a2a.utils.errors import InvalidParamsError, JSONParseError
from a2a.utils.proto_utils import parse_params
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from a2a_serverless.http.errors import invalid_params

M = TypeVar("M", bound=Message)

MAX_VALUES = 50_000
"""The most values of one body: protobuf's parser takes tens of microseconds for each."""


_LINE_BREAKS = str.maketrans("", "", "\r\n")
_BASE64 = re.compile(r"([A-Za-z0-9+/_-]*)(={0,2})")
"""Digits of either alphabet, and padding."""
NOT_BASE64 = ("is not base64.", "Not base64 (RFC 4648).")


def read_json(body: bytes) -> Any:
    """Parse a JSON text.

    Raises:
        JSONParseError: not JSON or UTF-8, nested too deeply, or a number that is infinite or NaN.
        InvalidParamsError: more than `MAX_VALUES` values.
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
    """Refuse so many values that protobuf's parser would block the event loop.

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
    """Refuse query parameters of the wrong form, without the parser's words.

    Raises:
        InvalidParamsError: a malformed number or time.
    """
    with refusing("A query parameter is malformed."):
        parse_params(query, ListTasksRequest())


def check_values(value: Any, model: type[Message]) -> None:
    """Refuse unknown enum values and malformed base64; unknown fields are ignored (section 5.7).

    Raises:
        InvalidParamsError: names the first such field.
    """
    for path, (sentence, problem) in _wrong_values(value, model.DESCRIPTOR):
        raise refused_field(path, sentence, problem)


def parsed(value: Any, model: type[M]) -> M:
    """Convert a ProtoJSON value to its message; unknown fields are ignored.

    Raises:
        InvalidParamsError: a field of another type, an unknown enum value, or malformed base64.
    """
    check_values(value, model)
    sentence = f"The body is not a {model.DESCRIPTOR.name}."
    if not isinstance(value, dict):
        # ParseDict would take the letters of a text for names of unknown fields.
        raise InvalidParamsError(message=sentence)
    with refusing(sentence):
        return ParseDict(value, model(), ignore_unknown_fields=True)


@contextmanager
def refusing(sentence: str) -> Iterator[None]:
    """Refuse with a sentence of ours what a library's parser does not accept.

    Such parsers raise more than they document: ParseDict also OverflowError and AttributeError, the
    SDK's conversions whatever pydantic, base64 and Unicode raise.

    Raises:
        InvalidParamsError: has the sentence; one that is raised in the block passes as it is.
    """
    try:
        yield
    except InvalidParamsError:
        raise
    except Exception as error:
        raise InvalidParamsError(message=sentence) from error


def is_base64(text: str, *, strict: bool = False) -> bool:
    """Return True if all of `text` but its line breaks is base64, as ProtoJSON defines it.

    Either alphabet will do, with or without padding; `strict` asks for the first one, padded.
    """
    found = _BASE64.fullmatch(text.translate(_LINE_BREAKS))
    if found is None:
        return False
    digits, padding = found.groups()
    missing = -len(digits) % 4
    if strict:
        return len(padding) == missing and not {"-", "_"} & set(digits)
    return len(padding) <= missing < 3  # noqa: PLR2004 - one digit is less than a byte


def refused_field(path: str, sentence: str, problem: str) -> InvalidParamsError:
    """Return the error for the field at `path`, of which `sentence` is the message's predicate."""
    return invalid_params(f"{path} {sentence}", (path, problem))


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
        if isinstance(value, str) and not is_base64(value):
            yield path, NOT_BASE64
    elif field.message_type is not None and _is_ours(field.message_type):
        yield from _wrong_values(value, field.message_type, f"{path}.")


def _is_ours(descriptor: Any) -> bool:
    """Return True if a message is the protocol's, and not one of protobuf's (Struct, Value, …)."""
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
