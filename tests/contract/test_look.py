"""Looks at HEADs of many tasks, over memory, moto and DynamoDB Local."""

from __future__ import annotations

from typing import Any

from a2a_serverless.storage.durable import LOOK_AT_ONCE, DurableStorage
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import TaskKey
from tests.support.clocks import ManualClock
from tests.support.databases import Database, moto_database, new_scope
from tests.support.messages import request


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
