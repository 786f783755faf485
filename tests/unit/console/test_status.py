"""The first page, and lists by what a person knows, over the memory of this process."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from functools import partial

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState

from a2a_serverless.settings import Settings
from a2a_serverless.storage import activity as counts
from a2a_serverless.storage.activity import Ended, activity, count_ended, percentile, summed
from a2a_serverless.storage.codec import head_item
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import gave_up
from a2a_serverless.storage.keys import KeyStore
from a2a_serverless.storage.layout import head_key, task_partition
from a2a_serverless.storage.table import Key, Put, Update
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.head import AttemptEnd, Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.push import Push
from a2a_serverless.tasks.rules import releasing
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.adapter import Presence
from a2a_serverless_tools.operate.filters import TaskFilter
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.status import Status, status_of
from a2a_serverless_tools.operate.wording import UNCOUNTED
from tests.support.clocks import ManualClock
from tests.support.commits import COMPLETED, claim, status, to
from tests.support.messages import request
from tests.support.present import present
from tests.unit.console.conftest import ANN, Person

BOB = Scope.of("", "bob")
WORKING = status(TaskState.TASK_STATE_WORKING)
REFERENCE = "0123456789abcdef"


async def asked(
    storage: DurableStorage, task_id: str, text: str = "hi", caller: str = "ann", context: str = "c"
) -> Head:
    by = Caller(user=caller, tenant="acme")
    return (await storage.open_task(context, request(text), task_id=task_id, caller=by)).head


async def failed(storage: DurableStorage, head: Head, error: str = "ValueError") -> None:
    head = await storage.commit(head, claim("a", WORKING, worker="w"))
    end = AttemptEnd(token="a", reason=error, correlation_id=REFERENCE)
    await storage.commit(head, replace(gave_up(head, REFERENCE), failed=end, token="a"))


async def untold(storage: DurableStorage, task_id: str, at: int) -> None:
    push = await hook(storage, task_id, "crm.example")
    assert await storage.webhooks.move(push, push.settled((1, 0), "status 503", at, is_told=False))


async def hook(storage: DurableStorage, task_id: str, host: str) -> Push:
    url = f"https://{host}/secret"
    config = TaskPushNotificationConfig(task_id=task_id, id=host, url=url)
    return await storage.webhooks.put(config)


# -- the numbers -------------------------------------------------------------------------------


async def test_failures_are_counted_by_reason_and_caller(
    storage: DurableStorage, inspector: Inspector, clock: ManualClock
) -> None:
    """Those of the hour and of the day are true, also of a caller who leads the day alone."""
    for number in range(3):
        await failed(storage, await asked(storage, f"early-{number}"), "KeyError")
    of_bob = storage.for_scope(BOB)
    clock.advance(2 * 3600)
    await failed(of_bob, await asked(of_bob, "late", caller="bob"))
    clock.advance(1)
    await storage.commit(await asked(storage, "no"), to(TaskState.TASK_STATE_REJECTED))
    clock.advance(1)
    await untold(storage, "no", clock.now_ms())
    found = await status_of(inspector)
    hour, day = found.hour, found.day
    assert (hour.failed, hour.rejected, hour.untold, day.failed) == (1, 1, 1, 4)
    assert day.reasons == {"KeyError": 3, "ValueError": 1}
    assert hour.reasons == {"KeyError": 0, "ValueError": 1}
    assert found.names == {ANN.digest: "ann (acme)", BOB.digest: "bob (acme)"}
    assert day.callers == {ANN.digest: 3, BOB.digest: 1}
    assert hour.callers == {ANN.digest: 0, BOB.digest: 1}
    tail = [f"{one['what']} {one['task_id']}" for one in found.tail[:3]]
    assert tail == ["untold no", "rejected no", "failed late"]
    wrong = ("1 task has failed within the hour.", "1 webhook was given up within the hour.")
    assert found.wrong == wrong
    clock.advance(25 * 3600)
    assert (await status_of(inspector)).day.failed == 0


async def test_turns_that_wait_are_counted_by_what_they_wait_for(
    storage: DurableStorage, inspector: Inspector, clock: ManualClock
) -> None:
    """One that was given back for a time says its reason; one sent again needs a person."""
    again = await asked(storage, "again")
    assert await storage.postpone(again, due_at=clock.now_ms(), sends=1)
    assert await storage.park(await asked(storage, "line"), "conversation")
    busy = await storage.commit(await asked(storage, "busy"), claim("a", WORKING))
    end = AttemptEnd(token="a", reason="ModelBusy", at=1, until=clock.now_ms() + 60_000)
    assert await storage.change(busy, partial(releasing, end=end))
    found = await status_of(inspector)
    assert found.waiting.kinds == {"again": 1, "conversation": 1, "retry": 1}
    assert found.waiting.retries == {"ModelBusy": 1}
    assert [one for one in found.wrong if "1 open turn was sent again" in one]


async def test_a_message_without_workers_is_wrong(clock: ManualClock) -> None:
    """With a worker that has reported within three minutes it is well, and later not."""
    settings = Settings()
    backends = memory_backends(settings, clock)
    inspector = Inspector(backends.storage, settings, place="memory", backends=backends)
    head = await asked(backends.storage, "t")
    await backends.operations.send(Operation.to_run(OperationParams.of(head, 1)))
    clock.advance(5)

    async def wrong() -> tuple[str, ...]:
        return (await status_of(inspector)).wrong

    assert (await wrong())[0].startswith("1 message waits for a worker, and none has reported")
    async with Presence(backends.storage.table, clock).over_turn():
        await asyncio.sleep(0)
    found: Status = await status_of(inspector)
    assert (found.wrong, found.working) == ((), 1)
    assert [(one.name, one.turns) for one in found.processes] == [(counts.process_name(), 1)]
    (queue,) = [one for one in found.queues if one.name == "queue"]
    assert (queue.waiting, queue.received, queue.oldest_at) == (1, 0, clock.now_ms() - 5000)
    clock.advance(200)
    assert len(await wrong()) == 1
    assert (await status_of(inspector)).waiting.queued == 1


# -- activity ----------------------------------------------------------------------------------


async def test_a_process_tells_once_a_minute(storage: DurableStorage, clock: ManualClock) -> None:
    """However many turns it runs; with a clock that has gone back, it tells at once."""
    told: list[int] = []
    presence = Presence(storage.table, clock)
    for step in (0, 30, 29, 1, 60, -600):
        clock.advance(step)
        await presence.tell()
        (one,) = (await activity(storage.table, clock.now_ms())).processes
        told.append(clock.now_ms() - one.at)
    assert told == [0, 30_000, 59_000, 0, 0, 0]


def test_a_percentile_is_a_little_more_than_was_measured() -> None:
    """Each step is at most 26 % longer than the one before; the end of a step is its name."""
    for ms in (0, 1, 2, 9, 10, 11, 125, 126, 999, 1000, 86_400_000):
        longest = counts._longest_ms(counts._step_of(ms))
        assert ms <= max(1, longest) <= max(2, ms * 1.27)
    steps = {counts._step_of(10): 95, counts._step_of(1000): 5}
    assert (percentile(steps, 0.5), percentile(steps, 0.95)) == (10, 10)
    assert (percentile(steps, 0.96), percentile({}, 0.5)) == (1000, None)


async def test_ends_are_counted_by_five_minutes(storage: DurableStorage) -> None:
    """The sums over all shards, by version; damage in one attribute costs that one."""
    now = storage.clock.now_ms()
    end = Ended(at=now, state="completed", took_ms=100, waited_ms=10, code_version="3")
    early = replace(end, at=now - 300_000, state="failed", waited_ms=None)
    for _ in range(20):
        await count_ended(storage.table, [end, end, early, replace(end, code_version="4")], now)
    found, begun = (await activity(storage.table, now)).ends, now // 300_000 * 300_000
    parts = {(one.at, one.code_version) for one in found}
    assert parts == {(begun, "3"), (begun, "4"), (begun - 300_000, "3")}
    total = summed(found)
    assert (total.at, total.states) == (found[0].at, {"completed": 60, "failed": 20})
    assert (total.took, total.waited) == ({20: 80}, {10: 60})
    damaged = {"took_x": 1, "took_20": "no", "completed": 1, "expires_at": now}
    for sort in (f"ENDS#{now:015d}#5#0", "ENDS#now#5#0"):
        await storage.table.write(Put(item={**Key("ACTIVITY", sort)._asdict(), **damaged}))
    await storage.table.write(Put(item={**Key("ACTIVITY", "PROCESS#x")._asdict(), "at": "now"}))
    read = await activity(storage.table, now)
    total = summed(read.ends)
    assert (total.ended, total.took, read.processes) == (81, {20: 80}, ())


async def test_the_newest_version_stands_beside_the_one_before(
    storage: DurableStorage, inspector: Inspector, person: Person, clock: ManualClock
) -> None:
    """With their failures and times; others of the day are a number, yesterday's are out."""
    clock.advance(30 * 60)

    async def count(version: str, state: str, took_ms: int, minutes_ago: int) -> None:
        times = {"at": clock.now_ms() - minutes_ago * 60_000, "waited_ms": took_ms // 10}
        end = Ended(state=state, took_ms=took_ms, code_version=version, **times)
        await count_ended(storage.table, [end], clock.now_ms())

    await count("9", "completed", 100, 90)
    assert [*(await status_of(inspector)).versions] == ["9"]
    assert "hours: 9 has ended 1." in (await person.get("/_console/status")).text
    await count("", "failed", 5, 1)
    text = (await person.get("/_console/status")).text
    assert "9 has ended 1, and 1 task has no version." in text
    await count("8", "completed", 100, 25 * 60)
    for minutes_ago in (70, 20, 6):
        await count("9", "completed", 100, minutes_ago)
    await count("10", "completed", 10_000, 10)
    await count("10", "failed", 10_000, 2)
    for version, minutes_ago in (("7", 80), *[("6", 1)] * 5):
        await count(version, "canceled", 5, minutes_ago)  # they have slept until then
    found = await status_of(inspector)
    assert [*found.versions] == ["9", "10"]
    before, newest = found.versions.values()
    assert (before["ended"], before["end_p95"]) == ({"completed": 4}, 100)
    assert newest["ended"] == {"completed": 1, "failed": 1}
    assert (newest["first_attempt_p50"], newest["end_p50"]) == (1000, 10_000)
    (table,) = [one for one in found.tables() if one.title.startswith("Before and after")]
    assert [*table.columns] == ["version", "9", "10"]
    assert [str(cell) for cell in table.rows[2]] == ["failed", "0 (0.0%)", "1 (50.0%)"]
    text = (await person.get("/_console/status")).text
    assert "1 (50.0%)" in text
    assert "7 more ended with another version, or without one." in text


async def test_the_last_two_hours_are_shown_by_five_minutes(
    storage: DurableStorage, inspector: Inspector, clock: ManualClock
) -> None:
    """The newest first, all versions together: since when tasks are slow, or fail."""
    begin = clock.now_ms() // 300_000 * 300_000
    for minutes, state, version in (
        *((0, "completed", "1"), (120, "completed", "1")),
        *((130, "completed", "1"), (130, "failed", "2"), (240, "failed", "2")),
    ):
        at = begin + minutes * 60_000
        end = Ended(at=at, state=state, took_ms=9, waited_ms=None, code_version=version)
        await count_ended(storage.table, [end], at)
    clock.advance(240 * 60)
    found = (await status_of(inspector)).recent
    ends = {(one["at"] - begin) // 60_000: one["ended"] for one in found}
    assert [*ends] == [240, 130, 120]
    assert [*ends.values()] == [{"failed": 1}, {"completed": 1, "failed": 1}, {"completed": 1}]
    assert (found[1]["end_p95"], found[1]["first_attempt_p50"]) == (10, None)


# -- pages -------------------------------------------------------------------------------------


async def test_numbers_lead_on(storage: DurableStorage, person: Person, clock: ManualClock) -> None:
    """The links of failures, of a reason, of a caller and of waits list what they count."""
    await failed(storage, await asked(storage, "one"), "Key&Error")
    await failed(storage, await asked(storage, "two"))
    await storage.postpone(await asked(storage, "again"), due_at=clock.now_ms(), sends=1)
    await untold(storage, "again", clock.now_ms())
    text = (await person.get("/_console/status")).text
    assert f"Webhooks given up: {UNCOUNTED}." in text
    assert "<title>wrong: 1 open turn was sent again" in text
    assert 'data-title="wrong: 1 open turn was sent again' in text
    links = re.findall(r'<a href="(/_console/tasks\?[^"]*attention[^"]*)">([\d,]+)</a>', text)
    assert len(links) > 8
    for link, number in links:
        listed = (await person.get(link.replace("&amp;", "&"))).text
        assert len(re.findall(r'<a id="to-', listed)) == int(number), link


async def test_what_is_damaged(storage: DurableStorage, person: Person, clock: ManualClock) -> None:
    """A damaged HEAD, a log without its beginning, a later release's state cost only themselves."""
    for name in ("bare", "fine", "gone", "newer"):
        await failed(storage, await asked(storage, name, f"about {name}"))
        clock.advance(1)
    bare = present(await storage.head("bare"))
    first = Key(task_partition(ANN.digest, "bare"), f"EVENT#{bare.incarnation}#000000000001#000")
    for key, values in (
        (head_key(ANN.digest, "newer"), {"needs": 99, "state": "TASK_STATE_X"}),
        (head_key(ANN.digest, "gone"), {"version": "x"}),
        (first, {"body": b"\x00damaged"}),
    ):
        await storage.table.write(Update(key=key, values=values))
    odd = head_item(bare) | {"PK": task_partition(ANN.digest, "odd"), "attention_at": "later kind"}
    await storage.table.write(Put(item=odd))
    text = (await person.get("/_console/status")).text
    assert "4 tasks have failed" in text
    assert "about fine" in text
    assert ">of ann (acme)<" in text
    assert "about bare" not in text
    listed = (await person.get("/_console/tasks?attention=failed")).text
    assert set(re.findall(r'id="to-[^"]*-(\w+)"', listed)) == {"fine", "bare"}


async def test_clocks_that_differ_hide_nothing(
    storage: DurableStorage, inspector: Inspector, person: Person, clock: ManualClock
) -> None:
    """Processes two minutes ahead, in the next hour, are seen, and no age is below zero."""
    clock.advance(45 * 60 + 120)
    await failed(storage, await asked(storage, "ahead"))
    await Presence(storage.table, clock).tell()
    end = Ended(at=clock.now_ms(), state="failed", took_ms=5, waited_ms=1)
    await count_ended(storage.table, [end], clock.now_ms())
    clock.advance(-120)
    found = await status_of(inspector)
    assert (found.hour.failed, found.working, found.last_hour["ended"]) == (1, 1, {"failed": 1})
    for path in ("status", "tasks", "tasks?attention=failed&since=hour", "tasks?state=failed"):
        text = (await person.get(f"/_console/{path}")).text
        assert "ahead" in text
        assert not re.search(r"[>\s]-\d+ (s|min|h)\b", text)


# -- search ------------------------------------------------------------------------------------


async def test_tasks_are_found_by_what_one_knows(storage: DurableStorage, person: Person) -> None:
    """An id's beginning, a context, a line, a caller, a reason, a correlation id, an owner."""
    storage.timing = replace(storage.timing, ttl_s=86_400)  # each search looks through all of it
    await failed(storage, await asked(storage, "old"))
    await asked(storage, "abc-123", "An invoice\nand more", context="talk-7")
    of_bob = storage.for_scope(BOB)
    await failed(of_bob, await asked(of_bob, "other", caller="bob"))
    for name, version in (("held", 12), ("older", 11)):
        worker = f"worker:{version} 2026/11/22/[{version}]4f1c"
        await storage.commit(await asked(storage, name), claim(name, WORKING, worker=worker))
    for text, found in (
        *((text, {"abc-123"}) for text in ("abc-1", "talk-7", "invoice")),
        *(("BOB", {"other"}), ("worker:12 ", {"held"}), ("nothing", set())),
        *((text, {"other", "old"}) for text in ("valueerror", REFERENCE)),
    ):
        answer = await person.get(f"/_console/find?id={text}", follow_redirects=True)
        assert set(re.findall(r'id="to-[^"]{32}-([\w-]+)"', answer.text)) == found
        assert "Looked for the text in 5 tasks" in answer.text
    owner = await person.get(f"/_console/find?id={ANN.digest}", follow_redirects=True)
    assert 'value="' + ANN.digest in owner.text


@pytest.mark.parametrize("is_found", [True, False])
async def test_a_correlation_id_is_found_however_long_ago(
    storage: DurableStorage, inspector: Inspector, clock: ManualClock, *, is_found: bool
) -> None:
    """In the index of what failed; its task has to be one of those that other choices choose."""
    await failed(storage, await asked(storage, "old"))
    clock.advance(20 * 86_400)
    fits: list[dict[str, str]] = [{}, {"state": "failed"}, {"scope": ANN.digest}]
    fits += [{"attention": "failed", "reason": "ValueError"}]
    others = [{"state": "canceled"}, {"scope": BOB.digest}, {"context": "other"}, {"since": "1h"}]
    others += [{"attention": "rejected"}]
    for chosen in fits if is_found else others:
        page = await inspector.lists.page(TaskFilter(text=REFERENCE, **chosen))
        assert [row.head.task_id for row in page.rows] == ["old"] * is_found, chosen


async def test_a_list_says_who_has_a_turn_and_for_how_long(
    storage: DurableStorage, inspector: Inspector, clock: ManualClock
) -> None:
    """The holder is that of the claim which stands, also after another one was lost."""
    head = await asked(storage, "t", "Book a table\nfor two")
    for token, worker in (("a", "vm 1"), ("b", "vm 2")):
        head = await storage.commit(head, claim(token, WORKING, worker=worker))
    clock.advance(60)
    page = await inspector.lists.page(TaskFilter())
    (row,) = await inspector.lists.described(page)
    assert (row.holder, row.asked.caller, row.asked.tenant) == ("vm 2", "ann", "acme")
    assert (row.asked.line, row.took_ms(clock.now_ms())) == ("Book a table", 60_000)
    await storage.commit(head, to(COMPLETED, token="b"))
    clock.advance(60)
    (row,) = await inspector.lists.described(await inspector.lists.page(TaskFilter()))
    assert (row.holder, row.took_ms(clock.now_ms())) == ("", 60_000)


async def owed(storage: DurableStorage, task_id: str, host: str, at: int) -> Push:
    """A webhook that has failed, and waits for its next attempt in two minutes."""
    push = await hook(storage, task_id, host)
    failing = replace(push, failing_since=at, failures=1)
    answered = failing.answered("status 503", at, next_at=at + 120_000)
    return present(await storage.webhooks.move(push, answered))


async def test_webhooks_that_fail_now_are_shown_by_host(
    storage: DurableStorage, inspector: Inspector, clock: ManualClock
) -> None:
    """With number, since when and the next attempt; those given up are in a list of tasks."""
    begun = clock.now_ms()
    for number in range(3):
        await asked(storage, f"t{number}")
        push = await owed(storage, f"t{number}", "crm.example", clock.now_ms())
        clock.advance(1)
    await owed(storage, "t0", "erp.example", clock.now_ms())
    found = await status_of(inspector)
    (crm, erp) = found.failing
    assert (crm.host, crm.webhooks, crm.since) == ("crm.example", 3, begun)
    assert (crm.next_at, crm.answer) == (begun + 120_000, "status 503")
    assert (erp.host, erp.webhooks) == ("erp.example", 1)
    assert "Webhooks that fail now" in [table.title for table in found.tables()]
    query = TaskFilter(attention="owed", reason="crm.example")
    rows = (await inspector.lists.page(query)).rows
    assert [row.head.task_id for row in rows] == ["t0", "t1", "t2"]
    assert {row.reason for row in rows} == {"crm.example"}
    told = push.settled((1, 0), "status 200", clock.now_ms(), is_told=True)
    await storage.webhooks.move(push, replace(told, failing_since=None, failures=0))
    assert [row.head.task_id for row in (await inspector.lists.page(query)).rows] == ["t0", "t1"]
    await untold(storage, "t2", clock.now_ms())
    given_up = TaskFilter(attention="untold")
    (row,) = (await inspector.lists.page(given_up)).rows
    assert (row.head.task_id, row.reason) == ("t2", "status 503")
    await storage.webhooks.delete("t2", "crm.example")
    assert (await inspector.lists.page(given_up)).rows == ()


async def test_signing_keys_are_shown_and_one_is_withdrawn(
    storage: DurableStorage, inspector: Inspector, clock: ManualClock
) -> None:
    """By their ids, with the time since which receivers may know them."""
    title = "Signing keys of notifications"
    assert title not in [table.title for table in (await status_of(inspector)).tables()]
    store = KeyStore(storage.table, clock=clock)
    since = {}
    for kid in ("old", "new"):
        since[kid] = (await store.publish({"kid": kid})).published_at
        clock.advance(60)
    found = await status_of(inspector)
    assert found.signing == since
    assert title in [table.title for table in found.tables()]
    await store.withdraw("old")
    assert list((await status_of(inspector)).signing) == ["new"]
