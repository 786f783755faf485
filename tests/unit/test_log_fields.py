"""Lines about a task say which one it is, of which conversation, and which of its turns."""

from __future__ import annotations

import pytest
from a2a.types import TaskState, TaskStatus

from a2a_serverless.errors import UnavailableError
from a2a_serverless.http.intake import Wait, cancel
from a2a_serverless.settings import Settings
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.webhooks import Webhooks
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.entries import StatusChanged, TurnOpened
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless.worker.sweeper import DeadLetters, Sweeper, _ids_in
from a2a_serverless_tools.contract import Storage
from tests.support.clocks import ManualClock
from tests.support.messages import request
from tests.support.observed import Line, logged
from tests.support.workers import params_of
from tests.unit.push.receivers import Receiver, status
from tests.unit.push.world import COMPLETED, INPUT_REQUIRED, WORKING, World

IDS = ("task_id", "context_id", "turn")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backends(clock: ManualClock) -> Backends:
    return memory_backends(Settings(), clock)


def fields(lines: list[Line], action: str, *names: str) -> list[Line]:
    """These fields of the lines of one action."""
    found = [line for line in lines if line.get("action") == action]
    return [{name: line.get(name) for name in names} for line in found]


async def second_turn(backends: Backends) -> Head:
    """A task whose second turn was claimed once."""
    storage = backends.storage
    head = (await storage.open_task("conversation", request())).head
    await Storage(storage).update_task(head.task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
    paused = await storage.head(head.task_id)
    assert paused is not None
    opened = await storage.commit(paused, Commit(entries=(TurnOpened(request("more")),)))
    working = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_WORKING))
    return await storage.commit(opened, Commit(entries=(working,), token="t", claims=True))


def dead_letters(backends: Backends) -> DeadLetters:
    """A consumer for which one attempt is all that a turn gets."""
    retry = RetryPolicy(max_attempts=1)
    return DeadLetters(backends.storage, backends.operations, retry=retry)


def ids_of(head: Head) -> Line:
    return {"task_id": head.task_id, "context_id": "conversation", "turn": head.turn}


async def test_the_sweepers_lines(backends: Backends, clock: ManualClock) -> None:
    """A turn that is sent again, and a task that is canceled at its deadline."""
    head = await second_turn(backends)
    assert head.turn == 3
    sweeper = Sweeper(backends.storage, backends.operations, clock=clock)
    with logged() as lines:
        clock.advance(7200)
        await sweeper.sweep()
        await backends.storage.request_cancel(head.task_id)
        clock.advance(7200)
        await sweeper.sweep()
    wanted = ids_of(head) | {"attempts": 1}
    assert fields(lines, "resend", *wanted) == [wanted]
    assert fields(lines, "cancel_at_deadline", *wanted) == [wanted]


async def test_the_line_of_a_repair_that_failed(
    backends: Backends,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line of a failed repair has what was known: all of a task whose HEAD was read."""

    async def refuse(*_: object, **__: object) -> None:
        raise UnavailableError

    head = await second_turn(backends)
    sweeper = Sweeper(backends.storage, backends.operations, clock=clock)
    with logged() as lines:
        with monkeypatch.context() as queue_down:
            queue_down.setattr(backends.operations, "send", refuse)
            clock.advance(7200)
            await sweeper.sweep()
        monkeypatch.setattr(backends.storage.table, "load", refuse)
        clock.advance(7200)
        await sweeper.sweep()
    unread = {"task_id": head.task_id, "context_id": None, "turn": None}
    assert fields(lines, "sweep_failed", *IDS) == [ids_of(head), unread]


async def test_the_lines_of_dead_letters(backends: Backends) -> None:
    """The lines of a letter that fails its task, and of a late one, have the task's ids."""
    head = await second_turn(backends)
    body = Operation.to_run(params_of(head)).model_dump_json()
    letters = dead_letters(backends)
    with logged() as lines:
        await letters.handle(body)
        await letters.handle(body)
    assert fields(lines, "dead_letter_failed", *IDS, "attempts") == [ids_of(head) | {"attempts": 1}]
    assert fields(lines, "dead_letter_dropped", *IDS) == [ids_of(head)]


async def test_the_conversation_of_another_incarnation_is_not_named(backends: Backends) -> None:
    """The letter of a deleted task says nothing of the task that has its id now."""
    head = await second_turn(backends)
    await delete_task(backends.storage, head.task_id)
    await backends.storage.open_task("another", request(), task_id=head.task_id)
    letters = dead_letters(backends)
    with logged() as lines:
        await letters.handle(Operation.to_run(params_of(head)).model_dump_json())
    assert fields(lines, "dead_letter_dropped", *IDS) == [ids_of(head) | {"context_id": None}]


async def test_what_an_unhandled_letter_is_about(backends: Backends) -> None:
    """The ids of an unhandled letter are its own, or none if it cannot be read."""
    head = await second_turn(backends)
    body = Operation.to_run(params_of(head)).model_dump_json()
    assert _ids_in(body) == {"operation": "run", "task_id": head.task_id, "turn": head.turn}
    assert _ids_in("poison") == {}


async def test_the_line_of_a_forced_cancel() -> None:
    """The API's own end of a task."""
    backends = memory_backends(Settings())
    head = await second_turn(backends)
    with logged() as lines:
        await cancel(backends, ANONYMOUS, head.task_id, wait=Wait(None, ""), timeout_s=0.01)
    assert fields(lines, "cancel_forced", *IDS) == [ids_of(head)]


async def test_the_lines_of_a_delivery() -> None:
    """A delivery's lines name the turn of the events, except of a turn that was over before."""
    world = World()
    with logged() as lines, Receiver() as receiver:
        head = await world.open(receiver.url())
        await world.say(head, WORKING, INPUT_REQUIRED)
        paused = await world.storage.head(head.task_id)
        assert paused is not None
        follow_up = Commit(entries=(TurnOpened(request("more")),))
        opened = await world.storage.commit(paused, follow_up)
        await world.say(head, COMPLETED)
        await world.pump()
    told = fields(lines, "push_delivered", *IDS)
    common = {"task_id": head.task_id, "context_id": "ctx"}
    turns = [None, None, opened.turn, opened.turn]
    assert told == [common | {"turn": turn} for turn in turns]


async def test_the_lines_of_a_delivery_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of failed deliveries have reason, wait and the task's ids."""
    world = World()
    with logged() as lines, Receiver() as receiver:
        receiver.script = lambda _: status(503)
        head = await world.open(receiver.url())
        await world.say(head, COMPLETED)
        await world.pump()

        async def refuse(*_: object, **__: object) -> bool:
            raise UnavailableError

        monkeypatch.setattr(Webhooks, "move", refuse)
        await world.run(seconds=60)
    common = {"task_id": head.task_id, "context_id": "ctx"}
    assert fields(lines, "push_failed", *IDS)[0] == common | {"turn": 1}
    (waited,) = fields(lines, "push_failed", "reason", "wait_s")[:1]
    assert waited["reason"] == "status 503"
    assert 0 <= waited["wait_s"] <= 5
    assert fields(lines, "push_delivery_failed", "task_id", "context_id")[0] == common
