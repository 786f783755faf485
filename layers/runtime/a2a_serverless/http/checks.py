"""Checks of a request: its JSON, and its values against this agent's card and limits.

They come before anything is read or written. JSON is read more strictly than by the SDK, which
turns the name of an unknown enum value into the value 0, so that a filter for a state that does not
exist finds every task; drops characters that are not base64 from a file; accepts NaN, which it
cannot print again; and shows clients its parser's own words.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from a2a.types import (
    AgentCard,
    GetTaskRequest,
    ListTasksRequest,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
)
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    JSONParseError,
)
from a2a.utils.proto_utils import parse_params
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message as AnyMessage
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request

from a2a_serverless.http.errors import invalid_params, quoted
from a2a_serverless.settings import Settings
from a2a_serverless.storage.listing import ListTasksQuery
from a2a_serverless.tasks.blobs import FOREIGN, SCHEME
from a2a_serverless.tasks.identity import check_context_id, is_unicode

_M = TypeVar("_M", bound=AnyMessage)

_MAX_VALUES = 10_000
"""The most values of one body.

Request and answer take about 8 microseconds for each value, during which nothing else runs.
"""

_JSON_TYPES = frozenset({"application/json", "application/a2a+json"})
_BESIDE_DATA = ("text", "raw", "url")
"""The other contents that a part may have."""

_AsksForHistory = SendMessageConfiguration | GetTaskRequest | ListTasksRequest

# -- values ----------------------------------------------------------------------------------


def check_send(request: SendMessageRequest, card: AgentCard, settings: Settings) -> None:
    """Refuse a message that cannot become a turn.

    Raises:
        InvalidArgumentError: a context id that is too long.
        InvalidParamsError: a role that is not the client's (section 4.1.5), a part without content
            or with a reference, too many or too long parts, or a negative history length.
        ContentTypeNotSupportedError: the card does not list a part's media type (section 3.1.1).
    """
    history_length(request.configuration, settings)
    if request.message.role != Role.ROLE_USER:
        # In the history it would look like a message of the agent.
        raise _invalid(
            "message.role", "A message from a client must have the role ROLE_USER (user)."
        )
    if request.message.context_id:
        check_context_id(request.message.context_id, "message.contextId")
    parts = request.message.parts
    if len(parts) > settings.max_parts:
        raise _invalid("message.parts", f"A message may have at most {settings.max_parts} parts.")
    for number, part in enumerate(parts):
        if part.WhichOneof("content") is None:
            raise _invalid(
                f"message.parts[{number}]", "A part must have one of text, raw, url and data."
            )
        if part.ByteSize() > settings.max_part_bytes:
            limit = f"A part may have at most {settings.max_part_bytes} bytes."
            raise _invalid(f"message.parts[{number}]", limit)
        if part.url.startswith(f"{SCHEME}:"):  # a text would be shown whole, however large
            raise _invalid(f"message.parts[{number}]", FOREIGN)
        if part.media_type:
            _check_media_type(part.media_type, card)


def history_length(request: _AsksForHistory, settings: Settings) -> int:
    """Return the most messages that an answer's history may have (section 3.2.4).

    That is A2A_MAX_HISTORY, or less if the `request` asks for less.

    Raises:
        InvalidParamsError: a negative number.
    """
    if not request.HasField("history_length"):
        return settings.max_history
    asked = request.history_length
    if asked < 0:
        raise _invalid("historyLength", "historyLength must be 0 or more.")
    return min(asked, settings.max_history)


def list_query(request: ListTasksRequest, settings: Settings) -> ListTasksQuery:
    """Return the storage's query for a request (A2A 1.0.1, section 3.1.4).

    Raises:
        InvalidParamsError: a page size outside of its limits, or a negative history length.
    """
    fields = {
        "context_id": request.context_id or None,
        "status": request.status or None,
        "page_token": request.page_token or None,
        "include_artifacts": request.include_artifacts,
        "history_length": history_length(request, settings),
    }
    if request.HasField("page_size"):
        fields["page_size"] = request.page_size
    if request.HasField("status_timestamp_after"):
        fields["status_timestamp_after"] = request.status_timestamp_after.ToJsonString()
    try:
        return ListTasksQuery.model_validate(fields)
    except ValidationError as error:
        raise _invalid("pageSize", "pageSize must be from 1 to 100.") from error


def _invalid(field: str, problem: str) -> InvalidParamsError:
    return invalid_params(problem, (field, problem))


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


# -- JSON ------------------------------------------------------------------------------------


def check_content_type(request: Request) -> None:
    """Refuse a body whose Content-Type is not JSON; one without a type is tried."""
    stated = request.headers.get("content-type", "")
    essence = stated.partition(";")[0].strip().lower()
    if essence and essence not in _JSON_TYPES:
        raise ContentTypeNotSupportedError(
            message=f"The Content-Type {quoted(essence)} is not application/json."
        )


def read_json(body: bytes) -> Any:
    """Parse the JSON text of a request.

    `data: null` is left out of the parts of a message that have another content, in the value or in
    its `params`: clients that write null for whatever they leave out mean nothing by it.

    Raises:
        JSONParseError: not JSON or UTF-8, nested too deeply, or a number that is NaN or infinite,
            also as a double.
        InvalidParamsError: more than `_MAX_VALUES` values.
    """
    try:
        value = json.loads(
            body, parse_constant=_refuse, parse_float=_finite, parse_int=_representable
        )
    except (ValueError, RecursionError) as error:
        raise JSONParseError(message="The body is not valid JSON.") from error
    except OverflowError as error:
        raise JSONParseError(message=_TOO_LARGE) from error
    count, waiting = 0, [value]
    while waiting:
        count += 1
        if count > _MAX_VALUES:
            raise InvalidParamsError(
                message=f"The body holds more than {_MAX_VALUES} values: send them in a file."
            )
        inner = waiting.pop()
        if isinstance(inner, dict):
            waiting.extend(inner.values())
        elif isinstance(inner, list):
            waiting.extend(inner)
    if isinstance(value, dict):
        _drop_null_data(value)
        _drop_null_data(value.get("params"))
    return value


def _drop_null_data(params: Any) -> None:
    # protobuf's parser would take the null for the part's content, and drop the text before it.
    message = params.get("message") if isinstance(params, dict) else None
    parts = message.get("parts") if isinstance(message, dict) else None
    for part in parts if isinstance(parts, list) else ():
        if (
            isinstance(part, dict)
            and part.get("data", ...) is None
            and any(part.get(name) is not None for name in _BESIDE_DATA)
        ):
            del part["data"]


def check_once(query: QueryParams) -> None:
    """Refuse a query parameter that comes twice: none is a list, so that one value would be lost.

    Raises:
        InvalidParamsError: names the first such parameter.
    """
    for name in query:
        if len(query.getlist(name)) > 1:
            raise _invalid(name, f"The query parameter {quoted(name)} comes more than once.")


def check_query(query: Mapping[str, str]) -> None:
    """Refuse query parameters of the wrong form, without the parser's words.

    Raises:
        InvalidParamsError: names a malformed number or time.
    """
    for name, value in query.items():
        with refusing(f"The query parameter {quoted(name)} is malformed.", name):
            parse_params(QueryParams({name: value}), ListTasksRequest())


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
        raise _invalid("params", "The parameters must be an object.")
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
        raise (_invalid(field, sentence) if field else invalid_params(sentence)) from error


def refused_field(path: str, sentence: str, problem: str) -> InvalidParamsError:
    """Return the error for the field at `path`; `sentence` follows the path in the message."""
    return invalid_params(f"{path} {sentence}", (path, problem))


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise OverflowError
    return number


def _representable(text: str) -> int:
    _finite(text)
    return int(text)


_TOO_LARGE: Final = "A number is larger than a double can be, which is 1.8e308: send it as a text."


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
            for one in (given or ()) if is_list else (given,):
                yield from _wrong_value(one, field, f"{path}{name}")
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
