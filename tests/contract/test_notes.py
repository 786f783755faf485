"""What is stored beside commits: ends of attempts, requests to cancel, sizes, keys by id."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from a2a.types import TaskState, TaskStatus

from a2a_serverless.errors import ConcurrencyError
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import LOOK_AT_ONCE, DurableStorage
from a2a_serverless.storage.layout import HOUR_MS
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.table import Item
from a2a_serverless.tasks.entries import MessageAppended, StatusChanged, TurnOpened
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import AttemptEnd, Head, Uncounted
from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless.tasks.rules import Commit, releasing
from a2a_serverless_tools.operate.details import TaskDetails, task_details
from a2a_serverless_tools.operate.finding import created_in, find_tasks, named_heads
from tests.support.clocks import ManualClock
from tests.support.commits import newest, opened
from tests.support.databases import Dictionaries, moto_database, new_scope
from tests.support.messages import agent_message, request
from tests.support.newer import head_key, remove_attributes
from tests.support.present import present

S = TaskState
END = AttemptEnd(token="one", reason="ValueError", correlation_id="c-1", at=1_700_000_000_000)


async def claimed(storage: DurableStorage, head: Head, token: str = "one") -> Head:
    return await storage.commit(head, Commit(token=token, claims=True, worker=f"host {token}"))


async def record(storage: DurableStorage, head: Head) -> Record:
    """The newest commit."""
    log = present(await storage.read(head.task_id))
    return log.records[-1]


async def test_starts_that_are_spared_belong_to_their_turn(storage: DurableStorage) -> None:
    """A release counts what used up no attempt; a claim keeps it, the next turn begins anew."""
    head = await claimed(storage, await opened(storage))
    uncounted, end = Uncounted(faults=2, waited=4711, interruptions=1), replace(END, until=4712)
    assert await storage.change(head, partial(releasing, end=end, attempts=0, uncounted=uncounted))
    after = await newest(storage, head)
    assert (after.turn.attempts, after.turn.uncounted, after.turn.released) == (0, uncounted, end)
    head = await claimed(storage, after, "two")
    assert (head.turn.attempts, head.turn.uncounted) == (1, uncounted)
    assert (await record(storage, head)).ended == end
    asks = StatusChanged(TaskStatus(state=S.TASK_STATE_INPUT_REQUIRED))
    head = await storage.commit(head, Commit(entries=(asks,), token="two"))
    head = await storage.commit(head, Commit(entries=(TurnOpened(request("more")),)))
    assert head.turn.uncounted == (await newest(storage, head)).turn.uncounted == Uncounted()


async def test_a_commit_that_fails_its_task_says_why(storage: DurableStorage) -> None:
    """It records the reason, also where it claims the turn, which alone names a worker."""
    failed = StatusChanged(TaskStatus(state=S.TASK_STATE_FAILED))
    head = await claimed(storage, await opened(storage))
    assert (await record(storage, head)).worker == "host one"
    end = Commit(entries=(failed,), token="one", worker="host one", failed=END)
    for commit, seen in ((end, head), (replace(end, claims=True), await opened(storage))):
        newer = await record(storage, await storage.commit(seen, commit))
        assert (newer.ended, newer.worker) == (END, "host one" if commit.claims else "")


async def test_a_writer_that_has_not_read_the_request_loses(storage: DurableStorage) -> None:
    """A writer that has not read the request is refused, reads again, commits; the mark stays."""
    head = await claimed(storage, await opened(storage))
    await storage.request_cancel(head.task_id, by="ann")
    said = Commit(entries=(MessageAppended(agent_message("x")),), token="one")
    with pytest.raises(ConcurrencyError) as lost:
        await storage.commit(head, said)
    assert lost.value.current_version == head.version
    after = await storage.commit(await newest(storage, head), said)
    assert after.version == head.version + 1
    assert after.cancel is not None
    assert after == await newest(storage, head)


async def test_a_task_is_found_by_its_id_alone(storage: DurableStorage, clock: ManualClock) -> None:
    """A search finds the tasks of all scopes, but none by an impossible id, or after its expiry."""
    task_id = f"shared-{storage.scope.digest}"
    others = storage.for_scope(new_scope())
    mine, theirs = await opened(storage, task_id=task_id), await opened(others, task_id=task_id)
    both = sorted([(mine.scope, task_id), (theirs.scope, task_id)])
    assert await find_tasks(storage, task_id) == await find_tasks(others, task_id) == both
    await delete_task(storage, task_id)
    assert await find_tasks(storage, task_id) == [(theirs.scope, task_id)]
    head = await opened(storage, task_id=task_id, ttl_s=10)
    assert await find_tasks(storage, task_id) == both
    await delete_task(others, task_id)
    clock.advance(11)
    for unknown in ("unknown", "", "no/id", "x" * 4000, task_id):
        assert await find_tasks(storage, unknown) == []
    assert await created(storage, head.created_at) == []


async def created(storage: DurableStorage, hour_ms: int, *, limit: int = 100) -> list[TaskKey]:
    """The tasks of an hour, page after page."""
    found: list[TaskKey] = []
    after = ""
    while True:
        page = await created_in(storage, hour_ms, after=after, limit=limit)
        assert len(page.found) <= limit
        live = await named_heads(storage, page.found)
        found += [key for one in page.found if (key := (one.scope, one.task_id)) in live]
        after = page.after
        if not after:
            return found


async def test_an_hour_comes_newest_first(storage: DurableStorage, clock: ManualClock) -> None:
    """In order of creation, over all scopes; those of one id and one millisecond come once each."""
    clock.advance((HOUR_MS - clock.now_ms() % HOUR_MS) / 1000)
    begin, scopes = clock.now_ms(), [storage, *(storage.for_scope(new_scope()) for _ in range(2))]
    heads = []
    for number in range(6):
        heads.append(await opened(scopes[number % 2]))
        clock.advance(1)
    claim = await claimed(storage, heads[0])
    expected = [(head.scope, head.task_id) for head in reversed(heads)]
    assert await created(storage, begin) == expected
    for limit in (1, 4, 6):
        assert await created(storage, begin + HOUR_MS - 1, limit=limit) == expected
    assert claim in (await named_heads(storage, (await created_in(storage, begin)).found)).values()
    assert await created(storage, begin + HOUR_MS) == await created(storage, begin - 1) == []
    ids = [f"{name}-{storage.scope.digest}" for name in ("one", "one-longer", "two", "three")]
    heads += [await opened(scope, task_id=task_id) for scope in scopes for task_id in ids]
    found = await created(storage, begin, limit=4)
    assert sorted(found) == sorted((head.scope, head.task_id) for head in heads)


async def test_expired_tasks_hide_none(storage: DurableStorage, clock: ManualClock) -> None:
    """The live ones are found, however many have expired before and behind them."""
    clock.advance((HOUR_MS - clock.now_ms() % HOUR_MS) / 1000)
    for _ in range(5):
        await opened(storage, ttl_s=10)
    clock.advance(1)
    lives = [await opened(storage) for _ in range(2)]
    clock.advance(1)
    await opened(storage, ttl_s=10)
    clock.advance(20)
    found = await created(storage, clock.now_ms(), limit=1)
    assert sorted(found) == sorted((head.scope, head.task_id) for head in lives)


async def test_lists_and_counts_pass_over_contexts(storage: DurableStorage) -> None:
    """Lists, counts and the search by hour show no contexts of the scope."""
    head = await opened(storage)
    for number in range(3):
        await storage.contexts.put(f"context-{number}", context_write(number))
    found = await list_tasks(storage, ListTasksQuery())
    assert ([task.id for task in found.tasks], found.total_size) == ([head.task_id], 1)
    assert await created(storage, head.created_at) == [(head.scope, head.task_id)]


async def committed(storage: DurableStorage) -> Head:
    """A task of three versions, the last one of two parts."""
    head = await opened(storage, ttl_s=100)
    head = await storage.commit(head, Commit(token="one", claims=True, worker="host"))
    long = MessageAppended(agent_message("x" * 400_000))
    return await storage.commit(head, Commit(entries=(long,), token="one"))


async def test_details_go_on_behind_earlier_ones(
    storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads only what was committed since; of a task that was made anew with the id, all."""
    head = await committed(storage)
    known = present(await task_details(storage, head.task_id))
    log = present(await storage.read(head.task_id))
    assert known == TaskDetails(head=log.head, records=log.records)
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
    kinds = [["EVENT", "HEAD"], ["EVENT"] * 5 + ["HEAD"]]
    assert ([record.version for record in later.records], read) == ([1, 2, 3, 4], kinds)
    await delete_task(storage, head.task_id)
    for missing in (head.task_id, "unknown", "no/id"):
        assert await task_details(storage, missing, later) is None
    await storage.open_task("context", request(), task_id=head.task_id)
    anew = present(await task_details(storage, head.task_id, later))
    assert len(anew.records) == 1


async def test_a_damaged_task_is_found_by_its_id(clock: ManualClock) -> None:
    """A task whose HEAD lacks attributes is found by its id until it expires."""
    table = Dictionaries(clock)
    storage = table.storage(clock=clock)
    head = await committed(storage)
    remove_attributes(table, head_key(head), "turn", "state")
    assert await find_tasks(storage, head.task_id) == [(head.scope, head.task_id)]
    clock.advance(101)
    assert await find_tasks(storage, head.task_id) == []


def key_of(head: Head) -> TaskKey:
    return (head.scope, head.task_id)


async def test_a_look_shows_heads(storage: DurableStorage, clock: ManualClock) -> None:
    """Of tasks of several scopes, as many as fit; none by an impossible id, or an expired one."""
    others = storage.for_scope(new_scope())
    heads = [await opened(storage) for _ in range(LOOK_AT_ONCE - 3)]
    other = await opened(others)
    marked = await others.request_cancel(other.task_id)
    gone = await opened(storage, ttl_s=10)
    clock.advance(11)
    unknown = (storage.scope.digest, "x" * 4000)
    looks = await storage.look([*map(key_of, (*heads, other, gone)), unknown])
    assert looks.pop(key_of(other)) == marked
    assert (looks.pop(key_of(gone)), looks.pop(unknown, None)) == (None, None)
    assert looks == {key_of(head): head for head in heads}


async def test_what_was_not_read_is_left_out(clock: ManualClock) -> None:
    """A throttled table says nothing of the task, not that it is gone; and is not asked twice."""
    with moto_database() as moto:
        storage, asked = moto.storage(clock=clock), list[str]()
        heads = [await opened(storage) for _ in range(3)]

        def unprocessed(parsed: dict[str, Any], **_: Any) -> None:
            item = parsed["Responses"][moto.table].pop()
            asked.append(item["PK"]["S"].rpartition("#")[2])
            keys = [{name: item[name] for name in ("PK", "SK")}]
            parsed["UnprocessedKeys"] = {moto.table: {"Keys": keys}}

        moto.client.meta.events.register("after-call.dynamodb.BatchGetItem", unprocessed)
        looks = await storage.look([key_of(head) for head in heads])
        (left,) = asked
        assert looks == {key_of(head): head for head in heads if head.task_id != left}
