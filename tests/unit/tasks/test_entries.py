"""What the log takes, and reads again: also what a newer release, or damage, has left in it."""

from __future__ import annotations

import math
import re

import pytest
from a2a.types import Artifact, Message, Part, SendMessageRequest, TaskStatus
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Caller,
    Entry,
    MessageAppended,
    MetadataMerged,
    Replied,
    Restarted,
    StatusChanged,
    TurnEnded,
    TurnOpened,
    Unknown,
    advice_on_size,
    check_readable,
    decode_entries,
    encode_entries,
)
from a2a_serverless.tasks.fold import Fold, Record, events_of
from tests.support.commits import WORKING, status, wrote
from tests.support.messages import agent_message, request
from tests.support.newer import BODIES, UNKNOWN

METADATA = Struct(fields={"k": Value(list_value=ListValue(values=[Value(number_value=1)]))})
KNOWN: st.SearchStrategy[Entry] = st.sampled_from(
    [
        TurnOpened(request("hi"), Caller("ann", "acme", ("urn:x", "urn:y"), '{"a:B":"\\ud800 ü"}')),
        TurnOpened(request("hi"), Caller()),
        MessageAppended(agent_message("x")),
        status(WORKING, "said"),
        StatusChanged(TaskStatus(state=WORKING), METADATA, archive=True),
        wrote("x"),
        ArtifactWritten(Artifact(artifact_id="b"), last_chunk=True, metadata=METADATA),
        MetadataMerged(METADATA),
        Restarted(7),
        TurnEnded(),
        Replied(agent_message("r")),
    ]
)


def folded(entries: tuple[Entry, ...]) -> Fold:
    fold = Fold("t", "c")
    fold.add(Record(version=1, entries=entries))
    return fold


@settings(deadline=None)
@given(body=st.binary(max_size=200) | BODIES)
def test_any_bytes_are_read(body: bytes) -> None:
    """Into entries that a fold takes, and of which events are shown."""
    fold = folded(decode_entries(body))
    assert fold.newest is not None
    assert (fold.shown, fold.task().id) == (len(list(events_of(fold.newest, fold))), "t")


@settings(deadline=None)
@given(entries=st.lists(KNOWN | UNKNOWN, max_size=8).map(tuple))
def test_entries_are_read_as_they_were_written(entries: tuple[Entry, ...]) -> None:
    """Of every kind; unknown ones change nothing, and encoded again they are the same bytes."""
    assert decode_entries(encode_entries(entries)) == entries
    known = tuple(entry for entry in entries if not isinstance(entry, Unknown))
    assert folded(entries).task() == folded(known).task()
    assert folded(entries).shown == folded(known).shown


@settings(deadline=None)
@given(entries=st.lists(KNOWN, min_size=1, max_size=4).map(tuple), at=st.integers(1, 2000))
def test_a_body_that_is_cut_off_is_critical(entries: tuple[Entry, ...], at: int) -> None:
    """Unless the cut is between two entries; those before it are read."""
    body = encode_entries(entries)
    read = decode_entries(body[: at % len(body)])
    whole = [entry for entry in read if not isinstance(entry, Unknown)]
    assert whole == list(entries[: len(whole)])
    assert all(entry.is_critical for entry in read if isinstance(entry, Unknown))


def opening_of(sender: bytes, kind: bytes = b"T") -> bytes:
    """An entry that opens a turn, without a message; of the kind J, one that records a step."""
    payload = len(sender).to_bytes(4, "big") + sender
    return kind + b"\x00" + len(payload).to_bytes(4, "big") + payload


@pytest.mark.parametrize(
    ("body", "is_critical"),
    [
        (b"Z\x00\x00\x00\x00\x00", False),
        (b"Z\x80\x00\x00\x00\x00", True),
        (b"S\x80\x00\x00\x00\x00", True),  # a known kind with a newer meaning
        (b"S\x00\x00\x00\x00\x02\xff\xff", True),  # no status
        (opening_of(b""), True),
        (opening_of(b"[" * 100_000), True),  # nested too deeply
        (opening_of(b'[1, "", []]'), True),  # of types that no release writes
        (opening_of(b'["", "", [1]]'), True),
        (opening_of(b'["", "", [], 1]'), True),
        (opening_of(b'["step", 1, 1, "json"]', b"J"), True),
        (opening_of(b'["step", "", true, "json"]', b"J"), True),
        (b"A", True),  # cut off in its header
        (b"A\x00\x00\x00\x00\x09\x0a\x05", True),  # cut off in its payload
    ],
)
def test_what_must_not_be_skipped_says_so(body: bytes, is_critical: bool) -> None:  # noqa: FBT001 - a parameter
    """An entry that its writer, or its damage, makes more than an addition is critical."""
    (entry,) = decode_entries(body)
    assert isinstance(entry, Unknown)
    assert entry.is_critical is is_critical


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
    like_nan = MessageAppended(Message(parts=[Part(raw=b"\x11......\xf0\x7f"), Part(data=large)]))
    check_readable([like_nan])
    assert decode_entries(encode_entries([like_nan])) == (like_nan,)


LARGE, SPLIT = Part(text="x" * 1000), "split it with append=True"
SAID = Message(parts=[LARGE])
LARGE_METADATA = Struct(fields={"a": Value(string_value=LARGE.text)})


@pytest.mark.parametrize(
    ("what", "way", "largest"),
    [
        (
            "artifact 'report'",
            SPLIT,
            ArtifactWritten(Artifact(artifact_id="report", parts=[LARGE])),
        ),
        (r"artifact '(a\\n){50}'", SPLIT, ArtifactWritten(Artifact(artifact_id="a\n" * 500))),
        ("the user's message", "send large files by", TurnOpened(SendMessageRequest(message=SAID))),
        ("a message", "send it as an artifact, split", StatusChanged(TaskStatus(message=SAID))),
        ("the metadata", "keep large data in an artifact", MetadataMerged(LARGE_METADATA)),
    ],
)
def test_the_advice_names_the_largest_entry(what: str, way: str, largest: Entry) -> None:
    """The size and the way out of one whose commit is too large, whatever is beside it."""
    small = MessageAppended(Message(parts=[Part(text="x" * 900)]))
    for entries in ([small, largest], [largest, small]):
        assert re.match(rf"{what} has 10\d\d bytes, {way}", advice_on_size(entries))
