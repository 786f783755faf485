"""The line of a conversation: who is in it, in which order, and who is first."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from a2a_serverless.errors import ConversationFullError
from a2a_serverless.storage.conversation import (
    conversation_queue,
    forget_queue,
    join_queue,
    start_next_turn,
)
from a2a_serverless.storage.deletion import count_data, delete_context, delete_data
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import canceled
from a2a_serverless.storage.layout import conversation_queue_key
from a2a_serverless.storage.table import Item, key_of
from a2a_serverless.tasks.conversation import MOST_WAITING
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from tests.support.commits import INPUT_REQUIRED, follow_up, to
from tests.support.messages import request
from tests.support.present import present


@pytest.fixture
def sent() -> list[Head]:
    """The turns that were woken."""
    return []


@pytest.fixture
def serial(storage: DurableStorage, sent: list[Head]) -> DurableStorage:
    """A storage whose turns stand in lines, and that tells of those it wakes."""

    async def send(head: Head) -> None:
        sent.append(head)

    storage.is_serial = True
    storage.observer = replace(storage.observer, send=send)
    return storage


async def opened(storage: DurableStorage, context_id: str = "talk") -> Head:
    return (await storage.open_task(context_id, request("go"))).head


async def places(storage: DurableStorage) -> list[str]:
    return [place.task_id for place in (await conversation_queue(storage, "talk")).positions]


async def line_item(storage: DurableStorage) -> Item | None:
    return await storage.table.get(conversation_queue_key(storage.scope.digest, "talk"))


async def test_each_accepted_message_has_a_place(serial: DurableStorage) -> None:
    """In the order of acceptance; of messages at once each has one. It lives with the last one."""
    heads = [await opened(serial) for _ in range(4)]
    in_order = [head.task_id for head in heads]
    assert await places(serial) == in_order
    more = await asyncio.gather(*(opened(serial) for _ in range(6)))
    line = await places(serial)
    assert line[:4] == in_order
    assert sorted(line[4:]) == sorted(head.task_id for head in more)
    made = await serial.open_task("talk", request("go"), ttl_s=60)
    assert present(await line_item(serial))["expires_at"] * 1000 == made.head.expires_at


async def test_an_ending_wakes_the_next(serial: DurableStorage, sent: list[Head]) -> None:
    """Once for each turn, and the last one leaves an empty line."""
    heads = [await opened(serial) for _ in range(3)]
    for head in heads[1:]:
        assert await serial.park(head, "conversation")
    for number, head in enumerate(heads):
        current = present(await serial.head(head.task_id))
        await serial.commit(current, canceled(current))
        assert await places(serial) == [later.task_id for later in heads[number + 1 :]]
        assert [woken.task_id for woken in sent] == [h.task_id for h in heads[1 : number + 2]]
    item = present(await line_item(serial))
    assert item.keys() == {"PK", "SK", "expires_at", "scope_key", "status_key"}


async def test_a_task_from_before_stands_in_line_from_its_next_message_on(
    storage: DurableStorage, serial: DurableStorage
) -> None:
    """A deployment may come to run one message of a conversation after the other."""
    storage.is_serial = False
    head = await opened(storage)
    head = await storage.commit(head, Commit(claims=True, token="t"))
    head = await storage.commit(head, to(INPUT_REQUIRED, token="t"))
    assert (head.is_serial, await places(storage)) == (False, [])
    serial.is_serial = True
    head = await serial.commit(head, follow_up())
    assert (head.is_serial, await places(serial)) == (True, [head.task_id])


async def test_a_full_line_takes_no_message(serial: DurableStorage) -> None:
    """Nothing of it is stored."""
    for _ in range(MOST_WAITING + 1):
        await opened(serial)
    with pytest.raises(ConversationFullError):
        await serial.open_task("talk", request("go"), task_id="refused")
    assert await serial.head("refused") is None
    assert len(await places(serial)) == MOST_WAITING + 1


async def test_a_late_worker_makes_no_line_of_a_deleted_task(serial: DurableStorage) -> None:
    """It has read HEAD before the deletion, which takes the line, and takes a place after it."""
    head = await opened(serial)
    await delete_context(serial, "talk")
    assert await line_item(serial) is None
    assert (await join_queue(serial, head)).positions == ()
    assert await line_item(serial) is None
    again = await opened(serial)
    place = (await join_queue(serial, again)).positions[-1]
    assert place.task_id == again.task_id


async def test_a_purge_finds_the_line_of_a_conversation(serial: DurableStorage) -> None:
    """Its tasks may have expired with their turns open: ids that clients choose stand in it."""
    head = await opened(serial)
    await serial.table.delete([key_of(each) for each in await serial.items_of(head.task_id)])
    assert not (await count_data(serial)).is_nothing
    while not (await delete_data(serial)).is_done:
        pass
    assert (await count_data(serial)).is_nothing
    assert await line_item(serial) is None


async def test_a_turn_whose_line_is_lost_is_woken(serial: DurableStorage, sent: list[Head]) -> None:
    """It takes a place again when a worker receives it."""
    head = await opened(serial)
    left = await serial.park(head, "conversation")
    assert await forget_queue(serial, "talk")
    await start_next_turn(serial, "talk", waiting=left)
    assert [each.task_id for each in sent] == [head.task_id]
