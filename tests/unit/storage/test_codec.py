"""The codec of HEAD, commits and attributes, and the places of items."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2a_serverless.errors import UnreadableTaskError
from a2a_serverless.storage import codec, layout
from a2a_serverless.storage.dynamodb import _Typed, plain, typed
from a2a_serverless.storage.table import Item
from a2a_serverless.tasks.entries import MessageAppended, encode_entries
from a2a_serverless.tasks.head import (
    FAILED,
    KNOWN,
    AttemptEnd,
    CancelMark,
    Failure,
    Head,
    SnapshotName,
    Turn,
    Uncounted,
)
from a2a_serverless.tasks.rules import Step
from a2a_serverless.tasks.usage import Usage
from tests.support.heads import SMALL
from tests.support.messages import agent_message

TIMES = st.integers(0, 10**13)


def each_field(kind: type[Any], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects of a class, each field of which has any value of its type, or one that is given."""
    return st.builds(kind, **{one.name: given.get(one.name, ...) for one in fields(kind)})


TURNS = each_field(
    Turn,
    waits_since=TIMES,
    released=st.none() | each_field(AttemptEnd),
    uncounted=each_field(Uncounted),
    rest=st.just({"color": ["red"]}),
)
HEADS: st.SearchStrategy[Head] = each_field(
    Head,
    scope=st.just("scope"),
    task_id=st.from_regex(r"[\w.:-]{1,9}", fullmatch=True, alphabet="aZ0_.:-"),
    state=st.sampled_from(sorted(KNOWN)),
    turn=TURNS,
    cancel=st.none() | each_field(CancelMark),
    snapshot=each_field(SnapshotName),
    failure=each_field(Failure),
    usage=st.lists(each_field(Usage), max_size=2).map(tuple),
    **dict.fromkeys(("status_at", "created_at"), TIMES),
    expires_at=TIMES.map(lambda at: at - at % 1000),
    due_at=st.none() | TIMES,
    mark=st.just("mark"),
    rest=st.just({"mood": "good"}),
)


@settings(deadline=None)
@given(HEADS)
def test_head_comes_back_as_it_was(head: Head) -> None:
    """HEAD is read as it was written, due or not, with what only a newer release knows of it."""
    if head.state not in FAILED:
        head = replace(head, failure=Failure())
    item = codec.head_item(head)
    read = codec.head_of(item)
    known = (head, head.mark, head.rest, head.turn.rest)
    assert (read, read.mark, read.rest, read.turn.rest) == known
    assert codec.head_item(read) == item
    assert ("due_key" in item) == ("due_at" in item) == (head.due_at is not None)


def test_shards_are_used_evenly() -> None:
    """Task ids spread evenly over all shards, always the same way."""
    shards = [layout.shard_of(f"task-{number}") for number in range(4000)]
    assert set(shards) == set(range(layout.SHARDS))
    assert min(map(shards.count, range(layout.SHARDS))) > 800
    assert layout.shard_of("task-1") == layout.shard_of("task-1")


def test_parts_sort_by_version_and_part() -> None:
    """The order of keys is the order of commits; scope and task id stand in the partition key."""
    keys = [layout.event_sort("i", v, p) for v, p in itertools.product((1, 9, 10, 100), (0, 1, 12))]
    assert keys == sorted(keys)
    assert layout.event_sort("i", 10) < layout.event_sort("i", 10, 0)
    assert layout.event_sort("i", 10) > layout.event_sort("i", 9, 999)
    assert max(keys) < layout.HEAD < layout.PUSH
    assert layout.owner_of(layout.task_partition("scope", "a:b.c_-")) == ("scope", "a:b.c_-")


def written(version: int, size: int = 1) -> list[Item]:
    """The items of a commit of about `size` bytes."""
    entries = (MessageAppended(agent_message("x" * size)),)
    head, token = replace(SMALL, version=version), "token" if version % 2 else None
    at, commit_id = 1_700_000_000_000 + version, f"commit-{version}"
    step = Step(head=head, entries=entries, token=token, commit_id=commit_id, at=at)
    return codec.event_items(step, encode_entries(entries))


def versions(*pages: list[Item], after: int = 0) -> list[int]:
    commits = codec.Commits(SMALL.incarnation, after)
    for page in pages:
        commits.add(page)
    return [record.version for record in commits.records]


def test_commits_are_complete_and_in_order() -> None:
    """Half a commit, what follows a gap, and another task's are left out, until the rest comes."""
    one, two, three = written(1), written(2, 700_000), written(3)
    head = replace(SMALL, incarnation="incarnation0")
    step = Step(head=head, entries=(), token=None, commit_id="c", at=0)
    other: Any = codec.event_items(step, b"")
    for pages, expected in (
        ([one + two + three], [1, 2, 3]),
        ([one + two[:2] + three], [1]),
        ([one + two[1:] + three], [1]),
        ([one + three], [1]),
        ([two + three], []),
        ([one + two[:1] + three, two + three], [1, 2, 3]),
        ([one + two[:1], two[1:] + three], [1, 2, 3]),
        ([one + two + three, one + two + three], [1, 2, 3]),
        ([other + one], [1]),
        ([other], []),
    ):
        assert versions(*pages) == expected
    assert versions(two + three, after=1) == [2, 3]


ODD: _Typed = {"f": {"N": "1.5"}, "t": {"BOOL": True}, "m": {"M": {}}, "l": {"SS": ["1"]}}


def test_what_no_release_stores_is_of_another_form() -> None:
    """A value that no release stores is read as neither int, text nor bytes."""
    known = plain({"s": {"S": "1"}, "n": {"N": "1"}, "b": {"B": b"1"}, "e": {"N": "1E+2"}})
    assert known == {"s": "1", "n": 1, "b": b"1", "e": 100}
    assert not any(isinstance(value, str | int | bytes) for value in plain(ODD).values())


def test_what_was_read_is_written_as_it_was() -> None:
    """In a condition or an item, damaged or not; an item expires with its last second."""
    item = {"s": {"S": ""}, "n": {"N": "-7"}, "b": {"B": b"1"}, "none": {"NULL": True}, **ODD}
    assert typed(plain(item)) == item
    with pytest.raises(TypeError, match="no value of type object"):
        typed({"x": object()})
    assert [codec.seconds(ms) for ms in (0, 1, 999, 1000, 1001)] == [0, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("turn", "why"),
    [
        ("{", "turn: Expecting property name"),
        ('{"number":"1","base":1}', "turn: number is of type str"),
        ('{"number":1}', "turn: .*missing 1 required keyword-only argument: 'base'"),
        ('{"number":1,"base":1,"released":{"token":7}}', "turn: released: token is of type int"),
        (1, "export the tasks with that release"),
    ],
)
def test_a_damaged_turn_names_its_field(turn: object, why: str) -> None:
    """It is damage of HEAD; that of an earlier release, a number or no mark, says what to do."""
    with pytest.raises(UnreadableTaskError, match=why):
        codec.head_of(codec.head_item(SMALL) | {"turn": turn})
    item = codec.head_item(SMALL)
    del item["mark"]
    with pytest.raises(UnreadableTaskError, match="form of an earlier release: export the tasks"):
        codec.head_of(item)


def test_values_in_text_keep_what_they_know() -> None:
    """Defaults are left out, and what a newer release adds is not read."""
    end = AttemptEnd(token="t", at=7)
    assert codec.text_of(end) == '{"token":"t","at":7}'
    assert codec.value_of(AttemptEnd, '{"token":"t","at":7,"mood":"good"}') == end
