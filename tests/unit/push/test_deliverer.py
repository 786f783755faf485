"""Delivering: order, repetition, and what becomes of a receiver that fails."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import cycle
from typing import Any

import jwt
import pytest
from a2a.compat.v0_3 import types as types_v03
from a2a.types import Artifact, Part, StreamResponse, TaskState, TaskStatus
from google.protobuf import json_format

from a2a_serverless.push import deliverer
from a2a_serverless.push.jobs import PushJob
from a2a_serverless.push.notifications import Notification, owed
from a2a_serverless.storage.blobs import MemoryBlobs
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.webhooks import Webhooks
from a2a_serverless.tasks.blobs import linked_blob
from a2a_serverless.tasks.destinations import LONGEST_S
from a2a_serverless.tasks.entries import ArtifactWritten, StatusChanged, TurnOpened
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope, caller_number
from a2a_serverless.tasks.push import CONFIG_ID_OF_0_1
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import Storage
from tests.support.clocks import ManualClock
from tests.support.commits import newest
from tests.support.messages import request as request_of
from tests.support.observed import counted
from tests.support.present import present
from tests.support.queues import is_empty, left
from tests.unit.push.receivers import OK, Receiver, Request, listening, silence, status
from tests.unit.push.world import (
    COMPLETED,
    CREDENTIALS,
    INPUT_REQUIRED,
    TOKEN,
    WORKING,
    World,
    config,
    logged,
    unavailable,
)
from tests.unit.worker.stand import beside


class Outage:
    """A script that fails until `until_s` on the clock, and knows whom it has told."""

    def __init__(self, clock: ManualClock, until_s: float, failure: bytes | None) -> None:
        self._clock, self._until_s, self._failure = clock, until_s, failure
        self.told: list[Request] = []

    def __call__(self, request: Request) -> bytes | AsyncIterator[bytes]:
        if self.is_over:
            self.told.append(request)
            return OK
        return silence() if self._failure is None else self._failure

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic() >= self._until_s

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """A resolver that fails as long."""
        if not self.is_over:
            raise OSError(host)
        return ["127.0.0.1"]


# -- what is sent ----------------------------------------------------------------------------


async def test_a_transition_is_told(receiver: Receiver, world: World) -> None:
    """One POST says to whom, which event and which attempt; without secrets no header has one."""
    head = await world.open(receiver.url())
    bare = config(receiver.url(path="/bare"), "bare", task_id=head.task_id, token="")
    bare.authentication.credentials = ""
    await world.storage.webhooks.put(bare)
    await world.say(head, WORKING)
    assert await world.pump() == 2
    told = {request.target: request for request in receiver.requests}
    request = told["/hook"]
    secrets = {"authorization", "x-a2a-notification-token"}
    assert told["/bare"].headers.keys() == request.headers.keys() - secrets
    response = json_format.Parse(request.body, StreamResponse())
    assert response.WhichOneof("payload") == "status_update"
    assert response.status_update.task_id == head.task_id
    assert response.status_update.context_id == "ctx"
    assert response.status_update.status.state == WORKING
    assert request.headers.keys() == {
        *("a2a-version", "authorization", "content-length", "content-type", "host", "traceparent"),
        *("user-agent", "x-a2a-delivery-attempt", "x-a2a-event-id", "x-a2a-notification-token"),
        "x-a2a-signature",
    }
    assert request.headers["content-type"] == "application/a2a+json"
    assert request.headers["a2a-version"] == "1.0"
    assert request.headers["authorization"] == f"Bearer {CREDENTIALS}"
    assert request.headers["x-a2a-notification-token"] == TOKEN
    assert request.attempt == 1
    assert is_empty(world.jobs)


async def test_a_client_of_0_1_is_told_in_its_form(receiver: Receiver) -> None:
    """The event alone, with the names of 0.1, as JSON; a pause is final there."""
    world = World(push_events="all")
    head = await world.open()
    own = config(receiver.url(), CONFIG_ID_OF_0_1, task_id=head.task_id)
    await world.storage.webhooks.put(own, "0.1")
    await world.say(head, WORKING)
    wrote = ArtifactWritten(Artifact(artifact_id="a", parts=[Part(text="x")]))
    head = await world.storage.commit(await newest(world.storage, head), Commit(entries=(wrote,)))
    await world.say(head, INPUT_REQUIRED)
    await world.pump()
    bodies = [json.loads(request.body) for request in receiver.requests]
    artifact = bodies.pop(1)["artifact"]
    assert artifact.pop("parts")[0]["text"] == "x"
    assert artifact == {"artifactId": "a", "append": False, "lastChunk": False}  # has no number
    told_of = {(body["id"], body["type"]) for body in bodies}
    assert told_of == {(head.task_id, "TaskStatusUpdateEvent")}
    told = [(body["status"]["state"], body["final"]) for body in bodies]
    assert told == [("working", False), ("input-required", True)]
    headers = receiver.requests[0].headers
    assert headers["content-type"] == "application/json"
    assert headers["authorization"] == f"Bearer {CREDENTIALS}"
    assert "a2a-version" not in headers


def tasks(receiver: Receiver) -> list[types_v03.Task]:
    """The Tasks of 0.3 that a receiver was told of."""
    for request in receiver.requests:
        assert request.headers["content-type"] == "application/json"
        assert request.headers["a2a-version"] == "0.3"
        assert json.loads(request.body)["kind"] == "task"
    return [types_v03.Task.model_validate_json(request.body) for request in receiver.requests]


@pytest.mark.parametrize("way", ["inline", "late"])
async def test_a_client_of_0_3_is_told(receiver: Receiver, world: World, way: str) -> None:
    """The whole Task of 0.3 as each event has left it, however the configuration came."""
    hook = config(receiver.url())
    push = hook if way == "inline" else None
    opened = await world.storage.open_task("c", request_of("hello"), push=push, push_dialect="0.3")
    head = opened.head
    hook.task_id = head.task_id
    await world.say(head, WORKING)
    await said(world, head, "one", INPUT_REQUIRED, WORKING, "two", COMPLETED)
    if way == "late":
        await world.storage.webhooks.put(hook, "0.3")
    await world.pump()
    shown = [
        (task.id, task.status.state.value, [a.artifact_id for a in task.artifacts or ()])
        for task in tasks(receiver)
    ]
    expected = [
        ("submitted", []),
        ("working", []),
        ("input-required", ["one", "two"]),  # all that was committed with it
        ("working", ["one", "two"]),
        ("completed", ["one", "two"]),
    ]
    begins = 0 if way == "inline" else 4
    assert shown == [(head.task_id, *each) for each in expected[begins:]]


async def said(world: World, head: Head, *each: str | TaskState) -> Head:
    """Commit these artifacts and states as one."""
    entries = [
        chunk("x", one) if isinstance(one, str) else StatusChanged(TaskStatus(state=one))
        for one in each
    ]
    return await world.storage.commit(await world.say(head), Commit(entries=tuple(entries)))


async def test_chunks_are_one_task_of_0_3(receiver: Receiver) -> None:
    """Where artifacts are pushed, those that wait together come in one Task, as the next status."""
    world = World(push_events="all")
    head = await world.open()
    hook = config(receiver.url(), task_id=head.task_id)
    await world.storage.webhooks.put(hook, "0.3")
    await world.say(head, WORKING)
    await world.pump()
    for number in range(3):
        await said(world, head, f"a{number}")
    await world.pump()
    await said(world, head, "last")
    await world.say(head, COMPLETED)
    await world.pump()
    told = [(task.status.state.value, len(task.artifacts or ())) for task in tasks(receiver)]
    assert told == [("working", 0), ("working", 3), ("completed", 4)]


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ("ends", ["INPUT_REQUIRED", "COMPLETED"]),
        ("statuses", ["SUBMITTED", "WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED"]),
        ("all", ["SUBMITTED", "WORKING", "1:x", "INPUT_REQUIRED", "WORKING", "2:x", "COMPLETED"]),
    ],
)
async def test_which_events_are_told(receiver: Receiver, which: str, told: list[str]) -> None:
    """Interrupted and terminal states always; working and artifacts by setting; all in order."""
    world = World(push_events=which)
    head = await world.open(push=config(receiver.url()), states=[WORKING])
    await said(world, head, "1")
    await world.say(head, INPUT_REQUIRED, WORKING)
    await said(world, head, "2")
    await world.say(head, COMPLETED)
    await world.pump()
    assert [seen(request) for request in receiver.requests] == told


async def test_a_job_of_nothing_owed_sends_nothing(receiver: Receiver) -> None:
    """Commits that are not pushed make no job, and a job that came anyway is done at once."""
    world = World(push_events="ends")
    head = await world.open(receiver.url(), states=[WORKING])
    assert await world.pump() == 0
    await world.jobs.send(job_of(head, 2))
    assert await world.deliver()
    assert receiver.requests == []


@pytest.mark.parametrize(
    ("which", "told"),
    [("all", ["a:1", "b:2", "b:2", "WORKING", "a:4"]), ("statuses", ["WORKING", "WORKING"])],
)
async def test_a_restart_is_told(receiver: Receiver, which: str, told: list[str]) -> None:
    """A restart's events are told as replacements; after a failure the next delivery goes on."""
    world = World(push_events=which)
    head = await world.open(push=config(receiver.url()))
    storage = world.storage
    first = (chunk("1"), chunk("2", "b"), StatusChanged(TaskStatus(state=INPUT_REQUIRED)))
    head = await storage.commit(head, Commit(token="x", claims=True, entries=first))
    head = await storage.commit(head, Commit(entries=(TurnOpened(request_of("go on")),)))
    head = await storage.commit(head, Commit(token="y", claims=True, entries=(chunk("3"),)))
    await world.pump()
    before = len(receiver.requests)
    failing = before + (2 if which == "all" else 1)
    receiver.script = lambda _: status(503) if len(receiver.requests) == failing else OK
    await storage.commit(head, Commit(token="z", claims=True, entries=(chunk("4"),)))
    await world.run(seconds=10)
    requests = receiver.requests[before:]
    assert [seen(request) for request in requests] == told
    repeated = [request.event_id for request in requests if request.attempt > 1]
    assert len(repeated) == 1
    assert len({request.event_id for request in requests}) == len(requests) - 1
    assert await world.is_settled(head, "hook")


# -- failing receivers -----------------------------------------------------------------------


async def test_two_callers_with_one_key_are_told_of_two_tasks(receiver: Receiver) -> None:
    """Of two callers with one key each one's task is told once, under its own id."""
    world = World(push_events="ends")
    opened = set()
    for name in ("ann", "bob"):
        own = world.storage.for_scope(Scope.of("", name))
        push = config(receiver.url())
        head = (await own.open_task("ctx", request_of(), idempotency_key="order-1", push=push)).head
        await Storage(own).update_task(head.task_id, COMPLETED)
        opened.add(head.task_id)
    await world.pump()
    tokens = [request.headers["x-a2a-signature"] for request in receiver.requests]
    told = [jwt.decode(token, options={"verify_signature": False})["sub"] for token in tokens]
    assert len(told) == len(opened) == 2
    assert set(told) == opened


@pytest.mark.long(but=1)
@pytest.mark.parametrize("failure", [503, "silence", "closed port", "DNS"])
async def test_a_receiver_is_down_ten_minutes(receiver: Receiver, failure: str | int) -> None:
    """Each transition arrives at least once, in order, under one id, its attempts counted."""
    world = World(push_allowed_hosts="127.0.0.1,hooks.example")
    world.timeout_s = 0.02 if failure == "silence" else 5
    outage = Outage(world.clock, 600, status(failure) if isinstance(failure, int) else None)
    world.deliverer.client.resolve = outage.resolve
    receiver.script = outage
    url = receiver.url("hooks.example" if failure == "DNS" else "127.0.0.1")
    head = await world.open(url)
    if failure == "closed port":
        receiver.call(receiver.close())
    await world.say(head, WORKING)
    await world.run(seconds=120, step=10)
    await world.say(head, INPUT_REQUIRED)
    await world.run(seconds=480, step=10)
    if failure == "closed port":
        receiver.call(receiver.open())
    world.timeout_s = 5
    await world.say(head, WORKING, COMPLETED)
    await world.run(seconds=1200, step=10)
    requests = receiver.requests
    # One that was cut off may have been read, and taken for told, after its time.
    told = list({request.event_id: request for request in outage.told}.values())
    assert [r.state for r in told] == ["WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED"]
    assert {r.event_id for r in requests if r not in told} <= {told[0].event_id}
    attempts = told[0].attempt
    assert attempts > 3
    assert [request.attempt for request in told] == [attempts, 1, 1, 1]
    if isinstance(failure, int):  # the others may not reach the receiver
        assert [request.attempt for request in requests] == [*range(1, attempts + 1), 1, 1, 1]
    push = await world.push(head)
    assert (push.failures, push.failing_since) == (0, None)
    assert left(world.dead_letters) == []
    assert is_empty(world.jobs)


async def test_the_last_answer_is_kept_with_the_next_try(receiver: Receiver) -> None:
    """The wait ends when the item says; a success and a refusal leave no next try."""
    world, answers = World(), iter([503, 200, 410])
    receiver.script = lambda _: status(next(answers), Retry_After="300")
    head = await world.open(receiver.url(), states=[WORKING])
    await world.pump()
    push = await world.push(head)
    assert (push.answer, push.answered_at) == ("status 503", world.clock.now_ms())
    assert push.next_at == world.clock.now_ms() + 300_000
    await world.run(seconds=301)
    push = await world.push(head)
    assert (push.answer, push.next_at, push.failures) == ("status 200", None, 0)
    await world.say(head, COMPLETED)
    await world.pump()
    push = await world.push(head)
    assert (push.answer, push.next_at) == ("status 410", None)
    assert push.answered_at == world.clock.now_ms()


async def test_a_final_answer_is_an_answer(receiver: Receiver) -> None:
    """A final answer ends a series of failures: the next event is retried for its full time."""
    world, answers = World(push_retry_s=600), iter([503, 400, 503, 200])
    receiver.script = lambda _: status(next(answers))
    head = await world.open(receiver.url(), states=[WORKING])
    await world.run(seconds=1200, step=30)
    await world.say(head, COMPLETED)
    await world.run(seconds=1200, step=30)
    assert receiver.states == ["WORKING"] * 2 + ["COMPLETED"] * 2
    assert [letter.reason for letter in left(world.dead_letters)] == ["status 400"]


@pytest.mark.parametrize("code", [404, 307])
async def test_a_final_answer_ends_the_event(receiver: Receiver, world: World, code: int) -> None:
    """No second attempt; the event goes to the dead letters, and the next one is told."""
    receiver.script = lambda r: status(code) if "WORKING" in r.state else OK
    head = await world.open(receiver.url(), states=[WORKING, COMPLETED])
    await world.run(seconds=1800, step=300)
    first, second = receiver.requests
    assert [first.state, second.state] == ["WORKING", "COMPLETED"]
    [letter] = left(world.dead_letters)
    assert (letter.event_id, letter.version, letter.index) == (first.event_id, 2, 0)
    assert (letter.reason, letter.attempts, letter.failing_since) == (f"status {code}", 1, None)
    assert await world.is_settled(head)


async def refused(world: World, head: Head, count: int) -> None:
    """Commit as many statuses, each told by itself."""
    for _ in range(count):
        await world.say(head, WORKING)
        await world.pump()


async def test_a_url_that_refuses_ten_times_is_given_up(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The eleventh event makes no request, dead letter or job; the tenth has a line of its own."""
    with caplog.at_level(logging.INFO), Receiver(lambda _: status(404)) as receiver:
        head = await world.open(receiver.url())
        await refused(world, head, 13)
        assert len(receiver.requests) == 10
        assert await world.pump() == 0
    assert len(left(world.dead_letters)) == 10
    actions = [line["action"] for line in logged(caplog.records)]
    assert actions == ["push_given_up"] * 9 + ["push_receiver_given_up"]
    push = await world.push(head)
    assert (push.refusals, push.is_given_up) == (10, True)


async def test_a_configuration_that_is_set_again_begins_anew(receiver: Receiver) -> None:
    """After a configuration is set again, the next event brings those that were kept meanwhile."""
    world, code = World(), 401
    receiver.script = lambda _: status(code)
    head = await world.open(receiver.url())
    await refused(world, head, 12)
    code = 200
    await world.storage.webhooks.put(config(receiver.url(), "hook-1", task_id=head.task_id))
    await world.say(head, COMPLETED)
    await world.pump()
    assert receiver.states[10:] == ["WORKING"] * 2 + ["COMPLETED"]
    assert (await world.push(head)).refusals == 0


async def test_an_event_that_is_taken_ends_a_row_of_refusals(receiver: Receiver) -> None:
    """A receiver that takes one event in ten is told of all: it is not given up."""
    world, answers = World(), cycle([410] * 9 + [200])
    receiver.script = lambda _: status(next(answers))
    head = await world.open(receiver.url(), states=[WORKING] * 25)
    await world.pump()
    assert len(receiver.requests) == 25
    assert (await world.push(head)).refusals == 5


async def test_ids_do_not_multiply_refusals(world: World) -> None:
    """The refusals of a URL count together, under whichever ids it is registered."""
    with Receiver(lambda _: status(404)) as receiver, Receiver() as other:
        head = await world.open(*[receiver.url()] * 5, other.url())
        await refused(world, head, 4)
        assert len(receiver.requests) == 10
        assert len(other.requests) == 4


async def test_failures_are_no_refusals(receiver: Receiver, world: World) -> None:
    """An answer that is tried again gives up no receiver."""
    receiver.script = lambda _: status(503)
    head = await world.open(receiver.url(), states=[WORKING] * 12)
    await world.run(seconds=4 * 3600, step=300)
    assert len(receiver.requests) > 12
    assert (await world.push(head)).refusals == 0


async def test_a_url_that_may_not_be_called_any_more(receiver: Receiver, world: World) -> None:
    """It is given up at once, without a connection, and has not refused anything."""
    head = await world.open(receiver.url("127.0.0.2"), states=[COMPLETED])
    await world.pump()
    assert receiver.connections == 0
    [letter] = left(world.dead_letters)
    assert "must" in letter.reason
    assert await world.is_settled(head)
    assert (await world.push(head)).refusals == 0


async def test_a_receiver_is_away(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """After hours the event is given up; each further one gets one attempt until he is back."""
    world = World(push_retry_s=6 * 3600)
    outage = Outage(world.clock, 9 * 3600, status(502))
    receiver.script = outage
    head = await world.open(receiver.url(), states=[WORKING])
    await world.run(seconds=7 * 3600, step=120)
    given_up = receiver.requests[-1]
    assert {request.event_id for request in receiver.requests} == {given_up.event_id}
    assert len(receiver.requests) > 20
    [letter] = left(world.dead_letters)
    assert letter.event_id == given_up.event_id
    assert letter.attempts == given_up.attempt == len(receiver.requests)
    assert letter.failing_since is not None
    assert is_empty(world.jobs)
    push = await world.push(head)
    lost = present(push.given_up)
    assert (push.told, push.failures) == (None, 0)
    assert (lost.count, lost.version, lost.reason) == (1, letter.version, letter.reason)
    assert lost.reason.endswith("status 502")
    assert lost.at == push.answered_at
    world.clock.advance(LONGEST_S)  # his host may be called again
    before = len(receiver.requests)
    await world.say(head, INPUT_REQUIRED, WORKING)
    await world.pump()
    assert [request.attempt for request in receiver.requests[before:]] == [1]
    assert [letter.attempts for letter in left(world.dead_letters)][1:] == [1, 0]
    world.clock.advance(3 * 3600)
    await world.say(head, INPUT_REQUIRED)
    await world.pump()
    assert [request.state for request in outage.told] == ["INPUT_REQUIRED"]
    push = await world.push(head)
    assert (push.failures, push.failing_since) == (0, None)
    assert push.told == push.version
    assert present(push.given_up).count == 3
    receiver.script = Outage(world.clock, world.clock.monotonic() + 60, status(502))
    await world.say(head, COMPLETED)
    await world.run(seconds=120, step=5)
    assert len(left(world.dead_letters)) == 3
    lines = [line for line in logged(caplog.records) if line["action"] == "push_given_up"]
    assert len(lines) == 3
    assert lines[0]["event_id"] == given_up.event_id


# -- jobs that come twice, early or late ----------------------------------------------------


async def test_jobs_in_any_order_tell_in_the_logs_order(receiver: Receiver, world: World) -> None:
    """The stream keeps no order between items: the newest commit's job may be the first."""
    await world.open(receiver.url(), states=[WORKING, INPUT_REQUIRED, COMPLETED])
    world.committed.reverse()
    await world.pass_on()
    await world.pump()
    assert receiver.states == ["WORKING", "INPUT_REQUIRED", "COMPLETED"]


async def test_two_deliveries_of_one_job_at_once(receiver: Receiver, world: World) -> None:
    """Two deliveries of a job may both send an event, under one id; none is lost."""
    both = threading.Barrier(2, timeout=60)

    async def meet() -> AsyncIterator[bytes]:
        await asyncio.to_thread(both.wait)
        yield OK

    receiver.script = lambda r: meet() if "WORKING" in r.state else OK
    head = await world.open(receiver.url(), states=[WORKING, COMPLETED])
    await world.pass_on()
    first = present(world.take())
    world.clock.advance(100)  # its visibility has run out
    second = present(world.take())
    assert first.message == second.message
    assert all(await asyncio.gather(world.deliver(first), world.deliver(second)))
    ids = {(request.state, request.event_id) for request in receiver.requests}
    assert sorted(state for state, _ in ids) == ["COMPLETED", "WORKING"]
    assert receiver.states[:2] == ["WORKING"] * 2
    assert await world.is_settled(head)
    sent = len(receiver.requests)
    await world.run(seconds=200, step=50)
    assert len(receiver.requests) == sent


@pytest.mark.parametrize("late", [status(503), OK], ids=["failure", "success"])
async def test_another_delivery_is_quicker(receiver: Receiver, world: World, late: bytes) -> None:
    """An answer that comes after somebody else has told everything changes nothing."""
    arrived, told = threading.Event(), threading.Event()

    async def answer_late() -> AsyncIterator[bytes]:
        arrived.set()
        await asyncio.to_thread(told.wait, 5)
        yield late

    receiver.script = lambda _: answer_late() if len(receiver.requests) == 1 else OK
    head = await world.open(receiver.url(), states=[WORKING, COMPLETED])
    await world.pass_on()
    slow = asyncio.create_task(world.deliver(world.take()))
    assert await asyncio.to_thread(arrived.wait, 5)
    world.clock.advance(100)  # the slow delivery's visibility has run out
    assert await world.deliver()
    told.set()
    assert await slow is (late is OK)
    push = await world.push(head)
    assert (push.version, push.failures, push.failing_since) == (3, 0, None)
    await world.run(seconds=200, step=50)
    assert receiver.states == ["WORKING", "WORKING", "COMPLETED"]


async def test_a_job_that_is_quicker_than_its_commit(receiver: Receiver, world: World) -> None:
    """A stream's record may be out before a read shows the commit: it is not taken for settled."""
    head = await world.open(receiver.url())
    await world.jobs.send(job_of(head, 2))
    assert not await world.deliver()
    assert world.take() is None
    await world.say(head, COMPLETED)
    world.committed.clear()
    world.clock.advance(1)
    assert await world.deliver()
    assert receiver.states == ["COMPLETED"]


async def test_a_task_that_is_gone_is_done(receiver: Receiver, world: World) -> None:
    """Deleted, expired, or made anew under its id: there is nothing to tell of it."""
    head = await world.open(receiver.url(), states=[COMPLETED])
    old = job_of(head, 2)
    await world.pass_on()
    await delete_task(world.storage, head.task_id)
    assert await world.deliver()
    again = await world.storage.open_task("ctx", request_of("new"), task_id=head.task_id)
    own = config(receiver.url(), "hook-1", task_id=again.head.task_id)
    await world.storage.webhooks.put(own)
    await world.say(again.head, WORKING)
    world.committed.clear()
    await world.jobs.send(old.model_copy(update={"version": 3}))
    assert await world.deliver()
    assert receiver.requests == []
    world.clock.advance(31 * 86_400)
    await world.jobs.send(job_of(again.head, 2))
    assert await world.deliver()
    assert receiver.requests == []


@pytest.mark.parametrize("method", ["read", "head"])
async def test_a_task_that_goes_meanwhile_is_told_no_more(
    public: World, victim: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: Any, method: str
) -> None:
    """Its configuration was there when the delivery began: nobody is asked, and nothing is sent."""
    url = "victim.example" if method == "head" else "127.0.0.1"
    head = await public.open(victim.url(url), states=[COMPLETED])
    await public.pass_on()
    beside(monkeypatch, method, lambda: delete_task(public.storage, head.task_id))
    await public.run(seconds=60, step=30)
    assert victim.requests == []
    assert is_empty(public.jobs)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# -- configurations that change meanwhile ----------------------------------------------------


async def test_a_deleted_configuration_is_told_no_more(receiver: Receiver, world: World) -> None:
    """A deleted configuration gets no more events, not even of the same delivery (A2A 3.1.10)."""
    head = await world.open(receiver.url())

    async def delete() -> AsyncIterator[bytes]:
        await world.storage.webhooks.delete(head.task_id, "hook-1")
        yield OK

    receiver.script = lambda _: delete()
    await world.say(head, WORKING, COMPLETED)
    await world.pump()
    assert receiver.states == ["WORKING"]
    assert is_empty(world.jobs)


@pytest.mark.parametrize(
    ("states", "rest"), [([WORKING, COMPLETED], ["COMPLETED"]), ([WORKING], [])]
)
async def test_one_is_replaced(world: World, states: list[TaskState], rest: list[str]) -> None:
    """The new URL gets what the old one was not told of, though that was failing, and the end."""
    with listening(2) as [old, new]:
        head = await world.open(old.url())

        async def replace_it() -> AsyncIterator[bytes]:
            await world.storage.webhooks.put(config(new.url(), "hook-1", task_id=head.task_id))
            yield OK

        old.script = lambda _: status(503) if len(old.requests) == 1 else replace_it()
        await world.say(head, *states)
        await world.run(seconds=30)
        assert len(old.requests) == 2
        assert len(set(old.states)) == 1
        assert new.states == rest
        assert await world.is_settled(head)


async def test_a_replacement_is_told_in_its_own_form(receiver: Receiver, world: World) -> None:
    """A receiver of 0.3 that comes to read 1.0 gets what it is owed as one of 1.0."""
    head = await world.open()
    own = config(receiver.url(), task_id=head.task_id)
    await world.storage.webhooks.put(own, "0.3")

    async def replace_it() -> AsyncIterator[bytes]:
        await world.storage.webhooks.put(own)
        yield OK

    receiver.script = lambda _: replace_it() if len(receiver.requests) == 1 else OK
    await world.say(head, WORKING, COMPLETED)
    await world.run(seconds=30)
    first, second = receiver.requests
    assert json.loads(first.body)["kind"] == "task"
    told = json_format.Parse(second.body, StreamResponse())
    assert told.task.status.state == COMPLETED


# -- edges -----------------------------------------------------------------------------------


async def test_a_delivery_ends_before_its_time(receiver: Receiver, world: World) -> None:
    """A delivery without time for another request gives the rest back, to go on from there."""
    await world.open(receiver.url(), states=[WORKING, COMPLETED])
    await world.pass_on()

    async def takes_four_seconds() -> AsyncIterator[bytes]:
        world.clock.advance(4)
        yield OK

    receiver.script = lambda _: takes_four_seconds()
    assert not await world.deliver(ends_at=world.clock.monotonic() + 8)
    assert receiver.states == ["WORKING"]
    assert await world.deliver(ends_at=world.clock.monotonic() + 8)
    assert receiver.states == ["WORKING", "COMPLETED"]


async def test_what_was_sent_and_not_counted_is_sent_again(
    receiver: Receiver,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The job comes back after a failure of the table; the receiver knows the event by its id."""
    await world.open(receiver.url(), states=[COMPLETED])
    await world.pass_on()
    with monkeypatch.context() as failing:
        failing.setattr(Webhooks, "change", unavailable)
        assert not await world.deliver()
    await world.run(seconds=10)
    first, second = receiver.requests
    assert first.event_id == second.event_id
    assert first.attempt == second.attempt == 1
    assert [line["action"] for line in logged(caplog.records)] == ["push_delivery_failed"]


async def test_nothing_is_given_up_without_a_record(
    receiver: Receiver, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the dead letter queue does not answer, the event stays owed."""
    receiver.script = lambda _: status(400)
    head = await world.open(receiver.url(), states=[COMPLETED])
    with monkeypatch.context() as away:
        away.setattr(world.dead_letters, "send", unavailable)
        await world.pump()
    assert not await world.is_settled(head)
    await world.run(seconds=30)
    assert await world.is_settled(head)
    assert len(left(world.dead_letters)) == 1
    assert len({request.event_id for request in receiver.requests}) == 1


# -- helpers ---------------------------------------------------------------------------------


def chunk(text: str, artifact_id: str = "a") -> ArtifactWritten:
    return ArtifactWritten(Artifact(artifact_id=artifact_id, parts=[Part(text=text)]), append=True)


def seen(request: Request) -> str:
    """A state, or an artifact's id and text."""
    body: dict[str, Any] = json.loads(request.body)
    if "statusUpdate" in body:
        return request.state
    artifact = body["artifactUpdate"]["artifact"]
    return f"{artifact['artifactId']}:{artifact['parts'][0]['text']}"


def job_of(head: Head, version: int) -> PushJob:
    named: dict[str, Any] = {"scope": head.scope, "task_id": head.task_id, "config_id": "hook-1"}
    return PushJob(**named, incarnation=head.incarnation, version=version)


async def test_files_go_with_attempts(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt has the content, or a link of its own; what waits has references alone."""
    world = World(push_events="all")
    world.storage.table.blobs = MemoryBlobs(world.clock)
    waiting: list[Notification] = []

    def noted(*args: Any) -> Iterator[Notification]:
        waiting.extend(owed(*args))
        return iter(waiting)

    monkeypatch.setattr(deliverer, "owed", noted)
    head = await world.say(await world.open(receiver.url()))
    files = [Part(raw=b"x" * size) for size in (100_000, 1_000_000)]
    artifact = ArtifactWritten(Artifact(artifact_id="a", parts=files))
    await world.storage.commit(head, Commit(entries=(artifact,)))
    receiver.script = lambda _: status(503 if len(receiver.requests) == 1 else 200)
    await world.run(seconds=120)
    first, second = (json.loads(request.body) for request in receiver.requests)
    parts = [each["artifactUpdate"]["artifact"]["parts"] for each in (first, second)]
    assert parts[0][0] == parts[1][0] == {"raw": base64.b64encode(files[0].raw).decode()}
    assert parts[0][1]["url"] != parts[1][1]["url"]
    assert linked_blob(parts[0][1]["url"]) == linked_blob(parts[1][1]["url"])
    assert waiting
    assert all(each.event.ByteSize() < 1_000 for each in waiting)


async def test_a_given_up_notification_is_counted_by_its_caller(world: World) -> None:
    """The caller's number is that of the person behind the scope: no log is read for it."""
    head = await world.open("https://10.1.2.3/hook", states=[COMPLETED])
    with counted() as seen:
        await world.pump()
    assert seen.total("PushGivenUp") == 1
    number = caller_number(Scope(head.scope).principal)
    assert seen.values("Callers", whose="untold") == [number]


async def test_a_retry_reads_a_part(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Artifacts that are not pushed are read once; the next attempts read from their event on."""
    world = World(push_events="ends")
    head = await world.open(receiver.url())
    for _ in range(3):
        await said(world, head, "a")
    paused = await world.say(head, INPUT_REQUIRED)
    read, starts = DurableStorage.read, []

    async def watched(storage: DurableStorage, *arguments: Any, **options: Any) -> Any:
        starts.append(options.get("after", 0))
        return await read(storage, *arguments, **options)

    monkeypatch.setattr(DurableStorage, "read", watched)
    receiver.script = lambda _: status(503)
    await world.pump()
    world.clock.advance(10)
    await world.pump()
    await world.say(head, COMPLETED)
    receiver.script = lambda _: OK
    await world.run(seconds=30)
    assert starts[:3] == [1, paused.version - 1, paused.version - 1]
    assert receiver.states == ["INPUT_REQUIRED"] * 3 + ["COMPLETED"]
