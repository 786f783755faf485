"""Folding the log: what a client sees after which commits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from a2a.helpers import get_artifact_text
from a2a.types import Artifact, Part, TaskState, TaskStatus
from google.protobuf.struct_pb2 import Struct

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
    decode_entries,
    encode_entries,
)
from a2a_serverless.tasks.fold import Cursor, Fold, Record, events_of, incarnation_tag
from tests.support.messages import agent_message, artifact, request


def chunk(text: str, *, append: bool = True, artifact_id: str = "a") -> ArtifactWritten:
    return ArtifactWritten(artifact(artifact_id, text), append)


def working(text: str = "", *, archive: bool = False) -> StatusChanged:
    message = agent_message(text) if text else None
    status = TaskStatus(state=TaskState.TASK_STATE_WORKING, message=message)
    return StatusChanged(status, archive=archive)


def opening(text: str = "hi") -> TurnOpened:
    return TurnOpened(request(text), Caller("ann", "acme", ("urn:x",)))


def folded(*commits: tuple[str | None, tuple[Entry, ...]]) -> Fold:
    fold = Fold("t", "c")
    for version, (token, entries) in enumerate(commits, start=1):
        fold.add(Record(version=version, token=token, entries=entries))
    return fold


def test_every_kind_of_entry_survives_its_encoding() -> None:
    """Decoding gives equal entries, in order, as fresh objects."""
    metadata = Struct()
    metadata.update({"k": [1, {"x": None}]})
    entries: tuple[Entry, ...] = (
        opening(),
        MessageAppended(agent_message("m")),
        StatusChanged(TaskStatus(state=TaskState.TASK_STATE_WORKING), metadata, archive=True),
        StatusChanged(TaskStatus(state=TaskState.TASK_STATE_WORKING)),
        ArtifactWritten(Artifact(artifact_id="a"), append=True, last_chunk=True, metadata=metadata),
        chunk("x", append=False),
        MetadataMerged(metadata),
        Restarted(7),
        TurnEnded(),
        Replied(agent_message("r")),
    )
    assert decode_entries(encode_entries(entries)) == entries


def test_an_unknown_kind_of_entry_is_kept() -> None:
    """A newer release's entry is stored again as it was, and stands between the others."""
    known = encode_entries([TurnEnded()])
    body = known + b"Z\x01\x00\x00\x00\x02ab" + known
    entries = decode_entries(body)
    assert entries == (TurnEnded(), Unknown(b"Z", 1, b"ab"), TurnEnded())
    assert encode_entries(entries) == body


@pytest.mark.parametrize(
    ("body", "is_critical"),
    [
        (b"Z\x00\x00\x00\x00\x00", False),
        (b"Z\x80\x00\x00\x00\x00", True),
        (b"S\x80\x00\x00\x00\x00", True),  # a known kind with a newer meaning
        (b"S\x00\x00\x00\x00\x02\xff\xff", True),  # no status
        (b"T\x00\x00\x00\x00\x04\x00\x00\x00\x00", True),  # no caller
        (b"A", True),  # cut off in its header
        (b"A\x00\x00\x00\x00\x09\x0a\x05", True),  # cut off in its payload
    ],
)
def test_what_must_not_be_skipped_says_so(body: bytes, is_critical: bool) -> None:  # noqa: FBT001 - a parameter
    """An entry that its writer, or its damage, makes more than an addition is critical."""
    (entry,) = decode_entries(body)
    assert isinstance(entry, Unknown)
    assert entry.is_critical is is_critical


def test_streamed_text_is_one_part_when_its_artifact_has_ended() -> None:
    """With its last chunk, or its turn, the chunks of an artifact are shown as one text."""
    end = TaskStatus(state=TaskState.TASK_STATE_COMPLETED)
    last = replace(chunk(" answer", artifact_id="b"), last_chunk=True)
    fold = folded((None, (opening(),)))
    told: tuple[Entry, ...] = (chunk("an"), chunk("an", artifact_id="b"), chunk(" answer"), last)
    fold.add(Record(version=2, token="A", entries=told))
    a, b = fold.task().artifacts
    assert [[part.text for part in each.parts] for each in (a, b)] == [
        ["an", " answer"],
        ["an answer"],
    ]
    fold.add(Record(version=3, token="A", entries=(StatusChanged(end),)))
    assert [get_artifact_text(each) for each in fold.task().artifacts] == ["an answer"] * 2
    assert [len(each.parts) for each in fold.artifacts.values()] == [2, 2]


def test_only_chunks_of_like_text_are_joined() -> None:
    """What one chunk has in several parts stays so, and so do parts that differ in more."""
    parts = [Part(text="1"), Part(text="2")]
    marked = Part(text="4", media_type="text/markdown")
    whole = ArtifactWritten(Artifact(artifact_id="a", parts=parts))
    more = Artifact(artifact_id="a", parts=[Part(text="3"), marked, Part(raw=b"5")])
    again = Artifact(artifact_id="a", parts=[Part(raw=b"6")])
    added = (ArtifactWritten(more, append=True), ArtifactWritten(again, append=True))
    fold = folded((None, (opening(),)), ("A", (whole, *added, TurnEnded())))
    (shown,) = fold.task().artifacts
    files = [Part(raw=b"5"), Part(raw=b"6")]
    assert list(shown.parts) == [Part(text="1"), Part(text="23"), marked, *files]


def test_a_restart_takes_an_end_of_an_artifact_back() -> None:
    """Chunks that are taken back leave the artifact as it was: ended, or still to go on."""
    ended = replace(chunk("3"), last_chunk=True)
    fold = folded(
        (None, (opening(),)),
        ("A", (chunk("1"), chunk("2"))),
        ("A", (ended,)),
        ("B", (Restarted(2),)),
    )
    assert [part.text for part in fold.task().artifacts[0].parts] == ["1", "2"]
    fold.add(Record(version=5, token="B", entries=(chunk("x"), TurnEnded())))
    assert [part.text for part in fold.task().artifacts[0].parts] == ["12x"]
    fold.add(Record(version=6, entries=(opening("more"),)))
    fold.add(Record(version=7, token="C", entries=(chunk("y"),)))
    assert [part.text for part in fold.task().artifacts[0].parts] == ["12x", "y"]


def test_a_status_clears_or_archives_the_message_before_it() -> None:
    """A status drops the message before it, or with `archive` adds it to the history.

    A message that opens a turn archives what the agent had asked.
    """
    dropped = folded((None, (opening(), working("one"), working("two"))))
    kept = folded((None, (opening(), working("one"), working("two", archive=True))))
    assert [m.parts[0].text for m in dropped.history] == ["hi"]
    assert [m.parts[0].text for m in kept.history] == ["hi", "one"]
    fold = folded((None, (opening("hi"),)), ("A", (working("which?"),)), (None, (opening("this"),)))
    assert [m.parts[0].text for m in fold.history] == ["hi", "which?", "this"]
    assert not fold.status.HasField("message")


def test_subscribers_see_restored_artifacts_as_replacements() -> None:
    """After a restart subscribers get restored artifacts whole, in place of the dead attempt's."""
    fold = folded((None, (opening(), chunk("kept"))), ("A", (chunk("lost"),)))
    record = Record(version=3, token="B", entries=(Restarted(1), working(), chunk("again")))
    fold.add(record)
    restored, status, live = list(events_of(record, fold))
    assert [part.text for part in restored.artifact.parts] == ["kept"]  # type: ignore[union-attr]
    assert not restored.append  # type: ignore[union-attr]
    assert status.status.state == TaskState.TASK_STATE_WORKING  # type: ignore[union-attr]
    assert live.append  # type: ignore[union-attr]


def test_a_fold_takes_versions_only_in_unbroken_order() -> None:
    """A gap would show a task that never was."""
    fold = folded((None, (opening(),)))
    with pytest.raises(ValueError, match="does not follow"):
        fold.add(Record(version=3, entries=()))


def test_a_cursor_reads_back_from_its_text() -> None:
    """Garbage, and a cursor with too many digits, are no cursors."""
    cursor = Cursor(12, 3, incarnation_tag("abc"))
    assert Cursor.parse(str(cursor)) == cursor
    wrong = ("", "1", "1.2", "1.2.abc", "-1.2.abcdef", "1.2.abcdef\n", f"{'9' * 13}.1.abcdef")
    for garbage in wrong:
        assert Cursor.parse(garbage) is None
