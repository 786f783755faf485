"""The entries of a commit, and their encoding.

The encoding is self-delimiting, so that a body of any size can be cut into parts of an item's size
and put together again.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from a2a.types import (
    Artifact,
    Message,
    SendMessageRequest,
    SendMessageResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as AnyMessage
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.errors import InvalidArgumentError

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


@dataclass(frozen=True, slots=True)
class ArtifactWritten:
    """An artifact, or the next chunk of one, was written."""

    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: Struct | None = None


@dataclass(frozen=True, slots=True)
class MetadataMerged:
    """Key-value pairs were merged into the task's metadata, last writer wins."""

    metadata: Struct


@dataclass(frozen=True, slots=True)
class Restarted:
    """A new attempt took over the turn.

    Entries of attempts after version `base`, at which the turn became the current one, are
    discarded; those of others since (an accepted message) stay.
    """

    base: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The agent's work on the open turn is over; the task may have ended or may be paused."""


@dataclass(frozen=True, slots=True)
class Replied:
    """The agent answered with a Message alone; the client of a blocking send gets it."""

    message: Message


Entry = (
    TurnOpened
    | MessageAppended
    | StatusChanged
    | ArtifactWritten
    | MetadataMerged
    | Restarted
    | TurnEnded
    | Replied
)

_MAX_NESTED_OBJECTS = 31
_MAX_NESTED_ARRAYS = 47
"""Levels of nesting that can be read back at any place of an answer.

Protobuf reads 100 nested messages; an object is three of them, an array two.
"""

_SHOWN = 100
"""Characters of an artifact's id in an error."""

_HEADER = struct.Struct(">cBI")  # kind, flags, length of the payload
_ARCHIVE = 1


def encode_entries(entries: Iterable[Entry]) -> bytes:
    """Return the body of a commit."""
    return b"".join(_encode(entry) for entry in entries)


def decode_entries(body: bytes) -> tuple[Entry, ...]:
    """Return the entries of a whole body; fresh objects that belong to the caller."""
    return tuple(_decode_all(body))


def check_readable(entries: Iterable[Entry]) -> None:
    """Refuse entries that could be stored, but not be shown in an answer.

    These have values nested beyond the limit of protobuf's decoder, or numbers that JSON does not
    have. One such value would make its task, every list that shows it, and every later
    notification unreadable for good. The check wraps the entry as deeply as an answer does.

    Raises:
        InvalidArgumentError: names the limit; nothing was written.
    """
    for entry in entries:
        try:
            answer = SendMessageResponse(task=_shown_in(entry))
            SendMessageResponse.FromString(answer.SerializeToString())
        except DecodeError as error:
            msg = (
                "Data or metadata is nested too deeply: protobuf reads"
                f" {_MAX_NESTED_OBJECTS} objects or {_MAX_NESTED_ARRAYS} arrays within one another."
            )
            raise InvalidArgumentError(msg) from error
        if not all(math.isfinite(number) for number in _numbers(answer)):
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


def _encode(entry: Entry) -> bytes:
    kind, flags, payload = _pack(entry)
    return _HEADER.pack(kind, flags, len(payload)) + payload


def _pack(entry: Entry) -> tuple[bytes, int, bytes]:
    match entry:
        case TurnOpened(request, caller):
            who = json.dumps(_fields(caller)).encode()
            return b"T", 0, len(who).to_bytes(4, "big") + who + request.SerializeToString()
        case MessageAppended(message):
            return b"M", 0, message.SerializeToString()
        case StatusChanged(status, metadata, archive):
            event = TaskStatusUpdateEvent(status=status, metadata=metadata)
            return b"S", archive * _ARCHIVE, event.SerializeToString()
        case ArtifactWritten(artifact, append, last_chunk, metadata):
            update = TaskArtifactUpdateEvent(
                artifact=artifact, append=append, last_chunk=last_chunk, metadata=metadata
            )
            return b"A", 0, update.SerializeToString()
        case MetadataMerged(metadata):
            return b"D", 0, metadata.SerializeToString()
        case Restarted(base):
            return b"R", 0, base.to_bytes(8, "big")
        case TurnEnded():
            return b"E", 0, b""
        case Replied(message):
            return b"P", 0, message.SerializeToString()


def _fields(caller: Caller) -> list[object]:
    """Return the encoded fields; without variables in the form that older releases read."""
    known: list[object] = [caller.user, caller.tenant, caller.extensions]
    return [*known, caller.variables] if caller.variables else known


def _decode_all(body: bytes) -> Iterator[Entry]:
    offset = 0
    while offset < len(body):
        kind, flags, length = _HEADER.unpack_from(body, offset)
        offset += _HEADER.size
        yield _unpack(kind, flags, body[offset : offset + length])
        offset += length


def _unpack(kind: bytes, flags: int, payload: bytes) -> Entry:
    match kind:
        case b"T":
            size = int.from_bytes(payload[:4], "big")
            user, tenant, extensions, *variables = json.loads(payload[4 : 4 + size])
            request = SendMessageRequest.FromString(payload[4 + size :])
            return TurnOpened(request, Caller(user, tenant, tuple(extensions), *variables))
        case b"M":
            return MessageAppended(Message.FromString(payload))
        case b"S":
            event = TaskStatusUpdateEvent.FromString(payload)
            metadata = event.metadata if event.HasField("metadata") else None
            return StatusChanged(event.status, metadata, bool(flags & _ARCHIVE))
        case b"A":
            update = TaskArtifactUpdateEvent.FromString(payload)
            metadata = update.metadata if update.HasField("metadata") else None
            return ArtifactWritten(update.artifact, update.append, update.last_chunk, metadata)
        case b"D":
            return MetadataMerged(Struct.FromString(payload))
        case b"R":
            return Restarted(int.from_bytes(payload, "big"))
        case b"E":
            return TurnEnded()
        case b"P":
            return Replied(Message.FromString(payload))
        case _:
            raise ValueError(f"unknown kind of log entry {kind!r}: written by a newer release")
