"""Snapshots that a process keeps in its memory, over each table: never another task than stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from a2a.types import TaskState, TaskStatus

from a2a_serverless.storage import snapshots
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.snapshots import NearSnapshots
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.entries import CRITICAL, Caller, StatusChanged, TurnOpened, Unknown
from a2a_serverless.tasks.fold import Cursor, Log, incarnation_tag
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import new_token
from a2a_serverless.tasks.rules import Commit
from tests.contract.test_snapshots import check_same
from tests.support.clocks import ManualClock
from tests.support.messages import agent_message, request, said
from tests.support.present import present

COMMITS = 4
HOUR = 3600
TASK = "chosen-by-the-client"


@pytest.fixture(autouse=True)
def _few_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short task is a long one."""
    monkeypatch.setattr(snapshots, "NEAR_COMMITS", COMMITS)


async def opened(storage: DurableStorage, text: str, head: Head | None = None) -> Head:
    """Let a client send a message; return HEAD with the turn that it has opened."""
    if head is None:
        return (await storage.open_task("ctx", request(text), task_id=TASK, ttl_s=HOUR)).head
    return await storage.commit(head, Commit(entries=(TurnOpened(request(text), Caller()),)))


async def answered(storage: DurableStorage, head: Head) -> Head:
    """Let the agent ask something back; return HEAD."""
    message = agent_message("And?")
    asks = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_INPUT_REQUIRED, message=message))
    ends = Commit(entries=(asks,), token=new_token(), claims=True, ends_turn=True)
    return await storage.commit(head, ends)


async def asked(storage: DurableStorage, texts: Sequence[str], head: Head | None = None) -> Head:
    """Return HEAD of a task with the turns of these messages, of which the last one is open."""
    for number, text in enumerate(texts):
        head = await opened(storage, text, head)
        await read(storage)
        if number < len(texts) - 1:
            head = await answered(storage, head)
    assert head is not None
    return head


async def read(storage: DurableStorage, *, is_whole: bool = False) -> Log:
    return present(await storage.read(TASK, is_whole=is_whole))


async def test_a_long_task_is_read_from_near_its_end(storage: DurableStorage) -> None:
    """However many turns it has had, few commits are read; the reader gets what the log says."""
    head: Head | None = None
    for number in range(12):
        head = await opened(storage, f"{number}", head)
        assert len((await check_same(storage, head)).records) <= COMMITS + 1
        accepted = Cursor(head.version, 0, incarnation_tag(head.incarnation))
        tail, opening = await Tail.resume(storage, TASK, accepted)
        assert opening.event == (await read(storage, is_whole=True)).fold().task()
        head = await answered(storage, head)
        await tail.poll()
        assert tail.fold.task() == await storage.load_task(TASK)


async def test_another_process_writes_behind_it(storage: DurableStorage) -> None:
    """What another process has committed since is read, and the turn that it has ended is over."""
    head = await asked(storage, "abcd")
    other = replace(storage, near=NearSnapshots())
    head = await answered(other, await opened(other, "e", await answered(other, head)))
    task = present(await storage.load_task(TASK))
    assert said(task)[-3:] == ["d", "And?", "e"]
    assert (await check_same(storage, head)).since is not None


@pytest.mark.parametrize("expires", [False, True])
async def test_a_task_made_anew_under_its_id_is_another_one(
    storage: DurableStorage, clock: ManualClock, *, expires: bool
) -> None:
    """Neither after a deletion by another process nor after its expiry is the earlier one shown."""
    await asked(storage, "abcd")
    assert (await read(storage)).since is not None
    other = replace(storage, near=NearSnapshots())
    if expires:
        clock.advance(HOUR)
    else:
        await delete_task(other, TASK)
    head = await asked(other, "vwxyz")  # longer: its version is beyond that of the snapshot
    assert head.version > COMMITS
    task = present(await storage.load_task(TASK))
    assert [text for text in said(task) if text != "And?"] == [*"vwxyz"]
    await check_same(storage, head)


async def test_a_task_that_is_gone_is_forgotten(storage: DurableStorage) -> None:
    """A reader that finds no task leaves nothing of it in memory."""
    head = await asked(storage, "abcd")
    assert storage.near.of(head) is not None
    await delete_task(storage, TASK)
    assert await storage.read(TASK, is_whole=False) is None
    assert storage.near.of(head) is None


async def test_what_is_kept_is_bounded_by_bytes(storage: DurableStorage) -> None:
    """The snapshot that was used last stays; a task that is too large alone has none."""
    head = await asked(storage, "abcd")
    log = await read(storage)
    others = [replace(log, head=replace(head, task_id=name)) for name in "xyz"]
    near = NearSnapshots(most_bytes=2 * head.size)
    for other in others[:2]:
        near.keep(replace(other, since=None, records=(await read(storage, is_whole=True)).records))
    assert near.of(others[0].head) is not None
    near.keep(replace(others[2], since=None, records=(await read(storage, is_whole=True)).records))
    assert [near.of(one.head) is not None for one in others] == [True, False, True]
    small = NearSnapshots(most_bytes=head.size - 1)
    small.keep(await read(storage, is_whole=True))
    assert small.of(head) is None


async def test_what_a_restart_takes_back_is_not_in_it(storage: DurableStorage) -> None:
    """Nothing is kept where the turn before was open, or its code goes on in the current one.

    Nor of a task with an entry that its workers have to see, which this release cannot read.
    """
    await asked(storage, "abcd")
    log = await read(storage, is_whole=True)
    near, turn, first = NearSnapshots(), log.head.turn, log.records[0]
    unknown = replace(first, entries=(*first.entries, Unknown(b"n", CRITICAL, b"")))
    for other in (
        replace(log, head=replace(log.head, turn=replace(turn, base=turn.number + 1))),
        replace(log, head=replace(log.head, turn=replace(turn, begun=1, begun_base=1))),
        replace(log, records=(unknown, *log.records[1:])),
    ):
        near.keep(other)
        assert near.of(log.head) is None
    near.keep(log)
    assert near.of(log.head) is not None
