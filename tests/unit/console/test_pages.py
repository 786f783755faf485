"""What pages of the console say, over the memory of this process."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from html import unescape
from typing import Any
from unittest.mock import AsyncMock

import pytest
from a2a.types import AgentCard, TaskPushNotificationConfig

from a2a_serverless.errors import UnsupportedOperationError
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.conversation import conversation_queue, replaced
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.tasks.conversation import Position
from a2a_serverless.tasks.entries import Caller, ModelsUsed, Recorded, StatusChanged, StepId
from a2a_serverless.tasks.fold import LAST
from a2a_serverless.tasks.head import AttemptEnd, Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.progress import Progress
from a2a_serverless.tasks.rules import Commit, releasing
from a2a_serverless.tasks.usage import Usage
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.sweeper import Sweeper, SweepReport
from a2a_serverless_tools.contract import Storage
from a2a_serverless_tools.operate.acts import Acts
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.lines import LogLine
from a2a_serverless_tools.operate.logs import Logs
from a2a_serverless_tools.operate.timeline import InLine
from a2a_serverless_tools.operate.view import _what_holds as what_holds
from tests.support.clocks import ManualClock
from tests.support.commits import COMPLETED, FAILED, WORKING, claim, status, to
from tests.support.messages import request
from tests.support.present import present
from tests.support.queues import take
from tests.unit.console.conftest import ANN, OWN, Person, linked, live_of, visited, walked

PATH = f"/_console/task/{ANN.digest}/t"


# -- webhooks ----------------------------------------------------------------------------------


async def test_an_ended_task_is_not_asked_about_for_ever(
    storage: DurableStorage, person: Person, clock: ManualClock
) -> None:
    """Often while a notification is tried again soon, else seldom, and no more if it is late.

    One that was given up is no success: its fact says so in red, and the page is at rest.
    """
    await storage.open_task("c", request(), task_id="t")

    async def page() -> str:
        return (await person.get(f"{PATH}?view=timeline")).text

    async def every() -> list[str]:
        return re.findall(r'hx-trigger="every (\w+)"', await page())

    hook = TaskPushNotificationConfig(task_id="t", id="crm", url="https://crm.example/")
    push = await storage.webhooks.put(hook)
    settled = push.settled((1, LAST), "status 200", 1, is_told=True)
    told = present(await storage.webhooks.move(push, settled))
    assert await every() == ["700ms"]
    await Storage(storage).update_task("t", COMPLETED)
    assert await every() == []
    now = clock.now_ms()
    fails = replace(told, failures=3, failing_since=now, answered_at=now, next_at=now + 600_000)
    failing = present(await storage.webhooks.move(told, fails))
    assert await every() == ["30s"]
    clock.advance(590)
    assert await every() == ["700ms"]
    clock.advance(200)
    assert await every() == []
    lost = failing.settled((2, 0), "status 503", clock.now_ms(), is_told=False)
    assert await storage.webhooks.move(failing, lost)
    text = await page()
    (fact,) = re.findall(r'<div class="fact-webhook[^"]*bad[^"]*"><dt>.*?</dt><dd>(.*?)</dd>', text)
    gave_up = "the notification of version 2 was given up (status 503)"
    assert f"told 1 up to version 1, owed 1, {gave_up}" in words(fact)
    assert "hx-trigger" not in text


# -- progress ----------------------------------------------------------------------------------


async def test_progress_is_one_bar(storage: DurableStorage, person: Person) -> None:
    """A turn's last progress is a bar in conversation and facts; the end takes it out."""
    head = (await storage.open_task("c", request(), task_id="t")).head
    for done in (1, 3):
        working = status(WORKING, f"<b>page {done}</b>").status
        entry = StatusChanged(working, Progress.of(done, 10).metadata(), archive=True)
        head = await storage.commit(head, Commit(entries=(entry,)))
    shown = (await person.get(PATH)).text
    bar = '<progress value="3" max="10">30 %</progress> <span class="dim">3 of 10</span>'
    assert shown.count(bar) == shown.count("<progress") == 2
    assert "&lt;b&gt;page 3&lt;/b&gt;" in shown
    assert "page 1" not in shown
    await Storage(storage).update_task("t", COMPLETED)
    assert (await person.get(PATH)).text.count("<progress") == 1


class Asked(Logs):
    """Logs that cost something to read; those who ask are counted."""

    is_at_hand = False

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.lines: list[LogLine] = []

    async def about(self, task_id: str, since_ms: int) -> AsyncIterator[LogLine]:
        self.asked.append((task_id, since_ms))
        for line in self.lines:
            yield line


# -- lists, card -------------------------------------------------------------------------------


async def test_pages_of_all(storage: DurableStorage, person: Person, clock: ManualClock) -> None:
    """Over all callers, the newest first, each once; a page looks at a bounded number of hours.

    Where it finds nothing so far it says so, and its requests, and the next one goes on.
    """
    names = [f"t-{number:03}" for number in range(60)]
    for number, name in enumerate(names):
        own = storage.for_scope(Scope.of("", f"user-{number % 3}"))
        await own.open_task("c", request(), task_id=name)
    first = (await person.get("/_console/tasks")).text
    second = (await person.get(linked(first, "next"))).text
    pages = [re.findall(r'id="to-[^"]*-(t-\d{3})"', text) for text in (first, second)]
    assert pages == [names[:9:-1], names[9::-1]]
    assert "look further back" in second  # the tasks of the hours before
    clock.advance(100 * 3600)
    path = "/_console/tasks?since=week"
    for _ in range(2):
        text = (await person.get(path)).text
        assert 'id="to-' not in text
        assert "No task matches among those that were looked at." in text
        assert "Looked at no tasks created from" in text
        assert ", the newest first, by 200 requests of the table." in text
        path = linked(text, "next")
    assert "-t-059" in (await person.get(path)).text


async def test_failures_of_all_are_found_by_their_change(
    storage: DurableStorage, person: Person, clock: ManualClock
) -> None:
    """The newest failure comes first, whenever its task was created, among however many tasks."""
    fail = partial(Storage(storage).update_task, state=FAILED)
    for task_id in ("before", "old"):
        await storage.open_task("c", request(), task_id=task_id)
    await fail("before")
    clock.advance(3 * 86_400)
    names = [f"t-{number:04}" for number in range(60)]
    for name in names:
        await storage.open_task("c", request(), task_id=name)
    for name in names[::20]:
        await fail(name)
        clock.advance(1)
    await fail("old")
    path, rows = "/_console/tasks?state=failed&since=day", r'id="to-[^"]*-(old|before|t-\d{4})"'
    text = (await person.get(path)).text
    assert re.findall(rows, text) == ["old", "t-0040", "t-0020", "t-0000"]
    assert "Looked at" not in text
    assert '<span class="why">not started</span>' in text
    for name in set(names) - set(names[::20]):
        await fail(name)
    pages = [re.findall(rows, text) for text in await walked(person, path)]
    assert [len(one) for one in pages] == [50, 11]
    assert {name for one in pages for name in one} == {"old", *names}


async def test_a_list_of_all_ends_with_the_time_to_live(person: Person) -> None:
    """Behind it no link leads on, and the page says why; a caller's list needs no such words."""
    pages = await walked(person, "/_console/tasks?state=completed")
    assert len(pages) == 1 + 14  # a day, and then fifty hours a page
    said = "By the settings here a task lives 30 d: what was created before has expired."
    assert said in pages[-1]
    of_ann = (await person.get("/_console/tasks?user=ann&tenant=acme&state=failed")).text
    assert "No task matches." in of_ann
    assert "Looked at" not in of_ann


async def test_the_card_says_what_is_wrong_in_it(inspector: Inspector, person: Person) -> None:
    """Each fault is a sentence; what is right is shown beside it; none where it is not known."""
    card = AgentCard(name="Half", version="1")
    card.supported_interfaces.add(url="http://elsewhere.example", protocol_binding="JSONRPC")
    for name in ("one", "two"):
        card.skills.add(id="same", name=name, description="does it", tags=["x"][: name == "one"])
    async with visited(inspector, card=card) as visitor:
        text = (await visitor.get("/_console/card")).text
    for fault in (
        "description is missing, and the protocol demands it.",
        "The interface http://elsewhere.example is not https: clients elsewhere refuse it.",
        "Two skills have the id same: clients cannot tell them apart.",
        "The skill same has no tags, by which it is found.",
    ):
        assert f"<li>{fault}</li>" in text
    assert "<h1>Half</h1>" in text
    text = (await person.get("/_console/card")).text
    assert "The card is not known here, as the agent's address is not" in text
    assert not re.search("alert bad|Nothing is wrong in it", text)


# -- what is known of workers --------------------------------------------------------------------


class Stack:
    """Storage and queue in memory, a sweeper, and no worker."""

    def __init__(self, clock: ManualClock, **settings: float | str) -> None:
        self.clock = clock
        named = Settings.model_validate({"auth": "none", **settings})
        self.backends = memory_backends(named, clock=clock)
        self.storage = self.backends.storage
        self.sweeper = Sweeper(self.storage, self.backends.operations, clock=clock)
        self.inspector = Inspector(self.storage, named, place="memory", backends=self.backends)

    async def send(self, task_id: str) -> Head:
        """Do what the API does with a message."""
        head = (await self.storage.open_task("c", request(), task_id=task_id)).head
        await self.backends.operations.send(Operation.to_run(OperationParams.of(head, 1)))
        return head

    async def claimed(self, task_id: str) -> Head:
        """The same, and a worker takes the message and claims the turn."""
        head = await self.send(task_id)
        self.take()
        return await self.storage.commit(head, claim("a", worker="vm 1"))

    def take(self) -> Any:
        """A message off the queue."""
        assert isinstance(self.backends.operations, TableQueue)
        return present(take(self.backends.operations))

    async def page(self, path: str) -> str:
        async with visited(self.inspector) as person:
            return (await person.get(f"/_console{path}")).text


ROWS = re.compile(r'"row">(.*?)</th><td class="number">(.*?)</td>.*?>(\d+)</td>')
"""The rows of queues: the name, and how many wait and were received."""


async def test_queues_where_turns_wait(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only worker has died with a turn; the sweeper has sent the nine others again twice."""
    stack = Stack(clock)
    await stack.claimed("taken")
    for number in range(9):
        await stack.send(f"t-{number}")
    for _ in range(2):
        clock.advance(61)
        await stack.sweeper.sweep()
        clock.advance(60)
    text = await stack.page("/queues")
    for calm in ("Nothing is overdue", "It is empty", 'class="calm"', "taken", "not shown"):
        assert calm not in text
    assert ROWS.findall(text)[0] == ("operations, which are turns and cancels", "28", "0")
    assert "Looked at 10 open turns: 1 claimed by a worker, 9 without a worker" in text
    assert "(the oldest for 4 min), 9 sent again by the sweeper" in text
    assert text.count("sent again 2 times") == 9
    monkeypatch.setattr("a2a_serverless_tools.console.queues.SHOWN", 4)
    assert "5 more are not shown." in await stack.page("/queues")
    listed = await stack.page("/tasks")
    assert listed.count("no worker for 4 min") == listed.count("sent again 2 times") == 9


async def test_queues_are_not_calm_while_turns_wait_to_run_alone(clock: ManualClock) -> None:
    """A turn whose worker has died waits in the quarantine, also where the shares are not known."""
    stack = Stack(clock, worker_turns=10, turn_limit_s=60, run_limit_s=300)
    assert 'class="calm"' in await stack.page("/queues")
    head, quarantine = await stack.send("t"), stack.backends.quarantining()
    taken = stack.take()
    await stack.storage.commit(head, claim("dead", worker="vm 1"))
    await quarantine.send(Operation.to_run(OperationParams.of(head, 1)))
    await stack.backends.operations.delete(taken)
    for settings in (stack.inspector.settings, Settings()):
        stack.inspector.settings = settings
        text = await stack.page("/queues")
        assert 'class="calm"' not in text
        rows = [depths for name, *depths in ROWS.findall(text) if "run alone" in name]
        assert rows == [["1", "0"]]
    assert isinstance(quarantine, TableQueue)
    assert take(quarantine) is not None
    assert "run alone" in await stack.page("/queues")


async def test_a_turn_in_line_says_what_it_waits_for(clock: ManualClock) -> None:
    """For a place: the turns of its caller before it, if few; a copy would not be sent sooner."""
    stack = Stack(clock)
    storage = stack.backends.storage
    for number, name in enumerate(("a", "b", "t")):
        head = await stack.send(name)
        await storage.park(head, "share", at=clock.now_ms() + number)
    clock.advance(30)
    (shown,) = await stack.inspector.timelines("t")
    said = "in line for a place of the workers: 2 turns of this caller before it"
    assert (what_holds(shown), shown.given_back) == (f"no worker; {said}", None)
    assert said in await stack.page(f"/task/{head.scope}/t")
    text = await stack.page("/queues")
    assert "0 claimed by a worker, 3 in line behind others, 0 without a worker, 0 sent" in text
    assert text.count("in line for a place of the workers, for 30 s") == 3
    assert "no worker for" not in await stack.page("/tasks")
    before = await storage.head("t")
    with pytest.raises(UnsupportedOperationError, match=f"stands in line.*{said}"):
        await Acts(stack.inspector).on_one("resend", "t", head.scope)
    assert await storage.head("t") == before
    many = replace(shown, in_line=InLine(reason="share"))
    assert what_holds(many) == "no worker; in line for a place of the workers"


async def test_a_turn_that_waits_for_its_conversation_names_the_task(clock: ManualClock) -> None:
    """Which task has it, and the place; the first may be made due, and the next sweep wakes it."""
    stack = Stack(clock, conversations="serial")
    storage, inspector = stack.backends.storage, stack.inspector
    heads = [await stack.send(name) for name in ("a", "b", "t")]
    for head in heads[1:]:
        assert await storage.park(head, "conversation")
    (shown,) = await inspector.timelines("t")
    said = "waits until task a of its conversation has ended (3rd of 3)"
    assert what_holds(shown) == f"no worker; {said}"
    assert "waits for another turn of its conversation, for 0 s" in await stack.page("/queues")
    with pytest.raises(UnsupportedOperationError, match=re.escape(said)):
        await Acts(inspector).on_one("resend", "t", heads[2].scope)
    line = await conversation_queue(storage, "c")
    after = line.without(Position.of(heads[0]), clock.now_ms())
    await storage.table.write(replaced(storage, "c", line, after))
    (first,) = await inspector.timelines("b")
    assert what_holds(first).endswith("the first of its conversation: about to be requeued")
    assert await Acts(inspector).on_one("resend", "b", heads[1].scope)
    await stack.sweeper.sweep()
    woken = present(await storage.head("b"))
    assert (woken.turn.parked, woken.turn.requeued, woken.turn.resends) == ("", 1, 0)


async def test_queues_say_their_bound(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are more, and where one cannot be read, the page says so and is not calm."""
    looked = "a2a_serverless_tools.console.queues.LOOKED"
    monkeypatch.setattr(looked, 2)
    stack = Stack(clock)
    for name in ("one", "two", "three"):
        await stack.claimed(name)
        clock.advance(1)
    text = await stack.page("/queues")
    assert "2 open turns, those that the sweeper looks at next; there are more: 2 claimed" in text
    assert 'class="calm"' not in text
    monkeypatch.setattr(looked, 3)
    assert 'class="calm"' in await stack.page("/queues")
    monkeypatch.setattr(stack.storage, "look", AsyncMock(return_value={}))
    text = await stack.page("/queues")
    assert text.count("an open turn, of which no more could be read") == 3
    assert 'class="calm"' not in text


async def test_queues_without_work_are_calm(clock: ManualClock) -> None:
    """Also while a worker has claimed the only turn; an unknown depth is not called empty."""
    stack = Stack(clock)
    assert "No turn waits for a worker, and none was sent again." in await stack.page("/queues")
    head = await stack.send("t")
    assert 'class="calm"' not in await stack.page("/queues")
    stack.take()
    await stack.storage.commit(head, claim("a", worker="vm 1"))
    assert 'class="calm"' in await stack.page("/queues")
    stack.inspector = Inspector(stack.storage, Settings(), place="the table t")
    text = await stack.page("/queues")
    assert 'class="calm"' not in text
    assert '<td class="number">unknown</td>' in text
    assert "Not known: no such queue is named here." in text


async def test_a_turn_that_sleeps_is_neither_overdue_nor_lost(clock: ManualClock) -> None:
    """Its page, its row and the queues say until when; it is woken then, and not sent before."""
    stack = Stack(clock)
    storage, now_ms = stack.backends.storage, clock.now_ms()
    head = await storage.commit(await stack.send("t"), claim("a"))
    await (await anext(stack.backends.operations.deliveries())).remove()
    end = AttemptEnd(token="a", reason="asleep", at=now_ms, until=now_ms + 3_600_000)
    record = Recorded(StepId("ctx.sleep", "", 1), "until", b"[1, 0]")
    head = await storage.commit(head, Commit(entries=(record,), token="a", parks=end))
    path, until = f"/task/{head.scope}/t?view=timeline", "asleep until 2026-11-22 03:14:00.000"
    for waited_s, wakes in ((1_800, "in 30 min"), (1_830, "30 s ago")):
        clock.advance(waited_s)
        text = words(await stack.page(path))
        assert f"no worker; {until}" in text
        due = "2026-11-22 03:14:00.000 (in 30 min), the end of its sleep"
        assert due.replace("in 30 min", wakes) in text
        assert "attempts 0 since its last record, 1 record in all" in text
        assert "sleeps " in text
        rows, queues = await stack.page("/tasks"), await stack.page("/queues")
        (note,) = re.findall('class="note">(.*?)</span></time></span>', rows)
        assert re.sub(r"<.*?>", "", note) == "asleep until 2026-11-22 03:14:00.000"
        said = "1 open turn: 0 claimed by a worker, 1 asleep, to be woken within two hours, 0 "
        assert said in queues
        assert 'class="calm"' in queues
        assert "overdue" not in text + queues
        if wakes == "in 30 min":
            with pytest.raises(UnsupportedOperationError, match="asleep until 2026-11-22T03:14:00"):
                await Acts(stack.inspector).on_one("resend", "t", head.scope)
    assert await stack.sweeper.sweep() == SweepReport(requeued=1)
    (shown,) = await stack.inspector.timelines("t")
    assert what_holds(shown) == "no worker; woken from its sleep, and waits for one"
    assert "no worker for 30 s" in await stack.page("/tasks")


async def test_a_page_grows_older_while_nothing_happens(clock: ManualClock) -> None:
    """It follows a task that says nothing: what it says of the time since is not kept for ever."""
    stack = Stack(clock)
    head = await stack.claimed("t")
    async with visited(stack.inspector) as person:
        live = live_of((await person.get(f"/_console/task/{head.scope}/t")).text)
        assert (await person.get(live)).status_code == 204
        clock.advance(10)
        answer = await person.get(live)
    assert answer.status_code == 200
    assert re.search(r"last sign at <time.*?</time> \(10 s ago\)", answer.text)


END = AttemptEnd(token="a", reason="ValueError", correlation_id="c0ffee", until=0)
END = replace(END, place="agent.py, line 28, in handle", message="no <b>customer</b>")


async def failed_twice(storage: DurableStorage, clock: ManualClock) -> Head:
    """A task of ann's that has failed after its second attempt, which had recorded a step."""
    caller = Caller("ann", "acme")
    head = (await storage.open_task("c", request("Two days"), task_id="t", caller=caller)).head
    clock.advance(1)
    head = await storage.commit(head, claim("a", worker="vm 1"))
    clock.advance(2)
    end = replace(END, at=clock.now_ms(), until=clock.now_ms() + 4_000)
    head = present(await storage.change(head, partial(releasing, end=end)))
    clock.advance(5)
    record = Recorded(StepId("plan", "Oslo", 1), "json", b"1")
    used = ModelsUsed((Usage("big", 1, 10, 5, cost=4_200),))
    head = await storage.commit(head, claim("b", record, used, worker="vm 2"))
    clock.advance(3)
    last = replace(END, token="b", correlation_id="decade", at=clock.now_ms())
    return await storage.commit(head, to(FAILED, token="b", failed=last))


def words(text: str) -> str:
    """The words of a page; a time is one word with its day."""
    shown = re.sub(r"</b><span class=.ms.>(.*?)</span></time>", r"\1", text)
    return " ".join(re.sub(r"<.*?>", " ", shown).split())


async def test_a_tasks_page_leads_with_reason_and_caller(
    storage: DurableStorage, person: Person, clock: ManualClock
) -> None:
    """Below what was asked; then how long it took. What is `none` of an ended task is left out."""
    await failed_twice(storage, clock)
    text = (await person.get(PATH)).text
    facts = re.findall(r"<dt>(.*?)</dt>", text.partition('<nav class="tabs"')[0])
    assert facts[:5] == ["State", "Why", "Caller", "Turn", "Model"]
    assert '<h1 class="title">Two days</h1>' in text
    shown = words(text)
    assert (
        "Why attempt 2 ended with ValueError at agent.py, line 28, in handle: no"
        " &lt;b&gt;customer&lt;/b&gt; (correlation id decade ) Caller ann (acme)"
    ) in shown
    assert "State failed, after 11.0 s" in shown
    assert re.search(r'<code class="copy"[^>]*>decade</code>', text)
    assert f'href="/_console/tasks?scope={ANN.digest}&amp;context=' in text
    assert "none needed" not in text
    listed = (await person.get("/_console/tasks")).text
    assert re.search(r'<td data-name="took"[^>]*>11\.0 s</td>', listed)
    pages = [(await person.get(f"{PATH}?view={view}")).text for view in ("cost", "steps")]
    costs, steps = map(words, pages)
    assert "Model big 1 call, 10 tokens in, 5 out, cost 0.0042 no price in dollars" in costs
    assert "Step Key Result Took at most Attempt Tokens plan Oslo 1 0 ms 2 15" in steps


async def test_each_attempt_has_a_fold_with_all_that_is_known_of_it(
    storage: DurableStorage, person: Person, clock: ManualClock
) -> None:
    """With the waits between; a stack's logs are read on request, and stand where they belong."""
    logs = Asked()
    head = await failed_twice(storage, clock)
    url = "https://crm.example"
    await storage.webhooks.put(TaskPushNotificationConfig(task_id="t", id="crm", url=url))
    ids = {"task_id": "t", "turn": 1, "correlation_id": "c0ffee", "exception": "Traceback <i>"}
    about = {"level": "WARNING", "action": "retry", "message": "Turn given back"}
    told = {"task_id": "t", "config_id": "crm", "version": 1, "attempt": 2}
    told |= {"action": "push_failed", "reason": "ReadTimeout", "wait_s": 9}
    logs.lines = [
        LogLine(at=head.created_at + 3_000, fields=ids, **about),
        LogLine(at=head.created_at + 100, fields={"task_id": "t"}, **about | {"message": "Sent"}),
        LogLine(at=head.created_at + 9_000, fields=told, **about | {"message": ""}),
    ]
    async with visited(Inspector(storage, Settings(), place="memory", logs=logs)) as reader:
        unread = (await reader.get(f"{PATH}?view=timeline")).text
        assert logs.asked == []
        assert "each attempt, and each delivery to its webhooks, from the logs" in unread
        (link,) = {unescape(it) for it in re.findall(r'href="([^"]*logs=1)"', unread)}
        text = (await reader.get(link)).text
        assert logs.asked == [("t", head.created_at)]
        logs.lines = []
        assert "deliveries to" not in (await reader.get(link)).text
    delivered = re.findall(r'<li class="failed"><span .*?</span><span>(version.*?)</span>', text)
    assert delivered == ["version 1, attempt 2: ReadTimeout, waits 9.0 s"]
    shown = words(text.partition('<ol class="story">')[2])
    shown = re.sub(r"2026-11-22 02:14:(\d\d)\.\d{3}", r":\1", shown)
    shown = re.sub("message [0-9a-f]{32}", "message m-1", shown)
    assert shown.startswith(
        ":00 turn 1, from ann: over after 11.0 s :00 1 message m-1 from ann, 79 bytes; status"
        " submitted :00 waited 1.0 s for a worker :01 attempt 1 on vm 1, 2.0 s: gave back:"
        " ValueError at agent.py, line 28, in handle: no &lt;b&gt;customer&lt;/b&gt;"
        " (correlation id c0ffee ); version 2 discarded :01 2 status working :03 WARNING retry"
        " Turn given back Traceback &lt;i&gt; :03 waited 5.0 s for the next try after ValueError,"
        " not before :07,"
        " of which 1.0 s for a worker :08 attempt 2 on vm 2, 3.0 s, 1 call, 10 tokens in, 5 out,"
        " cost 0.0042: failed: ValueError at agent.py, line 28, in handle:"
        " no &lt;b&gt;customer&lt;/b&gt; (correlation id decade )"
    ), shown
    assert "lines of the log that are of no attempt :00 WARNING retry Sent" in shown
    alone = (await person.get(f"{PATH}?view=timeline")).text
    assert "A table alone has no lines of the log." in alone
    assert "Turn given back" not in alone


async def test_a_new_line_is_shown_at_once(storage: DurableStorage, clock: ManualClock) -> None:
    """Where reading costs nothing; a task needs no webhook for it."""
    logs = Asked()
    logs.is_at_hand = True
    head = (await storage.open_task("c", request(), task_id="t")).head
    async with visited(Inspector(storage, Settings(), place="memory", logs=logs)) as person:
        text = (await person.get(f"{PATH}?view=timeline")).text
        assert "The logs have no line about this task any more." in text
        asked = (await person.get(f"{PATH}?view=timeline&logs=1")).text
        assert "logs=1&amp;mark=" in asked  # the page that follows the task reads them again
        live = live_of(text)
        assert (await person.get(live)).status_code == 204
        fields = {"task_id": "t", "turn": 1}
        said = {"level": "INFO", "action": "send_turn", "message": "turn sent"}
        logs.lines = [LogLine(at=head.created_at, fields=fields, **said)]
        assert "turn sent" in (await person.get(live)).text


# -- all of a caller -----------------------------------------------------------------------------


async def test_all_that_a_caller_has_is_deleted(storage: DurableStorage, person: Person) -> None:
    """Once the name was typed; others keep theirs, and the journal says how much, not whose."""
    for _ in range(3):
        await storage.open_task("c", request())
    other = storage.for_scope(Scope.of("", "ann"))
    await other.open_task("c", request())
    listed = (await person.get("/_console/tasks?user=ann&tenant=acme")).text
    path = unescape(re.findall(r'href="(/_console/purge\?[^"]*)"', listed)[0])
    asked = (await person.get(path)).text
    assert "3 tasks, no contexts with a state, no webhooks and no uploads." in asked
    form = {"user": "ann", "tenant": "acme"}

    async def post(**typed: str) -> str:
        return (await person.post("/_console/purge", data=form | typed, headers=OWN)).text

    for typed in ("", "yes", "acme"):
        assert "Nothing was deleted: ann was not typed." in await post(name=typed)
    foreign = await person.post("/_console/purge", data=form | {"name": "ann"})
    assert foreign.status_code == 403
    assert (await person.get("/_console/purge", params=form | {"name": "ann"})).status_code == 200
    assert (await list_tasks(storage, ListTasksQuery())).total_size == 3
    deleted = "Deleted 3 tasks, no contexts with a state, no webhooks and no uploads"
    text = await post(name="ann")
    assert f"{deleted} so far." in text
    rest = re.findall(r'<input type="hidden" name="(\w+)" value="(.*?)">', text)
    assert dict(rest) == form | {"name": "ann"}
    text = await post(name="ann")
    assert "Nothing more is found; what the index may show late is waited for." in text
    while "hx-post" in text:
        text = await post(name="ann")
    assert f"{deleted}: nothing is left." in text
    assert "Nothing was found in this tenant" in (await person.get(path)).text
    assert (await list_tasks(other, ListTasksQuery())).total_size == 1
    journal = (await person.get("/_console/journal")).text
    assert ("<b>purge</b>" in journal, "nothing is left." in journal) == (True, True)
    assert (ANN.digest in journal, " ann" in journal) == (False, False)
    refused = {"": "Name the caller", "?scope=%2F": "/ is no scope", "?tenant=acme": "A tenant is"}
    for which, sentence in refused.items():
        answer = await person.get(f"/_console/purge{which}")
        assert (answer.status_code, sentence in answer.text) == (400, True)
