"""What the log takes, and how a message's caller is stored across releases."""

from __future__ import annotations

import math
import re

import pytest
from a2a.types import Artifact, Message, Part, SendMessageRequest, TaskStatus
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
    advice_on_size,
    check_readable,
    decode_entries,
    encode_entries,
)
from tests.support.messages import request

REQUEST = request("hello", message_id="m")


@pytest.mark.parametrize("variables", ["", '{"tracing:ID":"r1"}', '{"a:B":"\\ud800 ü"}'])
def test_a_caller_is_read_as_it_was_written(variables: str) -> None:
    """A caller's user, tenant, extensions and variables are read as they were written."""
    opened = TurnOpened(REQUEST, Caller("ann", "acme", ("urn:x", "urn:y"), variables))
    assert decode_entries(encode_entries([opened])) == (opened,)


def nested(levels: int, *, arrays: bool) -> Value:
    """A number within arrays or objects."""
    value = Value(number_value=1)
    for _ in range(levels):
        outer = Value()
        if arrays:
            outer.list_value.values.append(value)
        else:
            outer.struct_value.fields["a"].CopyFrom(value)
        value = outer
    return value


def holding(value: Value, inner: Value) -> list[Entry]:
    """Entries of each kind with a value as data, or with another one in their metadata."""
    data = Part(data=value)
    metadata = Struct(fields={"a": inner})
    return [
        TurnOpened(SendMessageRequest(message=Message(parts=[data]))),
        MessageAppended(Message(parts=[Part(text="fine"), data])),
        MessageAppended(Message(metadata=metadata)),
        StatusChanged(TaskStatus(message=Message(parts=[data]))),
        StatusChanged(TaskStatus(message=Message(parts=[Part(metadata=metadata)]))),
        StatusChanged(TaskStatus(), metadata=metadata),
        ArtifactWritten(Artifact(parts=[data])),
        ArtifactWritten(Artifact(parts=[Part(text="fine", metadata=metadata)])),
        ArtifactWritten(Artifact(metadata=metadata)),
        MetadataMerged(metadata),
    ]


@pytest.mark.parametrize(("levels", "arrays"), [(31, False), (47, True)])
def test_the_depth_that_the_sentence_names(levels: int, *, arrays: bool) -> None:
    """The depth that the sentence names is taken anywhere; one level more is refused."""
    # Metadata is an object itself.
    check_readable(holding(nested(levels, arrays=arrays), nested(levels - 1, arrays=arrays)))
    deeper = StatusChanged(TaskStatus())
    deeper.status.message.parts.add().data.CopyFrom(nested(levels + 1, arrays=arrays))
    with pytest.raises(InvalidArgumentError, match=f"{levels} {'arrays' if arrays else 'objects'}"):
        check_readable([deeper])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have(number: float) -> None:
    """Numbers that JSON does not have are refused in every place of an entry."""
    value = Value(list_value=ListValue(values=[Value(number_value=number)]))
    for entry in holding(value, value):
        with pytest.raises(InvalidArgumentError, match="JSON does not have"):
            check_readable([entry])
    large = Value(number_value=1e308)
    check_readable(holding(large, large))


LARGE = Part(text="x" * 1000)


@pytest.mark.parametrize(
    ("largest", "advice"),
    [
        (
            ArtifactWritten(Artifact(artifact_id="report", parts=[LARGE])),
            r"artifact 'report' has 10\d\d bytes, split it with append=True",
        ),
        (
            ArtifactWritten(Artifact(artifact_id="a\n" * 500)),
            r"artifact '(a\\n){50}' has 10\d\d bytes, split it with append=True",
        ),
        (
            TurnOpened(SendMessageRequest(message=Message(parts=[LARGE]))),
            r"the user's message has 10\d\d bytes, send large files by their URL",
        ),
        (
            StatusChanged(TaskStatus(message=Message(parts=[LARGE]))),
            r"a message has 10\d\d bytes, send it as an artifact, split with append=True",
        ),
        (
            MetadataMerged(Struct(fields={"a": Value(string_value=LARGE.text)})),
            r"the metadata has 10\d\d bytes, keep large data in an artifact",
        ),
    ],
)
def test_the_advice_names_the_largest_entry(largest: Entry, advice: str) -> None:
    """The size and the way out of one whose commit is too large, whatever is beside it."""
    small = MessageAppended(Message(parts=[Part(text="x" * 900)]))
    for entries in ([small, largest], [largest, small]):
        assert re.fullmatch(advice, advice_on_size(entries))
