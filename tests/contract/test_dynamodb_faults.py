"""DynamoDB on a bad day: unanswered, throttled, conflicting, torn and lagging."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from a2a.types import TaskState

from a2a_serverless.aws import BUDGET_S
from a2a_serverless.clock import _LONGEST_PAUSE_S
from a2a_serverless.errors import ConcurrencyError, TaskNotFoundError, UnavailableError
from a2a_serverless.storage.conversation import conversation_queue
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import CreateResult, DurableStorage
from a2a_serverless.storage.endings import cancel_task
from a2a_serverless.storage.layout import task_partition
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.table import Range
from a2a_serverless.storage.webhooks import _PUTS
from a2a_serverless.tasks.entries import MessageAppended
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.push import MAX_CONFIGS
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import Storage
from tests.contract.test_push_races import config
from tests.support.clocks import ManualClock
from tests.support.databases import LONG, Database, on_dynamo, versions
from tests.support.faulty import Faults, StaleIndex, apply_and_drop, refuse
from tests.support.messages import agent_message, chunk, message, request, said, texts
from tests.support.present import present

pytestmark = pytest.mark.emulators

WORKING = TaskState.TASK_STATE_WORKING
COMMITS = 5000 if LONG else 60
WRITE = "before-send.dynamodb.TransactWriteItems"
QUERIED = "after-call.dynamodb.Query"

Hook = Callable[..., Any]
Work = Callable[[], Coroutine[Any, Any, object]]


@pytest.fixture
def storage(database: Database, client: Any, clock: ManualClock) -> DurableStorage:
    """A storage on a client that does not try again."""
    return replace(database, client=client).storage(clock=clock)


@pytest.fixture
def healthy(database: Database, storage: DurableStorage) -> DurableStorage:
    """The same tasks through a client that nothing happens to."""
    return database.storage(scope=storage.scope, clock=storage.clock)


def once(client: Any, event: str, hook: Hook, work: Work | None = None) -> None:
    """Let a hook answer the first request of an event, and others do some work meanwhile."""
    loop, done = asyncio.get_running_loop(), list[bool]()

    def answer(**arguments: Any) -> Any:
        if done:
            return None
        done.append(True)
        try:
            return hook(**arguments)
        finally:
            if work is not None:
                asyncio.run_coroutine_threadsafe(work(), loop).result(10)

    client.meta.events.register(event, answer)


def lost(request: Any, **_: Any) -> None:
    """Carry a request out, and lose its answer."""
    apply_and_drop(request)


def throttled(**_: Any) -> Any:
    """Refuse a request."""
    return refuse("ThrottlingException")


def forget(params: dict[str, Any], **_: Any) -> None:
    """Let DynamoDB have forgotten each request: botocore gives its repetition a fresh token."""
    del params["ClientRequestToken"]


async def test_commits_under_faults(
    storage: DurableStorage, healthy: DurableStorage, client: Any
) -> None:
    """Under failing requests and lost answers no chunk is lost and none is written twice."""
    task_id = (await Storage(storage).create_task("ctx", message())).id
    faults = Faults(seed=7)
    faults.attach(client)
    writers = 2

    async def write(name: int) -> list[int]:
        view = Storage(storage.for_scope(storage.scope))
        return [
            await view.update_task(task_id, artifacts=[chunk(str(name), str(number))])
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
        waiting = [place.task_id for place in line.positions]
        assert waiting == [head.task_id for head in heads[number + 1 :]]


async def test_creations_and_deletions_under_faults(storage: DurableStorage, client: Any) -> None:
    """Each is made once, and known as the caller's own though its answer was lost."""
    Faults(seed=11, rate=0.5).attach(client, "TransactWriteItems", "BatchWriteItem")
    heads: list[Head] = []
    for number in range(20):
        first = await storage.open_task("ctx", request(), idempotency_key=str(number))
        again = await storage.open_task("ctx", request(), idempotency_key=str(number))
        assert (first.created, again.created) == (True, False)
        assert again.head == first.head
        heads.append(first.head)
    assert (await list_tasks(storage, ListTasksQuery())).total_size == 20
    for is_first in (True, False):
        assert [await delete_task(storage, head.task_id) for head in heads] == [is_first] * 20


def test_64_threads_create_with_one_key(database: Database) -> None:
    """64 creations with one key make one task, which all of them get, also under conflicts."""
    storage = database.storage()
    Faults(seed=3, rate=0.3).attach(database.client)

    def create(number: int) -> CreateResult:
        return asyncio.run(storage.open_task("ctx", request(str(number)), idempotency_key="key"))

    with ThreadPoolExecutor(64) as threads:
        opened = list(threads.map(create, range(64)))
    (winner,) = [number for number, one in enumerate(opened) if one.created]
    assert len({one.head.incarnation for one in opened}) == 1
    task = present(asyncio.run(storage.load_task(opened[0].head.task_id)))
    assert said(task) == [str(winner)]


async def test_webhooks_under_faults(storage: DurableStorage, client: Any) -> None:
    """Each put, move and deletion is done once and reported as done."""
    task = await Storage(storage).create_task("ctx", message())
    other = await Storage(storage).create_task("ctx", message())
    faults = Faults(seed=5, rate=0.4)
    faults.attach(client, "TransactWriteItems", "PutItem", "UpdateItem", "BatchWriteItem")
    push = await storage.webhooks.put(config(task.id, "a"))
    for index in range(60):
        after = replace(push, version=2, index=index, failures=index % 3)
        moved = present(await storage.webhooks.move(push, after))
        assert await storage.webhooks.get(task.id, "a") == moved == after
        assert await storage.webhooks.move(push, after) is None
        push = moved
    for number in range(MAX_CONFIGS):
        await storage.webhooks.put(config(other.id, f"c{number}"))
        await storage.webhooks.put(config(other.id, f"c{number}", "replaced"))
    replaced = [config(other.id, f"c{number}", "replaced") for number in range(MAX_CONFIGS)]
    assert [p.config for p in await storage.webhooks.all(other.id)] == replaced
    for number in range(MAX_CONFIGS):
        await storage.webhooks.delete(other.id, f"c{number}")
    assert await storage.webhooks.all(other.id) == []
    assert len(faults.met) == 6


@pytest.mark.parametrize("is_applied", [True, False])
async def test_an_unanswered_commit_that_was_overtaken(
    storage: DurableStorage, healthy: DurableStorage, client: Any, *, is_applied: bool
) -> None:
    """It is known as applied, or is a loss of which nothing is stored, behind a further commit."""
    head = (await storage.open_task("ctx", request())).head
    mine = Commit(entries=(MessageAppended(agent_message("mine")),))
    others = [agent_message("other")]
    hook = lost if is_applied else lambda **_: refuse("InternalServerError", status=500)
    once(client, WRITE, hook, lambda: Storage(healthy).update_task(head.task_id, messages=others))
    client.meta.events.register("provide-client-params.dynamodb.TransactWriteItems", forget)
    if is_applied:
        assert (await storage.commit(head, mine)).version == 2
    else:
        with pytest.raises(ConcurrencyError) as caught:
            await storage.commit(head, mine)
        assert caught.value.current_version == 2
    task = present(await healthy.load_task(head.task_id))
    assert said(task) == ["hello", *["mine"] * is_applied, "other"]


@pytest.mark.parametrize("is_used_again", [False, True])
async def test_a_write_that_meets_the_tasks_deletion(
    storage: DurableStorage, healthy: DurableStorage, client: Any, *, is_used_again: bool
) -> None:
    """A commit finds no task; a put neither, or is stored for a new task of the id."""

    async def delete() -> None:
        await delete_task(healthy, "t")
        if is_used_again:
            await healthy.open_task("ctx", request(), task_id="t")

    old = (await healthy.open_task("ctx", request(), task_id="t")).head
    once(client, WRITE, throttled, delete)
    with pytest.raises(TaskNotFoundError):
        await storage.commit(old, Commit())
    old = (await healthy.open_task("ctx", request(), task_id="t")).head
    once(client, WRITE, throttled, delete)
    if is_used_again:
        put = await storage.webhooks.put(config("t", "a"))
        assert put.incarnation != old.incarnation
        assert await healthy.webhooks.all("t") == [put]
    else:
        with pytest.raises(TaskNotFoundError):
            await storage.webhooks.put(config("t", "a"))
        assert await healthy.webhooks.all("t") == []


async def test_a_put_that_always_loses_gives_up(
    storage: DurableStorage, healthy: DurableStorage, client: Any
) -> None:
    """Against others who put all the time it ends, with an error that says try again."""
    task_id = (await healthy.open_task("ctx", request())).head.task_id
    loop, tries = asyncio.get_running_loop(), list[bool]()

    def overtaken(**_: Any) -> None:
        tries.append(True)
        other = healthy.webhooks.put(config(task_id, "other"))
        asyncio.run_coroutine_threadsafe(other, loop).result(10)

    client.meta.events.register(WRITE, overtaken)
    with pytest.raises(UnavailableError):
        await storage.webhooks.put(config(task_id, "a"))
    assert len(tries) == _PUTS
    assert [push.config.id for push in await healthy.webhooks.all(task_id)] == ["other"]


CALLS: dict[str, Callable[[DurableStorage, Head], Awaitable[object]]] = {
    "TransactWriteItems": lambda storage, head: storage.commit(head, Commit()),
    "GetItem": lambda storage, head: storage.head(head.task_id),
    "Query": lambda storage, head: storage.read(head.task_id),
    "BatchGetItem": lambda storage, _: list_tasks(storage, ListTasksQuery()),
    "PutItem": lambda storage, head: storage.postpone(head, due_at=1, sends=1),
}


@pytest.mark.parametrize("operation", CALLS)
async def test_no_answer_at_all_is_unavailable(
    storage: DurableStorage, client: Any, clock: ManualClock, operation: str
) -> None:
    """Each call is repeated for the budget; an error that no repetition cures is raised at once."""
    await storage.open_task("ctx", request())
    head = (await storage.open_task("ctx", request())).head
    tries: list[str] = []
    code = "ThrottlingException"

    def refused(**_: Any) -> Any:
        tries.append(code)
        return refuse(code)

    client.meta.events.register(f"before-send.dynamodb.{operation}", refused)
    began = clock.monotonic()
    with pytest.raises(UnavailableError):
        await CALLS[operation](storage, head)
    assert len(tries) >= 2
    assert BUDGET_S <= clock.monotonic() - began <= BUDGET_S + _LONGEST_PAUSE_S
    code = "AccessDeniedException"
    with pytest.raises(Exception, match="AccessDenied"):
        await CALLS[operation](storage, head)
    assert tries.count(code) == 1


def without(*endings: str) -> Hook:
    """Hide items from a query's answer, by the end of their sort key."""

    def hide(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Items"] = [i for i in parsed["Items"] if not i["SK"]["S"].endswith(endings)]

    return hide


TORN = [
    ("4#000", "4#001"),
    ("4#001",),
    ("4#000",),
    ("3#000",),
    ("2#000", "3#000", "4#000", "4#001"),
    ("1#000",),
]


async def test_a_torn_read_is_read_on(storage: DurableStorage, client: Any) -> None:
    """A query that misses a commit or a part is completed; so is a read behind a version."""
    head = (await storage.open_task("ctx", request())).head
    for size in (1, 1, 500_000):
        await Storage(storage).update_task(head.task_id, artifacts=[chunk("a", "x" * size)])
    for hidden in TORN:
        once(client, QUERIED, without(*hidden))
        task = present(await storage.load_task(head.task_id))
        assert list(map(len, texts(task, "a"))) == [1, 1, 500_000]
        once(client, QUERIED, without(*hidden))
        log = present(await storage.read(head.task_id, after=1, incarnation=head.incarnation))
        assert [record.version for record in log.records] == [2, 3, 4]


@pytest.mark.parametrize("is_used_again", [False, True])
async def test_a_read_during_a_deletion(
    storage: DurableStorage, healthy: DurableStorage, client: Any, *, is_used_again: bool
) -> None:
    """A reader that still saw HEAD, but no events, finds no task, or the next one of the id."""
    head = (await storage.open_task("ctx", request("old"), task_id="t")).head

    def shorten(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Items"] = [item for item in parsed["Items"] if item["SK"] == {"S": "HEAD"}]

    async def delete() -> None:
        await delete_task(healthy, "t")
        if is_used_again:
            await healthy.open_task("ctx", request("new"), task_id="t")

    once(client, QUERIED, shorten, delete)
    task = await storage.load_task("t")
    assert (said(task) if task else None) == (["new"] if is_used_again else None)
    assert await storage.read("t", incarnation=head.incarnation) is None


async def listed(storage: DurableStorage, query: ListTasksQuery) -> list[str]:
    return [task.id for task in (await list_tasks(storage, query)).tasks]


async def test_a_lagging_index(storage: DurableStorage, client: Any, clock: ManualClock) -> None:
    """An old index has each task once, as it is now, and none that is gone or has moved up."""
    ids = []
    for number in range(4):
        clock.advance(1)
        ids.append((await Storage(storage).create_task("ctx", message(str(number)))).id)
    index = StaleIndex(client)
    submitted = {"status": TaskState.TASK_STATE_SUBMITTED}
    asked: tuple[dict[str, Any], ...] = ({}, submitted, {"context_id": "ctx"})
    queries = [ListTasksQuery(**filters, history_length=0) for filters in asked]
    for query in queries:
        assert len(await listed(storage, query)) == 4
    paged = ListTasksQuery(page_size=2, history_length=0)
    first = await list_tasks(storage, paged)
    later = paged.model_copy(update={"page_token": first.next_page_token})
    assert await listed(storage, later) == [ids[1], ids[0]]
    index.freeze()
    clock.advance(0.5)
    await Storage(storage).update_task(ids[1], WORKING)
    await delete_task(storage, ids[2])
    everything = await list_tasks(storage, queries[0])
    assert [task.id for task in everything.tasks] == [ids[1], ids[3], ids[0]]
    assert everything.tasks[0].status.state == WORKING
    assert await listed(storage, queries[1]) == [ids[3], ids[0]]
    assert await listed(storage, queries[2]) == [ids[1], ids[3], ids[0]]
    assert await listed(storage, later) == [ids[0]]
    index.thaw()
    assert (await list_tasks(storage, queries[0])).total_size == 3


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
    assert {*await listed(storage, ListTasksQuery(history_length=0))} == {*ids}

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
