"""The task log: claims, fences, restarts and turns."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from a2a.types import Message, SendMessageRequest, Task, TaskState, TaskStatus
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.errors import (
    ConcurrencyError,
    FencedError,
    TaskNotAcceptingMessagesError,
    TurnFinishedError,
)
from a2a_serverless.storage import layout
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.table import Put
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Caller,
    Entry,
    MetadataMerged,
    Replied,
    StatusChanged,
    TurnOpened,
)
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit, renewing
from tests.support.clocks import ManualClock
from tests.support.databases import LONG
from tests.support.heads import with_fields
from tests.support.messages import agent_message, artifact, request, said, texts
from tests.support.present import present

WORKING = TaskState.TASK_STATE_WORKING
COMPLETED = TaskState.TASK_STATE_COMPLETED
INPUT_REQUIRED = TaskState.TASK_STATE_INPUT_REQUIRED
AUTH_REQUIRED = TaskState.TASK_STATE_AUTH_REQUIRED


def status(state: TaskState, message: Message | None = None) -> StatusChanged:
    return StatusChanged(TaskStatus(state=state, message=message))


def piece(text: str) -> ArtifactWritten:
    return ArtifactWritten(artifact("a", text), append=True)


def metadata(**values: str) -> MetadataMerged:
    struct = Struct()
    struct.update(values)
    return MetadataMerged(struct)


def claim(token: str, *entries: Entry) -> Commit:
    return Commit(token=token, claims=True, entries=entries)


async def opened(storage: DurableStorage, sent: SendMessageRequest | None = None) -> Head:
    return (await storage.open_task("ctx", sent or request("hello"))).head


async def load(storage: DurableStorage, head: Head) -> Task:
    return present(await storage.load_task(head.task_id))


async def test_head_says_what_commit_returned(storage: DurableStorage) -> None:
    """The HEAD that a commit returns is the one that is stored, field by field."""
    head = await opened(storage)
    assert await storage.head(head.task_id) == head
    for commit in (
        claim("t1", status(WORKING, agent_message("busy")), metadata(k="v")),
        Commit(token="t1", entries=(piece("x"),)),
        Commit(token="t1", entries=(status(WORKING, agent_message("x" * 5000)),)),
        Commit(token="t1", entries=(metadata(large="x" * 5000),)),
        Commit(token="t1", entries=(Replied(agent_message("reply")),)),
        Commit(token="t1", entries=(status(INPUT_REQUIRED),)),
        Commit(entries=(TurnOpened(request("more")),), idempotency_key="key"),
        claim("t2"),
        claim("t3"),
        Commit(token="t3", entries=(status(AUTH_REQUIRED),)),
        Commit(entries=(TurnOpened(request("token")),)),
        Commit(token="t3", entries=(status(WORKING),), ends_turn=True),
        claim("t4", status(COMPLETED)),
    ):
        head = await storage.commit(head, commit)
        assert await storage.head(head.task_id) == head
    log = present(await storage.read(head.task_id))
    assert log.head == head
    assert [record.version for record in log.records] == list(range(1, head.version + 1))


async def test_a_record_says_who_wrote_it(storage: DurableStorage) -> None:
    """A record has the entries, the token and the id of its commit."""
    head = await opened(storage)
    first = claim("t1", status(WORKING), piece("x"))
    await storage.commit(head, first)
    log = present(await storage.read(head.task_id))
    record = log.records[1]
    assert (record.version, record.token, record.commit_id) == (2, "t1", first.commit_id)
    assert [type(entry) for entry in record.entries] == [StatusChanged, ArtifactWritten]


async def test_a_record_has_the_time_of_its_commit(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """Each record has its commit's time in milliseconds, also one in parts or without a status."""
    head = await opened(storage)
    times = [clock.now_ms()]
    assert times == [head.created_at]
    for commit in (claim("t1"), Commit(token="t1", entries=(piece("x" * 700_000),))):
        clock.advance(1.5)
        times.append(clock.now_ms())
        head = await storage.commit(head, commit)
    log = present(await storage.read(head.task_id))
    assert [record.at for record in log.records] == times


async def test_a_log_is_read_behind_a_version(storage: DurableStorage) -> None:
    """A read after a version has HEAD and what came later; after the newest it has HEAD alone."""
    head = await opened(storage)
    for text in "abc":
        head = await storage.commit(head, Commit(entries=(piece(text),)))
    for after, incarnation in [(0, None), (2, head.incarnation), (4, head.incarnation)]:
        log = present(await storage.read(head.task_id, after=after, incarnation=incarnation))
        assert log.head == head
        assert [record.version for record in log.records] == list(range(after + 1, 5))
    assert await storage.read(head.task_id, incarnation="another") is None


async def test_the_opening_message_keeps_its_caller(storage: DurableStorage) -> None:
    """The worker finds the whole request, its caller and its context variables in the log."""
    caller = Caller(user="u", tenant="t", extensions=("x",), variables='{"tracing:ID":"ü"}')
    sent = request("hello")
    sent.configuration.accepted_output_modes.append("text/plain")
    made = await storage.open_task("ctx", sent, caller=caller)
    log = present(await storage.read(made.head.task_id))
    assert log.fold().opening(1) == (sent, caller)


async def test_a_stale_head_loses(storage: DurableStorage) -> None:
    """A commit onto a HEAD that has moved writes nothing and names the stored version."""
    stale = await opened(storage)
    head = await storage.commit(stale, Commit(entries=(piece("x"),)))
    with pytest.raises(ConcurrencyError) as caught:
        await storage.commit(stale, Commit(entries=(piece("lost"),)))
    assert caught.value.current_version == head.version
    assert texts(await load(storage, head), "a") == ["x"]


async def test_a_claim_fences_the_earlier_attempt(storage: DurableStorage) -> None:
    """Once another token owns the turn, the old one cannot write, not even with today's HEAD."""
    head = await opened(storage)
    old = await storage.commit(head, claim("t1", piece("one")))
    new = await storage.commit(old, claim("t2"))
    assert (new.turn.token, new.turn.attempts) == ("t2", 2)
    with pytest.raises(ConcurrencyError):
        await storage.commit(old, Commit(token="t1", entries=(piece("late"),)))
    with pytest.raises(FencedError) as caught:
        await storage.commit(new, Commit(token="t1", entries=(piece("late"),)))
    assert caught.value.current_version == new.version
    await storage.commit(new, Commit(token="t2", entries=(piece("two"),)))
    assert texts(await load(storage, new), "a") == ["two"]


async def test_a_turn_ends_once(storage: DurableStorage) -> None:
    """A finished turn is not due, and can be neither claimed nor written by its attempt."""
    head = await opened(storage)
    head = await storage.commit(head, claim("t1", status(INPUT_REQUIRED)))
    assert (head.turn.is_open, head.turn.token, head.due_at) == (False, None, None)
    with pytest.raises(TurnFinishedError):
        await storage.commit(head, claim("t2"))
    with pytest.raises(FencedError):
        await storage.commit(head, Commit(token="t1", entries=(piece("late"),)))


async def test_a_message_opens_the_next_turn(storage: DurableStorage) -> None:
    """On a paused task a message opens a turn, numbered by its version, unclaimed and due."""
    head = await opened(storage)
    with pytest.raises(TaskNotAcceptingMessagesError):
        await storage.commit(head, Commit(entries=(TurnOpened(request("early")),)))
    head = await storage.commit(head, claim("t1", status(INPUT_REQUIRED, agent_message("who?"))))
    head = await storage.commit(head, Commit(entries=(TurnOpened(request("me")),)))
    assert (head.turn.number, head.turn.attempts, head.turn.token) == (3, 0, None)
    assert head.turn.is_open
    assert head.due_at is not None
    task = await load(storage, head)
    assert task.status.state == TaskState.TASK_STATE_SUBMITTED
    assert said(task) == ["hello", "who?", "me"]


async def test_concurrent_claims_have_one_winner(storage: DurableStorage) -> None:
    """Of attempts that claim the same HEAD one wins, and the others learn the version."""
    head = await opened(storage)
    results = await asyncio.gather(
        *(storage.commit(head, claim(f"t{n}")) for n in range(6)), return_exceptions=True
    )
    won = [result for result in results if isinstance(result, Head)]
    lost = [result for result in results if isinstance(result, ConcurrencyError)]
    assert (len(won), len(lost)) == (1, 5)
    assert {error.current_version for error in lost} == {2}
    assert await storage.head(head.task_id) == won[0]


async def test_an_unfinished_turn_is_due(storage: DurableStorage, clock: ManualClock) -> None:
    """A turn is due a while after it waits, later once claimed, and never when finished."""
    head = await opened(storage)

    async def is_due(after_s: float) -> bool:
        due = await due_tasks(storage, clock.now_ms() + int(after_s * 1000))
        return head.task_id in {one.task_id for one in due}

    waiting_s, lease_s = storage.timing.waiting_s, storage.timing.lease_s
    assert not await is_due(waiting_s - 0.001)
    assert await is_due(waiting_s)
    head = await storage.commit(head, claim("t1"))
    assert not await is_due(lease_s - 0.001)
    assert await is_due(lease_s)
    head = await storage.commit(head, Commit(token="t1", entries=(status(COMPLETED),)))
    assert not await is_due(10 * lease_s)


async def test_the_owner_of_a_turn_renews_its_lease(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """The due time moves without a commit, also if others have committed since HEAD was read."""
    seen = await storage.commit(await opened(storage), claim("t1"))
    await storage.commit(seen, Commit(token="t1", entries=(piece("one"),)))
    later = clock.now_ms() + 1_000_000
    renewed = present(await storage.change(seen, partial(renewing, token="t1", due_at=later)))
    assert renewed == await storage.head(seen.task_id)
    assert (renewed.due_at, renewed.version) == (later, 3)
    committed = await storage.commit(renewed, Commit(token="t1", entries=(piece("two"),)))
    assert committed.due_at == later


@pytest.mark.parametrize("end", ["finished", "taken", "deleted", "expired"])
async def test_a_turn_of_others_is_not_renewed(
    storage: DurableStorage, clock: ManualClock, end: str
) -> None:
    """A renewal that comes late neither revives a finished turn nor postpones another attempt's."""
    head = await storage.commit(await opened(storage), claim("t1"))
    match end:
        case "finished":
            await storage.commit(head, Commit(token="t1", entries=(status(COMPLETED),)))
        case "taken":
            await storage.commit(head, claim("t2"))
        case "deleted":
            await delete_task(storage, head.task_id)
        case _:
            clock.advance(storage.timing.ttl_s + 1)
    before = await storage.head(head.task_id)
    assert not await storage.change(head, partial(renewing, token="t1", due_at=clock.now_ms() + 1))
    assert await storage.head(head.task_id) == before


async def test_the_longest_overdue_comes_first(storage: DurableStorage, clock: ManualClock) -> None:
    """Due turns come in the order of their times, up to a limit."""
    heads = []
    for _ in range(9):
        heads.append(await opened(storage))
        clock.advance(1)
    now_ms = clock.now_ms() + 60_000
    everywhere = await due_tasks(
        storage, now_ms, limit=10_000
    )  # other tests' tasks are due in it, too
    due = [one for one in everywhere if one.scope == storage.scope]
    assert [one.task_id for one in due] == [head.task_id for head in heads]
    assert [one.due_at for one in due] == [head.due_at for head in heads]
    assert await due_tasks(storage, now_ms, limit=4) == everywhere[:4]
    assert await due_tasks(storage, now_ms, limit=4, after=everywhere[3]) == everywhere[4:8]
    assert await due_tasks(storage, now_ms, after=everywhere[-1]) == []
    assert everywhere == sorted(everywhere, key=lambda one: (one.due_at, one.task_id))


async def test_postponing_moves_the_due_time(storage: DurableStorage, clock: ManualClock) -> None:
    """Postponing changes due time and sends, but no version; it works once for one HEAD."""
    head = await opened(storage)
    later = clock.now_ms() + 500_000
    assert await storage.postpone(head, due_at=later, sends=1) is not None
    assert await storage.head(head.task_id) == with_fields(head, due_at=later, sends=1)
    assert await storage.postpone(head, due_at=later, sends=1) is None
    due = await due_tasks(storage, later - 1)
    assert head.task_id not in {one.task_id for one in due}
    due = await due_tasks(storage, later)
    assert head.task_id in {one.task_id for one in due}


async def test_a_claim_knows_what_was_postponed(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """A claim has to know the copies that were sent; a HEAD that has moved is not postponed."""
    head = await opened(storage)
    await storage.postpone(head, due_at=clock.now_ms() + 500_000, sends=1)
    with pytest.raises(ConcurrencyError):
        await storage.commit(head, claim("t1"))
    seen = present(await storage.head(head.task_id))
    moved = await storage.commit(seen, claim("t1"))
    assert await storage.postpone(head, due_at=1, sends=2) is None
    finished = await storage.commit(moved, Commit(token="t1", entries=(status(COMPLETED),)))
    assert await storage.postpone(finished, due_at=1, sends=2) is None
    due = await due_tasks(storage, clock.now_ms() + 10**8)
    assert head.task_id not in {one.task_id for one in due}


async def test_of_changes_at_once_none_is_lost(storage: DurableStorage) -> None:
    """Two processes that change one HEAD by turns each find what the other has made of it."""
    first, changes = await opened(storage), 5_000 if LONG else 40

    async def count(head: Head) -> None:
        for _ in range(changes):
            after = present(
                await storage.change(
                    head, lambda now: with_fields(now, slept_ms=now.turn.slept_ms + 1)
                )
            )
            head = after

    await asyncio.gather(count(first), count(first))
    stored = present(await storage.head(first.task_id))
    assert (stored.turn.slept_ms, stored.version) == (2 * changes, first.version)


async def test_a_change_keeps_what_only_a_newer_release_knows(storage: DurableStorage) -> None:
    """Attributes of HEAD that this release does not know stay, whatever is written."""
    head = await opened(storage)
    newer = {"colour": "green", "weight": 7, "seal": b"x", "nothing": None}
    item = present(await storage.table.get(layout.head_key(head.scope, head.task_id)))
    await storage.table.write(Put(item=item | newer))
    read = present(await storage.head(head.task_id))
    claimed = await storage.commit(read, claim("t1"))
    assert await storage.change(claimed, partial(renewing, token="t1", due_at=1)) is not None
    item = present(await storage.table.get(layout.head_key(head.scope, head.task_id)))
    assert item | newer == item


async def test_a_waiting_reader_comes_back(storage: DurableStorage) -> None:
    """`changed` returns at once or at its time-out, whether the task moves or is missing."""
    head = await opened(storage)
    await storage.changed(head.task_id, 0, 0.05)
    await storage.changed(head.task_id, head.version, 0.05)
    await storage.changed("missing", 0, 0.05)


async def test_a_commit_repeated_by_its_writer_counts_once(storage: DurableStorage) -> None:
    """A writer that repeats its own commit onto the same HEAD gets its HEAD, written once."""
    head = await opened(storage)
    once = Commit(entries=(piece("x"),))
    first = await storage.commit(head, once)
    await storage.commit(first, Commit(entries=(piece("y"),)))
    assert await storage.commit(head, once) == first
    assert texts(await load(storage, head), "a") == ["x", "y"]
