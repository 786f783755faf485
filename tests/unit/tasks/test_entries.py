"""What the log takes, and how a message's caller is stored across releases."""

from __future__ import annotations

import json
import math

import pytest
from a2a.types import Artifact, Message, Part, TaskStatus
from google.protobuf.struct_pb2 import ListValue, Struct, Value

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Caller,
    Entry,
    MessageAppended,
    MetadataMerged,
    StatusChanged,
    TurnOpened,
    check_readable,
    decode_entries,
    encode_entries,
)
from tests.messages import request

REQUEST = request("hello", message_id="m")
HEADER_BYTES = 6


def stored(caller: Caller) -> list[object]:
    """What the log has of a caller."""
    body = encode_entries([TurnOpened(REQUEST, caller)])
    size = int.from_bytes(body[HEADER_BYTES : HEADER_BYTES + 4], "big")
    fields: list[object] = json.loads(body[HEADER_BYTES + 4 : HEADER_BYTES + 4 + size])
    return fields


def written(fields: list[object]) -> bytes:
    """A turn's opening whose caller has these fields."""
    who = json.dumps(fields).encode()
    payload = len(who).to_bytes(4, "big") + who + REQUEST.SerializeToString()
    return b"T\0" + len(payload).to_bytes(4, "big") + payload


@pytest.mark.parametrize("variables", ["", '{"tracing:ID":"r1"}', '{"a:B":"\\ud800 ü"}'])
def test_a_caller_is_read_as_it_was_written(variables: str) -> None:
    """User, tenant, extensions and context variables."""
    opened = TurnOpened(REQUEST, Caller("ann", "acme", ("urn:x", "urn:y"), variables))
    assert decode_entries(encode_entries([opened])) == (opened,)


def test_a_caller_without_variables_can_be_read_by_earlier_releases() -> None:
    """They take exactly three fields; who does not use the setting can go back to them."""
    assert stored(Caller("ann", "acme", ("urn:x",))) == ["ann", "acme", ["urn:x"]]
    assert stored(Caller("ann", "acme", (), "{}")) == ["ann", "acme", [], "{}"]


def test_a_caller_of_an_earlier_release_has_no_variables() -> None:
    """A turn that was accepted before an update runs after it."""
    (opened,) = decode_entries(written(["ann", "acme", ["urn:x"]]))
    assert opened == TurnOpened(REQUEST, Caller("ann", "acme", ("urn:x",)))


def holding(number: float) -> list[Entry]:
    """Entries of each kind, with a number somewhere in what they show."""
    value = Value(list_value=ListValue(values=[Value(number_value=number)]))
    struct = Struct(fields={"deep": value})
    message = Message(parts=[Part(text="fine"), Part(data=value)])
    return [
        MessageAppended(message),
        StatusChanged(TaskStatus(message=message)),
        StatusChanged(TaskStatus(), metadata=struct),
        ArtifactWritten(Artifact(artifact_id="a", parts=[Part(text="fine", metadata=struct)])),
        MetadataMerged(struct),
    ]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have(number: float) -> None:
    """They are refused wherever they are: no answer and no notification could be made of them."""
    for entry in holding(number):
        with pytest.raises(InvalidArgumentError, match="JSON does not have"):
            check_readable([entry])
    check_readable(holding(1e308))
