"""Which fields of a JSON value are not as ProtoJSON has them, and what they must be.

The parser's own words are none for clients: they have names of protobuf's, or show what was sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.timestamp_pb2 import Timestamp

from a2a_serverless.tasks.identity import is_unicode

_Problem = tuple[str, str]
"""What is wrong with a field: the predicate of a sentence, and words for the error's details."""
Found = Iterator[tuple[str, _Problem]]
"""Paths of fields, each with its problem."""

_INT32: Final = 2**31
_LINE_BREAKS: Final = str.maketrans("", "", "\r\n")
_BASE64: Final = re.compile(r"([A-Za-z0-9+/_-]*)(={0,2})")
"""Digits of either alphabet, and padding."""
_TRUTH_VALUES: Final = frozenset({"true", "false"})
"""What a query parameter may say, in letters of either size; JSON has no texts for them."""
_PROTOBUF: Final = "google.protobuf."


def wrong_fields(value: Any, descriptor: Any, path: str = "") -> Found:
    """Yield the fields of `value`, a message of this kind, that its parser would not take as meant.

    Unknown fields are none of them. `path` is that of the message, with a dot at its end.
    """
    if not isinstance(value, Mapping):
        return
    for field in descriptor.fields:
        for name in {field.json_name, field.name} & value.keys():
            yield from _wrong_in(value[name], field, f"{path}{name}")
    for choice in descriptor.oneofs:
        given = [f.json_name for f in choice.fields if value.get(f.json_name) is not None]
        if len(given) > 1:
            sentence = f"has {' and '.join(given)}: it may have one of them."
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


def _wrong_in(value: Any, field: FieldDescriptor, path: str) -> Found:
    if field.default_value != []:  # what a list has by default
        yield from _wrong_in_one(value, field, path)
    elif isinstance(value, list):
        for item in value:
            yield from _wrong_in_one(item, field, path)
    elif value is not None:
        yield path, _must_be("a list")


def _wrong_in_one(value: Any, field: FieldDescriptor, path: str) -> Found:
    if value is None:
        return
    if field.enum_type is not None:
        if not _is_value_of(field.enum_type, value):
            known = ", ".join(value.name for value in field.enum_type.values if value.number)
            yield path, (f"has an unknown value: it is one of {known}.", f"Not one of {known}.")
    elif field.message_type is not None:
        yield from _wrong_message(value, field.message_type, path)
    elif field.type in _SCALARS:
        is_right, problem = _SCALARS[field.type]
        if not is_right(value):
            yield path, problem


def _wrong_message(value: Any, descriptor: Any, path: str) -> Found:
    if descriptor.full_name == f"{_PROTOBUF}Timestamp":
        if not _is_time(value):
            yield path, _must_be("a time, such as 2026-01-31T12:00:00Z")
    elif descriptor.full_name != f"{_PROTOBUF}Value" and not isinstance(value, Mapping):
        # The parser would take the letters of a text for names of unknown fields.
        yield path, _must_be("an object")
    elif not descriptor.full_name.startswith(_PROTOBUF):
        yield from wrong_fields(value, descriptor, f"{path}.")


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
    return number.is_integer() and abs(number) <= _INT32


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
