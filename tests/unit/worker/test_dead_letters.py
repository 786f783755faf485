"""The dead letter consumer over the backends in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from a2a.types import TaskState

from a2a_serverless.errors import ConcurrencyError, ConfigurationError
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import _CANCELED
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.entries import TurnOpened
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.sweeper import DeadLetters, Sweeper, SweepReport
from a2a_serverless_tools.contract import Storage
from tests.support.clocks import ManualClock
from tests.support.memory import memory_storage
from tests.support.messages import request
from tests.support.queues import MemoryQueue, aside

SCOPE = Scope.of("tenant", "someone")
RETRY = RetryPolicy(max_attempts=2)

Kind = Literal["run", "cancel"]


@dataclass
class Stack:
    """The consumer and what it works on."""

    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        storage = memory_storage(clock=self.clock)
        self.queue = MemoryQueue(Operation, clock=self.clock)
        self.dead_letters = DeadLetters(storage, self.queue, retry=RETRY)
        self.sweeper = Sweeper(storage, self.queue, clock=self.clock)
        self.storage = storage.for_scope(SCOPE)

    async def open(self) -> Head:
        return (await self.storage.open_task("context", request())).head

    async def attempt(self, head: Head) -> Head:
        """One more attempt that has claimed the turn and never came back."""
        claim = Commit(token=f"attempt-{head.turn.attempts}", claims=True)
        return await self.storage.commit(head, claim)

    async def used_up(self) -> Head:
        """A task whose turn has had all its attempts."""
        return await self.attempt(await self.attempt(await self.open()))

    async def move(self, head: Head, state: TaskState) -> Head:
        await Storage(self.storage).update_task(head.task_id, state)
        return await self.head(head)

    async def follow_up(self, head: Head) -> Head:
        """The next turn of a paused task."""
        return await self.storage.commit(head, Commit(entries=(TurnOpened(request("more")),)))

    async def head(self, head: Head) -> Head:
        current = await self.storage.head(head.task_id)
        assert current is not None
        return current

    async def text(self, head: Head) -> str:
        task = await self.storage.load_task(head.task_id)
        assert task is not None
        return str(task.status.message.parts[0].text)


def body(head: Head, kind: Kind = "run", *, turn: int | None = None) -> str:
    """The message of an operation."""
    params = OperationParams(
        scope=head.scope,
        task_id=head.task_id,
        incarnation=head.incarnation,
        turn=turn or head.turn.number,
    )
    return Operation(operation=kind, params=params).model_dump_json()


@pytest.fixture
def stack() -> Stack:
    """Backends in memory."""
    return Stack()


async def test_the_task_of_a_dead_letter_fails(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    """A used-up turn's dead letter fails the task with a fixed sentence."""
    head = await stack.used_up()
    assert await stack.dead_letters.handle(body(head)) == "failed"
    assert (await stack.head(head)).state == TaskState.TASK_STATE_FAILED
    (record,) = [r for r in caplog.records if getattr(r, "action", "") == "dead_letter_failed"]
    correlation_id = record.__dict__["correlation_id"]
    text = f"The agent could not finish the task. Correlation id: {correlation_id}."
    assert await stack.text(head) == text
    assert record.__dict__["task_id"] == head.task_id


@pytest.mark.parametrize("attempts", [0, 1])
async def test_a_turn_with_attempts_left_is_due_at_once(
    stack: Stack, attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Deliveries ran out, attempts did not: nothing fails, no doubled wait is waited out."""
    head = await stack.open()
    assert await stack.storage.postpone(head, due_at=stack.clock.now_ms() + 3_600_000, sends=7)
    head = await stack.head(head)
    if attempts:
        head = await stack.attempt(head)
    assert await stack.dead_letters.handle(body(head)) == "resent"
    resent = await stack.head(head)
    assert (resent.version, resent.turn.sends) == (head.version, 7)
    assert resent.due_at == stack.clock.now_ms()
    (record,) = [r for r in caplog.records if getattr(r, "action", "") == "dead_letter_resent"]
    assert record.levelname == "WARNING"
    assert (record.__dict__["task_id"], record.__dict__["attempts"]) == (head.task_id, attempts)
    assert await stack.sweeper.sweep() == SweepReport(sent=1)


async def test_a_turn_that_is_overdue_stays_as_long_overdue(stack: Stack) -> None:
    """A dead letter of an overdue turn leaves HEAD, and so its due time, as it is."""
    head = await stack.open()
    stack.clock.advance(7200)
    assert await stack.dead_letters.handle(body(head)) == "resent"
    assert await stack.head(head) == head


async def test_a_turn_that_is_claimed_meanwhile_is_looked_at_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead letter is decided on the HEAD as it then is: here its attempts are used up."""
    head = await stack.attempt(await stack.open())
    postpone = DurableStorage.postpone

    async def claimed_first(self: DurableStorage, head: Head, **due: int) -> Head | None:
        monkeypatch.setattr(DurableStorage, "postpone", postpone)
        await stack.attempt(head)
        return await postpone(self, head, **due)

    monkeypatch.setattr(DurableStorage, "postpone", claimed_first)
    assert await stack.dead_letters.handle(body(head)) == "failed"
    assert (await stack.head(head)).turn.attempts == 2


async def test_making_a_turn_due_is_bounded(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that others keep changing leaves the dead letter in its queue."""

    async def lost(*_: object, **__: object) -> None:
        return None

    head = await stack.open()
    monkeypatch.setattr(DurableStorage, "postpone", lost)
    with pytest.raises(ConcurrencyError, match="due"):
        await stack.dead_letters.handle(body(head))


async def test_handling_twice_does_it_once(stack: Stack) -> None:
    """A dead letter may be delivered again."""
    head = await stack.used_up()
    await stack.dead_letters.handle(body(head))
    version = (await stack.head(head)).version
    assert await stack.dead_letters.handle(body(head)) == "dropped"
    assert (await stack.head(head)).version == version


@pytest.mark.parametrize("kind", ["run", "cancel"])
async def test_a_request_to_cancel_turns_failed_into_canceled(stack: Stack, kind: Kind) -> None:
    """The client asked for a cancel, and gets one."""
    head = await stack.open()
    await stack.storage.request_cancel(head.task_id)
    assert await stack.dead_letters.handle(body(head, kind)) == "canceled"
    assert (await stack.head(head)).state == TaskState.TASK_STATE_CANCELED
    assert await stack.text(head) == _CANCELED


async def test_a_cancel_that_comes_meanwhile_counts(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel between the read of the log and the decision is seen by its mark on HEAD."""
    head = await stack.used_up()
    read = DurableStorage.read

    async def late(self: DurableStorage, *args: Any, **options: Any) -> Log | None:
        log = await read(self, *args, **options)
        await stack.storage.request_cancel(head.task_id)
        return log

    monkeypatch.setattr(DurableStorage, "read", late)
    assert await stack.dead_letters.handle(body(head)) == "canceled"
    assert (await stack.head(head)).state == TaskState.TASK_STATE_CANCELED


async def test_a_finished_turn_is_left_alone(stack: Stack) -> None:
    """The late dead letter of a turn that paused the task neither fails it nor its next turn."""
    head = await stack.move(await stack.open(), TaskState.TASK_STATE_INPUT_REQUIRED)
    assert await stack.dead_letters.handle(body(head, turn=1)) == "dropped"
    head = await stack.follow_up(head)
    assert await stack.dead_letters.handle(body(head, turn=1)) == "dropped"
    assert (await stack.head(head)).state == TaskState.TASK_STATE_SUBMITTED
    head = await stack.attempt(await stack.attempt(head))
    assert await stack.dead_letters.handle(body(head)) == "failed"


@pytest.mark.parametrize("fate", ["ended", "deleted", "expired", "made anew", "another scope"])
async def test_what_is_about_no_task_or_an_ended_one_is_dropped(stack: Stack, fate: str) -> None:
    """Nothing is changed: neither a later task of the same id, nor that of another scope."""
    head = await stack.open()
    letter = body(head, "cancel")
    if fate == "ended":
        await stack.move(head, TaskState.TASK_STATE_COMPLETED)
    elif fate == "expired":
        stack.clock.advance(stack.storage.timing.ttl_s + 1)
    elif fate == "another scope":
        letter = letter.replace(SCOPE.digest, Scope.of("other", "one").digest)
    else:
        await delete_task(stack.storage, head.task_id)
        if fate == "made anew":
            await stack.storage.open_task("context", request(), task_id=head.task_id)
    before = await stack.storage.head(head.task_id)
    assert await stack.dead_letters.handle(letter) == "dropped"
    assert await stack.storage.head(head.task_id) == before


@pytest.mark.parametrize(
    "text", ["", "poison", "[]", '{"operation": "run", "params": {}}', '{"operation": "dance"}']
)
async def test_an_unreadable_dead_letter_is_kept(
    stack: Stack, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An unreadable dead letter moves unchanged to the undecodable queue, and the log says why."""
    assert await stack.dead_letters.handle(text) == "undecodable"
    assert [kept.body for kept in await aside(stack.queue).waiting()] == [text]
    assert "dead_letter_undecodable" in {getattr(r, "action", "") for r in caplog.records}


async def test_without_a_queue_for_it_the_dead_letter_stays(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable message is not lost because a queue is not configured."""

    async def no_queue(body: str, *, reason: str) -> bool:
        return False

    monkeypatch.setattr(stack.queue, "keep_undecodable", no_queue)
    with pytest.raises(ConfigurationError, match="A2A_UNDECODABLE_QUEUE"):
        await stack.dead_letters.handle("poison")
