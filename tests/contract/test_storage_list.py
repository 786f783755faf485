"""Listing tasks."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from a2a.types import ListTasksResponse, Task, TaskState
from pydantic import ValidationError

from a2a_serverless.errors import AnswerTooLargeError, InvalidArgumentError, PageTokenError
from a2a_serverless.storage import layout, listing
from a2a_serverless.storage.deletion import count_data, delete_context, delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.layout import HOUR_MS
from a2a_serverless.storage.listing import _FIRST_COMMITS, ListTasksQuery, _Listing, list_tasks
from a2a_serverless.storage.snapshots import ListedTasks
from a2a_serverless.tasks.head import MAX_INLINE_BYTES
from a2a_serverless.tasks.identity import first_task_id
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import ArtifactWrite, Storage
from a2a_serverless_tools.operate.finding import created_in
from tests.support.clocks import ManualClock
from tests.support.databases import new_scope
from tests.support.messages import agent_message, artifact, message, request, said
from tests.support.present import present

WORKING = TaskState.TASK_STATE_WORKING
COMPLETED = TaskState.TASK_STATE_COMPLETED


async def fill(
    tasks: Storage, clock: ManualClock, count: int, context_id: str = "ctx"
) -> list[str]:
    """Create tasks a second apart; their ids, oldest first."""
    ids = []
    for number in range(count):
        clock.advance(1)
        ids.append((await tasks.create_task(context_id, message(str(number)))).id)
    return ids


def ids(*results: ListTasksResponse) -> list[str]:
    return [task.id for result in results for task in result.tasks]


def query_of(**query: object) -> ListTasksQuery:
    return ListTasksQuery.model_validate(query)


def behind(page: ListTasksResponse, query: ListTasksQuery) -> ListTasksQuery:
    """The query of the next page."""
    return query.model_copy(update={"page_token": page.next_page_token})


def at(task: Task) -> str:
    return task.status.timestamp.ToJsonString()


async def test_the_newest_first(
    storage: DurableStorage, tasks: Storage, clock: ManualClock
) -> None:
    """Order is by status time, newest first, not by creation; ties go by id, over pages (41)."""
    first, second, third = await fill(tasks, clock, 3)
    assert ids(await tasks.list_tasks(ListTasksQuery())) == [third, second, first]
    clock.advance(1)
    await tasks.update_task(first, WORKING)
    await tasks.update_task(second, artifacts=[ArtifactWrite(artifact("a", "x"))])
    assert ids(await tasks.list_tasks(ListTasksQuery())) == [first, third, second]
    clock.advance(1)
    made = [(await tasks.create_task("ties", message())).id for _ in range(7)]
    results = await walk(storage, None, page_size=2, context_id="ties")
    assert ids(*results) == sorted(made, reverse=True)


async def test_filters_and_together(tasks: Storage, clock: ManualClock) -> None:
    """Context, state and time filter together (40)."""
    one, two = await fill(tasks, clock, 2, "ctx-1")
    three, four = await fill(tasks, clock, 2, "ctx-2")
    for task_id in (one, three):
        clock.advance(1)
        await tasks.update_task(task_id, WORKING)
    since = at(present(await tasks.load_task(three)))
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"context_id": "ctx-1"}, [one, two]),
        ({"status": WORKING}, [three, one]),
        ({"context_id": "ctx-1", "status": WORKING}, [one]),
        ({"status_timestamp_after": since}, [three]),
        ({"status_timestamp_after": since, "context_id": "ctx-1"}, []),
        ({"status_timestamp_after": since, "status": WORKING, "context_id": "ctx-2"}, [three]),
        ({"context_id": "unknown"}, []),
        ({"status": TaskState.TASK_STATE_REJECTED}, []),
        ({}, [three, one, four, two]),
    ]
    for query, expected in cases:
        result = await tasks.list_tasks(query_of(**query))
        assert (ids(result), result.total_size) == (expected, len(expected)), query


async def test_the_time_filter_is_exact(tasks: Storage, clock: ManualClock) -> None:
    """A time includes its own moment, in any offset or UTC, and nothing earlier (40, decided)."""
    for ms in (0, 1, 18, 999):
        clock.advance((ms - clock.now_ms()) % 1000 / 1000)
        (made,) = await fill(tasks, clock, 1)
        task = present(await tasks.load_task(made))
        for text in (at(task), at(task).replace("Z", "+00:00"), at(task).removesuffix("Z")):
            assert ids(await tasks.list_tasks(query_of(status_timestamp_after=text))) == [made]
        at_ms = task.status.timestamp.ToMilliseconds()
        for nanos, expected in ((0, [made]), (1, []), (1000, []), (999_999, [])):
            task.status.timestamp.FromNanoseconds(at_ms * 1_000_000 + nanos)
            query = ListTasksQuery(status_timestamp_after=at(task))
            assert ids(await tasks.list_tasks(query)) == expected, nanos


async def test_pages(storage: DurableStorage, tasks: Storage, clock: ManualClock) -> None:
    """Pages of any size hold a task once (42); `total_size` counts on the first, for all (43)."""
    made = await fill(tasks, clock, 7)
    for size in (1, 3, 7, 100):
        results = await walk(storage, None, page_size=size)
        assert ids(*results) == made[::-1]
        assert all(len(result.tasks) == size for result in results[:-1])
        assert all(result.page_size == size for result in results)
        assert results[-1].next_page_token == ""
    await tasks.update_task(made[0], WORKING)
    query = ListTasksQuery(page_size=3, status=TaskState.TASK_STATE_SUBMITTED)
    first = await tasks.list_tasks(query)
    await tasks.create_task("ctx", message())
    second = await tasks.list_tasks(behind(first, query))
    assert (first.total_size, second.total_size) == (6, 6)
    assert ids(first, second) == made[:0:-1]


async def test_a_large_page(storage: DurableStorage, tasks: Storage, clock: ManualClock) -> None:
    """A page holds tasks of at most 4 MB together, or a single larger task."""
    made = await fill(tasks, clock, 5)
    for task_id, size in zip(made[1:4], (1_500_000, 3_000_000, 1_500_000), strict=True):
        large = ArtifactWrite(artifact("a", "x" * size))
        await tasks.update_task(task_id, artifacts=[large])
    for query in (
        {},
        {"include_artifacts": True},
        {"history_length": 0, "include_artifacts": True},
    ):
        read = await walk(storage, None, **query)
        assert [ids(page) for page in read] == [made[:2:-1], [made[2]], made[1::-1]]
        assert [page.total_size for page in read] == [5] * 3
    (whole,) = await walk(storage, None, history_length=0)
    assert ids(whole) == made[::-1]


async def test_what_fits(storage: DurableStorage, tasks: Storage, clock: ManualClock) -> None:
    """A page ends with the last task that fits, and its token leads to the next."""
    made = await fill(tasks, clock, 5)
    room = 2

    async def fitting(tasks: Sequence[Task]) -> int:
        return min(room, len(tasks))

    query = ListTasksQuery()
    first = await list_tasks(storage, query, fitting=fitting)
    assert ids(first) == made[:2:-1]
    rest = behind(first, query)
    assert ids(await list_tasks(storage, rest)) == made[2::-1]
    room = 0
    with pytest.raises(AnswerTooLargeError, match=rf"^Task {made[2]} alone .* without artifacts"):
        await list_tasks(storage, rest, fitting=fitting)


@pytest.mark.parametrize(("commits", "length"), [(2, 0), (2, None), (_FIRST_COMMITS + 1, None)])
@pytest.mark.parametrize("status", [WORKING, None])
async def test_a_task_that_moves_on_under_a_listing_is_in_the_state_asked_for(
    tasks: Storage,
    monkeypatch: pytest.MonkeyPatch,
    status: TaskState | None,
    length: int | None,
    commits: int,
) -> None:
    """A list by state shows it as the list saw it, or leaves it out; one without shows it."""
    task_id = (await tasks.create_task("ctx", message())).id
    long = agent_message("x" * (MAX_INLINE_BYTES + 1))
    for _ in range(commits - 1):  # HEAD points to the log
        await tasks.update_task(task_id, WORKING, status_message=long)
    find = listing._newest

    async def and_then_complete(of: DurableStorage, asked: _Listing, *size: Any) -> Any:
        found = await find(of, asked, *size)
        for head in found.heads:
            if head.state == WORKING:
                await tasks.update_task(head.task_id, COMPLETED)
        return found

    monkeypatch.setattr(listing, "_newest", and_then_complete)
    query = ListTasksQuery(status=status, history_length=length)
    listed = (await tasks.list_tasks(query)).tasks
    if status is None:
        assert [task.id for task in listed] == [task_id]
        assert bool(listed[0].status.message.parts) == (listed[0].status.state == WORKING)
    else:
        assert [task.status.state for task in listed] in ([], [WORKING])
    completed = query.model_copy(update={"status": COMPLETED})
    assert ids(await tasks.list_tasks(completed)) == [task_id]


async def test_history_and_artifacts_of_a_listed_task(tasks: Storage) -> None:
    """`history_length` applies per task, and artifacts are left out unless asked for (44)."""
    task = await tasks.create_task("ctx", message("1"))
    written = [ArtifactWrite(artifact("a", "x"))]
    await tasks.update_task(task.id, messages=[message("2")], artifacts=written)
    cases: list[tuple[dict[str, Any], list[str], int]] = [
        ({}, ["1", "2"], 0),
        ({"history_length": 0}, [], 0),
        ({"history_length": 1}, ["2"], 0),
        ({"history_length": 0, "include_artifacts": True}, [], 1),
        ({"include_artifacts": True}, ["1", "2"], 1),
    ]
    for query, history, artifacts in cases:
        (listed,) = (await tasks.list_tasks(query_of(**query))).tasks
        assert (said(listed), len(listed.artifacts)) == (history, artifacts)


async def test_a_listed_task_is_never_that_of_an_earlier_page(
    storage: DurableStorage, tasks: Storage, clock: ManualClock
) -> None:
    """Another page shows what was committed since, by any process, and a new task under the id.

    When that has expired it shows none.
    """
    views: list[dict[str, Any]] = [{}, {"include_artifacts": True}, {"history_length": 1}]
    bare = {"history_length": 0, "context_id": "ctx"}  # whose first task no index names
    first = first_task_id(storage.scope, "ctx")

    async def shown() -> list[Any]:
        """The task in each view, as two processes list it, one of which has listed it before."""
        told = []
        for view in (*views, views[0]):  # the last one is also the first that is asked for next
            for one in (storage, storage, replace(storage, listed=ListedTasks())):
                (task,) = (await list_tasks(one, query_of(**view))).tasks
                told.append((said(task), len(task.artifacts)))
                task.history.clear()  # the caller's own
                (head,) = (await list_tasks(one, query_of(**bare))).tasks
                assert head == await tasks.load_task(first, 0, include_artifacts=False)
                head.status.Clear()  # the caller's own as well
        assert told[::3] == told[1::3] == told[2::3]
        return told[: 3 * len(views) : 3]

    await storage.open_task("ctx", request("1"), task_id=first)
    assert await shown() == [(["1"], 0), (["1"], 0), (["1"], 0)]
    written = [ArtifactWrite(artifact("a", "x"))]
    working = TaskState.TASK_STATE_WORKING
    await tasks.update_task(first, working, messages=[message("2")], artifacts=written)
    assert await shown() == [(["1", "2"], 0), (["1", "2"], 1), (["2"], 0)]
    await delete_task(storage, first)
    await storage.open_task("ctx", request("3"), task_id=first)
    assert await shown() == [(["3"], 0), (["3"], 0), (["3"], 0)]
    clock.advance(storage.timing.ttl_s + 1)
    assert not (await list_tasks(storage, query_of(**bare))).tasks


async def test_the_listed_tasks_in_memory_are_bounded(storage: DurableStorage) -> None:
    """Those that were listed last are kept; a task that alone is larger is not."""
    heads = [(await storage.open_task("ctx", request(str(n)))).head for n in range(3)]
    small, large = Task(id="x" * 40), Task(id="x" * 400)
    listed = ListedTasks(most_bytes=2 * small.ByteSize())
    listed.keep(heads[0], "view", small)
    listed.keep(heads[1], "view", small)
    assert listed.of(heads[0], "view") == small
    listed.keep(heads[2], "view", small)
    assert [listed.of(head, "view") for head in heads] == [small, None, small]
    assert listed.of(heads[0], "another") is None
    listed.keep(heads[0], "view", large)
    assert listed.of(heads[0], "view") is None


async def walk(
    storage: DurableStorage, most: int | None, **query: object
) -> list[ListTasksResponse]:
    """All pages of a query, each of which looks at so many entries of the index at most."""
    asked = query_of(**query)
    results = [await list_tasks(storage, asked, most=most)]
    while results[-1].next_page_token:
        asked = behind(results[-1], asked)
        results.append(await list_tasks(storage, asked, most=most))
    return results


@pytest.mark.parametrize("context_id", [None, "ctx"])
async def test_a_rare_state_is_found_over_short_pages(
    storage: DurableStorage, tasks: Storage, clock: ManualClock, context_id: str | None
) -> None:
    """Pages that find nothing are empty and have a token; each task of the state comes once."""
    made = await fill(tasks, clock, 40)
    rare, query = (made[3], made[30]), {"page_size": 1, "status": WORKING, "context_id": context_id}
    for task_id in (*rare, *(one for one in made if one not in rare)):
        clock.advance(1)
        await tasks.update_task(task_id, WORKING if task_id in rare else COMPLETED)
    results = await walk(storage, 3, **query)
    assert ids(*results) == [made[30], made[3]]
    assert len(results) > 4
    assert not results[0].tasks
    assert {result.total_size for result in results} == {3}
    exact = await walk(storage, None, **query)
    assert [(ids(page), page.total_size) for page in exact] == [([made[30]], 2), ([made[3]], 2)]


@pytest.mark.parametrize(
    ("context_id", "status"), [(None, TaskState.TASK_STATE_SUBMITTED), ("ctx", None)]
)
async def test_a_total_is_exact_up_to_a_bound(
    storage: DurableStorage,
    tasks: Storage,
    clock: ManualClock,
    context_id: str | None,
    status: TaskState | None,
) -> None:
    """Up to the bound it is exact, beyond it the bound; what has left a state is not counted."""
    query = {"page_size": 1, "context_id": context_id, "status": status}
    for number in range(1, 10):
        made = await fill(tasks, clock, 1)
        page = await list_tasks(storage, query_of(**query), most=30)
        assert page.total_size == number
    await tasks.update_task(made[0], WORKING)
    left = 8 if status else 9
    results = await walk(storage, 2, **query)
    assert [result.total_size for result in results] == [2] * len(results)
    assert len(ids(*results)) == len(set(ids(*results))) == left
    assert {page.total_size for page in await walk(storage, None, **query)} == {left}


async def test_a_moving_task(storage: DurableStorage, tasks: Storage, clock: ManualClock) -> None:
    """What moves up while a client pages is on none of the later pages; all others are."""
    made = await fill(tasks, clock, 12)
    query, moving = ListTasksQuery(page_size=2, context_id="ctx"), [0, 1, 8, 11]
    seen: list[str] = []
    while not seen or query.page_token:
        page = await list_tasks(storage, query, most=2)
        seen += ids(page)
        query = behind(page, query)
        if moving:
            clock.advance(1)
            await tasks.update_task(made[moving.pop()], WORKING)
    assert len(seen) == len(set(seen))
    assert set(made) - set(seen) == {made[1], made[0]}


async def test_a_first_task(storage: DurableStorage, tasks: Storage, clock: ManualClock) -> None:
    """It is listed with the others, wherever its status puts it, counted, and once in all pages."""
    first = first_task_id(storage.scope, "ctx")
    await storage.open_task("ctx", request("first"), task_id=first)
    (alone,) = await walk(storage, 3, context_id="ctx")
    assert (ids(alone), alone.total_size) == ([first], 1)
    later = await fill(tasks, clock, 3)
    for expected in ([*later[::-1], first], [later[2], first, later[1], later[0]]):
        for size in (1, 2, 3, 4, 100):
            results = await walk(storage, 30, context_id="ctx", page_size=size)
            assert ids(*results) == expected
            assert {result.total_size for result in results} == {4}
        for moved in (first, later[2]):
            clock.advance(1)
            await tasks.update_task(moved, WORKING)
    working = await walk(storage, 30, context_id="ctx", status=WORKING)
    assert [(ids(page), page.total_size) for page in working] == [([later[2], first], 2)]
    assert await delete_context(storage, "ctx") == 4
    assert await storage.head(first) is None


async def test_a_task_with_the_id_of_anothers_first(storage: DurableStorage) -> None:
    """A client of 0.1 may choose the id that another context begins with; it changes nothing."""
    stray = first_task_id(storage.scope, "theirs")
    await storage.open_task("mine", request(), task_id=stray)
    assert ids(await list_tasks(storage, ListTasksQuery(context_id="mine"))) == [stray]
    theirs = await list_tasks(storage, ListTasksQuery(context_id="theirs"))
    assert (len(theirs.tasks), theirs.total_size) == (0, 0)
    assert (await count_data(storage, "theirs")).is_nothing
    assert await delete_context(storage, "theirs") == 0
    assert await storage.head(stray) is not None


def forged(*place: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


async def test_a_token(storage: DurableStorage, tasks: Storage, clock: ManualClock) -> None:
    """One of another scope or filter, not made here, or changed in its total, is an error (42)."""
    await fill(tasks, clock, 3)
    texts = ("1", "!", "ä", "bm90IGpzb24", "NQ", "bnVsbA", "x" * 10_240)
    tokens = [*texts, forged(), forged("x", 1, "y"), forged(1, 2, 3)]
    token = (await list_tasks(storage, ListTasksQuery(page_size=1))).next_page_token
    place, _, made_for = json.loads(base64.urlsafe_b64decode(token + "=="))
    totals = (-1, 2**31, 10**4000, True, 1.0, "1", None)
    asked = [{"page_token": forged(place, total, made_for), "page_size": 1} for total in totals]
    asked += [{"page_token": foreign} for foreign in tokens]
    asked += [{"page_token": token, "status": WORKING}, {"page_token": token, "context_id": "ctx"}]
    for query in asked:
        with pytest.raises(PageTokenError):
            await list_tasks(storage, query_of(**query))
    other = storage.for_scope(new_scope())
    with pytest.raises(PageTokenError):
        await list_tasks(other, ListTasksQuery(page_size=1, page_token=token))


async def test_bad_filters_are_refused(tasks: Storage) -> None:
    """A page outside of 1 to 100, an unknown state, time or context id are errors (42)."""
    for name, values in (
        ("page_size", (0, 101, -1, "50", 1.5, True)),
        ("history_length", (-1, "1", 1.5, True)),
    ):
        for value in values:
            with pytest.raises(ValidationError):
                query_of(**{name: value})
    for query in (
        {"status": 99},
        {"status": TaskState.TASK_STATE_UNSPECIFIED},
        {"status_timestamp_after": "yesterday"},
        {"context_id": ""},
        {"context_id": "x" * 10_240},
    ):
        with pytest.raises(InvalidArgumentError):
            await tasks.list_tasks(ListTasksQuery.model_construct(**query))


async def test_more_shards_find_the_tasks_of_fewer(
    storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists, hours, due turns, states and deletions; what is written from then on uses all."""
    heads = [(await storage.open_task(f"c{n}", request())).head for n in range(12)]
    monkeypatch.setattr(layout, "SHARDS", 16)
    heads += [(await storage.open_task(f"d{n}", request())).head for n in range(12)]
    assert len({layout.shard_of(head.task_id) for head in heads}) > 4
    ids = {head.task_id for head in heads}
    listed = await list_tasks(storage, ListTasksQuery(page_size=100))
    assert {task.id for task in listed.tasks} == ids
    hour_ms = clock.now_ms() // HOUR_MS * HOUR_MS
    found = await created_in(storage, hour_ms, limit=1000)
    assert ids <= {one.task_id for one in found.found}
    clock.advance(3600)
    overdue = await due_tasks(storage, clock.now_ms(), limit=100_000)
    assert ids <= {due.task_id for due in overdue}
    old = heads[0]
    moved = await storage.commit(old, Commit(token="one", claims=True, worker="host"))
    again = await due_tasks(storage, clock.now_ms(), limit=100_000)
    assert old.task_id not in {due.task_id for due in again}
    assert moved.version == old.version + 1
    await delete_task(storage, old.task_id)
    left = await list_tasks(storage, ListTasksQuery(page_size=100))
    assert {task.id for task in left.tasks} == ids - {old.task_id}
