"""What pages of the console say, over the memory of this process."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
from a2a.types import TaskPushNotificationConfig, TaskState, TaskStatus

from a2a_serverless.console.app import Console
from a2a_serverless.console.stored import StoredInspector
from a2a_serverless.contract.storage import Storage
from a2a_serverless.settings import Settings
from a2a_serverless.storage.listing import ListTasksQuery
from a2a_serverless.storage.memory import MemoryStorage
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.progress import Progress
from a2a_serverless.tasks.rules import Commit
from tests.support.messages import agent_message, request

URL = "http://127.0.0.1:8000"
ANN = Scope.of("acme", "ann")
OWN = {"Origin": URL}


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage(scope=ANN)


@pytest.fixture
async def person(storage: MemoryStorage) -> AsyncIterator[httpx.AsyncClient]:
    """A browser that has opened the console."""
    console = Console(StoredInspector(storage, Settings(), place="memory"), url=URL)
    transport = httpx.ASGITransport(app=console.app)
    async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
        assert (await client.get(console.open_url())).status_code == 303
        yield client


# -- webhooks ----------------------------------------------------------------------------------


async def test_webhooks_tell_of_refusals(storage: MemoryStorage, person: httpx.AsyncClient) -> None:
    """Facts and timeline show a webhook's refusals and that its client has to set it again."""
    head = (await storage.open_task("c", request(), task_id="t")).head
    for name, refusals in (("gone", 10), ("picky", 3), ("fine", 0)):
        hook = TaskPushNotificationConfig(
            task_id="t", id=name, url=f"https://{name}.example/?key=secret"
        )
        push = await storage.put_push(hook)
        await storage.move_push(push, replace(push, version=head.version, refusals=refusals))
    await Storage(storage).update_task("t", TaskState.TASK_STATE_COMPLETED)
    answer = await person.get(f"/_console/task/{ANN.digest}/t?view=timeline")
    facts = re.findall(r'<div class="(\w*)"><dt>Webhook</dt><dd>(.*?)</dd>', answer.text)
    shown = [(look, re.sub(r"<.*?>", " ", text)) for look, text in facts]
    own = "10 refusals of its own: its client has to set it again"
    assert shown == [
        ("", "https://fine.example · told to version 1"),
        ("bad", f"https://gone.example · told to version 1, behind by 1  given up  after {own}"),
        ("bad", "https://picky.example · told to version 1  has refused 3 "),
    ]
    bars = re.findall(r'<g class="bar (failing|told)"><title>(.*?)</title>', answer.text)
    failing = [title for look, title in bars if look == "failing"]
    assert len(failing) == 1
    assert "(id gone): given up after 10 refusals of its own" in failing[0]
    assert [title for look, title in bars if look == "told" and "has refused 3" in title]
    assert "secret" not in answer.text
    assert "hx-trigger" not in answer.text  # nothing of it is tried again: the page is at rest


# -- progress ----------------------------------------------------------------------------------


async def test_progress_is_one_bar(storage: MemoryStorage, person: httpx.AsyncClient) -> None:
    """Of a turn's progress the last one is a bar in conversation and facts; the end takes it out.

    The text beside it is escaped as everything else.
    """
    head = (await storage.open_task("c", request(), task_id="t")).head
    for done in (1, 3):
        message = agent_message(f"<b>page {done}</b>")
        status = TaskStatus(state=TaskState.TASK_STATE_WORKING, message=message)
        entry = StatusChanged(status, Progress.of(done, 10).metadata(), archive=True)
        head = await storage.commit(head, Commit(entries=(entry,)))
    path = f"/_console/task/{ANN.digest}/t"
    shown = (await person.get(path)).text
    bar = '<progress value="3.0" max="10.0">30 %</progress> <span class="dim">3 of 10</span>'
    assert shown.count(bar) == shown.count("<progress") == 2
    assert "&lt;b&gt;page 3&lt;/b&gt;" in shown
    assert "page 1" not in shown
    await Storage(storage).update_task("t", TaskState.TASK_STATE_COMPLETED)
    assert (await person.get(path)).text.count("<progress") == 1


# -- all of a caller -----------------------------------------------------------------------------


async def test_all_that_a_caller_has_is_deleted(
    storage: MemoryStorage, person: httpx.AsyncClient
) -> None:
    """A purge shows counts, asks for the caller's name, and deletes all tasks of this caller."""
    for _ in range(3):
        await storage.open_task("c", request())
    other = storage.for_scope(Scope.of("", "ann"))
    await other.open_task("c", request())
    listed = (await person.get("/_console/tasks?user=ann&tenant=acme")).text
    (path,) = re.findall(r'href="(/_console/purge\?[^"]*)"', listed)
    asked = (await person.get(path.replace("&amp;", "&"))).text
    assert "3 tasks, no contexts with a state and no webhooks." in asked
    form = {"user": "ann", "tenant": "acme"}
    for typed in ("", "yes", "acme"):
        answer = await person.post("/_console/purge", data=form | {"name": typed}, headers=OWN)
        assert "Nothing was deleted: ann was not typed." in answer.text
    assert (await storage.list_tasks(ListTasksQuery())).total_size == 3
    form |= {"name": "ann"}
    answer = await person.post("/_console/purge", data=form, headers=OWN)
    assert "3 tasks are deleted so far." in answer.text
    rest = re.findall(r'<input type="hidden" name="(\w+)" value="(.*?)">', answer.text)
    assert dict(rest) == form | {"gone": "3"}
    answer = await person.post("/_console/purge", data=dict(rest), headers=OWN)
    assert "3 tasks were deleted. Nothing is left." in answer.text
    assert "hx-post" not in answer.text
    assert "Nothing is left to delete." in (await person.get(path.replace("&amp;", "&"))).text
    assert (await other.list_tasks(ListTasksQuery())).total_size == 1


async def test_what_cannot_be_purged(storage: MemoryStorage, person: httpx.AsyncClient) -> None:
    """A purge without a caller, by another page's form or by GET deletes nothing."""
    await storage.open_task("c", request())
    for path in ("/_console/purge", "/_console/purge?scope=%2F", "/_console/purge?tenant=acme"):
        answer = await person.get(path)
        assert (answer.status_code, "Name the caller" in answer.text) == (400, True)
    form = {"scope": ANN.digest, "name": ANN.digest}
    assert (await person.post("/_console/purge", data=form)).status_code == 403
    assert (await person.get("/_console/purge", params=form)).status_code == 200
    assert (await storage.list_tasks(ListTasksQuery())).total_size == 1
