"""The generation of a task that is started over, as HEAD has it and as the log tells it."""

from __future__ import annotations

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.log import Log
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.events import events_of
from a2a_serverless.tasks.fold import Fold
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.operations import OperationParams
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.claims import Ownership, claim
from tests.support.messages import artifact, request


async def read(storage: DurableStorage, task_id: str) -> Log:
    log = await storage.read(task_id)
    assert log is not None
    return log


async def note(storage: DurableStorage, head: Head, name: str) -> Head:
    """An artifact from outside of any attempt: no restart takes it back."""
    return await storage.commit(head, Commit(entries=(ArtifactWritten(artifact(name, "1")),)))


async def claimed_again(storage: DurableStorage, log: Log) -> Head:
    params = OperationParams.of(log.head, log.head.turn, 0)
    own = Ownership(params=params, token=f"token-{log.head.version}")
    return await claim(storage, log, own, RetryPolicy(max_attempts=9))


def events(log: Log) -> int:
    fold, count = Fold(log.head.task_id, log.head.context_id), 0
    for record in log.records:
        assert record.base in (None, count)
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


async def test_a_claim_whose_log_is_out_of_date_counts_nothing(storage: DurableStorage) -> None:
    """HEAD does not know its generation then: the log does, and the next claim stores it again."""
    head = (await storage.open_task("ctx", request("u1"))).head
    head = await storage.commit(head, Commit(token="first", claims=True))
    seen = await read(storage, head.task_id)
    await note(storage, head, "a")
    head = await claimed_again(storage, seen)
    log = await read(storage, head.task_id)
    assert log.head.generation is None
    assert log.counted().head.generation == events(log) == 1 + 1 + 1 + (1 + 1)
    head = await claimed_again(storage, log.counted())
    log = await read(storage, head.task_id)
    assert log.head.generation == events(log) == 5 + (1 + 1)
