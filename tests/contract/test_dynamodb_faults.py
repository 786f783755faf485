"""DynamoDB on a bad day: unanswered, throttled, conflicting, torn and lagging."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from a2a.types import TaskState

from a2a_serverless.aws import BUDGET_S
from a2a_serverless.clock import _LONGEST_PAUSE_S
from a2a_serverless.errors import (
    ConcurrencyError,
    TaskNotFoundError,
    UnavailableError,
    UnreadableTaskError,
)
from a2a_serverless.storage.conversation import conversation_queue
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import cancel_task
from a2a_serverless.storage.layout import task_partition
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.table import Range
from a2a_serverless.tasks.entries import MessageAppended
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import Storage
from tests.support.clocks import ManualClock
from tests.support.databases import (
    LONG,
    Database,
    key,
    on_dynamo,
    versions,
)
from tests.support.faulty import Faults, StaleIndex, apply_and_drop, refuse
from tests.support.messages import agent_message, chunk, message, request, said, texts
from tests.support.present import present

pytestmark = pytest.mark.emulators

WORKING = TaskState.TASK_STATE_WORKING
COMPLETED = TaskState.TASK_STATE_COMPLETED
COMMITS = 5000 if LONG else 60

Hook = Callable[..., Any]


@pytest.fixture
def storage(database: Database, client: Any, clock: ManualClock) -> DurableStorage:
    """A storage on a client that does not try again."""
    return replace(database, client=client).storage(clock=clock)


@pytest.fixture
def healthy(database: Database, storage: DurableStorage) -> DurableStorage:
    """The same tasks through a client that nothing happens to."""
    return database.storage(scope=storage.scope, clock=storage.clock)


def once(client: Any, event: str, action: Hook) -> None:
    """Run `action` in place of the first request that meets `event`."""
    done: list[bool] = []

    def hook(**arguments: Any) -> Any:
        if done:
            return None
        done.append(True)
        return action(**arguments)

    client.meta.events.register(event, hook)


async def test_commits_under_faults(
    storage: DurableStorage, healthy: DurableStorage, client: Any
) -> None:
    """Under failing requests and lost answers no chunk is lost and none is written twice."""
    task_id = (await Storage(storage).create_task("ctx", message())).id
    faults = Faults(seed=7)
    faults.attach(client)
    writers = 2

    async def write(name: int) -> list[int]:
        view = storage.for_scope(storage.scope)
        return [
            await Storage(view).update_task(task_id, artifacts=[chunk(str(name), str(number))])
            for number in range(COMMITS // writers)
        ]

    written = await asyncio.gather(*map(write, range(writers)))
    task = present(await healthy.load_task(task_id))
    for name in range(writers):
        assert texts(task, str(name)) == [str(number) for number in range(COMMITS // writers)]
    assert sorted(itertools.chain(*written)) == list(range(2, COMMITS + 2))
    assert await versions(healthy, task_id) == list(range(1, COMMITS + 2))
    assert len(faults.met) == 6


async def test_places_in_a_conversation_under_faults(storage: DurableStorage, client: Any) -> None:
    """Each place is taken once and given up once, whatever becomes of requests and answers."""
    storage.is_serial = True
    heads = [(await storage.open_task("talk", request())).head for _ in range(3)]
    Faults(seed=13, rate=0.5).attach(client, "TransactWriteItems", "PutItem", "UpdateItem")
    for number in range(15):
        heads.append((await storage.open_task("talk", request())).head)
        assert await cancel_task(storage, heads[number])
        line = await conversation_queue(storage, "talk")
        assert [place.task_id for place in line.positions] == [
            head.task_id for head in heads[number + 1 :]
        ]


async def test_creations_under_faults(storage: DurableStorage, client: Any) -> None:
    """A creation whose answer is lost is still known as the caller's own, and made once."""
    faults = Faults(seed=11, rate=0.5)
    faults.attach(client)
    for number in range(20):
        first = await storage.open_task("ctx", request(), idempotency_key=str(number))
        again = await storage.open_task("ctx", request(), idempotency_key=str(number))
        assert (first.created, again.created) == (True, False)
        assert again.head == first.head
    assert (await list_tasks(storage, ListTasksQuery())).total_size == 20


async def test_deletions_under_faults(
    storage: DurableStorage, healthy: DurableStorage, client: Any
) -> None:
    """A delete whose answer is lost deletes, and says so once."""
    ids = [(await Storage(healthy).create_task("ctx", message())).id for _ in range(20)]
    Faults(seed=13, rate=0.4).attach(client, "TransactWriteItems", "BatchWriteItem")
    assert [await delete_task(storage, task_id) for task_id in ids] == [True] * 20
    assert [await delete_task(storage, task_id) for task_id in ids] == [False] * 20


async def test_an_unanswered_commit_with_a_successor(
    storage: DurableStorage, healthy: DurableStorage, client: Any
) -> None:
    """A commit whose answer was lost is known as applied, even after a further commit.

    DynamoDB has forgotten the request token, so that the repetition fails the condition.
    """
    head = (await storage.open_task("ctx", request())).head
    mine = Commit(entries=(MessageAppended(agent_message("mine")),))
    loop = asyncio.get_running_loop()

    def answer_lost(request: Any, **_: Any) -> None:
        try:
            apply_and_drop(request)
        finally:
            other = Storage(healthy).update_task(head.task_id, messages=[agent_message("other")])
            asyncio.run_coroutine_threadsafe(other, loop).result(10)

    def forget_token(params: dict[str, Any], **_: Any) -> None:
        params.pop("ClientRequestToken")  # botocore puts a fresh one

    once(client, "before-send.dynamodb.TransactWriteItems", answer_lost)
    client.meta.events.register("provide-client-params.dynamodb.TransactWriteItems", forget_token)
    after = await storage.commit(head, mine)
    assert after.version == 2
    task = present(await healthy.load_task(head.task_id))
    assert said(task) == ["hello", "mine", "other"]


async def test_an_unanswered_commit_that_lost(
    storage: DurableStorage, healthy: DurableStorage, client: Any
) -> None:
    """A commit that was never applied and then overtaken is a loss, and nothing of it is stored."""
    head = (await storage.open_task("ctx", request())).head
    loop = asyncio.get_running_loop()

    def overtaken(**_: Any) -> Any:
        other = Storage(healthy).update_task(head.task_id, messages=[agent_message("other")])
        asyncio.run_coroutine_threadsafe(other, loop).result(10)
        return refuse("InternalServerError", status=500)

    once(client, "before-send.dynamodb.TransactWriteItems", overtaken)
    with pytest.raises(ConcurrencyError) as caught:
        await storage.commit(head, Commit(entries=(MessageAppended(agent_message("lost")),)))
    assert caught.value.current_version == 2
    task = present(await healthy.load_task(head.task_id))
    assert said(task) == ["hello", "other"]


async def test_an_unanswered_commit_of_a_deleted_task(
    storage: DurableStorage, healthy: DurableStorage, client: Any
) -> None:
    """A commit that meets the task's deletion finds no task."""
    head = (await storage.open_task("ctx", request())).head
    loop = asyncio.get_running_loop()

    def deleted(**_: Any) -> Any:
        gone = delete_task(healthy, head.task_id)
        asyncio.run_coroutine_threadsafe(gone, loop).result(10)
        return refuse("ThrottlingException")

    once(client, "before-send.dynamodb.TransactWriteItems", deleted)
    with pytest.raises(TaskNotFoundError):
        await storage.commit(head, Commit())


@pytest.mark.parametrize(
    "operation", ["TransactWriteItems", "GetItem", "Query", "BatchGetItem", "PutItem"]
)
async def test_no_answer_at_all_is_unavailable(
    storage: DurableStorage,
    healthy: DurableStorage,
    client: Any,
    clock: ManualClock,
    operation: str,
) -> None:
    """Without an answer every call is repeated for the budget, and ends with UnavailableError.

    Pauses are drawn at random, so how often it is repeated is left open. The last pause may end
    after the budget.
    """
    await healthy.open_task("ctx", request())
    head = (await healthy.open_task("ctx", request())).head
    tries = []

    def throttle(**_: Any) -> Any:
        tries.append(True)
        return refuse("ThrottlingException")

    client.meta.events.register(f"before-send.dynamodb.{operation}", throttle)
    calls = {
        "TransactWriteItems": storage.commit(head, Commit()),
        "GetItem": storage.head(head.task_id),
        "Query": storage.read(head.task_id),
        "BatchGetItem": list_tasks(storage, ListTasksQuery()),
        "PutItem": storage.postpone(head, due_at=1, sends=1),
    }
    call = calls.pop(operation)
    for unused in calls.values():
        unused.close()
    began = clock.monotonic()
    with pytest.raises(UnavailableError):
        await call
    assert len(tries) >= 2
    assert BUDGET_S <= clock.monotonic() - began <= BUDGET_S + _LONGEST_PAUSE_S


async def test_a_wrong_request_is_not_repeated(storage: DurableStorage, client: Any) -> None:
    """An error that no repetition cures is raised at once, as it came."""
    tries = []

    def deny(**_: Any) -> Any:
        tries.append(True)
        return refuse("AccessDeniedException")

    client.meta.events.register("before-send.dynamodb.GetItem", deny)
    with pytest.raises(Exception, match="AccessDenied"):
        await storage.head("t")
    assert len(tries) == 1


def without(*endings: str) -> Hook:
    """Hide items from a query's answer, by the end of their sort key."""

    def hide(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Items"] = [i for i in parsed["Items"] if not i["SK"]["S"].endswith(endings)]

    return hide


@pytest.mark.parametrize(
    "hidden",
    [
        ("4#000", "4#001"),
        ("4#001",),
        ("4#000",),
        ("3#000",),
        ("2#000", "3#000", "4#000", "4#001"),
        ("1#000",),
    ],
)
async def test_a_torn_read_is_read_on(
    storage: DurableStorage, client: Any, hidden: tuple[str, ...]
) -> None:
    """A query that misses a commit, a part of one, or one in the middle is completed."""
    head = (await storage.open_task("ctx", request())).head
    for size in (1, 1, 500_000):
        await Storage(storage).update_task(head.task_id, artifacts=[chunk("a", "x" * size)])
    once(client, "after-call.dynamodb.Query", without(*hidden))
    task = present(await storage.load_task(head.task_id))
    assert list(map(len, texts(task, "a"))) == [1, 1, 500_000]


async def test_a_tail_never_shows_half_a_commit(storage: DurableStorage, client: Any) -> None:
    """A read behind a version waits for the missing part, and delivers whole commits in order."""
    head = (await storage.open_task("ctx", request())).head
    await Storage(storage).update_task(head.task_id, artifacts=[chunk("a", "x" * 500_000)])
    await Storage(storage).update_task(head.task_id, artifacts=[chunk("a", "y")])
    once(client, "after-call.dynamodb.Query", without("2#001"))
    log = present(await storage.read(head.task_id, after=1, incarnation=head.incarnation))
    assert [record.version for record in log.records] == [2, 3]


async def test_events_ahead_of_head_wait(
    storage: DurableStorage, healthy: DurableStorage, client: Any
) -> None:
    """A log ends at the version of the HEAD it came with, though later events were seen."""
    head = (await storage.open_task("ctx", request())).head
    old = await client_head(storage, head.task_id)
    await Storage(healthy).update_task(head.task_id, COMPLETED)

    def show_old_head(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Items"][-1] = old

    once(client, "after-call.dynamodb.Query", show_old_head)
    log = present(await storage.read(head.task_id))
    assert log.head == head
    assert [record.version for record in log.records] == [1]
    assert await versions(storage, head.task_id) == [1, 2]


async def client_head(storage: DurableStorage, task_id: str) -> Any:
    """HEAD as an item."""
    place = key(task_partition(storage.scope.digest, task_id), "HEAD")
    return on_dynamo(storage).client.get_item(TableName=on_dynamo(storage).name, Key=place)["Item"]


async def test_a_read_that_stays_torn_gives_up(storage: DurableStorage, client: Any) -> None:
    """A log whose events are lost is named as damaged: not half a task, and not for ever."""
    head = (await storage.open_task("ctx", request())).head
    client.meta.events.register("after-call.dynamodb.Query", without("1#000"))
    with pytest.raises(UnreadableTaskError, match="Version 1 of task"):
        await storage.load_task(head.task_id)


async def test_a_read_during_a_delete(
    storage: DurableStorage, healthy: DurableStorage, client: Any
) -> None:
    """A reader that still saw HEAD, but no events any more, finds no task."""
    head = (await storage.open_task("ctx", request())).head
    loop = asyncio.get_running_loop()

    def delete(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Items"] = parsed["Items"][-1:]
        gone = delete_task(healthy, head.task_id)
        asyncio.run_coroutine_threadsafe(gone, loop).result(10)

    once(client, "after-call.dynamodb.Query", delete)
    assert await storage.read(head.task_id) is None


async def test_a_read_during_a_new_incarnation(
    storage: DurableStorage, healthy: DurableStorage, client: Any
) -> None:
    """A reader that meets the next task of the same id gets that one, and nothing of the old."""
    head = (await storage.open_task("ctx", request("old"), task_id="t")).head
    loop = asyncio.get_running_loop()

    async def replace() -> None:
        await delete_task(healthy, "t")
        await healthy.open_task("ctx", request("new"), task_id="t")

    def replaced(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Items"] = [item for item in parsed["Items"] if item["SK"] == {"S": "HEAD"}]
        asyncio.run_coroutine_threadsafe(replace(), loop).result(10)

    once(client, "after-call.dynamodb.Query", replaced)
    task = present(await storage.load_task("t"))
    assert said(task) == ["new"]
    assert await storage.read("t", incarnation=head.incarnation) is None


async def test_a_lagging_index_shows_todays_tasks(
    storage: DurableStorage, client: Any, clock: ManualClock
) -> None:
    """A list from an old index has each task once, as it is now, without those that are gone."""
    ids = []
    for number in range(4):
        clock.advance(1)
        ids.append((await Storage(storage).create_task("ctx", message(str(number)))).id)
    index = StaleIndex(client)
    queries = [
        ListTasksQuery(history_length=0),
        ListTasksQuery(status=TaskState.TASK_STATE_SUBMITTED, history_length=0),
        ListTasksQuery(context_id="ctx", history_length=0),
    ]
    for query in queries:
        assert len((await list_tasks(storage, query)).tasks) == 4
    index.freeze()
    clock.advance(0.5)
    await Storage(storage).update_task(ids[1], WORKING)
    await delete_task(storage, ids[2])
    everything, submitted, context = [await list_tasks(storage, query) for query in queries]
    assert [task.id for task in everything.tasks] == [ids[1], ids[3], ids[0]]
    assert everything.tasks[0].status.state == WORKING
    assert [task.id for task in submitted.tasks] == [ids[3], ids[0]]
    assert [task.id for task in context.tasks] == [ids[1], ids[3], ids[0]]
    index.thaw()
    assert (await list_tasks(storage, queries[0])).total_size == 3


async def test_a_lagging_index_repeats_no_task(
    storage: DurableStorage, client: Any, clock: ManualClock
) -> None:
    """A task that moved up after the first page is not shown on a later page of an old index."""
    ids = []
    for number in range(4):
        clock.advance(1)
        ids.append((await Storage(storage).create_task("ctx", message(str(number)))).id)
    index = StaleIndex(client)
    query = ListTasksQuery(page_size=2, history_length=0)
    first = await list_tasks(storage, query)
    later = query.model_copy(update={"page_token": first.next_page_token})
    assert [task.id for task in (await list_tasks(storage, later)).tasks] == [ids[1], ids[0]]
    index.freeze()
    clock.advance(1)
    await Storage(storage).update_task(ids[1], WORKING)
    assert [task.id for task in (await list_tasks(storage, later)).tasks] == [ids[0]]


async def test_batches_may_come_back_unprocessed(storage: DurableStorage, client: Any) -> None:
    """Items that DynamoDB leaves of a batch are asked for again, in reads and deletions."""
    ids = [(await Storage(storage).create_task("ctx", message())).id for _ in range(6)]
    for _ in range(6):
        await Storage(storage).update_task(ids[0], artifacts=[chunk("a", "x")])

    def leave_keys(parsed: dict[str, Any], **_: Any) -> None:
        (table, found), *_rest = parsed["Responses"].items()
        left = [{name: item[name] for name in ("PK", "SK")} for item in found[2:]]
        parsed["Responses"][table] = found[:2]
        parsed["UnprocessedKeys"] = {table: {"Keys": left}} if left else {}

    client.meta.events.register("after-call.dynamodb.BatchGetItem", leave_keys)
    assert (await list_tasks(storage, ListTasksQuery(history_length=0))).total_size == 6
    listed = await list_tasks(storage, ListTasksQuery(history_length=0))
    assert {task.id for task in listed.tasks} == set(ids)

    def leave_deletes(params: dict[str, Any], **_: Any) -> None:
        ((table, requests),) = params["RequestItems"].items()
        left.append(requests[1:])
        params["RequestItems"] = {table: requests[:1]}

    def report(parsed: dict[str, Any], **_: Any) -> None:
        pending = left.pop()
        parsed["UnprocessedItems"] = {on_dynamo(storage).name: pending} if pending else {}

    left: list[Any] = []
    client.meta.events.register("provide-client-params.dynamodb.BatchWriteItem", leave_deletes)
    client.meta.events.register("after-call.dynamodb.BatchWriteItem", report)
    assert await delete_task(storage, ids[0]) is True
    partition = task_partition(storage.scope.digest, ids[0])
    assert await storage.table.all(Range(partition=partition)) == []
