"""Timelines of logs that the rules make, and of those that only older or newer releases make."""

from __future__ import annotations

from dataclasses import replace

import pytest
from a2a.types import Artifact, Message, TaskState, TaskStatus

from a2a_serverless.inspect.timeline import Holder, Timeline, timeline
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Entry,
    MessageAppended,
    Reference,
    Replied,
    Restarted,
    StatusChanged,
    TurnEnded,
    Unknown,
)
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import LOST, AttemptEnd, Head
from tests.unit.tasks.heads import claimed, opened

CHUNK = ArtifactWritten(Artifact(artifact_id="a"), append=True)
REPLY = Replied(Message(message_id="r"))


def record(version: int, *entries: Entry, token: str | None = None, **more: object) -> Record:
    made = Record(version=version, entries=entries, token=token)
    return replace(made, **more)  # type: ignore[arg-type]


def of(*records: Record, head: Head | None = None) -> Timeline:
    return timeline(head or opened(), records)


def test_each_restart_discards_what_still_stands() -> None:
    """Attempts' changes since the turn began, once; messages of others stay."""
    shown = of(
        record(1, CHUNK, token="before"),
        record(2, MessageAppended(Message())),
        record(3, CHUNK, token="A"),
        record(4, MessageAppended(Message())),
        record(5, Restarted(2), CHUNK, token="B"),
        record(6, TurnEnded(), token="B"),
        record(7, REPLY, token="B"),
        record(8, Restarted(2), token="C"),
        record(9, Restarted(2), token="D"),
    )
    discards = {c.version: c.changes[0].discards for c in shown.commits if c.changes[0].discards}
    assert discards == {5: (3,), 8: (5, 7)}
    assert shown.commits[-1].changes[0].base == 2


def test_an_attempts_commits_have_its_worker() -> None:
    """The claim names it; commits of others, such as the API, have none."""
    shown = of(
        record(1),
        record(2, token="A", worker="host 1"),
        record(3, token="A"),
        record(4),
        record(5, token="B"),
    )
    assert [commit.worker for commit in shown.commits] == ["", "host 1", "host 1", "", ""]


def test_the_holder_is_the_attempt_of_head() -> None:
    """Since its claim; without a name where an older release has claimed."""
    head = claimed(token="A")
    named = [record(1, at=1), record(2, token="A", worker="host 1", at=2), record(3, token="A")]
    assert of(*named, head=head).holder == Holder(worker="host 1", since=2)
    unnamed = [record(1, at=1), record(2, token="A", at=2)]
    assert of(*unnamed, head=head).holder == Holder(worker="", since=2)
    assert of(record(1), head=head).holder == Holder(worker="", since=None)
    assert of(record(1), head=opened()).holder is None


def test_a_release_of_an_earlier_attempt_is_over() -> None:
    """An older release's claim leaves it standing: the attempt of HEAD has the turn."""
    head = replace(claimed(token="B"), released=AttemptEnd(token="A", reason="ValueError"))
    shown = of(record(2, token="B", worker="host 2"), head=head)
    assert shown.given_back is None
    assert shown.holder == Holder(worker="host 2", since=None)


def test_an_end_is_that_of_the_attempt_before_or_its_own() -> None:
    """A claim says how the one before ended; a commit that fails its task, how its own did."""
    shown = of(
        record(1, token="B", ended=AttemptEnd(token="A", reason=LOST)),
        record(2, token="B", ended=AttemptEnd(token="B", reason="ValueError")),
        record(3),
    )
    assert [commit.ended_itself for commit in shown.commits] == [False, True, False]


def test_parts_that_are_elsewhere_are_counted() -> None:
    """Whichever entry refers to them."""
    elsewhere = Reference(part=0, digest="d", size=9, media_type="text/plain", place="s3://x")
    working = TaskStatus(state=TaskState.TASK_STATE_WORKING)
    entries: list[Entry] = [
        replace(CHUNK, references=(elsewhere,) * 2),
        replace(REPLY, references=(elsewhere,)),
        StatusChanged(working, references=(elsewhere,)),
        MessageAppended(Message(), (elsewhere,)),
    ]
    (commit,) = of(record(1, *entries)).commits
    assert [change.references for change in commit.changes] == [2, 1, 1, 1]
    assert [change.name for change in commit.changes] == ["chunk", "reply", "status", "message"]


@pytest.mark.parametrize(("kind", "shown"), [(b"Z", "Z"), (b"\xff", "0xff"), (b"\x1b", "\x1b")])
def test_an_unknown_entry_keeps_its_kind(kind: bytes, shown: str) -> None:
    """It is never dropped; a critical one is named among what cannot be read."""
    plain, critical = Unknown(kind, 0, b"xy"), Unknown(kind, 0x80, b"")
    made = of(record(1, plain), record(2, critical))
    changes = [commit.changes[0] for commit in made.commits]
    assert [(c.name, c.subject, c.size, c.is_critical) for c in changes] == [
        ("unknown", shown, 8, False),
        ("unknown", shown, 6, True),
    ]
    assert made.unreadable == (f"version 2 has an unknown entry of kind {shown!r}",)


def test_a_task_changed_when_it_was_last_committed() -> None:
    """Where commits have no time, an older release wrote them: then the status has one."""
    head = replace(opened(), status_at=5)
    assert of(record(1, at=1), record(2, at=7), head=head).changed_at == 7
    assert of(record(1), head=head).changed_at == 5


def test_fields_that_could_not_be_read_are_none() -> None:
    """The values of such a HEAD are placeholders."""
    names = ("context_id", "state", "created_at", "status_at", "expires_at", "version")
    shown = timeline(opened(), (), missing={*names, "turn", "attempts", "size"}, unreadable=["x"])
    fields = {*names, "changed_at", "turn", "attempts", "size"} - {"status_at"}
    assert {getattr(shown, name) for name in fields} == {None}
    assert shown.unreadable == ("x",)
