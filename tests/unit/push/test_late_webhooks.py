"""A webhook that is set when its task has ended, or waits for its client: it is told so."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import cycle
from typing import get_args

import pytest
from a2a.types import Artifact, Part, TaskState, TaskStatus

from a2a_serverless.tasks.entries import ArtifactWritten, StatusChanged
from a2a_serverless.tasks.head import KNOWN, RESTING, TERMINAL, Head
from a2a_serverless.tasks.push import PushEvents
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.operate.webhooks import webhooks_of
from tests.support.messages import agent_message
from tests.support.present import present
from tests.unit.push.receivers import OK, Receiver, listening, status
from tests.unit.push.world import COMPLETED, INPUT_REQUIRED, WORKING, World, config

S = TaskState


async def put(world: World, head: Head, url: str, config_id: str = "hook-1") -> None:
    await world.storage.webhooks.put(config(url, config_id, task_id=head.task_id))


async def owed(world: World, head: Head) -> list[int]:
    """How many events `a2a-serverless task` says that each webhook is owed."""
    log = present(await world.storage.read(head.task_id))
    pushes = await world.storage.webhooks.all(head.task_id)
    found = webhooks_of(pushes, log.head, log.records, world.settings.push_events)
    return [webhook.owed for webhook in found]


@pytest.mark.parametrize(
    ("state", "which"), list(zip(sorted(KNOWN), cycle(get_args(PushEvents)), strict=False))
)
async def test_it_is_told_of_the_state_as_it_is(
    receiver: Receiver, which: PushEvents, state: TaskState
) -> None:
    """At once and once, whatever is pushed; of a task at work nothing is told."""
    world = World(push_events=which)
    head = await world.open(states=[WORKING, state])
    rests, ends = state in RESTING, state in TERMINAL
    await put(world, head, receiver.url())
    assert await owed(world, head) == [int(rests)]
    assert await world.pump() == int(rests)
    assert receiver.states == [S.Name(state).removeprefix("TASK_STATE_")] * rests
    assert await owed(world, head) == [0]
    assert await world.pump() == 0
    assert await world.storage.webhooks.count_open() == int(not ends)


async def test_an_end_behind_it_is_told_once(receiver: Receiver, world: World) -> None:
    """Both the put and the end wake its receiver."""
    head = await world.open(receiver.url(), states=[COMPLETED])
    await world.run(seconds=10)
    assert receiver.states == ["COMPLETED"]
    assert await owed(world, head) == [0]


async def test_a_state_that_has_passed_is_not_told(receiver: Receiver) -> None:
    """The task goes on before the delivery: only what comes next is told."""
    world = World(push_events="ends")
    head = await world.open(states=[INPUT_REQUIRED])
    await put(world, head, receiver.url())
    await world.say(head, WORKING)
    assert await world.pump() == 0
    await world.say(head, COMPLETED)
    await world.pump()
    assert receiver.states == ["COMPLETED"]


@pytest.mark.parametrize("is_large", [False, True])
async def test_work_behind_the_state(receiver: Receiver, *, is_large: bool) -> None:
    """A status beside which an attempt works on, and one that HEAD has no room for."""
    world = World(push_events="ends")
    head = await world.open(states=[WORKING])
    text = agent_message("x" * 5000 * is_large + "Sign in.")
    asks = TaskStatus(state=S.TASK_STATE_AUTH_REQUIRED, message=text)
    work = ArtifactWritten(Artifact(artifact_id="a", parts=[Part(text="x")]))
    for entry in (StatusChanged(asks), work):
        await world.storage.commit(await world.say(head), Commit(entries=(entry,)))
    await put(world, head, receiver.url())
    await world.pump()
    [told] = [json.loads(request.body)["statusUpdate"] for request in receiver.requests]
    assert told["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    assert told["status"]["message"]["parts"][0]["text"].endswith("Sign in.")


async def test_it_is_given_up_and_told_again(receiver: Receiver, world: World) -> None:
    """A refusal is final, and recorded; setting it again tells the state again."""
    receiver.script = lambda _: status(410)
    head = await world.open(states=[COMPLETED])
    await put(world, head, receiver.url())
    await world.pump()
    assert present((await world.push(head)).given_up).reason == "status 410"
    assert await world.storage.webhooks.count_open() == 0
    receiver.script = lambda _: OK
    await put(world, head, receiver.url())
    await world.pump()
    assert receiver.states == ["COMPLETED"] * 2
    assert len({request.event_id for request in receiver.requests}) == 2


@pytest.mark.parametrize("when", ["failing", "during the call"])
async def test_it_is_replaced(world: World, when: str) -> None:
    """The receiver that replaces it is told, wherever the first one's delivery stands."""
    with listening(2) as [old, new]:
        head = await world.open(states=[COMPLETED])

        async def replaced() -> AsyncIterator[bytes]:
            await put(world, head, new.url())
            yield OK

        old.script = lambda _: status(503) if when == "failing" else replaced()
        await put(world, head, old.url())
        await world.pump()
        if when != "during the call":
            await put(world, head, new.url())
        await world.run(seconds=20)
        assert (old.states, new.states) == (["COMPLETED"], ["COMPLETED"])
        assert await owed(world, head) == [0]


async def test_it_is_deleted_before_its_delivery(receiver: Receiver, world: World) -> None:
    """Nothing is sent; the same id again is told anew."""
    head = await world.open(states=[COMPLETED])
    await put(world, head, receiver.url())
    await world.pass_on()
    await world.storage.webhooks.delete(head.task_id, "hook-1")
    await world.pump()
    assert receiver.requests == []
    await put(world, head, receiver.url())
    await world.pump()
    assert receiver.states == ["COMPLETED"]
