"""ProtoJSON read more strictly than by the SDK, in words for the client.

The SDK turns the name of an unknown enum value into the value 0, so that a filter for a state that
does not exist finds every task; drops characters that are not base64 from a file; and shows clients
its parser's own words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from a2a.utils.errors import (
    InvalidParamsError,
)
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message as AnyMessage
from google.protobuf.timestamp_pb2 import Timestamp

from a2a_serverless.http.errors import invalid_params
from a2a_serverless.tasks.identity import is_unicode

_M = TypeVar("_M", bound=AnyMessage)


def invalid_field(field: str, problem: str) -> InvalidParamsError:
    """Return the error for one field of a request."""
    return invalid_params(problem, (field, problem))


def check_values(value: Any, model: type[AnyMessage]) -> None:
    """Refuse unknown enum values, malformed base64, other values where an object belongs, etc.

    Unknown fields are ignored (section 5.7).

    Raises:
        InvalidParamsError: names the first such field.
    """
    for path, (sentence, problem) in _wrong_fields(value, model.DESCRIPTOR):
        raise refused_field(path, sentence, problem)


def parsed(value: Any, model: type[_M]) -> _M:
    """Convert a ProtoJSON value to its message; unknown fields are ignored.

    Raises:
        InvalidParamsError: a field of another type, an unknown enum value, or malformed base64.
    """
    check_values(value, model)
    if not isinstance(value, dict):
        # ParseDict would take the letters of a text for names of unknown fields.
        raise invalid_field("params", "The parameters must be an object.")
    with refusing(f"The body is not a {model.DESCRIPTOR.name}."):
        return ParseDict(value, model(), ignore_unknown_fields=True)


@contextmanager
def refusing(sentence: str, field: str = "") -> Iterator[None]:
    """Refuse with `sentence` a value that a library's parser in the block does not accept.

    `field` is the value's name, if it is one field of the request.

    Such parsers raise more than they document: ParseDict also raises OverflowError and
    AttributeError, the SDK's conversions also raise errors of pydantic, base64 and Unicode.

    Raises:
        InvalidParamsError: has the sentence; an InvalidParamsError of the block passes unchanged.
    """
    try:
        yield
    except InvalidParamsError:
        raise
    except Exception as error:
        raise (invalid_field(field, sentence) if field else invalid_params(sentence)) from error


def refused_field(path: str, sentence: str, problem: str) -> InvalidParamsError:
    """Return the error for the field at `path`; `sentence` follows the path in the message."""
    return invalid_params(f"{path} {sentence}", (path, problem))


# -- fields ----------------------------------------------------------------------------------

_Problem = tuple[str, str]
"""What is wrong with a field: the predicate of a sentence, and words for the error's details."""
_Found = Iterator[tuple[str, _Problem]]
"""Paths of fields, each with its problem."""

_INT32: Final = 2**31
_LINE_BREAKS: Final = str.maketrans("", "", "\r\n")
_BASE64: Final = re.compile(r"([A-Za-z0-9+/_-]*)(={0,2})")
"""Digits of either alphabet, and padding."""
_TRUTH_VALUES: Final = frozenset({"true", "false"})
"""What a query parameter may say, in letters of either size; JSON has no texts for them."""
_PROTOBUF: Final = "google.protobuf."


def _wrong_fields(value: Any, descriptor: Any, path: str = "") -> _Found:
    """Yield the fields of `value`, a message of this kind, that its parser would not take as meant.

    Unknown fields are none of them. `path` is that of the message, with a dot at its end.
    """
    if not isinstance(value, Mapping):
        return
    for field in descriptor.fields:
        for name in {field.json_name, field.name} & value.keys():
            given, is_list = value[name], field.default_value == []
            if is_list and given is not None and not isinstance(given, list):
                yield f"{path}{name}", _must_be("a list")
                continue
            values = (given or ()) if is_list else (given,)
            for one in values:
                yield from _wrong_value(one, field, f"{path}{name}")
    for choice in descriptor.oneofs:
        names = [f.json_name for f in choice.fields if value.get(f.json_name) is not None]
        if len(names) > 1:
            sentence = f"has {' and '.join(names)}: it may have one of them."
            yield path.removesuffix(".") or "The body", (sentence, "More than one of them.")


def is_base64(text: str, *, strict: bool = False) -> bool:
    """Return True if all of `text` but its line breaks is base64, as ProtoJSON defines it.

    Either alphabet will do, with or without padding; `strict` asks for the first one, padded. A
    text with line breaks needs its padding: without it protobuf takes the breaks for digits.
    """
    unbroken = text.translate(_LINE_BREAKS)
    found = _BASE64.fullmatch(unbroken)
    if found is None:
        return False
    digits, padding = found.groups()
    missing = -len(digits) % 4
    if len(unbroken) != len(text) and len(padding) != missing:
        return False
    if strict:
        return len(padding) == missing and not {"-", "_"} & set(digits)
    return len(padding) <= missing < 3  # noqa: PLR2004 - one digit is less than a byte


def _wrong_value(value: Any, field: FieldDescriptor, path: str) -> _Found:
    """Yield what is wrong with one value of a field; null is none."""
    if value is None:
        return
    descriptor: Any = field.message_type
    if field.enum_type is not None:
        if not _is_value_of(field.enum_type, value):
            known = ", ".join([value.name for value in field.enum_type.values if value.number])
            yield path, (f"has an unknown value: it is one of {known}.", f"Not one of {known}.")
    elif field.type in _SCALARS:
        is_right, problem = _SCALARS[field.type]
        if not is_right(value):
            yield path, problem
    elif descriptor is None:
        return
    elif descriptor.full_name == f"{_PROTOBUF}Timestamp":
        if not _is_time(value):
            yield path, _must_be("a time, such as 2026-01-31T12:00:00Z")
    elif descriptor.full_name != f"{_PROTOBUF}Value" and not isinstance(value, Mapping):
        # The parser would take the letters of a text for names of unknown fields.
        yield path, _must_be("an object")
    elif not descriptor.full_name.startswith(_PROTOBUF):
        yield from _wrong_fields(value, descriptor, f"{path}.")


def _must_be(kind: str) -> _Problem:
    return f"must be {kind}.", f"Not {kind}."


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value.lower() in _TRUTH_VALUES)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, str) and is_base64(value)


def _is_string(value: Any) -> bool:
    return isinstance(value, str) and is_unicode(value)


def _is_int32(value: Any) -> bool:
    """Return True for what ProtoJSON may read as a number of this type: `5`, `5.0`, `"5"`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    try:
        number = float(value)
    except ValueError:
        return False
    return number.is_integer() and -_INT32 <= number < _INT32


def _is_time(value: Any) -> bool:
    try:
        Timestamp().FromJsonString(value)
    except (ValueError, TypeError, AttributeError):
        return False
    return True


def _is_value_of(enum: EnumDescriptor, value: Any) -> bool:
    """Return True for a name or number of an enum."""
    match value:
        case str():
            return is_unicode(value) and value in enum.values_by_name
        case bool():
            return False
        case int() | float():
            return value in enum.values_by_number
        case _:
            return False


NOT_BASE64: Final[_Problem] = ("is not base64.", "Not base64 (RFC 4648).")
_SCALARS: Final[Mapping[int, tuple[Callable[[Any], bool], _Problem]]] = {
    FieldDescriptor.TYPE_BOOL: (_is_bool, _must_be("true or false")),
    FieldDescriptor.TYPE_BYTES: (_is_bytes, NOT_BASE64),
    FieldDescriptor.TYPE_STRING: (_is_string, _must_be("a string of Unicode")),
    FieldDescriptor.TYPE_INT32: (_is_int32, _must_be("a whole number of at most 32 bits")),
}
"""By type: whether a value is one of it, and what it must be."""
