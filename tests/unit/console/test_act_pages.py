"""The pages that act on one task and on many, and the journal's."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import Settings
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.layout import head_key
from a2a_serverless.storage.table import Update
from a2a_serverless.tasks.head import Head
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless_tools.operate import acts
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.journal import Journal
from tests.support.clocks import ManualClock
from tests.support.commits import FAILED, opened, to
from tests.unit.console.conftest import ANN, OWN, Person, visited
from tests.unit.operate.test_signal_acts import Desk


@pytest.fixture
def backends(clock: ManualClock) -> Backends:
    return memory_backends(Settings(), clock=clock)


@pytest.fixture
def inspector(backends: Backends) -> Inspector:
    return Inspector(backends.storage, Settings(), place="memory", backends=backends)


async def failed(backends: Backends, task_id: str) -> Head:
    storage = backends.storage.for_scope(ANN)
    return await storage.commit(await opened(storage, task_id=task_id), to(FAILED))


def field(text: str, name: str) -> str:
    (value,) = re.findall(rf'name="{name}" value="([^"]*)"', text)
    return str(value)


async def test_a_failed_task_is_tried_again(backends: Backends, person: Person) -> None:
    """The page says who did it, and leads to the new task; the journal does, too."""
    head = await failed(backends, "t")
    path = f"/_console/task/{head.scope}/t"
    assert f'action="{path}/retry"' in (await person.get(path)).text
    done = await person.post(f"{path}/retry", headers=OWN, data={"confirmed": "yes"})
    text = (await person.get(done.headers["location"])).text
    told = r'role="status">It is tried again as <a href="[^"]*/([\w-]+)">\1</a>\.<'
    (new,) = re.findall(told, text)
    assert re.search(r"<b>retry</b> by \S+ on \S+<br>It is tried again as", text)
    assert await backends.storage.for_scope(ANN).head(new) is not None
    link = f'It is tried again as <a href="/_console/task/{head.scope}/{new}">{new}</a>.'
    assert link in text
    assert link in (await person.get("/_console/journal")).text
    again = await person.post(f"{path}/retry", headers=OWN, data={"confirmed": "yes"})
    refused = (await person.get(again.headers["location"])).text
    assert f"before: as {link.partition(' as ')[2]}" in refused
    assert f'action="{path}/retry"' not in refused
    named = f'<p class="retry">{link.replace("is tried", "was tried")}</p>'
    assert named in refused
    damaged = Update(key=head_key(head.scope, new), values={"version": "x"})
    await backends.storage.table.write(damaged)
    assert named in (await person.get(path)).text


async def test_an_act_on_many_is_counted_and_confirmed(
    backends: Backends, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preview changes nothing; then a step at a time; what changed since is told."""
    monkeypatch.setattr(acts, "AT_ONCE", 2)
    for number in range(5):
        await failed(backends, f"t-{number}")
    storage = backends.storage.for_scope(ANN)
    view = "user=ann&tenant=acme&state=failed"
    listed = (await person.get(f"/_console/tasks?{view}")).text
    (link,) = re.findall(r'href="(/_console/act\?act=delete[^"]*)"', listed)
    assert parse_qs(urlsplit(unescape(link)).query) == {"act": ["delete"], **parse_qs(view)}
    preview = (await person.get(unescape(link))).text
    assert "looked at 5. Tasks to delete for good: 5." in preview
    assert await storage.head("t-0") is not None
    plan = {"plan": field(preview, "plan")}
    answer = await person.post("/_console/act", headers=OWN, data=plan)
    assert "it was not confirmed" in answer.text
    await delete_task(storage, "t-4")
    await failed(backends, "t-4")  # another one
    answer = await person.post("/_console/act", headers=OWN, data=plan | {"confirmed": "yes"})
    assert "Done so far: 1 of 5." in answer.text
    for _ in range(2):
        answer = await person.post("/_console/act", headers=OWN, data=plan)
    assert "Done: 4 of 5." in answer.text
    assert "<p>Skipped: 1. It has gone meanwhile.</p>" in answer.text
    again = await person.post("/_console/act", headers=OWN, data=plan)
    assert "Done: 4 of 5." in again.text


async def test_an_act_that_chooses_nothing_is_refused(person: Person) -> None:
    """An unknown act, no filter, and one that means nothing: one sentence says which."""
    for asked in ("shred&state=failed", "delete", "delete&state=lost", "cancel&since=x"):
        answer = await person.get(f"/_console/act?act={asked}")
        assert (answer.status_code, "This cannot be shown" in answer.text) == (400, True)
    answer = await person.post("/_console/act", headers=OWN, data={"plan": "guessed"})
    assert (answer.status_code, "look at it again" in answer.text) == (400, True)


async def test_a_table_that_may_only_be_read_says_so(
    backends: Backends, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a task's page and on that of a run, which ends; the previews are shown."""
    head = await failed(backends, "t")
    refusal = ConfigurationError("The table tasks cannot be used: no dynamodb:PutItem.")
    monkeypatch.setattr(backends.storage.table, "write", AsyncMock(side_effect=refusal))
    path = f"/_console/task/{head.scope}/t"
    done = await person.post(f"{path}/retry", headers=OWN, data={"confirmed": "yes"})
    assert "no dynamodb:PutItem" in (await person.get(done.headers["location"])).text
    preview = await person.get("/_console/act?act=retry&state=failed")
    data = {"plan": field(preview.text, "plan"), "confirmed": "yes"}
    answer = await person.post("/_console/act", headers=OWN, data=data)
    assert (answer.status_code, "no dynamodb:PutItem" in answer.text) == (502, True)
    assert await backends.storage.for_scope(ANN).head("t") == head


async def test_markup_is_text_in_previews_and_journal(backends: Backends, person: Person) -> None:
    """Of a filter, of the person who acts, of a reason, and in what came of an act."""
    hostile = "<img src=x onerror=alert(1)>"
    journal = Journal(backends.storage, hostile)
    entry = await journal.begin("<b>act", scope=ANN.digest, task_id="t", which=f"reason {hostile}")
    await journal.end(entry, f"not done: {hostile}")
    head = await failed(backends, "t")
    asked = urlencode({"act": "retry", "reason": hostile, "text": hostile})
    for path in (f"act?{asked}", "journal", f"task/{head.scope}/t"):
        text = (await person.get(f"/_console/{path}")).text
        assert ("<img" in text, "<b>act" in text) == (False, False)
        assert text.count("&lt;img src=x onerror=alert(1)&gt;") >= 2


async def test_a_damaged_journal(backends: Backends, person: Person, clock: ManualClock) -> None:
    """Damage in an entry costs what is damaged; what a newer release adds is left out."""
    journal = Journal(backends.storage, "pat")
    damage: list[dict[str, Any]] = [{"at": "soon", "scope": 7}, {"outcome": 7}]
    damage += [{"by": b"x", "later": "kind"}, {"later": 1}]
    for number, values in enumerate(damage):
        entry = await journal.begin("retry", scope=ANN.digest, task_id=f"t-{number}")
        await journal.end(entry, f"outcome {number}")
        await backends.storage.table.write(Update(key=entry.key, values=values))
        clock.advance(1)
    text = (await person.get("/_console/journal")).text
    for shown in ("t-0", "outcome 0", "t-1", "t-2", "outcome 2", "t-3", "outcome 3"):
        assert shown in text
    assert "outcome 1" not in text


async def test_an_act_from_another_clock_has_no_age_below_zero(
    backends: Backends, person: Person, clock: ManualClock
) -> None:
    """The operator who has acted is an hour ahead: task and journal are shown all the same."""
    head = await failed(backends, "t")
    clock.advance(3600)
    await Journal(backends.storage, "pat").begin("retry", scope=ANN.digest, task_id="t")
    clock.advance(-3600)
    for path in ("journal", f"task/{head.scope}/t"):
        answer = await person.get(f"/_console/{path}")
        assert (answer.status_code, "<b>retry</b>" in answer.text) == (200, True)
        assert not re.search(r"[>\s]-\d+ (s|min|h)\b", answer.text)


async def test_a_wait_for_a_callback_is_ended_from_its_row() -> None:
    """With JSON alone, and once confirmed; the agent and the journal have who did it."""
    desk = Desk()
    await desk.begin()
    path = f"/_console/task/{desk.stand.task.scope}/{desk.stand.task.task_id}"
    async with visited(desk.acts._inspector) as person:

        async def signal(**data: str) -> str:
            done = await person.post(f"{path}/signal", headers=OWN, data=data)
            text = (await person.get(done.headers["location"])).text
            return str(re.findall(r'role="status">([^<]*)<', text)[0])

        (form,) = re.findall(r'action="[^"]*/signal".*?</form>', (await person.get(path)).text)
        named = {"name": field(form, "name"), "key": field(form, "key")}
        assert named == {"name": "asked", "key": ""}
        assert await signal(**named, value="1") == "Nothing was done: it was not confirmed."
        named |= {"confirmed": "yes"}
        assert (await signal(**named, value="{")).startswith("JSON: EOF while parsing an object")
        assert await signal(**named, value=" 1") == "Its wait for the callback asked is over."
        await desk.stand.work()
        text = (await person.get(path)).text
        forms = re.findall(r'name="name" value="(.*?)".*?name="key" value="(.*?)"', text)
        assert forms == [("paid", "a"), ("paid", "b")]
        assert re.search(r"<b>signal</b> .*callback asked.* by \S+ on \S+<br>Its wait for", text)
        again = await signal(**named, value="2")
        assert again.startswith("It does not wait for the callback asked, but for callback paid")
