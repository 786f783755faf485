"""Turns that are started over: what is left of a task then, for each of its readers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from a2a.types import Task, TaskState, TaskStatus
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Entry,
    MessageAppended,
    MetadataMerged,
    StatusChanged,
    TurnOpened,
)
from a2a_serverless.tasks.fold import Cursor, Log, incarnation_tag
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.rules import Commit, releasing
from a2a_serverless.worker.attempt import TurnInput, turn_of
from tests.support.messages import agent_message, artifact, request, said, texts
from tests.support.present import present


def asks(text: str) -> StatusChanged:
    state = TaskState.TASK_STATE_INPUT_REQUIRED
    return StatusChanged(TaskStatus(state=state, message=agent_message(text)), archive=True)


def metadata(**values: str) -> MetadataMerged:
    struct = Struct()
    struct.update(values)
    return MetadataMerged(struct)


def wrote(text: str) -> ArtifactWritten:
    return ArtifactWritten(artifact("report", text), append=True)


async def claim(storage: DurableStorage, head: Head, token: str, *entries: Entry) -> Head:
    return await storage.commit(head, Commit(token=token, claims=True, entries=entries))


async def after_three_turns(storage: DurableStorage) -> Head:
    """A task whose second and third turn have each lost their first attempt; the third runs."""
    head = (await storage.open_task("ctx", request("u1"))).head
    head = await claim(storage, head, "1", wrote("one"), metadata(turn="1", kept="yes"))
    head = await storage.commit(head, Commit(token="1", entries=(asks("q1"),)))
    head = await storage.commit(head, Commit(entries=(TurnOpened(request("u2")),)))
    lost = MessageAppended(agent_message("lost"))
    head = await claim(storage, head, "2a", wrote("lost"), lost, metadata(turn="lost", lost="yes"))
    head = await claim(storage, head, "2b")
    head = await storage.commit(head, Commit(token="2b", entries=(wrote("two"), asks("q2"))))
    head = await storage.commit(head, Commit(entries=(TurnOpened(request("u3")),)))
    head = await claim(storage, head, "3a", wrote("lost too"), metadata(turn="3", lost="yes"))
    return await claim(storage, head, "3b")


def is_as_it_should_be(task: Task) -> None:
    assert said(task) == ["u1", "q1", "u2", "q2", "u3"]
    assert texts(task, "report") == ["onetwo"]
    assert MessageToDict(task.metadata) == {"turn": "1", "kept": "yes"}
    assert task.status.state == TaskState.TASK_STATE_WORKING


async def read(storage: DurableStorage, head: Head) -> Log:
    return present(await storage.read(head.task_id))


def turn_in(log: Log) -> TurnInput:
    return turn_of(log, {})


async def test_a_restart_keeps_what_earlier_turns_have_left(storage: DurableStorage) -> None:
    """Two turns that are each started over take nothing from those before them."""
    head = await after_three_turns(storage)
    task = present(await storage.load_task(head.task_id))
    is_as_it_should_be(task)
    listed = await list_tasks(storage, ListTasksQuery(include_artifacts=True))
    (task,) = listed.tasks
    is_as_it_should_be(task)


async def test_an_attempt_sees_what_earlier_turns_have_left(storage: DurableStorage) -> None:
    """The agent's Task, and what its first chunk is appended to, stand where its turn began."""
    turn = turn_in(await read(storage, await after_three_turns(storage)))
    given = turn.context.current_task
    assert given is not None
    assert said(given) == ["u1", "q1", "u2"]
    assert given.status.message.parts[0].text == "q2"
    assert texts(given, "report") == ["onetwo"]
    told = turn.cancel_context().current_task
    assert told is not None
    is_as_it_should_be(told)


async def test_a_claim_takes_the_error_of_its_own_attempt_into_the_log(
    storage: DurableStorage,
) -> None:
    """With place and text; a later end that has none does not take those of an earlier one."""
    head = (await storage.open_task("ctx", request("u1"))).head
    head = await claim(storage, head, "1")
    end = AttemptEnd(token="1", reason="ValueError", correlation_id="c1", at=1)
    end = replace(end, place="agent.py, line 3, in handle", message="no customer")
    assert await storage.change(head, partial(releasing, end=end))
    head = await claim(storage, (await read(storage, head)).head, "2")
    seen = await read(storage, head)
    assert seen.records[-1].ended == end
    shutdown = AttemptEnd(token="2", reason="shutdown", correlation_id="c2", at=2)
    assert await storage.change(head, partial(releasing, end=shutdown))
    assert (await read(storage, head)).head.turn.released == shutdown
    assert not await storage.change(head, partial(releasing, end=replace(end, token="2"))), (
        "it is given back once"
    )
    head = await claim(storage, (await read(storage, head)).head, "3")
    assert await storage.change(head, partial(releasing, end=replace(end, token="3")))
    head = await claim(storage, (await read(storage, head)).head, "4")
    head = await claim(storage, head, "5")
    ends = [record.ended for record in (await read(storage, head)).records[3:]]
    assert ends == [shutdown, replace(end, token="3"), AttemptEnd(token="4", reason="lost")]


async def test_a_subscriber_is_shown_what_a_restart_restores(storage: DurableStorage) -> None:
    """A stream that was cut before the third turn, or inside of its restart, goes on with it."""
    head = await after_three_turns(storage)
    tag = incarnation_tag(head.incarnation)
    tail, as_of = await Tail.resume(storage, head.task_id, Cursor(head.version - 1, 9, tag))
    assert texts(as_of.event, "report") == ["onetwo", "lost too"]  # type: ignore[arg-type]
    shown = [d async for d in tail.events(until=lambda _: True, deadline=float("inf"))]
    restored, working = (delivery.event for delivery in shown)
    assert [part.text for part in restored.artifact.parts] == ["onetwo"]  # type: ignore[union-attr]
    assert working.status.state == TaskState.TASK_STATE_WORKING  # type: ignore[union-attr]
    is_as_it_should_be(tail.fold.task())
    tail, as_of = await Tail.resume(storage, head.task_id, shown[0].cursor)
    assert texts(as_of.event, "report") == ["onetwo"]  # type: ignore[arg-type]
    assert [d.event async for d in tail.events(until=lambda _: True, deadline=float("inf"))] == [
        working
    ]
