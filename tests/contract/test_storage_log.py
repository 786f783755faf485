"""The task log: claims, fences, restarts and turns."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from a2a.types import Task, TaskState
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from a2a_serverless import errors
from a2a_serverless.storage import layout
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.table import Put
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks import entries
from a2a_serverless.tasks.fold import Cursor, incarnation_tag
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.rules import Commit, releasing, renewing
from a2a_serverless.worker.attempt import turn_of
from tests.support.clocks import ManualClock
from tests.support.commits import (
    AUTH_REQUIRED,
    COMPLETED,
    INPUT_REQUIRED,
    WORKING,
    claim,
    follow_up,
    log_of,
    newest,
    opened,
    status,
    to,
    wrote,
)
from tests.support.databases import LONG
from tests.support.heads import with_fields
from tests.support.messages import agent_message, request, said, texts
from tests.support.present import present


def metadata(**values: str) -> entries.MetadataMerged:
    struct = Struct()
    struct.update(values)
    return entries.MetadataMerged(struct)


async def load(storage: DurableStorage, head: Head) -> Task:
    return present(await storage.load_task(head.task_id))


async def test_head_says_what_commit_returned(storage: DurableStorage) -> None:
    """Field by field; its size is the bytes of all entries, also of those that are discarded."""
    head = await opened(storage)
    assert await storage.head(head.task_id) == head
    for commit in (
        claim("t1", status(WORKING, "busy"), metadata(k="v")),
        Commit(token="t1", entries=(wrote("x"),)),
        Commit(token="t1", entries=(status(WORKING, "x" * 5000),)),
        Commit(token="t1", entries=(metadata(large="x" * 5000),)),
        Commit(token="t1", entries=(entries.Replied(agent_message("reply")),)),
        to(INPUT_REQUIRED, token="t1"),
        follow_up(idempotency_key="key"),
        claim("t2"),
        claim("t3"),
        to(AUTH_REQUIRED, token="t3"),
        follow_up("token"),
        to(WORKING, token="t3", ends_turn=True),
        claim("t4", status(COMPLETED)),
    ):
        head = await storage.commit(head, commit)
        assert await storage.head(head.task_id) == head
    log = await log_of(storage, head)
    assert log.head == head
    assert [record.version for record in log.records] == list(range(1, head.version + 1))
    assert head.size == sum(len(entries.encode_entries(record.entries)) for record in log.records)


async def test_a_record_says_who_wrote_it(storage: DurableStorage, clock: ManualClock) -> None:
    """A record has the entries, the token, the id and the time of its commit, in parts too."""
    head, large = await opened(storage), wrote("x" * 700_000)
    written = [claim("t1", status(WORKING), wrote("x")), Commit(token="t1", entries=(large,))]
    times = [head.created_at]
    for commit in written:
        clock.advance(1.5)
        times.append(clock.now_ms())
        head = await storage.commit(head, commit)
    first, *others = (await log_of(storage, head)).records
    assert [record.at for record in (first, *others)] == times
    for version, record, commit in zip((2, 3), others, written, strict=True):
        assert (record.version, record.token) == (version, "t1")
        assert record.commit_id == commit.commit_id
    kinds = [type(entry) for entry in others[0].entries]
    assert kinds == [entries.StatusChanged, entries.ArtifactWritten]


async def test_a_log_is_read_behind_a_version(storage: DurableStorage) -> None:
    """A read after a version has HEAD and what came later; after the newest it has HEAD alone."""
    head = await opened(storage)
    for text in "abc":
        head = await storage.commit(head, Commit(entries=(wrote(text),)))
    for after, incarnation in [(0, None), (2, head.incarnation), (4, head.incarnation)]:
        log = present(await storage.read(head.task_id, after=after, incarnation=incarnation))
        assert log.head == head
        assert [record.version for record in log.records] == list(range(after + 1, 5))
    assert await storage.read(head.task_id, incarnation="another") is None


async def test_the_opening_message_keeps_its_caller(storage: DurableStorage) -> None:
    """The worker finds the whole request, its caller and its context variables in the log."""
    caller = entries.Caller(user="u", tenant="t", extensions=("x",), variables='{"tracing:ID":"ü"}')
    sent = request("hello")
    sent.configuration.accepted_output_modes.append("text/plain")
    made = await storage.open_task("ctx", sent, caller=caller)
    log = present(await storage.read(made.head.task_id))
    assert log.fold().opening(1) == (sent, caller)


async def test_a_stale_head_loses(storage: DurableStorage) -> None:
    """A commit onto a HEAD that has moved writes nothing and names the stored version."""
    stale = await opened(storage)
    head = await storage.commit(stale, Commit(entries=(wrote("x"),)))
    with pytest.raises(errors.ConcurrencyError) as caught:
        await storage.commit(stale, Commit(entries=(wrote("lost"),)))
    assert caught.value.current_version == head.version
    assert texts(await load(storage, head), "a") == ["x"]


async def test_a_claim_fences_the_earlier_attempt(storage: DurableStorage) -> None:
    """Once another token owns the turn, the old one cannot write, not even with today's HEAD."""
    head = await opened(storage)
    old = await storage.commit(head, claim("t1", wrote("one")))
    new = await storage.commit(old, claim("t2"))
    assert (new.turn.token, new.turn.attempts) == ("t2", 2)
    with pytest.raises(errors.ConcurrencyError):
        await storage.commit(old, Commit(token="t1", entries=(wrote("late"),)))
    with pytest.raises(errors.FencedError) as caught:
        await storage.commit(new, Commit(token="t1", entries=(wrote("late"),)))
    assert caught.value.current_version == new.version
    await storage.commit(new, Commit(token="t2", entries=(wrote("two"),)))
    assert texts(await load(storage, new), "a") == ["two"]


async def test_a_turn_ends_once(storage: DurableStorage) -> None:
    """A finished turn is not due, and can be neither claimed nor written by its attempt."""
    head = await opened(storage)
    head = await storage.commit(head, claim("t1", status(INPUT_REQUIRED)))
    assert (head.turn.is_open, head.turn.token, head.due_at) == (False, None, None)
    with pytest.raises(errors.TurnFinishedError):
        await storage.commit(head, claim("t2"))
    with pytest.raises(errors.FencedError):
        await storage.commit(head, Commit(token="t1", entries=(wrote("late"),)))


async def test_a_message_opens_the_next_turn(storage: DurableStorage) -> None:
    """On a paused task a message opens a turn, numbered by its version, unclaimed and due."""
    head = await opened(storage)
    with pytest.raises(errors.TaskNotAcceptingMessagesError):
        await storage.commit(head, follow_up("early"))
    head = await storage.commit(head, claim("t1", status(INPUT_REQUIRED, "who?")))
    head = await storage.commit(head, follow_up("me"))
    assert (head.turn.number, head.turn.attempts, head.turn.token) == (3, 0, None)
    assert head.turn.is_open
    assert head.due_at is not None
    task = await load(storage, head)
    assert task.status.state == TaskState.TASK_STATE_SUBMITTED
    assert said(task) == ["hello", "who?", "me"]


async def test_concurrent_claims_have_one_winner(storage: DurableStorage) -> None:
    """Of attempts that claim the same HEAD one wins, and the others learn the version."""
    head = await opened(storage)
    claims = [storage.commit(head, claim(f"t{number}")) for number in range(6)]
    results = await asyncio.gather(*claims, return_exceptions=True)
    won = [result for result in results if isinstance(result, Head)]
    lost = [result for result in results if isinstance(result, errors.ConcurrencyError)]
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
    head = await storage.commit(head, to(COMPLETED, token="t1"))
    assert not await is_due(10 * lease_s)


async def test_the_owner_renews_its_lease(storage: DurableStorage, clock: ManualClock) -> None:
    """The due time moves without a commit, also if others have committed since HEAD was read."""
    seen = await storage.commit(await opened(storage), claim("t1"))
    await storage.commit(seen, Commit(token="t1", entries=(wrote("one"),)))
    later = clock.now_ms() + 1_000_000
    renewed = present(await storage.change(seen, partial(renewing, token="t1", due_at=later)))
    assert renewed == await storage.head(seen.task_id)
    assert (renewed.due_at, renewed.version) == (later, 3)
    committed = await storage.commit(renewed, Commit(token="t1", entries=(wrote("two"),)))
    assert committed.due_at == later


@pytest.mark.parametrize("end", ["finished", "taken", "deleted", "made anew", "expired"])
async def test_a_turn_of_others(storage: DurableStorage, clock: ManualClock, end: str) -> None:
    """A late renewal or release neither revives a finished turn nor is about another attempt's."""
    head = await storage.commit(await opened(storage), claim("t1"))
    match end:
        case "finished":
            await storage.commit(head, to(COMPLETED, token="t1"))
        case "taken":
            await storage.commit(head, claim("t2"))
        case "deleted" | "made anew":
            await delete_task(storage, head.task_id)
        case _:
            clock.advance(storage.timing.ttl_s + 1)
    if end == "made anew":
        anew = await storage.open_task("ctx", request(), task_id=head.task_id)
        await storage.commit(anew.head, claim("t1"))
    before = await storage.head(head.task_id)
    ended = AttemptEnd(token="t1", reason="ValueError")
    assert not await storage.change(head, partial(renewing, token="t1", due_at=clock.now_ms() + 1))
    assert not await storage.change(head, partial(releasing, end=ended))
    assert await storage.head(head.task_id) == before


async def test_the_longest_overdue_comes_first(storage: DurableStorage, clock: ManualClock) -> None:
    """Due turns come in the order of their times, up to a limit."""
    heads = []
    for _ in range(9):
        heads.append(await opened(storage))
        clock.advance(1)
    now_ms = clock.now_ms() + 60_000
    everywhere = await due_tasks(storage, now_ms, limit=10_000)  # those of other tests, too
    due = [one for one in everywhere if one.scope == storage.scope]
    assert [(one.task_id, one.due_at) for one in due] == [(h.task_id, h.due_at) for h in heads]
    assert await due_tasks(storage, now_ms, limit=4) == everywhere[:4]
    assert await due_tasks(storage, now_ms, limit=4, after=everywhere[3]) == everywhere[4:8]
    assert await due_tasks(storage, now_ms, after=everywhere[-1]) == []
    assert everywhere == sorted(everywhere, key=lambda one: (one.due_at, one.task_id))


async def test_postponing_moves_the_due_time(storage: DurableStorage, clock: ManualClock) -> None:
    """And the sends, but no version; it works once for one HEAD, and a claim has to know of it."""
    head = await opened(storage)
    later = clock.now_ms() + 500_000
    assert await storage.postpone(head, due_at=later, sends=1) is not None
    seen = await newest(storage, head)
    assert seen == with_fields(head, due_at=later, sends=1)
    assert await storage.postpone(head, due_at=later, sends=1) is None
    for at, is_due in ((later - 1, False), (later, True)):
        found = {one.task_id for one in await due_tasks(storage, at)}
        assert (head.task_id in found) == is_due
    with pytest.raises(errors.ConcurrencyError):
        await storage.commit(head, claim("t1"))
    moved = await storage.commit(seen, claim("t1"))
    finished = await storage.commit(moved, to(COMPLETED, token="t1"))
    for old in (head, finished):
        assert await storage.postpone(old, due_at=1, sends=2) is None
    found = {one.task_id for one in await due_tasks(storage, clock.now_ms() + 10**8)}
    assert head.task_id not in found


async def test_of_changes_at_once_none_is_lost(storage: DurableStorage) -> None:
    """Two processes that change one HEAD by turns each find what the other has made of it."""
    first, changes = await opened(storage), 5_000 if LONG else 40

    def slept(now: Head) -> Head:
        return with_fields(now, slept_ms=now.turn.slept_ms + 1)

    async def count(head: Head) -> None:
        for _ in range(changes):
            head = present(await storage.change(head, slept))

    await asyncio.gather(count(first), count(first))
    stored = await newest(storage, first)
    assert (stored.turn.slept_ms, stored.version) == (2 * changes, first.version)


async def test_a_change_keeps_what_only_a_newer_release_knows(storage: DurableStorage) -> None:
    """Attributes of HEAD that this release does not know stay, whatever is written."""
    head = await opened(storage)
    newer = {"colour": "green", "weight": 7, "seal": b"x", "nothing": None}
    item = present(await storage.table.get(layout.head_key(head.scope, head.task_id)))
    await storage.table.write(Put(item=item | newer))
    read = await newest(storage, head)
    claimed = await storage.commit(read, claim("t1"))
    assert await storage.change(claimed, partial(renewing, token="t1", due_at=1)) is not None
    item = present(await storage.table.get(layout.head_key(head.scope, head.task_id)))
    assert item | newer == item


async def test_a_waiting_reader_comes_back(storage: DurableStorage) -> None:
    """`changed` returns at once or at its time-out, whether the task moves or is missing."""
    head = await opened(storage)
    for task_id, version in ((head.task_id, 0), (head.task_id, head.version), ("missing", 0)):
        await storage.changed(task_id, version, 0.05)


async def test_a_commit_repeated_by_its_writer_counts_once(storage: DurableStorage) -> None:
    """A writer that repeats its own commit onto the same HEAD gets its HEAD, written once."""
    head = await opened(storage)
    once = Commit(entries=(wrote("x"),))
    first = await storage.commit(head, once)
    await storage.commit(first, Commit(entries=(wrote("y"),)))
    assert await storage.commit(head, once) == first
    assert texts(await load(storage, head), "a") == ["x", "y"]


def keyed(key: str | None) -> Commit:
    return follow_up("pay 100", idempotency_key=key)


async def refused(storage: DurableStorage, head: Head, key: str) -> int:
    """Say again what came with a key; return the turn that it had opened."""
    with pytest.raises(errors.RepeatedKeyError) as repeated:
        await storage.commit(head, keyed(key))
    assert await storage.head(head.task_id) == head
    return repeated.value.turn


async def test_a_key_opens_one_turn_whatever_came_in_between(storage: DurableStorage) -> None:
    """Each of the keys finds its own turn, and nothing is written."""
    head, turns = await storage.commit(await opened(storage), to(INPUT_REQUIRED)), {}
    for key in ("one", None, "two", None, "three"):
        turns[key] = head.version + 1
        head = await storage.commit(await storage.commit(head, keyed(key)), to(INPUT_REQUIRED))
    for key in ("one", "two", "three"):
        assert await refused(storage, head, key) == turns[key]


async def test_a_key_is_known_where_no_message_is_taken(storage: DurableStorage) -> None:
    """At work and after its end, the task refuses a new message, and a repeated one is found."""
    head = await storage.commit(await opened(storage), to(INPUT_REQUIRED))
    at_work = await storage.commit(head, keyed("one"))
    assert await refused(storage, at_work, "one") == at_work.turn.number
    with pytest.raises(errors.TaskNotAcceptingMessagesError):
        await storage.commit(at_work, keyed("new"))
    ended = await storage.commit(at_work, to(COMPLETED))
    assert await refused(storage, ended, "one") == at_work.turn.number
    with pytest.raises(errors.TaskTerminalStateError):
        await storage.commit(ended, keyed("new"))


def asks(text: str) -> entries.StatusChanged:
    return replace(status(INPUT_REQUIRED, text), archive=True)


def report(text: str) -> entries.ArtifactWritten:
    return wrote(text, name="report")


async def after_three_turns(storage: DurableStorage) -> Head:
    """A task whose second and third turn have each lost their first attempt; the third runs."""
    head = await opened(storage, "u1")
    head = await storage.commit(head, claim("1", report("one"), metadata(turn="1", kept="yes")))
    head = await storage.commit(head, Commit(token="1", entries=(asks("q1"),)))
    head = await storage.commit(head, follow_up("u2"))
    lost = entries.MessageAppended(agent_message("lost"))
    lost_too = metadata(turn="lost", lost="yes")
    head = await storage.commit(head, claim("2a", report("lost"), lost, lost_too))
    head = await storage.commit(head, claim("2b"))
    head = await storage.commit(head, Commit(token="2b", entries=(report("two"), asks("q2"))))
    head = await storage.commit(head, follow_up("u3"))
    lost_too = metadata(turn="3", lost="yes")
    head = await storage.commit(head, claim("3a", report("lost too"), lost_too))
    return await storage.commit(head, claim("3b"))


def is_as_it_should_be(task: Task | None) -> None:
    assert task is not None
    assert said(task) == ["u1", "q1", "u2", "q2", "u3"]
    assert texts(task, "report") == ["onetwo"]
    assert MessageToDict(task.metadata) == {"turn": "1", "kept": "yes"}
    assert task.status.state == WORKING


async def test_a_restart_keeps_what_earlier_turns_have_left(storage: DurableStorage) -> None:
    """Turns that are started over take nothing away; the agent's Task is as its turn began."""
    head = await after_three_turns(storage)
    is_as_it_should_be(await storage.load_task(head.task_id))
    listed = await list_tasks(storage, ListTasksQuery(include_artifacts=True))
    (task,) = listed.tasks
    is_as_it_should_be(task)
    turn = turn_of(await log_of(storage, head), {})
    given = present(turn.context.current_task)
    assert said(given) == ["u1", "q1", "u2"]
    assert given.status.message.parts[0].text == "q2"
    assert texts(given, "report") == ["onetwo"]
    is_as_it_should_be(turn.cancel_context().current_task)


async def test_a_subscriber_is_shown_what_a_restart_restores(storage: DurableStorage) -> None:
    """A stream that was cut before the third turn, or inside of its restart, goes on with it."""
    head = await after_three_turns(storage)
    tag = incarnation_tag(head.incarnation)
    tail, as_of = await Tail.resume(storage, head.task_id, Cursor(head.version - 1, 9, tag))
    assert texts(as_of.event, "report") == ["onetwo", "lost too"]  # type: ignore[arg-type]
    shown = [d async for d in tail.events(until=lambda _: True, deadline=float("inf"))]
    restored, working = (delivery.event for delivery in shown)
    assert [part.text for part in restored.artifact.parts] == ["onetwo"]  # type: ignore[union-attr]
    assert working.status.state == WORKING  # type: ignore[union-attr]
    is_as_it_should_be(tail.fold.task())
    tail, as_of = await Tail.resume(storage, head.task_id, shown[0].cursor)
    assert texts(as_of.event, "report") == ["onetwo"]  # type: ignore[arg-type]
    rest = [d.event async for d in tail.events(until=lambda _: True, deadline=float("inf"))]
    assert rest == [working]
