"""What a newer release has stored, or damage left, in a task with webhooks."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import httpx
import pytest
from a2a.types import TaskPushNotificationConfig, TaskState

from a2a_serverless.errors import NewerReleaseError
from a2a_serverless.http.app import create_app
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.dynamodb import _Typed
from a2a_serverless.storage.layout import push_sort, task_partition
from a2a_serverless.tasks import head as heads
from a2a_serverless.tasks.attempts import NEWER_DELAY_S
from a2a_serverless.tasks.entries import CRITICAL, TurnOpened, Unknown, encode_entries
from a2a_serverless.tasks.fold import LAST
from a2a_serverless.tasks.head import FORMAT, Head, Operation
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.tasks.push import MAX_CONFIGS, Push
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends
from tests.support import newer
from tests.support.a2a_calls import REST, Agent
from tests.support.clocks import ManualClock
from tests.support.databases import Dictionaries, Stored, key
from tests.support.messages import request, storyteller
from tests.support.queues import MemoryQueue
from tests.unit.push import world
from tests.unit.push.receivers import Receiver

SENTENCE: Final = str(NewerReleaseError())
URL: Final = "http://127.0.0.1:9/"


class Bench(world.World):
    """A task on a table, by default in dictionaries, and all that tells its receivers."""

    def __init__(self, database: Stored | None = None) -> None:
        clock = ManualClock()
        self.database = database or Dictionaries(clock)
        storage = self.database.storage(scope=ANONYMOUS, clock=clock)
        chosen = {"auth": "none", "push_queue": "pushes.fifo", "push_events": "ends"}
        super().__init__(clock=clock, storage=storage, **chosen)

    async def begin(self, **urls: str) -> Head:
        """A task with these configurations."""
        head = (await self.storage.open_task("c", request(), task_id="t")).head
        for config_id, url in urls.items():
            await self.storage.webhooks.put(world.config(url, config_id, task_id="t"))
        return head

    async def tell_of(self, head: Head) -> None:
        """Send the jobs for the commits up to `head`."""
        commit = world.commit_item(
            head.scope, head.task_id, head.incarnation, head.version, world.COMPLETED
        )
        assert await self.stream.process([world.stream_record(commit, 1)]) == []

    async def deliver_all(self) -> list[bool]:
        """Deliver what is visible now."""
        return [await self.deliver(handle) for handle in iter(self.take, None)]

    async def found(self, config_id: str) -> Push:
        push = await self.storage.webhooks.get("t", config_id)
        assert push is not None
        return push

    async def ids(self) -> list[str]:
        return [push.config.id for push in await self.storage.webhooks.all("t")]

    @asynccontextmanager
    async def http(self) -> AsyncIterator[Agent]:
        operations = MemoryQueue(Operation, clock=self.clock)
        backends = Backends(storage=self.storage, operations=operations)
        app = create_app(self.settings, backends, storyteller(pushes=True), entrypoint="api")
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield Agent(client, REST)


def push_key(head: Head, config_id: str) -> _Typed:
    """The key of a configuration."""
    return key(task_partition(head.scope, head.task_id), push_sort(head.incarnation, config_id))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def write_critical_entry(bench: Bench, head: Head) -> None:
    body = encode_entries([Unknown(b"?", CRITICAL, b"")])
    newer.append_to_body(bench.database, newer.event_key(head, 2), body)


def raise_format(bench: Bench, head: Head) -> None:
    values = {"needs": {"N": str(FORMAT + 1)}}
    newer.set_attributes(bench.database, newer.head_key(head), values)


@pytest.mark.parametrize("write", [write_critical_entry, raise_format])
async def test_what_a_newer_release_wrote_is_left_to_its_push_function(
    receiver: Receiver,
    bench: Bench,
    write: Callable[[Bench, Head], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The job is given back for 30 s, however often it comes: nothing is sent, no cursor moves."""
    opened = await bench.begin(hook=receiver.url())
    head = await bench.say(opened, world.WORKING, world.COMPLETED)
    write(bench, head)
    before = await bench.found("hook")
    await bench.tell_of(head)
    for _ in range(3):
        assert await bench.deliver_all() == [False]
        bench.clock.advance(NEWER_DELAY_S - 1)
        assert bench.take() is None
        bench.clock.advance(1)
    assert receiver.requests == []
    assert await bench.found("hook") == before
    monkeypatch.setattr(heads, "FORMAT", FORMAT + 1)
    monkeypatch.setattr(Unknown, "is_critical", False)
    assert await bench.deliver_all() == [True]
    assert receiver.states == ["COMPLETED"]
    assert (await bench.found("hook")).version == head.version
    lines = world.logged(caplog.records)[:3]
    told = {(line["action"], line["task_id"], line["config_id"]) for line in lines}
    assert told == {("needs_newer", "t", "hook")}


async def test_a_newer_task_takes_none(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting one is refused with one sentence, and no name server is asked."""
    asked_for: list[str] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: asked_for.append(host))
    head = await bench.begin(hook=URL)
    before = await bench.storage.webhooks.all("t")
    raise_format(bench, head)
    asked = {"taskId": "t", "id": "hook"}
    async with bench.http() as agent:
        for config_id in ("hook", "other"):
            given = {"taskId": "t", "id": config_id, "url": "https://receiver.example.com/"}
            refused = await agent.call("CreateTaskPushNotificationConfig", given)
            assert refused.reason == "UNSUPPORTED_OPERATION", refused.response.text
            assert refused.message == SENTENCE
        assert asked_for == []
        assert await bench.storage.webhooks.all("t") == before
        shown = await agent.call("GetTaskPushNotificationConfig", asked)
        assert shown.result["url"] == URL
        listed = await agent.call("ListTaskPushNotificationConfigs", {"taskId": "t"})
        assert [one["id"] for one in listed.result["configs"]] == ["hook"]
        stored = newer.stored(bench.database, newer.head_key(head))
        assert not (await agent.call("DeleteTaskPushNotificationConfig", asked)).reason
    assert await bench.ids() == []
    assert newer.stored(bench.database, newer.head_key(head)) == stored


async def test_a_move_and_a_put_keep_what_only_a_newer_release_knows(bench: Bench) -> None:
    """Attributes of its own and a dialect stay; until then the receiver is told in that of 1.0."""
    head = await bench.begin(hook=URL)
    known = {"newest": {"S": "attribute"}, "dialect": {"S": "2.0"}}
    newer.set_attributes(bench.database, push_key(head, "hook"), known)
    push = await bench.found("hook")
    assert push.dialect == "1.0"
    assert await bench.storage.webhooks.move(push, replace(push, failures=1))
    assert newer.stored(bench.database, push_key(head, "hook")).items() > known.items()
    await bench.storage.webhooks.put(world.config(URL, "hook", task_id="t"), "0.3")
    assert (await bench.found("hook")).dialect == "0.3"
    stored = newer.stored(bench.database, push_key(head, "hook"))
    assert stored["newest"] == known["newest"]


def lose(*names: str) -> Callable[[Bench, _Typed], None]:
    """Damage that removes attributes."""
    return lambda bench, item_key: newer.remove_attributes(bench.database, item_key, *names)


def garble(**values: _Typed) -> Callable[[Bench, _Typed], None]:
    """Damage that replaces attributes."""
    return lambda bench, item_key: newer.set_attributes(bench.database, item_key, values)


ANOTHERS: Final = TaskPushNotificationConfig(id="x", task_id="t", url=URL).SerializeToString()
cut_off: Final = garble(body={"B": b"\x0a\xff"})
DAMAGE: Final = {
    "a body that is cut off": cut_off,
    "the body of another": garble(body={"B": ANOTHERS}),
    "no cursor": lose("version", "index"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_an_unreadable_configuration_stops_no_other(
    receiver: Receiver,
    bench: Bench,
    damage: Callable[[Bench, _Typed], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others are told; one sentence names the task, the configuration, and the way out."""
    opened = await bench.begin(bad=URL, good=receiver.url(), last=receiver.url())
    damage(bench, push_key(opened, "bad"))
    head = await bench.say(opened, world.COMPLETED)
    await bench.tell_of(head)
    assert await bench.deliver_all() == [True, True]
    assert receiver.states == ["COMPLETED"] * 2
    assert (await bench.found("good")).version == head.version
    assert await bench.ids() == ["good", "last"]
    said = [line for line in world.logged(caplog.records) if line["action"] == "unreadable_push"]
    assert said
    for line in said:
        assert (line["levelno"], line["task_id"], line["config_id"]) == (logging.ERROR, "t", "bad")
        assert "Push configuration bad of task t cannot be read" in line["message"]
        assert "set it again" in line["message"]
        assert "delete it" in line["message"]
        assert "\n" not in line["message"]


async def test_clients_see_which_configuration_is_unreadable_and_delete_it(bench: Bench) -> None:
    """List shows the others; get says that it is damaged; delete and set make it whole."""
    head = await bench.begin(bad=URL, good=URL)
    cut_off(bench, push_key(head, "bad"))
    asked = {"taskId": "t", "id": "bad"}
    async with bench.http() as agent:
        listed = await agent.call("ListTaskPushNotificationConfigs", {"taskId": "t"})
        assert [one["id"] for one in listed.result["configs"]] == ["good"]
        shown = await agent.call("GetTaskPushNotificationConfig", asked)
        assert "The stored task is damaged" in shown.message
        assert not (await agent.call("DeleteTaskPushNotificationConfig", asked)).reason
        gone = await agent.call("GetTaskPushNotificationConfig", asked)
        assert gone.reason == "TASK_NOT_FOUND"
        made = await agent.call("CreateTaskPushNotificationConfig", {**asked, "url": URL})
        assert made.result["id"] == "bad"
    assert await bench.ids() == ["bad", "good"]


async def test_one_that_is_set_again_is_told(receiver: Receiver, bench: Bench) -> None:
    """A job that finds it damaged comes again, and tells its receiver once it is set again."""
    opened = await bench.begin(hook=receiver.url())
    head = await bench.say(opened, TaskState.TASK_STATE_INPUT_REQUIRED)
    await bench.tell_of(head)
    cut_off(bench, push_key(opened, "hook"))
    assert await bench.deliver_all() == [False]
    assert receiver.requests == []
    await bench.storage.webhooks.put(world.config(receiver.url(), "hook", task_id="t"))
    await bench.tell_of(await bench.say(head, world.COMPLETED))
    bench.clock.advance(60)
    assert True in await bench.deliver_all()
    assert receiver.states[-1] == "COMPLETED"


async def test_a_message_with_its_configuration_makes_a_damaged_one_whole(bench: Bench) -> None:
    """Its turn is accepted, and the receiver is owed that message's commit."""
    opened = await bench.begin(hook=URL)
    head = await bench.say(opened, TaskState.TASK_STATE_INPUT_REQUIRED)
    cut_off(bench, push_key(opened, "hook"))
    message = Commit(entries=(TurnOpened(request("more")),), push=world.config(URL, "hook"))
    await bench.storage.commit(head, message)
    assert (await bench.found("hook")).cursor == (head.version, LAST)


async def test_an_unreadable_configuration_takes_a_place(bench: Bench) -> None:
    """The limit counts it; what replaces it needs no other place; it goes with its task."""
    ids = [f"c{number}" for number in range(MAX_CONFIGS)]
    head = await bench.begin(**dict.fromkeys(ids, URL))
    newer.remove_attributes(bench.database, push_key(head, "c0"), "body")
    with pytest.raises(ValueError, match="10"):
        await bench.storage.webhooks.put(world.config(URL, "more", task_id="t"))
    await bench.storage.webhooks.put(world.config(URL, "c0", task_id="t"))
    assert await bench.ids() == ids
    for config_id in ids:
        newer.remove_attributes(bench.database, push_key(head, config_id), "body", "version")
    assert await delete_task(bench.storage, "t")
    assert bench.database.items() == []
