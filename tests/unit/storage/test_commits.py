"""The codec between commits and EVENT items."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from a2a_serverless.storage.codec import Commits, event_items
from a2a_serverless.storage.table import Item
from a2a_serverless.tasks.entries import MessageAppended, encode_entries
from a2a_serverless.tasks.rules import Step
from tests.support.heads import SMALL
from tests.support.messages import agent_message


def written(version: int, size: int = 1) -> list[Item]:
    """The items of a commit of about `size` bytes."""
    entries = (MessageAppended(agent_message("x" * size)),)
    step = Step(
        head=replace(SMALL, version=version),
        entries=entries,
        token="token" if version % 2 else None,
        commit_id=f"commit-{version}",
        at=1_700_000_000_000 + version,
        base=version,
    )
    return event_items(step, encode_entries(entries))


def test_a_commit_is_cut_into_parts() -> None:
    """A large commit becomes parts under 350 KB that carry the same marks."""
    parts = written(7, 1_000_000)
    assert [part["SK"][-4:] for part in parts] == ["#000", "#001", "#002"]
    assert all(len(part["body"]) <= 340_000 for part in parts)
    assert (parts[0].pop("at"), parts[0].pop("base")) == (1_700_000_000_007, 7)
    marks = [{**part, "SK": None, "body": None} for part in parts]
    assert marks == [marks[0]] * 3
    assert marks[0]["parts"] == 3


def versions(*pages: list[Item], after: int = 0) -> list[int]:
    commits = Commits(SMALL.incarnation, after)
    for page in pages:
        commits.add(page)
    return [record.version for record in commits.records]


def test_commits_are_complete_and_in_order() -> None:
    """Half a commit and what follows a gap are left out; what comes later completes them."""
    one, two, three = written(1), written(2, 700_000), written(3)
    assert versions(one + two + three) == [1, 2, 3]
    assert versions(one + two[:2] + three) == [1]
    assert versions(one + two[1:] + three) == [1]
    assert versions(one + three) == [1]
    assert versions(two + three) == []
    assert versions(two + three, after=1) == [2, 3]
    assert versions(one + two[:1] + three, two + three) == [1, 2, 3]
    assert versions(one + two[:1], two[1:] + three) == [1, 2, 3]
    assert versions(one + two + three, one + two + three) == [1, 2, 3]


def test_another_incarnations_events_are_ignored() -> None:
    """Events of an earlier task with the same id are not of this one."""
    head = replace(SMALL, incarnation="incarnation0")
    other: Any = event_items(
        Step(head=head, entries=(), token=None, commit_id="c", at=0, base=0), b""
    )
    assert versions(other + written(1)) == [1]
    assert versions(other) == []


def test_a_record_has_what_was_written() -> None:
    """Entries, token, commit id and time of a record are those of its commit."""
    commits = Commits(SMALL.incarnation, 0)
    commits.add(written(1, 400_000) + written(2))
    first, second = commits.records
    assert (first.token, first.commit_id) == ("token", "commit-1")
    assert (second.token, second.commit_id) == (None, "commit-2")
    assert (first.at, second.at) == (1_700_000_000_001, 1_700_000_000_002)
    (entry,) = first.entries
    assert isinstance(entry, MessageAppended)
    assert len(entry.message.parts[0].text) == 400_000


def test_a_commit_that_has_lost_its_time_has_none() -> None:
    """A commit whose item has no time is read, with its time unknown."""
    damaged = written(1)
    del damaged[0]["at"]
    commits = Commits(SMALL.incarnation, 0)
    commits.add(damaged)
    assert [(record.version, record.at) for record in commits.records] == [(1, None)]
