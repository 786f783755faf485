"""One task put back from a table restored beside, over every table: twice, cut off, refused."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from a2a.types import Part, TaskPushNotificationConfig

from a2a_serverless.errors import TaskNotFoundError, UnreadableTaskError, UnsupportedOperationError
from a2a_serverless.push.jobs import PushJob
from a2a_serverless.push.waiting import wake_due
from a2a_serverless.settings import Settings
from a2a_serverless.storage.blobs import MemoryBlobs
from a2a_serverless.storage.deletion import DeletionJob, Owner, delete_task
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import INDEXES, head_key, task_partition
from a2a_serverless.storage.table import Put, Range, Update
from a2a_serverless.tasks.entries import Caller, Recorded, StepId
from a2a_serverless.tasks.head import FORMAT, Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.operate.acts import Acts
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.journal import newest
from tests.contract.test_acts import KilledError, Mortal
from tests.support.clocks import ManualClock
from tests.support.commits import COMPLETED, to
from tests.support.messages import request
from tests.support.present import present
from tests.support.queues import MemoryQueue, left

ANN = Caller(user="ann")
HOOK = "https://receiver.example/"
COMMITS = 12
"""More than one transaction of a restoration takes."""


class Desk:
    """An operator, the table of a deployment, and a table restored beside it."""

    def __init__(self, storage: DurableStorage) -> None:
        self.storage, self.scope = storage, storage.scope.digest
        self.blobs = storage.table.blobs = MemoryBlobs(storage.clock)
        self.beside = replace(storage, table=MemoryTable(INDEXES))
        settings = Settings(push_events="statuses")
        self.acts = Acts(Inspector(storage, settings, place="the table"), by="pat")
        self.source = Inspector(self.beside, settings, place="the table yesterday")

    async def worked(self, task_id: str) -> Head:
        """A task with a file, a long record and a webhook that was told of its beginning alone."""
        said = request("go")
        said.message.parts.append(Part(raw=b"x" * 40_000, media_type="image/png"))
        hook = TaskPushNotificationConfig(id="hook", url=HOOK)
        opened = await self.storage.open_task(
            "talk", said, task_id=task_id, caller=ANN, push=hook, idempotency_key=task_id
        )
        head = await self.storage.commit(opened.head, Commit(token="a", claims=True, worker="w"))
        (push,) = await self.storage.webhooks.all(task_id)
        told = push.settled((1, 0), "status 200", 1, is_told=True)
        assert await self.storage.webhooks.move(push, told)
        for number in range(COMMITS):
            record = Recorded(StepId("step", str(number), 1), "json", b'"%s"' % (b"y" * 40_000))
            record = await self.storage.offload_record(head, record)
            head = await self.storage.commit(head, Commit(entries=(record,), token="a"))
        return await self.storage.commit(head, to(COMPLETED, token="a"))

    async def items(self, storage: DurableStorage, task_id: str) -> list[dict[str, Any]]:
        return await storage.table.all(Range(partition=task_partition(self.scope, task_id)))

    async def keep(self, task_id: str) -> None:
        """Restore the table as it is beside it, as far as a task goes."""
        for item in await self.items(self.storage, task_id):
            await self.beside.table.write(Put(item=item))

    async def lost(self, task_id: str) -> Head:
        """A task that is deleted, and in the table beside."""
        head = await self.worked(task_id)
        await self.keep(task_id)
        kept = dict(self.blobs._contents)  # a bucket may keep what was deleted, by its versions
        assert await delete_task(self.storage, task_id)
        self.blobs._contents.update(kept)
        return head

    async def restore(self, task_id: str, **options: Any) -> str:
        return await self.acts.restore(task_id, self.scope, self.source, **options)

    async def assert_back(self, task_id: str) -> None:
        """Assert that the task is whole, and its webhook due, once."""
        log, before = await self.storage.read(task_id), await self.beside.read(task_id)
        assert log == before
        task = present(await self.storage.load_task(task_id))
        was = present(await self.beside.load_task(task_id, inline=None))
        assert task.status == was.status
        assert task.history[0].parts[1].raw == b"x" * 40_000
        jobs = MemoryQueue(PushJob, clock=self.storage.clock)
        await wake_due(self.storage, jobs, math.inf)
        own = [job for job in left(jobs) if (job.scope, job.task_id) == (self.scope, task_id)]
        assert len(own) == 1


@pytest.fixture
def desk(storage: DurableStorage) -> Desk:
    return Desk(storage)


async def test_a_deleted_task_comes_back_whole_and_once(desk: Desk) -> None:
    """With its log, files and owed webhook; a preview changes nothing, a second is refused."""
    head = await desk.lost("t")
    assert await desk.restore("t", is_dry=True) == "It can be done."
    assert await desk.items(desk.storage, "t") == []
    said = await desk.restore("t")
    assert said.startswith("It is back, completed since 2")
    await desk.assert_back("t")
    same = desk.storage.open_task("talk", request("go"), task_id="t", idempotency_key="t")
    assert (await same).head == head
    with pytest.raises(UnsupportedOperationError, match="nothing is put over it"):
        await desk.restore("t")
    (noted,) = [one for one in await newest(desk.storage, limit=1000) if one.scope == desk.scope]
    assert (noted.act, noted.by, noted.which) == ("restore", "pat", "from the table yesterday")
    assert noted.outcome == said


@pytest.mark.long(one_in=2)
@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
async def test_kills(desk: Desk, monkeypatch: pytest.MonkeyPatch, *, is_applied: bool) -> None:
    """Whichever write is its last: until then readers find nothing, and the next one ends it."""
    for at in range(20):
        task_id = f"t-{is_applied}-{at}"
        await desk.lost(task_id)
        mortal = Mortal(at, is_applied=is_applied)
        with monkeypatch.context() as patch, suppress(KilledError):
            mortal.guard(patch, desk.storage.table, "write")
            await desk.restore(task_id)
        if await desk.storage.head(task_id) is None:
            await desk.restore(task_id)
        await desk.assert_back(task_id)
        if not mortal.has_killed:
            break
    assert at >= 4  # the note, two of the log, HEAD, the note of its end


async def test_two_operators_at_once_put_it_back_once(desk: Desk) -> None:
    """The other one is refused, and the task is whole."""
    await desk.lost("t")
    done = await asyncio.gather(desk.restore("t"), desk.restore("t"), return_exceptions=True)
    refused = [type(one) for one in done if not isinstance(one, str)]
    assert refused == [UnsupportedOperationError]
    await desk.assert_back("t")


@pytest.mark.parametrize("what", ["as it was", "newer", "another", "half deleted"])
async def test_nothing_is_put_over_what_is_there(desk: Desk, what: str) -> None:
    """Neither over the task, as it was or gone on since, nor over another one with its id."""
    await desk.lost("t")
    if what == "another":
        await desk.storage.open_task("talk", request("other"), task_id="t")
    else:
        await desk.restore("t")
    if what == "newer":
        await desk.storage.webhooks.delete("t", "hook")
    if what == "half deleted":
        fenced = {"incarnation": "fence", "expires_at": 1}
        await desk.storage.table.write(Update(key=head_key(desk.scope, "t"), values=fenced))
    before = await desk.items(desk.storage, "t")
    with pytest.raises(UnsupportedOperationError, match="nothing is put over it"):
        await desk.restore("t")
    assert await desk.items(desk.storage, "t") == before


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "meanwhile"])
async def test_what_its_caller_had_stays_deleted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, *, is_late: bool
) -> None:
    """Within a day of the deletion of all, also one that begins while the task is put back."""
    await desk.lost("t")
    clock.advance(1)
    job = DeletionJob(desk.storage, Owner(desk.storage.scope.principal))
    if not is_late:
        await job.step()
    write = desk.storage.table.write

    async def then(*changes: Any) -> None:
        await write(*changes)
        if is_late and any(getattr(one, "item", {}).get("SK") == "HEAD" for one in changes):
            monkeypatch.setattr(desk.storage.table, "write", write)
            await job._put_up(clock.now_ms() + 1000)

    monkeypatch.setattr(desk.storage.table, "write", then)
    with pytest.raises(UnsupportedOperationError, match="It stays deleted"):
        await desk.restore("t")
    assert await desk.items(desk.storage, "t") == []


async def test_files_that_are_gone_are_told(desk: Desk) -> None:
    """Before and after; the task comes back all the same, with a sentence in a file's place."""
    await desk.lost("t")
    gone = next(key for key, it in desk.blobs._contents.items() if it.startswith(b"x"))
    del desk.blobs._contents[gone]
    told = "Files that are gone: 1 of 2;"  # the records of the steps are one
    assert told in await desk.restore("t", is_dry=True)
    assert told in await desk.restore("t")
    task = present(await desk.storage.load_task("t"))
    assert "not stored any more" in task.history[0].parts[1].text


async def test_an_open_turn_goes_on(desk: Desk) -> None:
    """Its lease has ended by then: it is among those that are due."""
    opened = (await desk.storage.open_task("talk", request("go"), task_id="t")).head
    head = await desk.storage.commit(opened, Commit(token="a", claims=True, worker="w"))
    await desk.keep("t")
    await delete_task(desk.storage, "t")
    assert "The sweeper goes on with its open turn." in await desk.restore("t")
    assert await desk.storage.head("t") == head


UNREADABLE: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("A newer release wrote it", {"needs": FORMAT + 1}, ()),
    ("A newer release wrote it", {"state": "TASK_STATE_NEW"}, ()),
    ("has the form of an earlier release", {}, ("mark",)),
    ("is not there, or was stored in part", {"version": 99}, ()),
]


async def test_what_this_release_cannot_read_is_refused(desk: Desk, clock: ManualClock) -> None:
    """Of another release, damaged, or expired since its creation: nothing is changed."""
    head = await desk.lost("t")
    key = head_key(desk.scope, "t")
    item = present(await desk.beside.table.get(key))
    for why, values, remove in UNREADABLE:
        await desk.beside.table.write(Update(key=key, values=values, remove=remove))
        with pytest.raises((UnsupportedOperationError, UnreadableTaskError), match=why):
            await desk.restore("t")
        await desk.beside.table.write(Put(item=item))
    clock.advance((head.expires_at - head.created_at) / 1000 + 1)
    with pytest.raises(TaskNotFoundError):
        await desk.restore("t")
    assert await desk.items(desk.storage, "t") == []
