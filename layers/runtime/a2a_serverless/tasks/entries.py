"""The entries of a commit, and their encoding.

The encoding is self-delimiting, so that a body of any size can be cut into parts of an item's size
and put together again.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import field, fields, replace
from typing import Any, Final, NamedTuple, TypeVar

from a2a.types import (
    Artifact,
    Message,
    Part,
    SendMessageRequest,
    SendMessageResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import MessageToDict  # noqa: TID251 - here alone: `json_of`
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as AnyMessage
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.tasks.usage import Used, decoded, encoded
from a2a_serverless.values import dataclass

M = TypeVar("M", bound=AnyMessage)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a message, as the agent's call context shows it."""

    user: str = ""
    tenant: str = ""
    extensions: tuple[str, ...] = ()
    variables: str = ""
    """Context variables that travel with the message, as one JSON object; empty without any."""


@dataclass(frozen=True, slots=True)
class TurnOpened:
    """A user message was accepted; the commit's version is the turn's number."""

    request: SendMessageRequest
    caller: Caller = field(default_factory=Caller)


@dataclass(frozen=True, slots=True)
class MessageAppended:
    """A message joined the history."""

    message: Message


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The status was replaced.

    `archive` moves the message of the replaced status to the history, as the official SDK does;
    without it that message is gone, as in the Storage contract.
    """

    status: TaskStatus
    metadata: Struct | None = None
    archive: bool = False
    outside_steps: bool = False
    """The agent has emitted it outside of steps, and does so again when its code runs again."""


@dataclass(frozen=True, slots=True)
class ArtifactWritten:
    """An artifact, or the next chunk of one, was written."""

    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: Struct | None = None
    outside_steps: bool = False
    """As of `StatusChanged`."""


@dataclass(frozen=True, slots=True)
class MetadataMerged:
    """Key-value pairs were merged into the task's metadata, last writer wins."""

    metadata: Struct


@dataclass(frozen=True, slots=True)
class Restarted:
    """A new attempt took over the turn, and goes on from version `base`.

    That is the commit of the turn's last record, or the one with which the turn became the current
    one. What attempts have written since is discarded; what other writers have written, such as an
    accepted message, stays.
    """

    base: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The agent's work on the open turn is over; the task may have ended or may be paused."""


@dataclass(frozen=True, slots=True)
class Replied:
    """The agent answered with a Message alone; the client of a blocking send gets it."""

    message: Message


class StepId(NamedTuple):
    """The identity of a step in its turn; `number` counts the calls of one name and key from 1."""

    name: str
    key: str
    number: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """A record of the turn: a later attempt gets `value` instead of running the step again.

    `form` says what the value is; a record takes the place of an earlier one with its id.
    """

    id: StepId
    form: str
    value: bytes = field(repr=False)

    @property
    def is_offloaded(self) -> bool:
        """Return True if the value is a blob of the task, and the entry has its place instead."""
        return self.form.startswith(_OFFLOADED)

    def offloaded(self, place: str) -> Recorded:
        """Return the record whose value is stored as a blob at a place."""
        return Recorded(self.id, f"{_OFFLOADED}{self.form}", place.encode())

    def whole(self, value: bytes) -> Recorded:
        """Return the record as it was before `offloaded`."""
        return Recorded(self.id, self.form.removeprefix(_OFFLOADED), value)

    @property
    def is_signal(self) -> bool:
        """Return True if it came from outside, and has ended a wait."""
        return self.form.removeprefix(_OFFLOADED) == SIGNAL


QUESTION: Final = "asked"
"""The form of the record of a question to the client, with which the turn ends. The answer is a
message in the log, and has no record."""
LATE: Final = "late"
"""The form of the record that ends a question which nobody has answered in time."""
UNTIL: Final = "until"
"""The form of the record of a wait: its step has no result yet."""
SIGNAL: Final = "signal"
"""The form of the record of what came from outside, and has ended a wait. No attempt writes it."""
TIMEOUT: Final = "timeout"
"""The form of the record with which the agent's code has ended a wait for such a signal."""

_OFFLOADED: Final = "blob "
"""Stands before the form of a value that is a blob."""


@dataclass(frozen=True, slots=True)
class ModelsUsed:
    """What models have used since the commit before; a restart does not take it back."""

    usage: Used


@dataclass(frozen=True, slots=True)
class Unknown:
    """An entry that this release cannot read: a newer release's, or a damaged one.

    It is kept as it is stored, and changes nothing in a fold.
    """

    kind: bytes
    flags: int
    payload: bytes = field(repr=False)

    @property
    def is_critical(self) -> bool:
        """Return True if a release that does not know the entry must not run or write its task."""
        return bool(self.flags & CRITICAL)


Entry = (
    TurnOpened
    | MessageAppended
    | StatusChanged
    | ArtifactWritten
    | MetadataMerged
    | Restarted
    | TurnEnded
    | Replied
    | Recorded
    | ModelsUsed
    | Unknown
)

CRITICAL: Final = 0x80
"""The flag of an entry that a reader must not skip, because the task would look wrong without it.

Only newer releases write it. They also mark a known kind with it whose meaning they have changed.
"""

OFFLOAD_BYTES: Final = 32_768
"""Content of more bytes is offloaded. It is the same everywhere: digests of messages depend on it.

At this size DynamoDB's write units cost seven times as much as a request to S3.
"""

_MAX_NESTED_OBJECTS = 31
_MAX_NESTED_ARRAYS = 47
"""Levels of nested arrays that can be read back wherever they stand in an answer.

Protobuf reads 100 nested messages; an object counts as three of them, an array as two.
"""

_SHOWN = 100
"""Characters of an artifact's id in an error."""

_HEADER = struct.Struct(">cBI")  # kind, flags, length of the payload
_KINDS: Final = frozenset((b"T", b"M", b"S", b"A", b"D", b"R", b"E", b"P", b"J", b"U"))
_BASE_BYTES: Final = 8
_ARCHIVE = 1
_OUTSIDE_STEPS = 2


def encode_entries(entries: Iterable[Entry]) -> bytes:
    """Return the body of a commit."""
    body = bytearray()
    for entry in entries:
        kind, flags, payload = _pack(entry)
        body += _HEADER.pack(kind, flags, len(payload)) + payload
    return bytes(body)


def decode_entries(body: bytes) -> tuple[Entry, ...]:
    """Return the entries of a whole body, as new objects that belong to the caller."""
    entries: list[Entry] = []
    offset = 0
    while offset < len(body):
        start = offset + _HEADER.size
        if start > len(body):
            entries.append(Unknown(body[offset : offset + 1], CRITICAL, body[offset + 1 :]))
            break
        kind, flags, length = _HEADER.unpack_from(body, offset)
        offset = start + length
        if offset > len(body):  # cut off: what is left may look like a smaller entry
            flags |= CRITICAL
        entries.append(_decode(kind, flags, body[start:offset]))
    return tuple(entries)


def check_readable(entries: Iterable[Entry]) -> None:
    """Refuse entries that could be stored, but not be shown in an answer.

    Such entries have values nested beyond the limit of protobuf's decoder, or numbers that JSON
    cannot express. One such value would make its task, every list that shows it, and every later
    notification unreadable for good. The check wraps the entry as deeply as an answer does.

    Raises:
        InvalidArgumentError: names the limit; nothing was written.
    """
    for entry in entries:
        try:
            answer = SendMessageResponse(task=_shown_in(entry))
            raw = answer.SerializeToString()
            SendMessageResponse.FromString(raw)
        except DecodeError as error:
            msg = (
                "Data or metadata is nested too deeply: protobuf reads"
                f" {_MAX_NESTED_OBJECTS} objects or {_MAX_NESTED_ARRAYS} arrays within one another."
            )
            raise InvalidArgumentError(msg) from error
        if NOT_FINITE.search(raw) and not is_finite(answer):
            msg = "Data or metadata has a number that JSON does not have (NaN or infinity)."
            raise InvalidArgumentError(msg)


def advice_on_size(entries: Iterable[Entry]) -> str:
    """Return the name and bytes of the largest entry, with advice to make it smaller."""
    sizes = [(len(_pack(entry)[2]), entry) for entry in entries]
    size, largest = max(sizes, key=lambda one: one[0], default=(0, TurnEnded()))
    match largest:
        case ArtifactWritten(artifact):
            name = f"artifact {artifact.artifact_id[:_SHOWN]!r}"
            return f"{name} has {size} bytes, split it with append=True"
        case TurnOpened():
            return f"the user's message has {size} bytes, send large files by their URL"
        case MetadataMerged():
            return f"the metadata has {size} bytes, keep large data in an artifact"
        case _:
            return f"a message has {size} bytes, send it as an artifact, split with append=True"


def copied(message: M) -> M:
    """Return a copy of a protobuf message, which its owner may change."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def contents_of(message: AnyMessage | None) -> Iterator[Message | Artifact]:
    """Yield what has parts in a message of the protocol, in the order in which it is shown."""
    match message:
        case Message() | Artifact():
            yield message
        case SendMessageRequest():
            yield message.message
        case TaskStatus() if message.HasField("message"):
            yield message.message
        case TaskStatusUpdateEvent():
            yield from contents_of(message.status)
        case TaskArtifactUpdateEvent():
            yield message.artifact
        case Task():
            yield from contents_of(message.status)
            yield from message.history
            yield from message.artifacts


def parts_of(message: AnyMessage | None) -> Iterator[Part]:
    """Yield all parts in a message of the protocol; none if it is None."""
    for content in contents_of(message):
        yield from content.parts


def data_of(parts: Iterable[Part]) -> list[Any]:
    """Return the JSON values of parts, those of its data parts."""
    return [json_of(part.data) for part in parts if part.HasField("data")]


def is_plain(message: AnyMessage | None) -> bool:
    """Return True if a message is stored and shown as it is: no part is large, or has a URL."""
    return not [part for part in parts_of(message) if part.url or part.ByteSize() > OFFLOAD_BYTES]


def content_of(entry: Entry) -> SendMessageRequest | Message | TaskStatus | Artifact | None:
    """Return what has parts in an entry; None if it has none."""
    match entry:
        case TurnOpened(request, _):
            return request
        case MessageAppended(message) | Replied(message):
            return message
        case StatusChanged(status):
            return status
        case ArtifactWritten(artifact):
            return artifact
        case _:
            return None


def with_content(entry: Entry, content: AnyMessage) -> Entry:
    """Return an entry with a content of the same kind in place of its own."""
    if content is content_of(entry):
        return entry
    changed: Any = {f.name: content for f in fields(entry) if f.name in _CONTENTS}
    return replace(entry, **changed)


_CONTENTS: Final = frozenset({"request", "message", "status", "artifact"})


def is_finite(message: AnyMessage) -> bool:
    """Return True if JSON can express all numbers of a message."""
    return all(math.isfinite(number) for number in _numbers(message))


def json_of(message: AnyMessage) -> Any:
    """Return the JSON of a message, of a Struct or of a Value, with its whole numbers as ints.

    Raises:
        SerializeToJsonError, ValueError: it has a number or a time that JSON cannot express.
    """
    return whole(MessageToDict(message))


def whole(value: Any) -> Any:
    """Return a JSON value with its whole numbers as ints; its dicts and lists are changed in place.

    A Struct has doubles alone, which Python would give and write as 3.0. From 1e21 on they stay
    floats, which are written with an exponent, as ECMAScript does it.
    """
    kind = type(value)
    if kind is float:
        return int(value) if value.is_integer() and abs(value) < _LONGEST_INT else value
    for key, each in value.items() if kind is dict else enumerate(value) if kind is list else ():
        if type(each) in _NUMBERS_IN:
            value[key] = whole(each)
    return value


def has_time(status: TaskStatus) -> bool:
    """Return True if JSON can express the time of a status."""
    at = status.timestamp
    return _FIRST_S <= at.seconds <= _LAST_S and 0 <= at.nanos < _NANOS


NOT_FINITE: Final = re.compile(rb"\x11.{6}[\xf0-\xff][\x7f\xff]", re.DOTALL)
"""Finds every `number_value` that is NaN or infinite; other bytes may match it as well."""
_LONGEST_INT: Final = 1e21
_NUMBERS_IN: Final = frozenset({float, dict, list})
_FIRST_S: Final = -62_135_596_800
_LAST_S: Final = 253_402_300_799
_NANOS: Final = 1_000_000_000
"""The bounds of JSON's times: years 1 to 9999 in seconds since the epoch; nanoseconds a second."""


def _numbers(message: AnyMessage) -> Iterator[float]:
    """Yield every number of a Struct or Value in a message, at any depth."""
    for descriptor, value in message.ListFields():
        if descriptor.name == "number_value":
            yield value
        elif descriptor.message_type is None:
            continue
        elif isinstance(value, AnyMessage):
            yield from _numbers(value)
        else:
            several = value.values() if descriptor.message_type.GetOptions().map_entry else value
            for each in several:
                yield from _numbers(each)


def _shown_in(entry: Entry) -> Task:
    """Return a task that shows the entry's content where the real one will."""
    match entry:
        case TurnOpened(request, _):
            return Task(history=[request.message], metadata=request.metadata)
        case MessageAppended(message) | Replied(message):
            return Task(history=[message])
        case StatusChanged(status, metadata, _):
            return Task(status=status, metadata=metadata)
        case ArtifactWritten(artifact, _, _, metadata):
            return Task(artifacts=[artifact], metadata=metadata)
        case MetadataMerged(metadata):
            return Task(metadata=metadata)
        case _:
            return Task()


def _pack(entry: Entry) -> tuple[bytes, int, bytes]:
    match entry:
        case TurnOpened(request, caller):
            known = (caller.user, caller.tenant, caller.extensions)
            who = json.dumps((*known, caller.variables) if caller.variables else known).encode()
            return b"T", 0, len(who).to_bytes(4, "big") + who + request.SerializeToString()
        case MessageAppended(content) | MetadataMerged(content) | Replied(content):
            return _WHOLE[type(entry)], 0, content.SerializeToString()
        case StatusChanged(status, metadata, archive):
            event = TaskStatusUpdateEvent(status=status, metadata=metadata)
            return (
                b"S",
                archive * _ARCHIVE | entry.outside_steps * _OUTSIDE_STEPS,
                event.SerializeToString(),
            )
        case ArtifactWritten(artifact, append, last_chunk, metadata):
            update = TaskArtifactUpdateEvent(
                artifact=artifact, append=append, last_chunk=last_chunk, metadata=metadata
            )
            return b"A", entry.outside_steps * _OUTSIDE_STEPS, update.SerializeToString()
        case Restarted(base):
            return b"R", 0, base.to_bytes(_BASE_BYTES, "big")
        case TurnEnded():
            return b"E", 0, b""
        case Recorded(step_id, form, value):
            named = json.dumps([*step_id, form]).encode()
            return b"J", 0, len(named).to_bytes(4, "big") + named + value
        case ModelsUsed(usage):
            return b"U", 0, encoded(usage).encode()
        case _:  # unknown
            return entry.kind, entry.flags, entry.payload


_WHOLE: Final = {MessageAppended: b"M", MetadataMerged: b"D", Replied: b"P"}
"""The kinds of entries that are one message of the protocol, or one Struct."""


def _decode(kind: bytes, flags: int, payload: bytes) -> Entry:
    """Return the entry, as a critical `Unknown` if the payload is not one of its kind.

    So is one that no answer can show, of which `check_readable` admits none. For an unknown kind
    only the critical flag has a meaning here; only its writer knows the others.
    """
    if flags & CRITICAL or kind not in _KINDS:
        return Unknown(kind, flags, payload)
    try:
        entry = _unpack(kind, flags, payload)
    except (DecodeError, ValueError, TypeError, KeyError, RecursionError):
        return Unknown(kind, flags | CRITICAL, payload)
    has_no_time = isinstance(entry, StatusChanged) and not has_time(entry.status)
    if has_no_time or (NOT_FINITE.search(payload) and not is_finite(_shown_in(entry))):
        return Unknown(kind, flags | CRITICAL, payload)
    return entry


def _caller(fields: list[Any]) -> Caller:
    """Return the sender; fields that a newer release has added at the end are ignored."""
    user, tenant, extensions, *more = fields
    variables = more[0] if more else ""
    if {type(name) for name in (user, tenant, variables, *extensions)} != {str}:
        raise TypeError("a name of the sender is no text")
    return Caller(user, tenant, tuple(extensions), variables)


def _named(fields: list[Any]) -> tuple[StepId, str]:
    """Return the id and the form of a record; fields that a newer release has added are ignored."""
    name, key, number, form = fields[:4]
    is_number = isinstance(number, int) and not isinstance(number, bool)
    if not (is_number and all(isinstance(each, str) for each in (name, key, form))):
        raise TypeError("a record's name is no text, or its number no number")
    return StepId(name, key, number), form


def _unpack(kind: bytes, flags: int, payload: bytes) -> Entry:
    """Return the entry of a known kind.

    Raises:
        DecodeError, ValueError, TypeError, RecursionError: the payload is not that of its kind.
    """
    match kind:
        case b"T":
            end = 4 + int.from_bytes(payload[:4], "big")
            caller = _caller(json.loads(payload[4:end]))
            return TurnOpened(SendMessageRequest.FromString(payload[end:]), caller)
        case b"M":
            return MessageAppended(Message.FromString(payload))
        case b"S":
            event = TaskStatusUpdateEvent.FromString(payload)
            metadata = event.metadata if event.HasField("metadata") else None
            outside = bool(flags & _OUTSIDE_STEPS)
            return StatusChanged(
                event.status, metadata, bool(flags & _ARCHIVE), outside_steps=outside
            )
        case b"A":
            update = TaskArtifactUpdateEvent.FromString(payload)
            metadata = update.metadata if update.HasField("metadata") else None
            return ArtifactWritten(
                update.artifact,
                update.append,
                update.last_chunk,
                metadata,
                outside_steps=bool(flags & _OUTSIDE_STEPS),
            )
        case b"D":
            return MetadataMerged(Struct.FromString(payload))
        case b"R":
            if len(payload) != _BASE_BYTES:
                raise ValueError("a restart names no version")
            return Restarted(int.from_bytes(payload, "big"))
        case b"P":
            return Replied(Message.FromString(payload))
        case b"J":
            end = 4 + int.from_bytes(payload[:4], "big")
            return Recorded(*_named(json.loads(payload[4:end])), payload[end:])
        case b"U":
            return ModelsUsed(decoded(payload))
        case _:
            return TurnEnded()
