"""The generation of a task that is started over: HEAD has the number of the log's events."""

from __future__ import annotations

import pytest

from a2a_serverless.errors import TurnFinishedError
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.fold import Fold, Log, events_of
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from tests.support.messages import artifact, request
from tests.support.workers import guard_of


async def read(storage: DurableStorage, task_id: str) -> Log:
    log = await storage.read(task_id)
    assert log is not None
    return log


async def note(storage: DurableStorage, head: Head, name: str) -> Head:
    """An artifact from outside of any attempt: no restart takes it back."""
    return await storage.commit(head, Commit(entries=(ArtifactWritten(artifact(name, "1")),)))


async def claimed_again(storage: DurableStorage, log: Log) -> Head:
    guard = guard_of(storage, log.head, token=f"token-{log.head.version}")
    await guard.take_over(log, RetryPolicy(max_attempts=9))
    return guard.head


def events(log: Log) -> int:
    fold, count = Fold(log.head.task_id, log.head.context_id), 0
    for record in log.records:
        assert record.base == count
        fold.add(record)
        count += len(list(events_of(record, fold)))
    return count


async def test_a_restart_counts_what_it_restores(storage: DurableStorage) -> None:
    """HEAD has the number of the last event, and each commit that of the events before it."""
    head = (await storage.open_task("ctx", request("u1"))).head
    head = await storage.commit(head, Commit(token="first", claims=True))
    head = await note(storage, await note(storage, head, "a"), "b")
    head = await claimed_again(storage, await read(storage, head.task_id))
    log = await read(storage, head.task_id)
    assert head.generation == log.head.generation == events(log) == 1 + 1 + 2 + (2 + 1)


async def test_a_claim_whose_log_is_out_of_date_counts_again(storage: DurableStorage) -> None:
    """An artifact that came between read and claim is among those that the restart brings back."""
    head = (await storage.open_task("ctx", request("u1"))).head
    head = await storage.commit(head, Commit(token="first", claims=True))
    seen = await read(storage, head.task_id)
    await note(storage, head, "a")
    head = await claimed_again(storage, seen)
    log = await read(storage, head.task_id)
    assert head.generation == log.head.generation == events(log) == 1 + 1 + 1 + (1 + 1)


async def test_a_claim_that_meets_a_request_to_cancel_counts_right(storage: DurableStorage) -> None:
    """The request changes HEAD and not the log: the claim is made on the HEAD that has heard it."""
    head = (await storage.open_task("ctx", request("u1"))).head
    head = await note(storage, await storage.commit(head, Commit(token="1", claims=True)), "a")
    seen = await read(storage, head.task_id)
    await storage.request_cancel(head.task_id)
    head = await claimed_again(storage, seen)
    assert head.cancel is not None
    assert head.generation == events(await read(storage, head.task_id)) == 1 + 1 + 1 + (1 + 1)


async def test_a_claim_of_a_task_that_is_gone_is_over(storage: DurableStorage) -> None:
    """A task that was deleted after its log was read has no turn to claim."""
    head = (await storage.open_task("ctx", request("u1"))).head
    head = await storage.commit(head, Commit(token="first", claims=True))
    seen = await read(storage, head.task_id)
    await delete_task(storage, head.task_id)
    with pytest.raises(TurnFinishedError):
        await claimed_again(storage, seen)
