"""Listing tasks."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from a2a.types import ListTasksResponse, Task, TaskState
from pydantic import ValidationError

from a2a_serverless.errors import AnswerTooLargeError, InvalidArgumentError, PageTokenError
from a2a_serverless.storage import listing
from a2a_serverless.storage.deletion import count_data, delete_context
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.listing import (
    _FIRST_COMMITS,
    ListTasksQuery,
    _Fitting,
    _Listing,
    list_tasks,
)
from a2a_serverless.tasks.head import MAX_INLINE_BYTES
from a2a_serverless.tasks.identity import first_task_id
from a2a_serverless_tools.contract import ArtifactWrite, Storage
from tests.support.clocks import ManualClock
from tests.support.databases import new_scope
from tests.support.messages import agent_message, artifact, message, request, said
from tests.support.present import present

WORKING = TaskState.TASK_STATE_WORKING
COMPLETED = TaskState.TASK_STATE_COMPLETED


async def fill(
    storage: DurableStorage, clock: ManualClock, count: int, context_id: str = "ctx"
) -> list[str]:
    """Create tasks a second apart; their ids, oldest first."""
    ids = []
    for number in range(count):
        clock.advance(1)
        ids.append((await Storage(storage).create_task(context_id, message(str(number)))).id)
    return ids


async def pages(storage: DurableStorage, **query: object) -> list[ListTasksResponse]:
    """All pages of a query."""
    results = [await Storage(storage).list_tasks(ListTasksQuery.model_validate(query))]
    while results[-1].next_page_token:
        following = query | {"page_token": results[-1].next_page_token}
        results.append(await Storage(storage).list_tasks(ListTasksQuery.model_validate(following)))
    return results


def ids(*results: ListTasksResponse) -> list[str]:
    return [task.id for result in results for task in result.tasks]


def at_most(count: int) -> _Fitting:
    """An answer in which so many tasks fit."""

    async def fitting(tasks: Sequence[Task]) -> int:
        return min(count, len(tasks))

    return fitting


def at(task: Task) -> str:
    return task.status.timestamp.ToJsonString()


async def test_the_newest_status_comes_first(storage: DurableStorage, clock: ManualClock) -> None:
    """Order is by status time, newest first, not by creation (41)."""
    first, second, third = await fill(storage, clock, 3)
    assert ids(await Storage(storage).list_tasks(ListTasksQuery())) == [third, second, first]
    clock.advance(1)
    await Storage(storage).update_task(first, WORKING)
    await Storage(storage).update_task(second, artifacts=[ArtifactWrite(artifact("a", "x"))])
    assert ids(await Storage(storage).list_tasks(ListTasksQuery())) == [first, third, second]


async def test_ties_go_by_id(storage: DurableStorage) -> None:
    """Tasks of one status time are ordered by id, and paging keeps that order (41)."""
    made = [(await Storage(storage).create_task("ctx", message())).id for _ in range(7)]
    results = await pages(storage, page_size=2)
    assert ids(*results) == sorted(made, reverse=True)


async def test_filters_and_together(storage: DurableStorage, clock: ManualClock) -> None:
    """Context, state and time filter together (40)."""
    one, two = await fill(storage, clock, 2, "ctx-1")
    three, four = await fill(storage, clock, 2, "ctx-2")
    for task_id in (one, three):
        clock.advance(1)
        await Storage(storage).update_task(task_id, WORKING)
    moved = present(await Storage(storage).load_task(three))
    for query, expected in [
        ({"context_id": "ctx-1"}, [one, two]),
        ({"status": WORKING}, [three, one]),
        ({"context_id": "ctx-1", "status": WORKING}, [one]),
        ({"status_timestamp_after": at(moved)}, [three]),
        ({"status_timestamp_after": at(moved), "context_id": "ctx-1"}, []),
        ({"status_timestamp_after": at(moved), "status": WORKING, "context_id": "ctx-2"}, [three]),
        ({"context_id": "unknown"}, []),
        ({"status": TaskState.TASK_STATE_REJECTED}, []),
        ({}, [three, one, four, two]),
    ]:
        result = await Storage(storage).list_tasks(ListTasksQuery.model_validate(query))
        assert ids(result) == expected, query
        assert result.total_size == len(expected), query


async def test_the_time_filter_is_inclusive(storage: DurableStorage, clock: ManualClock) -> None:
    """`status_timestamp_after` includes its own moment, in any offset (40, decided)."""
    first, second, third = await fill(storage, clock, 3)
    task = present(await Storage(storage).load_task(second))
    moment = task.status.timestamp.ToDatetime(UTC)
    elsewhere = datetime.fromtimestamp(moment.timestamp(), UTC).isoformat()
    for text in (at(task), elsewhere, at(task).replace("Z", "+00:00")):
        result = await Storage(storage).list_tasks(ListTasksQuery(status_timestamp_after=text))
        assert ids(result) == [third, second]
    assert first


async def test_the_time_filter_is_exact(storage: DurableStorage, clock: ManualClock) -> None:
    """A time is not cut: a task's own, or one a nanosecond later, in each millisecond."""
    for ms in (0, 1, 18, 999):
        clock.advance((ms - clock.now_ms()) % 1000 / 1000)
        (made,) = await fill(storage, clock, 1)
        task = present(await Storage(storage).load_task(made))
        at_ms = task.status.timestamp.ToMilliseconds()
        for nanos, expected in ((0, [made]), (1, []), (1000, []), (999_999, [])):
            task.status.timestamp.FromNanoseconds(at_ms * 1_000_000 + nanos)
            query = ListTasksQuery(status_timestamp_after=at(task))
            assert ids(await Storage(storage).list_tasks(query)) == expected, nanos


async def test_pages_do_not_overlap(storage: DurableStorage, clock: ManualClock) -> None:
    """Pages of any size hold every task once; the last has no token (42)."""
    made = await fill(storage, clock, 7)
    for size in (1, 3, 7, 100):
        results = await pages(storage, page_size=size)
        assert ids(*results) == made[::-1]
        assert all(len(result.tasks) == size for result in results[:-1])
        assert all(result.page_size == size for result in results)
        assert results[-1].next_page_token == ""


async def test_total_size_is_counted_once(storage: DurableStorage, clock: ManualClock) -> None:
    """`total_size` counts what the filters match, on the first page, for all pages (43)."""
    made = await fill(storage, clock, 5)
    await Storage(storage).update_task(made[0], WORKING)
    query = ListTasksQuery(page_size=2, status=TaskState.TASK_STATE_SUBMITTED)
    first = await Storage(storage).list_tasks(query)
    await Storage(storage).create_task("ctx", message())
    second = await Storage(storage).list_tasks(
        query.model_copy(update={"page_token": first.next_page_token})
    )
    assert (first.total_size, second.total_size) == (4, 4)
    assert ids(first, second) == made[:0:-1]


async def test_a_total_follows_at_once(storage: DurableStorage, clock: ManualClock) -> None:
    """Tasks that have left a state are not counted in it any more."""
    made = await fill(storage, clock, 4)
    query = ListTasksQuery(page_size=2, status=TaskState.TASK_STATE_SUBMITTED)
    assert (await list_tasks(storage, query)).total_size == 4
    await Storage(storage).update_task(made[0], WORKING)
    assert (await list_tasks(storage, query)).total_size == 3


async def test_a_page_ends_before_it_reads_too_much(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """A page holds tasks of at most 4 MB together, or a single larger task."""
    made = await fill(storage, clock, 5)
    for task_id, size in zip(made[1:4], (1_500_000, 3_000_000, 1_500_000), strict=True):
        large = ArtifactWrite(artifact("a", "x" * size))
        await Storage(storage).update_task(task_id, artifacts=[large])
    for query in (
        {},
        {"include_artifacts": True},
        {"history_length": 0, "include_artifacts": True},
    ):
        read = await pages(storage, **query)
        assert [ids(page) for page in read] == [made[:2:-1], [made[2]], made[1::-1]]
        assert [page.total_size for page in read] == [5] * 3
    (whole,) = await pages(storage, history_length=0)
    assert ids(whole) == made[::-1]


async def test_a_page_ends_with_what_fits_into_an_answer(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """A page ends with the last task that fits, and its token leads to the next."""
    made = await fill(storage, clock, 5)
    query = ListTasksQuery()
    first = await list_tasks(storage, query, fitting=at_most(2))
    assert ids(first) == made[:2:-1]
    rest = query.model_copy(update={"page_token": first.next_page_token})
    assert ids(await list_tasks(storage, rest)) == made[2::-1]
    with pytest.raises(AnswerTooLargeError, match=rf"^Task {made[2]} alone .* without artifacts"):
        await list_tasks(storage, rest, fitting=at_most(0))


async def test_a_task_that_moves_is_not_shown_twice(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """A task that changes meanwhile leaves the later pages and is found again by time."""
    made = await fill(storage, clock, 6)
    first = await Storage(storage).list_tasks(ListTasksQuery(page_size=2))
    started = at(first.tasks[0])
    clock.advance(1)
    await Storage(storage).update_task(made[5], WORKING)  # was on the first page
    await Storage(storage).update_task(made[1], WORKING)  # would have been on a later one
    rest = await pages(storage, page_size=2, page_token=first.next_page_token)
    assert ids(first, *rest) == [made[5], made[4], made[3], made[2], made[0]]
    moved = await Storage(storage).list_tasks(ListTasksQuery(status_timestamp_after=started))
    assert set(ids(moved)) == {made[5], made[1]}


async def seen_and_then_completed(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch, commits: int
) -> str:
    """A working task of so many commits, which completes whenever a list has seen its HEAD."""
    task = await Storage(storage).create_task("ctx", message())
    long = agent_message("x" * (MAX_INLINE_BYTES + 1))
    for _ in range(commits - 1):
        await Storage(storage).update_task(
            task.id, WORKING, status_message=long
        )  # HEAD points to the log
    find = listing._newest

    async def and_then_complete(of: DurableStorage, asked: _Listing, *size: Any) -> Any:
        found = await find(of, asked, *size)
        for head in found.heads:
            if head.state == WORKING:
                await Storage(storage).update_task(head.task_id, COMPLETED)
        return found

    monkeypatch.setattr(listing, "_newest", and_then_complete)
    return task.id


@pytest.mark.parametrize(
    ("commits", "history_length"), [(2, 0), (2, None), (_FIRST_COMMITS + 1, None)]
)
async def test_a_task_that_moves_on_under_a_listing_is_in_the_state_asked_for(
    storage: DurableStorage,
    monkeypatch: pytest.MonkeyPatch,
    history_length: int | None,
    commits: int,
) -> None:
    """A list by state shows a task that has moved on as the list saw it, or leaves it out."""
    task_id = await seen_and_then_completed(storage, monkeypatch, commits)
    query = ListTasksQuery(status=WORKING, history_length=history_length)
    listed = (await Storage(storage).list_tasks(query)).tasks
    assert [task.status.state for task in listed] in ([], [WORKING])
    completed = query.model_copy(update={"status": COMPLETED})
    assert ids(await Storage(storage).list_tasks(completed)) == [task_id]


@pytest.mark.parametrize("commits", [2, _FIRST_COMMITS + 1])
async def test_a_task_that_moves_on_is_listed_all_the_same(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """A list without a state shows a task that has moved on, as it was or as it is now."""
    task_id = await seen_and_then_completed(storage, monkeypatch, commits)
    (listed,) = (await Storage(storage).list_tasks(ListTasksQuery())).tasks
    assert listed.id == task_id
    assert bool(listed.status.message.parts) == (listed.status.state == WORKING)


async def test_history_and_artifacts_of_a_listed_task(storage: DurableStorage) -> None:
    """`history_length` applies per task, and artifacts are left out unless asked for (44)."""
    task = await Storage(storage).create_task("ctx", message("1"))
    await Storage(storage).update_task(
        task.id, messages=[message("2")], artifacts=[ArtifactWrite(artifact("a", "x"))]
    )
    for query, history, artifacts in [
        ({}, ["1", "2"], 0),
        ({"history_length": 0}, [], 0),
        ({"history_length": 1}, ["2"], 0),
        ({"history_length": 0, "include_artifacts": True}, [], 1),
        ({"include_artifacts": True}, ["1", "2"], 1),
    ]:
        result = await Storage(storage).list_tasks(ListTasksQuery.model_validate(query))
        (listed,) = result.tasks
        assert said(listed) == history
        assert len(listed.artifacts) == artifacts


async def walk(storage: DurableStorage, most: int, **query: object) -> list[ListTasksResponse]:
    """All pages of a query, each of which looks at few entries of the index."""
    asked = ListTasksQuery.model_validate(query)
    results = [await list_tasks(storage, asked, most=most)]
    while token := results[-1].next_page_token:
        asked = asked.model_copy(update={"page_token": token})
        results.append(await list_tasks(storage, asked, most=most))
    return results


@pytest.mark.parametrize("context_id", [None, "ctx"])
async def test_a_rare_state_is_found_over_short_pages(
    storage: DurableStorage, clock: ManualClock, context_id: str | None
) -> None:
    """Pages that find nothing are empty and have a token; each task of the state comes once."""
    made = await fill(storage, clock, 40)
    for rare in (made[3], made[30]):
        clock.advance(1)
        await Storage(storage).update_task(rare, WORKING)
    for common in (made[i] for i in range(40) if i not in (3, 30)):
        clock.advance(1)
        await Storage(storage).update_task(common, COMPLETED)
    results = await walk(storage, 3, page_size=1, status=WORKING, context_id=context_id)
    assert ids(*results) == [made[30], made[3]]
    assert len(results) > 4
    assert not results[0].tasks
    assert {result.total_size for result in results} == {3}
    exact = await pages(storage, page_size=1, status=WORKING, context_id=context_id)
    assert [(ids(page), page.total_size) for page in exact] == [([made[30]], 2), ([made[3]], 2)]


@pytest.mark.parametrize(
    ("context_id", "status"), [(None, TaskState.TASK_STATE_SUBMITTED), ("ctx", None)]
)
async def test_a_total_is_exact_up_to_a_bound(
    storage: DurableStorage,
    clock: ManualClock,
    context_id: str | None,
    status: TaskState | None,
) -> None:
    """Up to the bound a total is exact, beyond it is the bound; `Storage` counts on."""
    query = {"page_size": 1, "context_id": context_id, "status": status}
    for number in range(1, 9):
        await fill(storage, clock, 1)
        page = await list_tasks(storage, ListTasksQuery.model_validate(query), most=30)
        assert page.total_size == number
    results = await walk(storage, 2, **query)
    assert [result.total_size for result in results] == [2] * len(results)
    assert len(ids(*results)) == len(set(ids(*results))) == 8
    assert {page.total_size for page in await pages(storage, **query)} == {8}


async def test_a_task_that_moves_between_short_pages_is_shown_once_at_most(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """What moves up while a client pages is on none of the later pages; all others are."""
    made = await fill(storage, clock, 12)
    query = ListTasksQuery(page_size=2, context_id="ctx")
    seen: list[str] = []
    for moved in (made[11], made[8], made[1], made[0]):
        page = await list_tasks(storage, query, most=2)
        seen += ids(page)
        query = query.model_copy(update={"page_token": page.next_page_token})
        clock.advance(1)
        await Storage(storage).update_task(moved, WORKING)
    while query.page_token:
        page = await list_tasks(storage, query, most=2)
        seen += ids(page)
        query = query.model_copy(update={"page_token": page.next_page_token})
    assert len(seen) == len(set(seen))
    assert set(made) - set(seen) == {made[1], made[0]}


# -- the task with which a context begins ---------------------------------------------------------


async def begun(storage: DurableStorage, context_id: str) -> str:
    """A context that the service has made, by the message of its first task."""
    first = first_task_id(storage.scope, context_id)
    return (await storage.open_task(context_id, request("first"), task_id=first)).head.task_id


async def test_the_first_task_of_a_context_has_its_place(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """It is listed with the others, wherever its status puts it, counted, and once in all pages."""
    first = await begun(storage, "ctx")
    (alone,) = await walk(storage, 3, context_id="ctx")
    assert (ids(alone), alone.total_size) == ([first], 1)
    later = await fill(storage, clock, 3)
    for expected in ([*later[::-1], first], [later[2], first, later[1], later[0]]):
        for size in (1, 2, 3, 4, 100):
            results = await walk(storage, 30, context_id="ctx", page_size=size)
            assert ids(*results) == expected
            assert {result.total_size for result in results} == {4}
        clock.advance(1)
        await Storage(storage).update_task(first, WORKING)
        clock.advance(1)
        await Storage(storage).update_task(later[2], WORKING)
    working = await walk(storage, 30, context_id="ctx", status=WORKING)
    assert [(ids(page), page.total_size) for page in working] == [([later[2], first], 2)]
    assert await delete_context(storage, "ctx") == 4
    assert await storage.head(first) is None


async def test_a_task_with_the_id_of_anothers_first_is_not_in_that_context(
    storage: DurableStorage,
) -> None:
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


async def test_a_total_that_no_list_has_is_refused(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """A token that was changed to a number which no answer can hold is an error, too."""
    await fill(storage, clock, 2)
    query = ListTasksQuery(page_size=1)
    token = (await list_tasks(storage, query)).next_page_token
    place, _, made_for = json.loads(base64.urlsafe_b64decode(token + "=="))
    for total in (-1, 2**31, 10**4000, True, 1.0, "1", None):
        changed = query.model_copy(update={"page_token": forged(place, total, made_for)})
        with pytest.raises(PageTokenError):
            await list_tasks(storage, changed)


async def test_a_token_belongs_to_its_query(storage: DurableStorage, clock: ManualClock) -> None:
    """A token of another scope, of other filters, or not made here, is an error (42, decided)."""
    await fill(storage, clock, 3)
    texts = ("1", "!", "ä", "bm90IGpzb24", "NQ", "bnVsbA", "x" * 10_240)
    for foreign in (*texts, forged(), forged("x", 1, "y"), forged(1, 2, 3)):
        with pytest.raises(PageTokenError):
            await list_tasks(storage, ListTasksQuery(page_token=foreign))
    token = (await Storage(storage).list_tasks(ListTasksQuery(page_size=1))).next_page_token
    other = storage.for_scope(new_scope())
    with pytest.raises(PageTokenError):
        await list_tasks(other, ListTasksQuery(page_size=1, page_token=token))
    for filters in ({"status": WORKING}, {"context_id": "ctx"}):
        query = ListTasksQuery.model_validate({"page_token": token} | filters)
        with pytest.raises(PageTokenError):
            await Storage(storage).list_tasks(query)


async def test_bad_filters_are_refused(storage: DurableStorage) -> None:
    """A page outside of 1 to 100, an unknown state, time or context id are errors (42)."""
    for name, values in (
        ("page_size", (0, 101, -1, "50", 1.5, True)),
        ("history_length", (-1, "1", 1.5, True)),
    ):
        for value in values:
            with pytest.raises(ValidationError):
                ListTasksQuery.model_validate({name: value})
    for query in (
        {"status": 99},
        {"status": TaskState.TASK_STATE_UNSPECIFIED},
        {"status_timestamp_after": "yesterday"},
        {"context_id": ""},
        {"context_id": "x" * 10_240},
    ):
        with pytest.raises(InvalidArgumentError):
            await Storage(storage).list_tasks(ListTasksQuery.model_construct(**query))
