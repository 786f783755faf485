"""Push configurations: they live and go with their task, and each has a cursor of its own."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from a2a.types import AuthenticationInfo, TaskPushNotificationConfig, TaskState

from a2a_serverless import errors
from a2a_serverless.push.jobs import PushJob
from a2a_serverless.push.waiting import wake_due
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import task_partition
from a2a_serverless.storage.table import Range, Write
from a2a_serverless.tasks.fold import LAST
from a2a_serverless.tasks.push import (
    LONG_WAIT_MS,
    MAX_ANSWER_CHARS,
    MAX_CONFIGS,
    GivenUp,
    Push,
    checked,
)
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import Storage
from a2a_serverless_tools.operate.details import task_details
from tests.contract.test_storage_scopes import finds_nothing
from tests.support.clocks import ManualClock
from tests.support.commits import follow_up, newest, opened
from tests.support.messages import chunk, message, request
from tests.support.present import present
from tests.support.queues import MemoryQueue, take

HOUR = 3600
TOKEN = "token-2b7e1516"
CREDENTIALS = "credentials-28aed2a6"
URL = "https://receiver.example/hook"


def config(task_id: str = "", config_id: str = "", url: str = URL) -> TaskPushNotificationConfig:
    """A configuration with secrets."""
    made = TaskPushNotificationConfig(id=config_id, task_id=task_id, url=url, token=TOKEN)
    made.authentication.CopyFrom(AuthenticationInfo(scheme="Bearer", credentials=CREDENTIALS))
    return made


async def paused(storage: DurableStorage, **options: Any) -> str:
    """The id of a task that waits for its user, at version 2."""
    opened = await storage.open_task("ctx", request(), **options)
    await Storage(storage).update_task(opened.head.task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
    return opened.head.task_id


def answer(push: TaskPushNotificationConfig | None = None) -> Commit:
    """A message that opens the next turn."""
    return follow_up("answer", push=push)


async def cursors(storage: DurableStorage, task_id: str) -> dict[str, tuple[int, int]]:
    """Where each configuration of a task stands."""
    pushes = await storage.webhooks.all(task_id)
    return {push.config.id: push.cursor for push in pushes}


async def test_one_is_found_as_it_was_put(storage: DurableStorage, tasks: Storage) -> None:
    """With ids, fields and the task's version; without an id it gets one; what is given stays."""
    head = (await storage.open_task("ctx", request())).head
    await tasks.update_task(head.task_id, TaskState.TASK_STATE_WORKING)
    given = config(head.task_id, "mine")
    put = await storage.webhooks.put(given)
    scope, incarnation = storage.scope.digest, head.incarnation
    assert put == Push(scope=scope, incarnation=incarnation, config=given, version=2)
    assert put.index == LAST
    assert await storage.webhooks.get(head.task_id, "mine") == put
    assert await tasks.get_version(head.task_id) == 2
    await tasks.update_task(head.task_id, TaskState.TASK_STATE_COMPLETED)
    unnamed = config(head.task_id)
    made = [put, *[await storage.webhooks.put(unnamed) for _ in range(2)]]
    assert unnamed == config(head.task_id)
    assert [(push.version, push.index) for push in made] == [(2, LAST), (3, LAST), (3, LAST)]
    assert len({push.config.id for push in made} - {""}) == 3
    assert await storage.webhooks.all(head.task_id) == sorted(made, key=lambda p: p.config.id)


async def test_a_replaced_one_hands_its_cursor_on(storage: DurableStorage, tasks: Storage) -> None:
    """It gets what the old one is owed, whose successes and failures do not outlive it."""
    task = await tasks.create_task("ctx", message())
    first = await storage.webhooks.put(config(task.id, "a"))
    failing = replace(first, index=3, failures=7, failing_since=storage.clock.now_ms())
    moved = present(await storage.webhooks.move(first, failing))
    await tasks.update_task(task.id, TaskState.TASK_STATE_WORKING)
    other = config(task.id, "a", "https://other.example/")
    put = await storage.webhooks.put(other)
    assert put == replace(first, config=other, index=3)
    for late in (replace(moved, failures=8), replace(moved, version=2, set_mark=0)):
        assert not await storage.webhooks.move(moved, late)
    assert await storage.webhooks.all(task.id) == [put]


async def test_a_task_has_room_for_ten(storage: DurableStorage) -> None:
    """An 11th configuration is refused, also in a message, until another one is deleted."""
    task_id = await paused(storage)
    for number in range(MAX_CONFIGS):
        await storage.webhooks.put(config(task_id, f"c{number}"))
    head = present(await storage.head(task_id))
    with pytest.raises(errors.InvalidArgumentError, match="10"):
        await storage.webhooks.put(config(task_id, "one-more"))
    with pytest.raises(errors.InvalidArgumentError, match="10"):
        await storage.commit(head, answer(config()))
    assert await storage.head(task_id) == head
    assert len(await cursors(storage, task_id)) == MAX_CONFIGS
    await storage.webhooks.put(config(task_id, "c3", "https://other.example/"))
    await storage.webhooks.delete(task_id, "c5")
    head = present(await storage.head(task_id))
    await storage.commit(head, answer(config(config_id="c3")))
    await storage.webhooks.put(config(task_id, "one-more"))
    assert {"one-more", "c3"} < set(await cursors(storage, task_id))


async def test_a_deleted_configuration_is_gone(storage: DurableStorage, tasks: Storage) -> None:
    """Delete is harmless twice, and of ids that cannot exist; others stay."""
    task = await tasks.create_task("ctx", message())
    gone = await storage.webhooks.put(config(task.id, "gone"))
    kept = await storage.webhooks.put(config(task.id, "kept"))
    for config_id in ("gone", "gone", "never", "", "no/id"):
        await storage.webhooks.delete(task.id, config_id)
    assert await storage.webhooks.move(gone, replace(gone, failures=1)) is None
    assert await storage.webhooks.get(task.id, "gone") is None
    assert await storage.webhooks.all(task.id) == [kept]


async def test_refusals_count_for_a_url(storage: DurableStorage) -> None:
    """A move stores them, a message with the configuration keeps them, a put begins anew."""
    task_id = await paused(storage)
    for config_id, url in (("a", URL), ("b", URL), ("c", "https://other.example/")):
        push = await storage.webhooks.put(config(task_id, config_id, url))
        assert await storage.webhooks.move(push, replace(push, refusals=5))
    pushes = await storage.webhooks.all(task_id)
    assert [(p.refusals, p.is_given_up) for p in pushes] == [(5, True), (5, True), (5, False)]
    details = present(await task_details(storage, task_id))
    assert details.pushes == tuple(pushes)
    head = present(await storage.head(task_id))
    await storage.commit(head, answer(config(config_id="a")))
    inline = present(await storage.webhooks.get(task_id, "a"))
    assert (inline.refusals, inline.is_given_up) == (5, True)
    anew = await storage.webhooks.put(config(task_id, "a"))
    assert (anew.refusals, anew.version) == (0, push.version)
    assert not any(push.is_given_up for push in await storage.webhooks.all(task_id))


async def test_a_cursor_moves_from_where_it_stands(storage: DurableStorage, tasks: Storage) -> None:
    """A move replaces the configuration only as it was read; those beside it stay."""
    task = await tasks.create_task("ctx", message())
    seen = [await storage.webhooks.put(config(task.id, "a"))]
    other = await storage.webhooks.put(config(task.id, "b"))
    for changed in (
        {"failures": 1, "failing_since": 5},
        {"failures": 2},
        {"version": 3, "index": 0, "failures": 0, "failing_since": None},
        {},
    ):
        after = replace(seen[-1], **changed)
        seen.append(present(await storage.webhooks.move(seen[-1], after)))
        assert await storage.webhooks.get(task.id, "a") == seen[-1] == after
    for stale in seen[:-1]:
        assert await storage.webhooks.move(stale, replace(stale, version=9)) is None
    assert await storage.webhooks.all(task.id) == [seen[-1], other]


async def test_a_change_is_decided_anew(storage: DurableStorage, tasks: Storage) -> None:
    """If others were first, on what they have made; None, or the same one, changes nothing."""
    task = await tasks.create_task("ctx", message())
    start = await storage.webhooks.put(config(task.id, "a"))
    other = await storage.webhooks.move(start, replace(start, version=5))
    seen: list[Push] = []

    def counted(push: Push) -> Push:
        seen.append(push)
        return replace(push, failures=push.failures + 1)

    assert await storage.webhooks.change(start, counted) == replace(start, version=5, failures=1)
    assert seen == [start, other]
    now = present(await storage.webhooks.get(task.id, "a"))
    assert await storage.webhooks.change(start, lambda _: None) is None
    assert await storage.webhooks.change(start, lambda push: push) == start
    assert present(await storage.webhooks.get(task.id, "a")).mark == now.mark


async def test_a_move_keeps_what_became_of_it(storage: DurableStorage, tasks: Storage) -> None:
    """The last answer with its time and the next try; what was told and given up, in a put too."""
    task = await tasks.create_task("ctx", message())
    start = await storage.webhooks.put(config(task.id, "a"))
    failed = replace(start, failures=1, failing_since=5).answered("status 503", 5, next_at=9)
    stored = present(await storage.webhooks.move(start, failed))
    (shown,) = present(await task_details(storage, task.id)).pushes
    for push in (shown, await storage.webhooks.get(task.id, "a")):
        assert push is not None
        assert (push.answer, push.answered_at, push.next_at) == ("status 503", 5, 9)
    assert await storage.webhooks.move(stored, stored.answered("x" * 500, 7))
    again = present(await storage.webhooks.get(task.id, "a"))
    assert (again.answer, again.next_at) == ("x" * MAX_ANSWER_CHARS, None)
    for version, answer, is_told in (
        (2, "status 200", True),
        (4, "status 503", False),
        (7, "timeout", False),
    ):
        event, at = (version, 0), 5 + version
        assert await storage.webhooks.change(
            start,
            lambda now: now.settled(event, answer, at, is_told=is_told),  # noqa: B023
        )
    lost = GivenUp(count=2, version=7, at=12, reason="timeout", behind=(2, 0))
    await storage.webhooks.put(config(task.id, "a"))
    stored = present(await storage.webhooks.get(task.id, "a"))
    assert (stored.told, stored.told_count, stored.given_up) == (2, 1, lost)
    assert (stored.answer, stored.answered_at, stored.next_at) == ("", None, None)


async def test_a_refused_commit_stores_no_configuration(storage: DurableStorage) -> None:
    """Configuration and turn are stored together or not at all."""
    task_id = await paused(storage)
    stale = present(await storage.head(task_id))
    head = await storage.commit(stale, Commit())
    with pytest.raises(errors.ConcurrencyError):
        await storage.commit(stale, answer(config(config_id="a")))
    assert await storage.webhooks.all(task_id) == []
    await Storage(storage).update_task(task_id, TaskState.TASK_STATE_CANCELED)
    with pytest.raises((errors.ConcurrencyError, errors.TaskTerminalStateError)):
        await storage.commit(head, answer(config(config_id="a")))
    assert await storage.webhooks.all(task_id) == []
    await delete_task(storage, task_id)
    with pytest.raises(errors.TaskNotFoundError):
        await storage.commit(head, answer(config(config_id="a")))


async def test_a_client_that_always_sends_it_has_one(storage: DurableStorage) -> None:
    """Without an id it is that of its URL: not one more with each message, and its cursor stays."""
    opened = await storage.open_task("ctx", request(), push=config())
    task_id = opened.head.task_id
    (first,) = await storage.webhooks.all(task_id)
    for _ in range(3):
        await Storage(storage).update_task(task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
        head = present(await storage.head(task_id))
        await storage.commit(head, answer(config()))
    assert await storage.webhooks.all(task_id) == [first]
    await Storage(storage).update_task(task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
    head = present(await storage.head(task_id))
    await storage.commit(head, answer(config(url="https://other.example/")))
    assert sorted((await cursors(storage, task_id)).values()) == [(0, LAST), (8, LAST)]


@pytest.mark.parametrize("meanwhile", ["moved", "deleted"])
async def test_a_turn_keeps_where_its_webhook_stands_by_then(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """A delivery between the read and the commit is not taken back; after a deletion it is new."""
    task_id = await paused(storage)
    push = await storage.webhooks.put(config(task_id, "a"))
    head = present(await storage.head(task_id))
    write, tries = storage.table.write, 0

    async def late(*writes: Write, exactly: bool = False) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            if meanwhile == "deleted":
                await storage.webhooks.delete(task_id, "a")
            else:
                told = push.settled((2, 0), "status 200", 1, is_told=True)
                assert await storage.webhooks.move(push, told)
        await write(*writes, exactly=exactly)

    with monkeypatch.context() as patched:
        patched.setattr(storage.table, "write", late)
        after = await storage.commit(head, answer(config(config_id="a")))
    assert await storage.head(task_id) == after
    stored = present(await storage.webhooks.get(task_id, "a"))
    by_then = ((2, 0), 1) if meanwhile == "moved" else ((2, LAST), 0)
    assert (stored.cursor, stored.told_count) == by_then


@pytest.mark.parametrize("ends", ["deleted", "expired"])
async def test_a_task_takes_them(storage: DurableStorage, clock: ManualClock, ends: str) -> None:
    """The configurations of a deleted or expired task are neither found nor written."""
    push = config(config_id="inline")
    opened = await storage.open_task("ctx", request(), task_id="again", ttl_s=HOUR, push=push)
    old = await storage.webhooks.put(config("again", "a"))
    assert len(await storage.webhooks.all("again")) == 2
    if ends == "deleted":
        assert await delete_task(storage, "again")
    else:
        clock.advance(HOUR)
    await finds_nothing(storage, "again")
    assert await storage.webhooks.move(old, replace(old, failures=1)) is None
    new = await storage.open_task("ctx", request(), task_id="again")
    assert new.created
    assert await storage.webhooks.all("again") == []
    fresh = await storage.webhooks.put(config("again", "a"))
    assert fresh.incarnation == new.head.incarnation != opened.head.incarnation
    assert await storage.webhooks.move(old, replace(old, version=2)) is None
    assert await storage.webhooks.all("again") == [fresh]
    assert fresh.version == 1


SECRET, CRLF = "s3cr3t", "\r\nX-Injected: 1"


def spoiled(field: str, value: str) -> TaskPushNotificationConfig:
    """A good configuration with one bad field."""
    bad = config("task", "a")
    at = bad.authentication if field in {"scheme", "credentials"} else bad
    setattr(at, field, value)
    return bad


BAD = {
    "id": ["no/id", "a" * 101],
    "url": ["", f"{URL}{'x' * 2048}", f"{URL}\r\nHost: other"],
    "token": [f" {SECRET}", *(SECRET + end for end in (CRLF, "\n", "\0", "\x7f", "é", "x" * 1024))],
    "scheme": ["", "x" * 65, "Bearer s3cr3t", "Bearer\n"],
    "credentials": [SECRET + end for end in ("x" * 4096, "\tx", "\u2028")],
}


@pytest.mark.parametrize("field", BAD)
def test_what_no_request_can_carry_is_refused(field: str) -> None:
    """By an error that names the field, not its value; so is what is too large, with the limit."""
    for value in BAD[field]:
        with pytest.raises(errors.InvalidArgumentError, match=rf"\b{field}\b") as caught:
            checked(spoiled(field, value))
        assert SECRET not in str(caught.value)
        assert value == "" or value not in str(caught.value)
    large = config("task", "a")
    large.tenant = "x" * 16_384
    with pytest.raises(errors.InvalidArgumentError, match="16384"):
        checked(large)


def test_what_can_be_sent_is_taken() -> None:
    """A configuration at its limits is taken as it is."""
    most = AuthenticationInfo(scheme="x" * 64, credentials="!" * 4096)
    url = f"{URL}?{'x' * 2000}"
    for good in (
        TaskPushNotificationConfig(url=URL),
        TaskPushNotificationConfig(url="https://bücher.example/", token="a b"),
        TaskPushNotificationConfig(url=url, token="~" * 1024, authentication=most),
    ):
        assert checked(good) == good


async def test_a_refused_configuration_leaves_nothing(storage: DurableStorage) -> None:
    """With a refused configuration neither it nor its task or turn is stored."""
    bad = spoiled("token", "\n")
    with pytest.raises(errors.InvalidArgumentError):
        await storage.open_task("ctx", request(), task_id="task", push=bad)
    assert await storage.head("task") is None
    task_id = await paused(storage, task_id="task")
    head = present(await storage.head(task_id))
    with pytest.raises(errors.InvalidArgumentError):
        await storage.commit(head, answer(bad))
    with pytest.raises(errors.InvalidArgumentError):
        await storage.webhooks.put(bad)
    assert await storage.head(task_id) == head
    assert await storage.webhooks.all(task_id) == []


async def test_a_message_brings_its_configuration(storage: DurableStorage, tasks: Storage) -> None:
    """Each is the task's from its own message on; a repeated message changes none."""
    for name in ("first", "other"):
        push = config(config_id=name)
        head = await opened(storage, idempotency_key="k1", push=push)
    await tasks.update_task(head.task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
    for name in ("second", "other"):
        again = follow_up(idempotency_key="k2", push=config(config_id=name))
        with nullcontext() if name == "second" else pytest.raises(errors.RepeatedKeyError):
            await storage.commit(await newest(storage, head), again)
    assert await cursors(storage, head.task_id) == {"first": (0, LAST), "second": (2, LAST)}
    pushes = await storage.webhooks.all(head.task_id)
    assert [p.config for p in pushes] == [config(head.task_id, it) for it in ("first", "second")]


async def test_the_log_has_no_secrets(storage: DurableStorage) -> None:
    """Token and credentials are in the configurations alone, in no repr, and go with the task."""
    task_id = await paused(storage, push=config(config_id="a"))
    head = present(await storage.head(task_id))
    await storage.commit(head, answer(config(config_id="b")))
    push = await storage.webhooks.put(config(task_id, "c"))
    shown = repr((present(await storage.read(task_id)), push, answer(config())))
    assert not has_secret(shown)
    stored = await items_of(storage, task_id)
    with_secrets = [item["SK"].split("#")[0] for item in stored if has_secret(repr(item))]
    assert (with_secrets, len(stored)) == (["PUSH"] * 3, 7)
    assert await delete_task(storage, task_id)
    assert await items_of(storage, task_id) == []


def has_secret(text: str) -> bool:
    return TOKEN in text or CREDENTIALS in text


async def items_of(storage: DurableStorage, task_id: str) -> list[Any]:
    """The items of a task, as they are stored."""
    return await storage.table.all(Range(partition=task_partition(storage.scope.digest, task_id)))


async def test_each_part_says_its_state(storage: DurableStorage, tasks: Storage) -> None:
    """Every EVENT item of a commit that changes the status has the state that it led to."""
    task_id = (await storage.open_task("ctx", request())).head.task_id
    large = [chunk("a", "x" * 800_000)]
    await tasks.update_task(task_id, TaskState.TASK_STATE_WORKING, artifacts=large)
    await tasks.update_task(task_id, artifacts=large)
    await tasks.update_task(task_id, TaskState.TASK_STATE_COMPLETED)
    states: dict[int, list[str]] = {}
    for item in await items_of(storage, task_id):
        if item["SK"].startswith("EVENT#"):
            states.setdefault(int(item["SK"].split("#")[2]), []).append(item.get("state", ""))
    names = ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "", "TASK_STATE_COMPLETED"]
    assert states == {1: names[:1], 2: names[1:2] * 3, 3: names[2:3] * 3, 4: names[3:]}


async def test_one_that_waits_is_in_the_index(storage: DurableStorage, clock: ManualClock) -> None:
    """From the end of its wait on it is woken by one job; a shorter wait takes it out again."""
    jobs = MemoryQueue(PushJob, clock=clock)
    head = (await storage.open_task("ctx", request(), push=config(config_id="mine"))).head
    [push] = await storage.webhooks.all(head.task_id)
    now_ms = clock.now_ms()
    waits = push.answered("status 503", now_ms, next_at=now_ms + LONG_WAIT_MS)
    waiting = present(await storage.webhooks.move(push, waits))

    async def own() -> int:
        """Of the jobs that are sent, those of this task: the table has other tasks, too."""
        await wake_due(storage, jobs, math.inf)
        found = 0
        while (record := take(jobs)) is not None:
            handle = jobs.decode_record(record, removes=True)
            found += handle.message.task_id == head.task_id
            await handle.ack()
        return found

    assert await own() == 0
    clock.advance(LONG_WAIT_MS / 1000)
    assert [await own(), await own()] == [1, 0]
    assert await storage.webhooks.count_open() == 1
    waits = waiting.answered("status 503", now_ms, next_at=now_ms + 1)
    soon = present(await storage.webhooks.move(waiting, waits))
    clock.advance(HOUR)
    assert await own() == 0
    told = soon.settled((3, 0), "status 200", now_ms, is_told=True)
    assert await storage.webhooks.move(soon, replace(told, is_open=False))
    assert await storage.webhooks.count_open() == 0
