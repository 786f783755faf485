"""What a person sees of tasks: of one all, and of many their HEADs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import LOOK_AT_ONCE, DurableStorage
from a2a_serverless.storage.table import Item
from a2a_serverless.tasks.entries import MessageAppended
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.operate.details import TaskDetails, task_details
from a2a_serverless_tools.operate.finding import find_tasks
from tests.support.clocks import ManualClock
from tests.support.databases import Database, moto_database, new_scope
from tests.support.messages import agent_message, request
from tests.support.newer import head_key, remove_attributes
from tests.support.present import present


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
    """Details have what a read returns; an unknown or expired task has none."""
    head = await committed(storage)
    log = present(await storage.read(head.task_id))
    assert await task_details(storage, head.task_id) == TaskDetails(
        head=log.head, records=log.records
    )
    assert await task_details(storage, "unknown") is None
    assert await task_details(storage, "no/id") is None
    clock.advance(101)
    assert await task_details(storage, head.task_id) is None


async def test_details_go_on_behind_earlier_ones(
    storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads only what was committed since; of a task that was made anew with the id, all."""
    head = await committed(storage)
    known = await task_details(storage, head.task_id)
    head = await storage.commit(head, Commit(entries=(MessageAppended(agent_message("y")),)))
    read: list[list[str]] = []
    items_of = storage.items_of

    async def noted(task_id: str, start: str) -> list[Item]:
        items = await items_of(task_id, start)
        read.append([item["SK"].partition("#")[0] for item in items])
        return items

    monkeypatch.setattr(storage, "items_of", noted)
    later = await task_details(storage, head.task_id, known)
    assert later == await task_details(storage, head.task_id)
    assert later is not None
    assert ([r.version for r in later.records], read) == (
        [1, 2, 3, 4],
        [["EVENT", "HEAD"], ["EVENT"] * 5 + ["HEAD"]],
    )
    await delete_task(storage, head.task_id)
    assert await task_details(storage, head.task_id, later) is None
    await storage.open_task("context", request(), task_id=head.task_id)
    anew = present(await task_details(storage, head.task_id, later))
    assert len(anew.records) == 1


async def test_a_damaged_task_is_found_by_its_id(table: Database, clock: ManualClock) -> None:
    """A task whose HEAD lacks attributes is found by its id until it expires."""
    storage = table.storage(clock=clock)
    head = await committed(storage)
    remove_attributes(table, head_key(head), "turn", "state")
    assert await find_tasks(storage, head.task_id) == [(head.scope, head.task_id)]
    clock.advance(101)
    assert await find_tasks(storage, head.task_id) == []


def key_of(head: Head) -> TaskKey:
    return (head.scope, head.task_id)


async def test_a_look_shows_heads(storage: DurableStorage) -> None:
    """A look at tasks of several scopes shows each HEAD; an unknown task has none."""
    others = storage.for_scope(new_scope())
    plain = (await storage.open_task("context", request())).head
    other = (await others.open_task("context", request())).head
    marked = await others.request_cancel(other.task_id)
    unknown = (storage.scope.digest, "unknown")
    looks = await storage.look([key_of(plain), key_of(other), unknown])
    assert looks == {key_of(plain): plain, key_of(other): marked, unknown: None}


async def test_a_hundred_tasks_fit_in_a_look(storage: DurableStorage) -> None:
    """All of them are seen."""
    heads = [(await storage.open_task("context", request())).head for _ in range(LOOK_AT_ONCE)]
    looks = await storage.look([key_of(head) for head in heads])
    assert [looks[key_of(head)] for head in heads] == heads


async def test_an_expired_task_is_not_seen(storage: DurableStorage, clock: ManualClock) -> None:
    """A look shows no HEAD of an expired task, though its items may still be stored."""
    head = (await storage.open_task("context", request(), ttl_s=10)).head
    clock.advance(11)
    assert (await storage.look([key_of(head)]))[key_of(head)] is None


async def test_an_id_that_no_task_has_spoils_no_look(storage: DurableStorage) -> None:
    """An id that DynamoDB would refuse does not prevent the look at other tasks."""
    head = (await storage.open_task("context", request())).head
    looks = await storage.look([(head.scope, "x" * 4000), key_of(head)])
    assert looks[key_of(head)] == head


async def test_what_was_not_read_is_left_out(clock: ManualClock) -> None:
    """A throttled table says nothing of the task, not that it is gone; and is not asked twice."""
    with moto_database() as moto:
        storage = moto.storage(clock=clock)
        heads = [(await storage.open_task("context", request())).head for _ in range(3)]
        asked = leave_out(moto, heads[0])
        looks = await storage.look([key_of(head) for head in heads])
        assert looks == {key_of(head): head for head in heads[1:]}
        assert asked == [3]


def leave_out(database: Database, head: Head) -> list[int]:
    """Let answers miss a HEAD; return the number of keys of each request."""
    asked: list[int] = []

    def unprocessed(parsed: dict[str, Any], **_: Any) -> None:
        place = {"PK": {"S": f"TASK#{head.scope}#{head.task_id}"}, "SK": {"S": "HEAD"}}
        items = parsed["Responses"][database.table]
        kept = [item for item in items if item["PK"] != place["PK"]]
        parsed["Responses"][database.table] = kept
        parsed["UnprocessedKeys"] = {database.table: {"Keys": [place]}}

    def count(params: dict[str, Any], **_: Any) -> None:
        asked.append(len(params["RequestItems"][database.table]["Keys"]))
        assert not params["RequestItems"][database.table].get("ConsistentRead")

    events = database.client.meta.events
    events.register("after-call.dynamodb.BatchGetItem", unprocessed)
    events.register("provide-client-params.dynamodb.BatchGetItem", count)
    return asked
