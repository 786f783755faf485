"""What can be read of a task: of a whole one all, of a damaged one the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import find_tasks
from a2a_serverless.storage.survey import Survey, survey_task
from a2a_serverless.storage.table import Item
from a2a_serverless.tasks.entries import MessageAppended
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from tests.support.clocks import ManualClock
from tests.support.databases import Database, moto_database
from tests.support.messages import agent_message, request
from tests.support.newer import event_key, head_key, remove_attributes, set_attributes


@pytest.fixture
def table() -> Iterator[Database]:
    with moto_database() as moto:
        yield moto


async def committed(storage: DurableStorage) -> Head:
    """A task of three versions, the last one of two parts."""
    head = (await storage.open_task("context", request(), ttl_s=100)).head
    head = await storage.commit(head, Commit(token="one", claims=True, worker="host"))
    long = MessageAppended(agent_message("x" * 400_000))
    return await storage.commit(head, Commit(entries=(long,), token="one"))


async def test_a_whole_task_is_what_a_read_returns(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """A survey has what a read returns; an unknown or expired task has none."""
    head = await committed(storage)
    log = await storage.read(head.task_id)
    assert log is not None
    assert await survey_task(storage, head.task_id) == Survey(head=log.head, records=log.records)
    assert await survey_task(storage, "unknown") is None
    assert await survey_task(storage, "no/id") is None
    clock.advance(101)
    assert await survey_task(storage, head.task_id) is None


async def test_half_a_transaction_is_no_damage(
    table: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that has seen HEAD without its commit, or a part of it, is made again."""
    storage = table.storage(clock=clock)
    head = await committed(storage)
    whole = await storage.items_of(head.task_id)
    pages = [[*whole[:3], whole[-1]], [*whole[:2], whole[-1]], whole]

    async def read(*_: str) -> list[Item]:
        return pages.pop(0)

    monkeypatch.setattr(storage, "items_of", read)
    survey = await survey_task(storage, head.task_id)
    assert survey is not None
    assert (survey.unreadable, len(survey.records), pages) == ((), 3, [])


async def test_commits_behind_head_are_left_out(table: Database, clock: ManualClock) -> None:
    """Commits newer than HEAD, made while the task was read, are left out and not reported."""
    storage = table.storage(clock=clock)
    head = await committed(storage)
    set_attributes(table, head_key(head), {"version": {"N": "2"}})
    survey = await survey_task(storage, head.task_id)
    assert survey is not None
    assert ([r.version for r in survey.records], survey.unreadable) == ([1, 2], ())


async def test_a_lost_part_leaves_its_commit_out(table: Database, clock: ManualClock) -> None:
    """A commit that lacks a part in several reads is left out and named as unreadable."""
    storage = table.storage(clock=clock)
    head = await committed(storage)
    second_part = event_key(head, 3)
    second_part["SK"] = {"S": second_part["SK"]["S"].removesuffix("000") + "001"}
    table.client.delete_item(TableName=table.table, Key=second_part)
    survey = await survey_task(storage, head.task_id)
    assert survey is not None
    assert [r.version for r in survey.records] == [1, 2]
    assert survey.unreadable == ("version 3 is stored in part",)


async def test_a_head_without_incarnation(table: Database, clock: ManualClock) -> None:
    """Commits of one task alone are its own; beside those of an earlier one, none are guessed."""
    storage = table.storage(clock=clock)
    head = await committed(storage)
    remove_attributes(table, head_key(head), "incarnation")
    survey = await survey_task(storage, head.task_id)
    assert survey is not None
    assert (len(survey.records), survey.unreadable) == (3, ("HEAD has no incarnation",))
    left = event_key(head) | {"body": {"B": b""}}
    left["SK"] = {"S": f"EVENT#earlier#{1:012d}#000"}
    table.client.put_item(TableName=table.table, Item=left)
    survey = await survey_task(storage, head.task_id)
    assert survey is not None
    assert survey.records == ()
    assert "the commits cannot be told from those of an earlier task" in survey.unreadable[-1]


async def test_a_damaged_task_is_found_by_its_id(table: Database, clock: ManualClock) -> None:
    """A task whose HEAD lacks attributes is found by its id until it expires."""
    storage = table.storage(clock=clock)
    head = await committed(storage)
    remove_attributes(table, head_key(head), "turn", "state")
    assert await find_tasks(storage, head.task_id) == [(head.scope, head.task_id)]
    clock.advance(101)
    assert await find_tasks(storage, head.task_id) == []
