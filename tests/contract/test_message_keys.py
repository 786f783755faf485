"""The idempotency keys of follow-ups, over every table: they hold for the task's life."""

from __future__ import annotations

import asyncio

import pytest
from a2a.types import TaskState, TaskStatus

from a2a_serverless.errors import (
    ConcurrencyError,
    RepeatedKeyError,
    TaskNotAcceptingMessagesError,
    TaskTerminalStateError,
)
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import StatusChanged, TurnOpened
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from tests.support.messages import request

ASKS = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_INPUT_REQUIRED))
ENDS = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_COMPLETED))


def follow_up(key: str | None) -> Commit:
    return Commit(entries=(TurnOpened(request("pay 100")),), idempotency_key=key)


async def waiting(storage: DurableStorage, task_id: str | None = None) -> Head:
    """A task that waits for a message."""
    head = (await storage.open_task("ctx", request(), task_id=task_id)).head
    return await storage.commit(head, Commit(entries=(ASKS,)))


async def said(storage: DurableStorage, head: Head, key: str | None) -> Head:
    """The task after a message, when it waits for the next one."""
    opened = await storage.commit(head, follow_up(key))
    return await storage.commit(opened, Commit(entries=(ASKS,)))


async def refused(storage: DurableStorage, head: Head, key: str) -> int:
    """Say again what came with a key; return the turn that it had opened."""
    with pytest.raises(RepeatedKeyError) as repeated:
        await storage.commit(head, follow_up(key))
    assert await storage.head(head.task_id) == head
    return repeated.value.turn


async def test_a_key_opens_one_turn_whatever_came_in_between(storage: DurableStorage) -> None:
    """Each of the keys finds its own turn, and nothing is written."""
    head = await waiting(storage)
    turns = {}
    for key in ("one", None, "two", None, "three"):
        before = head
        head = await said(storage, head, key)
        turns[key] = before.version + 1
    for key in ("one", "two", "three"):
        assert await refused(storage, head, key) == turns[key]


async def test_a_key_is_known_where_no_message_is_taken(storage: DurableStorage) -> None:
    """At work and after its end, the task refuses a new message, and a repeated one is found."""
    head = await waiting(storage)
    at_work = await storage.commit(head, follow_up("one"))
    assert await refused(storage, at_work, "one") == at_work.turn.number
    with pytest.raises(TaskNotAcceptingMessagesError):
        await storage.commit(at_work, follow_up("new"))
    ended = await storage.commit(at_work, Commit(entries=(ENDS,)))
    assert await refused(storage, ended, "one") == at_work.turn.number
    with pytest.raises(TaskTerminalStateError):
        await storage.commit(ended, follow_up("new"))


async def test_of_copies_at_once_one_opens_a_turn(storage: DurableStorage) -> None:
    """The others learn that HEAD has moved, and then whose turn it is."""
    head = await waiting(storage)
    made = await asyncio.gather(
        *(storage.commit(head, follow_up("one")) for _ in range(4)), return_exceptions=True
    )
    (opened,) = [each for each in made if isinstance(each, Head)]
    others = [each for each in made if each is not opened]
    assert all(isinstance(each, ConcurrencyError) for each in others), others
    assert await refused(storage, opened, "one") == opened.turn.number


async def test_a_key_goes_with_its_task(storage: DurableStorage) -> None:
    """A task with the id of one that was deleted knows nothing of its keys."""
    head = await said(storage, await waiting(storage, "mine"), "one")
    assert await delete_task(storage, head.task_id)
    again = await waiting(storage, "mine")
    assert (await said(storage, again, "one")).incarnation == again.incarnation
