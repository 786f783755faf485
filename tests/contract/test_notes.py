"""What is stored beside commits: ends of attempts, requests to cancel, sizes, keys by id."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from a2a.types import TaskState, TaskStatus

from a2a_serverless.errors import ConcurrencyError, ConfigurationError
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import HOUR_MS
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.tasks.entries import MessageAppended, StatusChanged, TurnOpened, encode_entries
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import AttemptEnd, CancelMark, Head, Uncounted
from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless.tasks.rules import Commit, releasing
from a2a_serverless_tools.local.provision import table_definition
from a2a_serverless_tools.operate.finding import created_in, find_tasks, named_heads
from tests.support.clocks import ManualClock
from tests.support.databases import Database, emulator_client, new_scope
from tests.support.emulators import Emulator
from tests.support.heads import with_fields
from tests.support.messages import agent_message, request
from tests.support.present import present

S = TaskState
END = AttemptEnd(token="one", reason="ValueError", correlation_id="c-1", at=1_700_000_000_000)
END_OF_TWO = replace(END, token="two")


async def opened(storage: DurableStorage, **options: Any) -> Head:
    return (await storage.open_task("context", request(), **options)).head


async def newest(storage: DurableStorage, head: Head) -> Head:
    return present(await storage.head(head.task_id))


async def claimed(storage: DurableStorage, head: Head, token: str = "one") -> Head:
    return await storage.commit(head, Commit(token=token, claims=True, worker=f"host {token}"))


async def given_back(storage: DurableStorage, head: Head) -> Head:
    """HEAD after its attempt has given the turn back."""
    assert await storage.change(head, partial(releasing, end=END))
    return await newest(storage, head)


async def record(storage: DurableStorage, head: Head) -> Record:
    """The newest commit."""
    log = present(await storage.read(head.task_id))
    return log.records[-1]


# -- attempts --------------------------------------------------------------------------------


async def test_a_released_turn_says_by_whom_and_why(storage: DurableStorage) -> None:
    """A release is stored without a commit: version, owner and due time do not move."""
    head = await claimed(storage, await opened(storage))
    after = await given_back(storage, head)
    assert after.turn.released == END
    assert with_fields(after, released=None) == head


async def test_a_release_may_move_the_due_time(storage: DurableStorage) -> None:
    """A release before a long wait moves the due time in the same write."""
    head = await claimed(storage, await opened(storage))
    assert await storage.change(head, partial(releasing, end=END, due_at=4711))
    assert (await newest(storage, head)).due_at == 4711


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


async def test_only_the_owner_releases(storage: DurableStorage) -> None:
    """Only the attempt that owns the open turn can release it."""
    first = await opened(storage, task_id="reused")
    assert not await storage.change(first, partial(releasing, end=END))
    one = await claimed(storage, first)
    two = await claimed(storage, one, "two")
    assert not await storage.change(one, partial(releasing, end=END))
    end = StatusChanged(TaskStatus(state=S.TASK_STATE_COMPLETED))
    await storage.commit(two, Commit(entries=(end,), token="two"))
    assert not await storage.change(two, partial(releasing, end=END_OF_TWO))
    assert (await newest(storage, two)).turn.released is None
    await delete_task(storage, "reused")
    assert not await storage.change(two, partial(releasing, end=END_OF_TWO))
    await claimed(storage, await opened(storage, task_id="reused"), "two")
    assert not await storage.change(two, partial(releasing, end=END_OF_TWO))


async def test_only_a_claim_names_a_worker(storage: DurableStorage) -> None:
    """Commits of the same attempt have its token."""
    head = await claimed(storage, await opened(storage))
    more = Commit(entries=(MessageAppended(agent_message("x")),), token="one", worker="host one")
    head = await storage.commit(head, more)
    assert (await record(storage, head)).worker == ""


async def test_a_commit_that_fails_its_task_says_why(storage: DurableStorage) -> None:
    """A commit that fails its task records the reason, even if the same commit claims the turn."""
    failed = StatusChanged(TaskStatus(state=S.TASK_STATE_FAILED))
    head = await claimed(storage, await opened(storage))
    head = await storage.commit(head, Commit(entries=(failed,), token="one", failed=END))
    assert (await record(storage, head)).ended == END
    at_once = Commit(entries=(failed,), token="one", claims=True, failed=END)
    head = await storage.commit(await opened(storage), at_once)
    assert (await record(storage, head)).ended == END


# -- what is missing -------------------------------------------------------------------------


async def test_a_request_to_cancel_stands_on_head(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """HEAD has who asked first and when; a second request changes nothing, and no version moves."""
    head = await opened(storage)
    asked_at = clock.now_ms()
    await storage.request_cancel(head.task_id, by="ann")
    clock.advance(1)
    await storage.request_cancel(head.task_id, by="bob")
    after = await newest(storage, head)
    assert after.cancel == CancelMark(at=asked_at, by="ann")
    assert replace(after, cancel=None, due_at=head.due_at) == head


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


# -- sizes -----------------------------------------------------------------------------------


async def test_head_has_the_bytes_of_all_entries(storage: DurableStorage) -> None:
    """HEAD's `size` is the bytes of all encoded entries, also of those that a restart discards."""
    head = await claimed(storage, await opened(storage))
    head = await claimed(storage, head, "two")
    head = await storage.commit(
        head, Commit(entries=(MessageAppended(agent_message("x" * 1000)),), token="two")
    )
    log = present(await storage.read(head.task_id))
    assert head.size == sum(len(encode_entries(record.entries)) for record in log.records) > 1000
    assert (await newest(storage, head)).size == head.size


# -- tasks by id and by hour -----------------------------------------------------------------


async def test_a_task_is_found_by_its_id_alone(storage: DurableStorage) -> None:
    """A search by id finds the tasks of all scopes, and finds the same from each scope."""
    task_id = f"shared-{storage.scope.digest}"
    others = storage.for_scope(new_scope())
    mine, theirs = await opened(storage, task_id=task_id), await opened(others, task_id=task_id)
    both = sorted([(mine.scope, task_id), (theirs.scope, task_id)])
    assert await find_tasks(storage, task_id) == both
    assert await find_tasks(others, task_id) == both
    await delete_task(storage, task_id)
    assert await find_tasks(storage, task_id) == [(theirs.scope, task_id)]
    await opened(storage, task_id=task_id)
    assert await find_tasks(storage, task_id) == both


async def test_what_is_no_task_is_not_found(storage: DurableStorage, clock: ManualClock) -> None:
    """Neither an unknown id, one that no key can hold, nor an expired task, also by its hour."""
    head = await opened(storage, ttl_s=10)
    clock.advance(11)
    for task_id in ("unknown", "", "no/id", "x" * 4000, head.task_id):
        assert await find_tasks(storage, task_id) == []
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


async def test_tasks_of_an_hour_come_newest_first(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """The tasks of an hour come in order of creation, over all scopes; commits move none."""
    clock.advance((HOUR_MS - clock.now_ms() % HOUR_MS) / 1000)
    begin, scopes = clock.now_ms(), [storage, storage.for_scope(new_scope())]
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
    assert await created(storage, begin + HOUR_MS) == []
    assert await created(storage, begin - 1) == []


async def test_tasks_of_one_millisecond_are_all_on_the_pages(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """Also those of several scopes that have one id: none is doubled, none is left out."""
    clock.advance((HOUR_MS - clock.now_ms() % HOUR_MS) / 1000)
    scopes = [storage.for_scope(new_scope()) for _ in range(3)]
    ids = [f"{name}-{scopes[0].scope.digest}" for name in ("one", "one-longer", "two", "three")]
    heads = [await opened(one, task_id=task_id) for one in scopes for task_id in ids]
    found = await created(storage, clock.now_ms(), limit=4)
    assert sorted(found) == sorted((head.scope, head.task_id) for head in heads)


async def test_expired_tasks_hide_none_of_an_hour(
    storage: DurableStorage, clock: ManualClock
) -> None:
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


@pytest.mark.emulators
async def test_a_table_without_the_index(local_dynamodb: Emulator, clock: ManualClock) -> None:
    """Finding a task without its scope is refused with one sentence; all else works."""
    client = emulator_client(local_dynamodb)
    layout = table_definition(stream=False)
    indexes = layout["GlobalSecondaryIndexes"]
    layout["GlobalSecondaryIndexes"] = [i for i in indexes if i["IndexName"] != "by-id"]
    own = {"id_key", "created_key"}
    attributes = layout["AttributeDefinitions"]
    layout["AttributeDefinitions"] = [a for a in attributes if a["AttributeName"] not in own]
    client.create_table(TableName="without-by-id", **layout)
    storage = Database(client=client, table="without-by-id").storage(clock=clock)
    head = await claimed(storage, await opened(storage))
    assert len((await list_tasks(storage, ListTasksQuery())).tasks) == 1
    with pytest.raises(ConfigurationError, match="The table has no index by-id yet: deploy"):
        await find_tasks(storage, head.task_id)
    with pytest.raises(ConfigurationError, match="The table has no index by-id yet: deploy"):
        await created_in(storage, head.created_at)
    client.close()


# -- contexts --------------------------------------------------------------------------------


async def test_lists_and_counts_pass_over_contexts(storage: DurableStorage) -> None:
    """Lists, counts and the search by hour show no contexts of the scope."""
    head = await opened(storage)
    for number in range(3):
        await storage.contexts.put(f"context-{number}", context_write(number))
    found = await list_tasks(storage, ListTasksQuery())
    assert ([task.id for task in found.tasks], found.total_size) == ([head.task_id], 1)
    assert await created(storage, head.created_at) == [(head.scope, head.task_id)]
