"""Running a turn: what is dropped, when it is claimed, what a restart and the fence do."""

from __future__ import annotations

import asyncio

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.storage.deletion import count_data, delete_data, delete_task
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.head import Operation
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import Storage
from tests.support.messages import request
from tests.support.workers import (
    Agent,
    Bench,
    PacedClock,
    S,
    artifact_texts,
    chunk,
    complete,
    params_of,
    status,
)


async def answer(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(status(context, S.TASK_STATE_WORKING))
    for text in ("one ", "two ", "three"):
        await queue.enqueue_event(chunk(context, text))
    await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))


async def test_a_fast_agent_costs_one_commit() -> None:
    """All that an agent emits at once is one commit, which also claims and ends the turn."""
    bench = Bench(Agent(answer))
    task = await bench.send()
    assert await bench.work()
    head = await bench.head(task)
    assert (head.version, head.turn.attempts, head.turn.is_open) == (2, 1, False)
    assert artifact_texts(await bench.task(task)) == {"a": ["one two three"]}


async def test_a_second_delivery_claims_before_its_agent_starts() -> None:
    """A delivery that is not the first one owns the turn before it starts the agent."""
    seen = []

    async def look(context: RequestContext, queue: EventQueue) -> None:
        seen.append((await bench.head(task)).turn.attempts)
        await complete(context, queue)

    bench = Bench(Agent(look))
    task = await bench.send()
    await (await bench.deliver()).nack()
    assert await bench.work()
    assert seen == [1]


async def test_a_restart_discards_what_a_dead_attempt_had_added() -> None:
    """The second attempt starts from the turn's beginning; each chunk is there once."""
    clock = PacedClock()
    lives = []

    async def dies_once(context: RequestContext, queue: EventQueue) -> None:
        lives.append(context.current_task)
        await queue.enqueue_event(chunk(context, "one "))
        if len(lives) == 1:
            await queue.enqueue_event(chunk(context, "lost", artifact_id="b"))
            await clock.sleep(10)
            await asyncio.Event().wait()
        await queue.enqueue_event(chunk(context, "two"))
        await complete(context, queue)

    bench = Bench(Agent(dies_once), clock=clock)
    task = await bench.send()
    handle = await bench.deliver()
    dead = asyncio.create_task(bench.adapter.process(handle))
    await clock.pass_time(0.5)
    assert artifact_texts(await bench.task(task)) == {"a": ["one "], "b": ["lost"]}
    await handle.nack()  # as if its worker was gone
    assert await bench.work()
    assert artifact_texts(await bench.task(task)) == {"a": ["one two"]}
    assert lives == [None, None]
    await clock.pass_time(2)
    assert not dead.cancelled()
    assert await dead


async def test_a_fenced_attempt_stops_and_writes_nothing() -> None:
    """An attempt whose turn another one has claimed ends its agent and reports failure."""
    clock = PacedClock()
    stopped = []

    async def stubborn(context: RequestContext, queue: EventQueue) -> None:
        try:
            await clock.sleep(5)
        except asyncio.CancelledError:
            stopped.append(True)
            await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "zombie"))
            raise

    bench = Bench(Agent(stubborn), clock=clock)
    task = await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(1.1)
    head = await bench.head(task)
    taken = await bench.storage.commit(head, Commit(token="other", claims=True))
    await clock.pass_time(1)
    assert await working is False
    assert stopped == [True]
    assert (await bench.head(task)) == taken


async def test_a_write_by_others_is_rebased_over() -> None:
    """Metadata that another writer adds while the agent runs fails no attempt."""

    async def beside(context: RequestContext, queue: EventQueue) -> None:
        await Storage(bench.storage).update_task(task.task_id, task_metadata={"seen": True})
        await complete(context, queue)

    bench = Bench(Agent(beside))
    task = await bench.send()
    assert await bench.work()
    done = await bench.task(task)
    assert done.status.state == S.TASK_STATE_COMPLETED
    assert done.metadata["seen"] is True


async def test_a_redelivered_finished_turn_is_dropped() -> None:
    """A paused turn that is delivered again is acknowledged; its agent does not run again."""

    async def ask(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "which?"))

    agent = Agent(ask)
    bench = Bench(agent)
    task = await bench.send()
    await bench.enqueue(task, copy_number=1)
    assert await bench.work()
    assert await bench.work()
    assert len(agent.started) == 1
    assert (await bench.head(task)).version == 2


@pytest.mark.parametrize("fate", ["deleted", "another incarnation", "another scope"])
async def test_an_operation_without_its_task_is_dropped(fate: str) -> None:
    """An operation whose task is gone, new or of another scope is acknowledged without a run."""
    agent = Agent(complete)
    bench = Bench(agent)
    head = (await bench.storage.open_task("ctx", request("hello"))).head
    changed = {"another incarnation": {"incarnation": "x"}, "another scope": {"scope": "x"}}
    params = params_of(head).model_copy(update=changed.get(fate, {}))
    if fate == "deleted":
        await delete_task(bench.storage, head.task_id)
    await bench.operations.send(Operation.to_run(params))
    assert await bench.work()
    assert agent.started == []


async def test_a_task_that_is_deleted_while_it_runs_ends() -> None:
    """The agent of a deleted task is stopped, the operation acknowledged, and nothing is left."""
    ended: list[str] = []

    async def endless(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "half"))
        deleted = await delete_data(bench.storage)
        assert deleted.tasks == 1
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(context.task_id or "")

    bench = Bench(Agent(endless))
    task = await bench.send()
    assert await bench.work()
    assert ended == [task.task_id]
    assert (await count_data(bench.storage)).tasks == 0
    assert (await delete_data(bench.storage)).is_done


async def test_a_follow_up_gets_the_task_as_it_was() -> None:
    """The second turn sees the question it answers, the first turn's work, and its own message."""

    async def ask_then_answer(context: RequestContext, queue: EventQueue) -> None:
        if context.current_task is None:
            await queue.enqueue_event(chunk(context, "draft "))
            await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "which?"))
        else:
            await queue.enqueue_event(chunk(context, "final"))
            await complete(context, queue)

    agent = Agent(ask_then_answer)
    bench = Bench(agent)
    task = await bench.send("book")
    assert await bench.work()
    await bench.follow_up(task, "that one")
    assert await bench.work()
    second = agent.started[1]
    assert second.get_user_input() == "that one"
    assert second.current_task is not None
    assert second.current_task.status.state == S.TASK_STATE_INPUT_REQUIRED
    assert [m.parts[0].text for m in second.current_task.history] == ["book"]
    done = await bench.task(task)
    assert artifact_texts(done) == {"a": ["draft final"]}
    assert [m.parts[0].text for m in done.history] == ["book", "which?", "that one"]


async def test_the_caller_comes_to_the_agent() -> None:
    """User, tenant and extensions of the request are in the executor's call context."""
    agent = Agent(complete)
    bench = Bench(agent)
    await bench.send(caller=Caller("ann", "acme", ("urn:x",)))
    assert await bench.work()
    call = agent.started[0].call_context
    assert (call.user.user_name, call.user.is_authenticated, call.tenant) == ("ann", True, "acme")
    assert call.requested_extensions == {"urn:x"}
