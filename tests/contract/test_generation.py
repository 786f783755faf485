"""The generation of a task that is started over, as HEAD has it and as the log tells it."""

from __future__ import annotations

from a2a.types import TaskState, TaskStatus

from a2a_serverless.http.cancellation import cancel
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.log import Log
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.entries import ArtifactWritten, StatusChanged, TurnOpened
from a2a_serverless.tasks.events import events_of
from a2a_serverless.tasks.fold import Fold
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.operations import Operation, OperationParams
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.claims import Ownership, claim
from a2a_serverless.worker.writer import TurnWriter
from tests.support.messages import artifact, request
from tests.support.queues import MemoryQueue


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


async def uncounted(storage: DurableStorage) -> Head:
    """A claimed task whose HEAD does not know its generation."""
    head = (await storage.open_task("ctx", request("u1"))).head
    head = await storage.commit(head, Commit(token="first", claims=True))
    seen = await read(storage, head.task_id)
    await note(storage, head, "a")
    head = await claimed_again(storage, seen)
    assert head.generation is None
    return head


async def followed_up(storage: DurableStorage) -> Head:
    """Return HEAD of an uncounted task whose next turn waits for a worker."""
    head = await uncounted(storage)
    asks = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_INPUT_REQUIRED))
    head = await storage.commit(head, Commit(entries=(asks,), token=head.token))
    return await storage.commit(head, Commit(entries=(TurnOpened(request("u2")),)))


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


async def test_a_commit_without_the_log_leaves_an_unknown_generation(
    storage: DurableStorage,
) -> None:
    """A follow-up leaves an unknown generation unknown; the claim of its turn stores it again."""
    head = await followed_up(storage)
    assert head.generation is None
    head = await claimed_again(storage, (await read(storage, head.task_id)).counted())
    log = await read(storage, head.task_id)
    assert log.head.generation == events(log)


async def test_a_claim_that_meets_a_request_to_cancel_keeps_what_it_has_counted(
    storage: DurableStorage,
) -> None:
    """The request changes HEAD alone: generation and artifacts are those of the log still."""
    log = (await read(storage, (await uncounted(storage)).task_id)).counted()
    await storage.request_cancel(log.head.task_id)
    head = await claimed_again(storage, log)
    assert head.cancel is not None
    log = await read(storage, head.task_id)
    assert log.head.generation == events(log)


async def test_a_writer_that_meets_a_request_to_cancel_keeps_what_it_has_counted(
    storage: DurableStorage,
) -> None:
    """A first commit keeps the counted generation if HEAD has changed only by a cancel request."""
    head = (await read(storage, (await followed_up(storage)).task_id)).counted().head
    await storage.request_cancel(head.task_id)
    own = Ownership(params=OperationParams.of(head, head.turn), token="writer")
    async with TurnWriter(log=storage, head=head, own=own, clock=storage.clock) as writer:
        writer.put(ArtifactWritten(artifact("b", "1")))
        await writer.flush()
    log = await read(storage, head.task_id)
    assert log.head.token == "writer"
    assert log.head.generation == events(log)


async def test_a_task_that_the_api_cancels_has_its_generation(storage: DurableStorage) -> None:
    """The API has followed its log."""
    task_id = (await uncounted(storage)).task_id
    backends = Backends(storage=storage, operations=MemoryQueue(Operation, clock=storage.clock))
    await cancel(backends, storage.scope, task_id, timeout_s=0)
    log = await read(storage, task_id)
    assert log.head.state == TaskState.TASK_STATE_CANCELED
    assert log.head.generation == events(log)
