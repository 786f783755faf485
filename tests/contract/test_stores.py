"""The stores for the SDK's own server behave as the SDK's SQL stores do.

Each behaviour is run over dictionaries, a file and DynamoDB Local, and over the SDK's stores on
SQLite. Where the two differ, the test has both answers, and docs/build/stores.md lists it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from a2a.server.cluster import ConcurrentTaskModificationError, TaskVersion
from a2a.types import (
    Artifact,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    Role,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import encode_page_token
from google.protobuf.timestamp_pb2 import Timestamp

from a2a_serverless.storage.dynamodb import DynamoTable
from a2a_serverless.stores import file_table, memory_table
from tests.support.databases import LOCAL
from tests.support.emulators import Emulator
from tests.support.present import present
from tests.support.stores import (
    NEW,
    Stores,
    caller,
    chunk_of,
    followed,
    local_table,
    on_sql,
    on_table,
    sql_engines,
)

SUBMITTED = TaskState.TASK_STATE_SUBMITTED
WORKING = TaskState.TASK_STATE_WORKING
COMPLETED = TaskState.TASK_STATE_COMPLETED
CANCELED = TaskState.TASK_STATE_CANCELED
SQL = pytest.param("sql", marks=pytest.mark.foreign)


@pytest.fixture(scope="module")
def local(local_dynamodb: Emulator) -> DynamoTable:
    """One table on DynamoDB Local."""
    return local_table(local_dynamodb)


@pytest.fixture(scope="module")
def engines() -> Iterator[Callable[[Path], Any]]:
    """SQLAlchemy, from its environment."""
    with sql_engines() as made:
        yield made


@pytest.fixture(params=["memory", "file", LOCAL, SQL])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    """The stores under test."""
    match request.param:
        case "memory":
            yield on_table(memory_table())
        case "file":
            table: Any = file_table(tmp_path / "stores")
            with closing(table):
                yield on_table(table)
        case "sql":
            engine = request.getfixturevalue("engines")(tmp_path / "sql")
            yield await on_sql(engine)
            await engine.dispose()
        case _:
            yield on_table(request.getfixturevalue("local"))


ME = caller("somebody")


def new_task(state: int = SUBMITTED, **fields: Any) -> Task:
    """A task whose id no other test has."""
    made = {"id": str(uuid.uuid4()), "context_id": "context", **fields}
    return Task(status=TaskStatus(state=TaskState.Name(state)), **made)


def status_event(task: Task) -> TaskStatusUpdateEvent:
    """What a server publishes of a task's status."""
    return TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)


def moved(task: Task, state: int) -> Task:
    """A copy in another state."""
    other = Task()
    other.CopyFrom(task)
    other.status.state = TaskState.Name(state)  # type: ignore[assignment]
    return other


async def test_each_save_is_a_version(stores: Stores) -> None:
    """The first one is 1, and each later save is one more; a read has both task and version."""
    task, tasks = new_task(), stores.tasks
    version = await tasks.save(task, event=task, prev_version=NEW, context=ME)
    assert version == TaskVersion(1)
    task.status.state = WORKING
    event = status_event(task)
    version = await tasks.save(task, event=event, prev=task, prev_version=version, context=ME)
    assert version == TaskVersion(2)
    first = chunk_of(task, "one", append=False)
    version = await tasks.save(task, event=first, prev_version=version, context=ME)
    version = await tasks.save(task, event=chunk_of(task, "two"), prev_version=version, context=ME)
    stored = await tasks.get(task.id, ME)
    assert (stored.task, stored.version) == (task, TaskVersion(4))


async def test_a_save_of_another_version_is_refused(stores: Stores) -> None:
    """What was not read is not replaced, and stays as it is; neither is there an event."""
    task, tasks = new_task(), stores.tasks
    first = await tasks.save(task, event=task, prev_version=NEW, context=ME)
    working = moved(task, WORKING)
    await tasks.save(working, event=status_event(working), prev_version=first, context=ME)
    completed = moved(task, COMPLETED)
    event = status_event(completed)
    for stale in (NEW, *map(TaskVersion, (1, 3, -1, -2))):
        with pytest.raises(ConcurrentTaskModificationError) as refused:
            await tasks.save(completed, event=event, prev_version=stale, context=ME)
        assert refused.value.task_id == task.id
    assert (await tasks.get(task.id, ME)).task == working
    assert len(await followed(stores.stream, task.id, 2)) == 2
    with pytest.raises(ConcurrentTaskModificationError):
        await tasks.save(new_task(), prev_version=TaskVersion(1), context=ME)
    with pytest.raises(TypeError, match="integer"):  # a version of another store
        await tasks.save(task, prev_version=TaskVersion("1"), context=ME)


async def test_one_of_many_savers_wins(stores: Stores) -> None:
    """Of those that save one version at the same time, one does, and the others hear of it."""
    task, tasks = new_task(), stores.tasks
    first = await tasks.save(task, event=task, prev_version=NEW, context=ME)

    async def save(number: int) -> int:
        mine = moved(task, WORKING)
        mine.metadata["saver"] = number
        await tasks.save(mine, event=status_event(mine), prev_version=first, context=ME)
        return number

    ended = await asyncio.gather(*map(save, range(8)), return_exceptions=True)
    winners = [one for one in ended if isinstance(one, int)]
    assert len(winners) == 1
    assert {type(one) for one in ended} == {int, ConcurrentTaskModificationError}
    stored = await tasks.get(task.id, ME)
    assert (stored.task.metadata["saver"], stored.version) == (winners[0], TaskVersion(2))


@pytest.mark.parametrize("state", [COMPLETED, CANCELED, TaskState.TASK_STATE_REJECTED])
async def test_a_cancel_needs_no_version(stores: Stores, state: int) -> None:
    """It replaces a task that has not ended, whatever its version, and is refused for any other."""
    task, tasks = new_task(state if state != CANCELED else WORKING), stores.tasks
    canceled = moved(task, CANCELED)
    version = await tasks.save(task, event=task, prev_version=NEW, context=ME)
    if state == CANCELED:
        event = chunk_of(task, "x", append=False)
        await tasks.save(task, event=event, prev_version=version, context=ME)
        version = await tasks.save(
            canceled, event=status_event(canceled), prev=task, prev_version=version, context=ME
        )
        stored = await tasks.get(task.id, ME)
        assert (stored.task, stored.version) == (canceled, version)
        assert version == TaskVersion(3)
    for refused, known in ((canceled, version), (new_task(CANCELED), NEW)):
        with pytest.raises(ConcurrentTaskModificationError):
            await tasks.save(refused, prev_version=known, context=ME)


async def test_all_of_a_task_is_kept(stores: Stores) -> None:
    """Every field, in its order, as a copy of what was given; what a save leaves out is gone."""
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="née 🎈")])
    message.metadata["nested"] = {"list": [1, None, True, "x"]}
    task, tasks, me = new_task(WORKING, history=[message] * 3), stores.tasks, caller()
    task.status.timestamp.FromDatetime(datetime(2025, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC))
    task.status.message.CopyFrom(message)
    task.metadata["key"] = 1.5
    for name in "bacd":
        made = task.artifacts.add(artifact_id=name, name=name, description="", extensions=["e"])
        made.parts.extend([Part(raw=b"\0\xff", filename="f"), Part(url="https://x.test"), Part()])
        made.parts[2].data.struct_value["x"] = []
        made.metadata["m"] = "v"
    version = await tasks.save(task, event=task, prev_version=NEW, context=me)
    (await tasks.get(task.id, me)).task.status.state = COMPLETED
    assert (await tasks.get(task.id, me)).task == task
    assert list((await tasks.list(ListTasksRequest(), me)).tasks) == [task]
    del task.history[1]
    del task.artifacts[0]
    task.artifacts[1].parts[1].url = "https://another.test"
    version = await tasks.save(task, prev_version=version, context=me)
    assert (await tasks.get(task.id, me)).task == task
    del task.history[:]
    del task.artifacts[:]
    version = await tasks.save(task, prev_version=version, context=me)
    task.artifacts.append(Artifact(artifact_id="new", parts=[Part(text="1")]))
    await tasks.save(task, prev_version=version, context=me)
    assert (await tasks.get(task.id, me)).task == task


async def test_a_task_is_deleted(stores: Stores) -> None:
    """It is neither read nor listed any more; its id can be used again, from version 1 on."""
    task, tasks, me = new_task(), stores.tasks, caller()
    version = await tasks.save(task, event=task, prev_version=NEW, context=me)
    event = chunk_of(task, "x", append=False)
    await tasks.save(task, event=event, prev_version=version, context=me)
    await tasks.delete(task.id, me)
    await tasks.delete(task.id, me)
    assert await tasks.get(task.id, me) is None
    assert (await tasks.list(ListTasksRequest(), me)).total_size == 0
    again = new_task(id=task.id)
    assert await tasks.save(again, prev_version=NEW, context=me) == TaskVersion(1)
    assert (await tasks.get(task.id, me)).task == again


async def test_there_is_no_such_task(stores: Stores) -> None:
    """It is not found, its deletion does nothing, and it has no webhooks."""
    for task_id in ("", "no-such-task", "x" * 3000):
        assert await stores.tasks.get(task_id, ME) is None
        await stores.tasks.delete(task_id, ME)
        assert not await stores.configs.get_info(task_id, ME)
        await stores.configs.delete_info(task_id, ME)


async def test_a_task_is_its_owners(stores: Stores) -> None:
    """Nobody else reads, lists, replaces, cancels or deletes it."""
    task, tasks = new_task(WORKING), stores.tasks
    mine, other = caller(), caller()
    version = await tasks.save(task, prev_version=NEW, context=mine)
    assert await tasks.get(task.id, other) is None
    assert (await tasks.list(ListTasksRequest(), other)).total_size == 0
    for known, changed in ((NEW, task), (version, task), (version, moved(task, CANCELED))):
        with pytest.raises(ConcurrentTaskModificationError):
            await tasks.save(changed, prev_version=known, context=other)
    await tasks.delete(task.id, other)
    assert (await tasks.get(task.id, mine)).task == task


async def test_the_last_save_wins_without_versions(stores: Stores) -> None:
    """A plain task store replaces what is there, and reads, lists and deletes the same tasks.

    Ours refuses another owner's save; the SDK's SQL store gives the task to the last saver.
    """
    task, me, other = new_task(), caller(), caller()
    plain = stores.tasks.as_task_store
    for state in (SUBMITTED, CANCELED, WORKING):
        await plain.save(moved(task, state), me)
    assert await plain.get(task.id, me) == moved(task, WORKING)
    assert [one.id for one in (await plain.list(ListTasksRequest(), me)).tasks] == [task.id]
    await plain.delete(task.id, me)
    assert await plain.get(task.id, me) is None
    await plain.save(task, me)
    with nullcontext() if stores.is_sql else pytest.raises(ConcurrentTaskModificationError):
        await plain.save(task, other)
    assert await plain.get(task.id, me) == (None if stores.is_sql else task)


JANUARY_1, JANUARY_2 = (Timestamp(seconds=1735689600 + 86_400 * day) for day in (0, 1))
LISTED = {
    # id: context, state, time of the status
    "0": ("c-0", SUBMITTED, JANUARY_1),
    "1": ("c-1", WORKING, JANUARY_1),
    "2": ("c-0", SUBMITTED, JANUARY_2),
    "3": ("c-1", WORKING, None),
    "4": ("c-0", COMPLETED, None),
}


async def fill(stores: Stores) -> tuple[Any, str]:
    """Save the tasks above; their caller, and how their ids begin."""
    me, start = caller(), uuid.uuid4().hex
    for name, (context_id, state, at) in LISTED.items():
        task = new_task(state, id=f"{start}-{name}", context_id=context_id)
        if at is not None:
            task.status.timestamp.CopyFrom(at)
        await stores.tasks.save(task, prev_version=NEW, context=me)
    return me, start


ASKED: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "21043"),
    ({"context_id": "other"}, ""),
    ({"context_id": "c-1"}, "13"),
    ({"status": WORKING}, "13"),
    ({"status": TaskState.TASK_STATE_FAILED}, ""),
    ({"context_id": "c-0", "status": SUBMITTED}, "20"),
    ({"status_timestamp_after": JANUARY_1}, "210"),
    ({"status_timestamp_after": Timestamp(seconds=1735689600, nanos=1000)}, "2"),
    ({"status_timestamp_after": JANUARY_2, "context_id": "c-1"}, ""),
)


def shown(page: ListTasksResponse) -> str:
    """The ends of the ids on a page."""
    return "".join(task.id[-1] for task in page.tasks)


async def test_a_list(stores: Stores) -> None:
    """Newest status first, then by id; without a time last. Page by page it is the same.

    A token outlives the last task of its page; one of an older SDK names the first of the next.
    """
    me, start = await fill(stores)
    for query, expected in ASKED:
        for size in (50, 1, 2):
            found, token = "", ""
            while True:
                request = ListTasksRequest(**query, page_size=size, page_token=token)
                page = await stores.tasks.list(request, me)
                found += shown(page)
                assert (page.total_size, page.page_size) == (len(expected), size)
                token = page.next_page_token
                if not token:
                    break
            assert found == expected, query
    page = await stores.tasks.list(ListTasksRequest(page_size=2), me)
    await stores.tasks.delete(f"{start}-1", me)
    for token in (page.next_page_token, encode_page_token(f"{start}-0")):
        request = ListTasksRequest(page_size=2, page_token=token)
        assert shown(await stores.tasks.list(request, me)) == "04"


async def test_a_token_of_nobody_or_of_another_owner(stores: Stores) -> None:
    """It is refused as the SDK refuses it, and tells nothing of the task that it names."""
    _, start = await fill(stores)
    for token in ("invalid", encode_page_token("no-such-task"), "e30", "!!"):
        with pytest.raises(InvalidParamsError, match=r"[Tt]oken"):
            await stores.tasks.list(ListTasksRequest(page_token=token), ME)
    request = ListTasksRequest(page_token=encode_page_token(f"{start}-0"))
    with pytest.raises(InvalidParamsError, match="Invalid page token"):
        await stores.tasks.list(request, caller())


async def test_a_task_moves_in_the_list(stores: Stores) -> None:
    """It stands where its newest status is, in its newest state, once."""
    me, start = await fill(stores)
    stored = await stores.tasks.get(f"{start}-3", me)
    stored.task.status.state = COMPLETED
    stored.task.status.timestamp.FromDatetime(datetime(2026, 1, 1, tzinfo=UTC))
    await stores.tasks.save(stored.task, prev_version=stored.version, context=me)
    assert shown(await stores.tasks.list(ListTasksRequest(), me)) == "32104"
    assert shown(await stores.tasks.list(ListTasksRequest(status=WORKING), me)) == "1"


async def test_events_follow_a_version(stores: Stores) -> None:
    """A subscriber gets what was saved behind its version, in order, each with its own."""
    task, tasks = new_task(), stores.tasks
    version = await tasks.save(task, event=task, prev_version=NEW, context=ME)
    events: list[Any] = [Task()]
    events[0].CopyFrom(task)
    for number in range(3):
        event = chunk_of(task, str(number), append=number > 0)
        version = await tasks.save(task, event=event, prev_version=version, context=ME)
        events.append(event)
    version = await tasks.save(task, prev_version=version, context=ME)  # without an event
    task.history.add(message_id="follow-up", role=Role.ROLE_USER)
    version = await tasks.save(task, event=task, prev_version=version, context=ME)
    events.append(task)
    for after, numbers in ((0, [1, 2, 3, 4, 6]), (2, [3, 4, 6]), (5, [6])):
        behind = TaskVersion(after) if after else NEW
        found = await followed(stores.stream, task.id, len(numbers), after=behind)
        assert [one.version for one in found] == [*map(TaskVersion, numbers)]
        assert [one.event for one in found] == events[-len(numbers) :]


async def test_a_subscriber_waits(stores: Stores) -> None:
    """It gets what is saved while it waits, also where there was no task when it began."""
    task, tasks = new_task(), stores.tasks
    following = asyncio.create_task(followed(stores.stream, task.id, 2))
    await asyncio.sleep(0)
    version = await tasks.save(task, event=task, prev_version=NEW, context=ME)
    await stores.stream.publish(task.id, None)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    canceled = moved(task, CANCELED)
    await tasks.save(canceled, event=status_event(canceled), prev_version=version, context=ME)
    await stores.stream.destroy(task.id)
    assert [one.event for one in await following] == [task, status_event(canceled)]


async def test_a_subscriber_goes_on_with_a_new_task(stores: Stores) -> None:
    """Where a task is deleted, and made again by who still runs it, its subscriber follows it."""
    task, tasks = new_task(), stores.tasks
    version = await tasks.save(task, event=task, prev_version=NEW, context=ME)
    await tasks.save(task, event=task, prev_version=version, context=ME)
    events = stores.stream.subscribe(task.id, after=NEW)
    async with asyncio.timeout(20):
        assert [(await anext(events)).version for _ in range(2)] == [*map(TaskVersion, (1, 2))]
        await tasks.delete(task.id, ME)
        again = moved(task, WORKING)
        await tasks.save(again, event=again, prev_version=NEW, context=ME)
        found = await anext(events)
    assert (found.event, found.version) == (again, TaskVersion(1))
    await events.aclose()


def webhook(name: str, url: str = "https://x.test") -> TaskPushNotificationConfig:
    config = TaskPushNotificationConfig(id=name, url=url, token="t")
    config.authentication.scheme = "Bearer"
    return config


async def test_webhooks_are_kept(stores: Stores) -> None:
    """Each has its id, which replaces the one with the same; without one it is the task's."""
    task_id, configs = str(uuid.uuid4()), stores.configs
    given = webhook("")
    stored = present(await configs.set_info(task_id, given, ME))
    assert (stored.id, stored.task_id, given.task_id) == (task_id, task_id, "")
    assert await configs.get_info(task_id, ME) == [stored]
    for url in ("https://x.test/1", "https://x.test/2"):
        await configs.set_info(task_id, webhook("other", url), ME)
    found = {one.id: one for one in await configs.get_info(task_id, ME)}
    assert found.keys() == {task_id, "other"}
    assert found["other"].url == "https://x.test/2"
    assert found["other"].authentication.scheme == "Bearer"
    await configs.delete_info(task_id, ME, "no-such-one")
    await configs.delete_info(task_id, ME, "other")
    assert [one.id for one in await configs.get_info(task_id, ME)] == [task_id]
    await configs.set_info(task_id, webhook("other"), ME)
    await configs.delete_info(task_id, ME)
    await configs.delete_info(task_id, ME)
    assert await configs.get_info(task_id, ME) == []


async def test_webhooks_are_their_owners(stores: Stores) -> None:
    """Each owner sees and deletes its own; the sender gets all.

    Where two choose one id ours keeps both; the SDK's SQL store gives the first to the second.
    """
    task_id, configs = str(uuid.uuid4()), stores.configs
    mine, other = caller(), caller()
    await configs.set_info(task_id, webhook("1"), mine)
    await configs.set_info(task_id, webhook("2"), other)
    assert [one.id for one in await configs.get_info(task_id, mine)] == ["1"]
    assert {one.id for one in await configs.get_info_for_dispatch(task_id)} == {"1", "2"}
    await configs.delete_info(task_id, other, "1")
    await configs.delete_info(task_id, other)
    assert [one.id for one in await configs.get_info_for_dispatch(task_id)] == ["1"]
    await configs.set_info(task_id, webhook("1", "https://other.test"), other)
    urls = [one.url for one in await configs.get_info(task_id, mine)]
    assert urls == ([] if stores.is_sql else ["https://x.test"])
