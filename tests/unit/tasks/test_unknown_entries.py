"""Entries that cannot be read, among those that can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Entry,
    MessageAppended,
    Unknown,
    decode_entries,
    encode_entries,
)
from a2a_serverless.tasks.fold import Fold, Record, events_of
from tests.support.messages import agent_message, artifact
from tests.support.newer import BODIES, UNKNOWN
from tests.unit.tasks.test_fold import opening, working

KNOWN: st.SearchStrategy[Entry] = st.sampled_from(
    [
        opening(),
        working("said", archive=True),
        MessageAppended(agent_message("x")),
        ArtifactWritten(artifact("a", "x"), append=True),
    ]
)


def folded(entries: tuple[Entry, ...]) -> Fold:
    fold = Fold("t", "c")
    fold.add(Record(version=1, entries=entries))
    return fold


@given(body=st.binary(max_size=200) | BODIES)
def test_any_bytes_are_read(body: bytes) -> None:
    """Into entries that a fold takes, and of which events are shown."""
    fold = folded(decode_entries(body))
    assert fold.newest is not None
    assert fold.shown == len(list(events_of(fold.newest, fold)))
    assert fold.task().id == "t"


@given(entries=st.lists(KNOWN | UNKNOWN, max_size=6).map(tuple))
def test_unknown_entries_stay_as_they_are_and_change_nothing(entries: tuple[Entry, ...]) -> None:
    """The fold is that of the known ones; encoded again they are the same bytes."""
    assert decode_entries(encode_entries(entries)) == entries
    known = tuple(entry for entry in entries if not isinstance(entry, Unknown))
    assert folded(entries).task() == folded(known).task()
    assert folded(entries).shown == folded(known).shown


@given(entries=st.lists(KNOWN, min_size=1, max_size=4).map(tuple), at=st.integers(1, 2000))
def test_a_body_that_is_cut_off_is_critical(entries: tuple[Entry, ...], at: int) -> None:
    """Unless the cut is between two entries; those before it are read."""
    body = encode_entries(entries)
    read = decode_entries(body[: at % len(body)])
    whole = [entry for entry in read if not isinstance(entry, Unknown)]
    assert whole == list(entries[: len(whole)])
    assert all(entry.is_critical for entry in read if isinstance(entry, Unknown))


def test_a_sender_that_is_none_is_critical() -> None:
    """A sender nested too deeply, or of other types than releases write, is a critical entry."""
    for sender in (b"[" * 100_000, b'[1, "", []]', b'["", "", [1]]', b'["", "", [], 1]'):
        payload = len(sender).to_bytes(4, "big") + sender
        (entry,) = decode_entries(b"T\x00" + len(payload).to_bytes(4, "big") + payload)
        assert isinstance(entry, Unknown)
        assert entry.is_critical
