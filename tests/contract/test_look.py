"""Looks at HEAD and flag of many tasks, over memory, moto and DynamoDB Local."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.log import LOOK_AT_ONCE, Look, TaskKey
from a2a_serverless.tasks.head import Head
from tests.support.clocks import ManualClock
from tests.support.databases import Database, moto_database, new_scope
from tests.support.messages import request
from tests.unit.tasks.heads import opened


def key_of(head: Head) -> TaskKey:
    return (head.scope, head.task_id)


async def test_a_look_shows_head_and_flag(storage: DurableStorage) -> None:
    """A look at tasks of several scopes shows HEAD and flag; an unknown task has neither."""
    others = storage.for_scope(new_scope())
    plain = (await storage.open_task("context", request())).head
    flagged = (await others.open_task("context", request())).head
    await others.request_cancel(flagged.task_id)
    marked = await others.head(flagged.task_id)
    assert marked == replace(flagged, cancel=marked.cancel if marked else None)
    unknown = (storage.scope.digest, "unknown")
    looks = await storage.look([key_of(plain), key_of(flagged), unknown])
    assert looks == {
        key_of(plain): Look(head=plain, flagged=None),
        key_of(flagged): Look(head=marked, flagged=flagged.incarnation),
        unknown: Look(head=None, flagged=None),
    }
    assert [look.is_cancelled for look in looks.values()] == [False, True, False]


async def test_fifty_tasks_fit_in_a_look(storage: DurableStorage) -> None:
    """All of them are seen."""
    heads = [(await storage.open_task("context", request())).head for _ in range(LOOK_AT_ONCE)]
    looks = await storage.look([key_of(head) for head in heads])
    assert [looks[key_of(head)].head for head in heads] == heads


async def test_an_expired_task_is_not_seen(storage: DurableStorage, clock: ManualClock) -> None:
    """A look shows no HEAD of an expired task, though its items may still be stored."""
    head = (await storage.open_task("context", request(), ttl_s=10)).head
    clock.advance(11)
    assert (await storage.look([key_of(head)]))[key_of(head)].head is None


async def test_an_id_that_no_task_has_spoils_no_look(storage: DurableStorage) -> None:
    """An id that DynamoDB would refuse does not prevent the look at other tasks."""
    head = (await storage.open_task("context", request())).head
    looks = await storage.look([(head.scope, "x" * 4000), key_of(head)])
    assert looks[key_of(head)].head == head


async def test_what_was_not_read_is_left_out(clock: ManualClock) -> None:
    """A throttled table says nothing of the task, not that it is gone; and is not asked twice."""
    with moto_database() as moto:
        storage = moto.storage(clock=clock)
        heads = [(await storage.open_task("context", request())).head for _ in range(3)]
        left = leave_out(moto, heads[0], heads[1])
        looks = await storage.look([key_of(head) for head in heads])
        assert looks == {key_of(heads[2]): Look(head=heads[2], flagged=None)}
        assert left == [6]


def leave_out(database: Database, without_head: Head, without_flag: Head) -> list[int]:
    """Let answers miss the HEAD of one task and the flag of another; the keys of each request."""
    asked: list[int] = []

    def unprocessed(parsed: dict[str, Any], **_: Any) -> None:
        left = [(without_head.task_id, "HEAD"), (without_flag.task_id, "CANCEL")]
        items = parsed["Responses"][database.table]
        parsed["Responses"][database.table] = [
            item for item in items if (item["PK"]["S"].split("#")[2], item["SK"]["S"]) not in left
        ]
        scope = without_head.scope
        keys = [{"PK": {"S": f"TASK#{scope}#{id_}"}, "SK": {"S": sort}} for id_, sort in left]
        parsed["UnprocessedKeys"] = {database.table: {"Keys": keys}}

    def count(params: dict[str, Any], **_: Any) -> None:
        asked.append(len(params["RequestItems"][database.table]["Keys"]))
        assert not params["RequestItems"][database.table].get("ConsistentRead")

    events = database.client.meta.events
    events.register("after-call.dynamodb.BatchGetItem", unprocessed)
    events.register("provide-client-params.dynamodb.BatchGetItem", count)
    return asked


@pytest.mark.parametrize("missing", [True, False])
async def test_a_flag_of_another_incarnation_cancels_nothing(*, missing: bool) -> None:
    """A look is not cancelled by a flag of another incarnation, nor by a flag without a task."""
    head = None if missing else opened()
    assert not Look(head=head, flagged="earlier").is_cancelled
