"""The dead letter consumer over the backends in memory."""

from __future__ import annotations

from typing import Literal
from unittest.mock import AsyncMock

import pytest
from a2a.types import TaskState

from a2a_serverless.errors import ConcurrencyError, ConfigurationError
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import _CANCELED
from a2a_serverless.tasks.entries import TurnOpened
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.sweeper import SweepReport
from tests.support.messages import request
from tests.support.queues import aside
from tests.support.workers import status_text
from tests.unit.worker.stand import Repairs, actions, beside, lines

SCOPE = Scope.of("tenant", "someone")

Kind = Literal["run", "cancel"]


def body(head: Head, kind: Kind = "run", *, turn: int | None = None) -> str:
    """The message of an operation."""
    params = OperationParams.of(head, turn or head.turn.number)
    return Operation(operation=kind, params=params).model_dump_json()


@pytest.fixture
def stack() -> Repairs:
    """Backends in memory; a turn has two attempts."""
    return Repairs(SCOPE)


async def used_up(stack: Repairs) -> Head:
    """A task whose turn has had all its attempts."""
    return await stack.claim(await stack.claim(await stack.open(), "a"), "b")


async def test_the_task_of_a_dead_letter_fails(
    stack: Repairs, caplog: pytest.LogCaptureFixture
) -> None:
    """A used-up turn's dead letter fails the task with a fixed sentence; delivered again, nothing.

    The log has its correlation id.
    """
    head = await used_up(stack)
    assert await stack.dead_letters.handle(body(head)) == "failed"
    failed = await stack.head(head)
    assert failed.state == TaskState.TASK_STATE_FAILED
    (line,) = lines(caplog, "dead_letter_failed")
    text = f"The agent could not finish the task. Correlation id: {line['correlation_id']}."
    assert status_text(await stack.task(head)) == text
    assert line["task_id"] == head.task_id
    assert await stack.dead_letters.handle(body(head)) == "dropped"
    assert await stack.head(head) == failed


@pytest.mark.parametrize("attempts", [0, 1])
async def test_a_turn_with_attempts_left_is_due_at_once(
    stack: Repairs, attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Deliveries ran out, attempts did not: nothing fails, no doubled wait is waited out."""
    head = await stack.open()
    assert await stack.storage.postpone(head, due_at=stack.clock.now_ms() + 3_600_000, sends=7)
    head = await stack.head(head)
    if attempts:
        head = await stack.claim(head)
    assert await stack.dead_letters.handle(body(head)) == "resent"
    resent = await stack.head(head)
    assert (resent.version, resent.turn.sends) == (head.version, 7)
    assert resent.due_at == stack.clock.now_ms()
    (line,) = lines(caplog, "dead_letter_resent")
    assert (line["levelname"], line["task_id"]) == ("WARNING", head.task_id)
    assert line["attempts"] == attempts
    assert await stack.sweep() == SweepReport(sent=1)


async def test_a_turn_that_is_overdue_stays_as_long_overdue(stack: Repairs) -> None:
    """A dead letter of an overdue turn leaves HEAD, and so its due time, as it is."""
    head = await stack.open()
    stack.clock.advance(7200)
    assert await stack.dead_letters.handle(body(head)) == "resent"
    assert await stack.head(head) == head


async def test_a_turn_that_is_claimed_meanwhile_is_looked_at_again(
    stack: Repairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead letter is decided on the HEAD as it then is: here its attempts are used up."""
    head = await stack.claim(await stack.open(), "a")
    beside(monkeypatch, "postpone", lambda: stack.claim(head, "b"))
    assert await stack.dead_letters.handle(body(head)) == "failed"
    assert (await stack.head(head)).turn.attempts == 2


async def test_making_a_turn_due_is_bounded(
    stack: Repairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that others keep changing leaves the dead letter in its queue."""
    head = await stack.open()
    monkeypatch.setattr(DurableStorage, "postpone", AsyncMock(return_value=None))
    with pytest.raises(ConcurrencyError, match="due"):
        await stack.dead_letters.handle(body(head))


@pytest.mark.parametrize("kind", ["run", "cancel"])
async def test_a_request_to_cancel_turns_failed_into_canceled(stack: Repairs, kind: Kind) -> None:
    """The client asked for a cancel, and gets one."""
    head = await stack.open()
    await stack.storage.request_cancel(head.task_id)
    assert await stack.dead_letters.handle(body(head, kind)) == "canceled"
    assert (await stack.head(head)).state == TaskState.TASK_STATE_CANCELED
    assert status_text(await stack.task(head)) == _CANCELED


async def test_a_cancel_that_comes_meanwhile_counts(
    stack: Repairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel between the read of the log and the decision is seen by its mark on HEAD."""
    head = await used_up(stack)
    cancel = stack.storage.request_cancel
    beside(monkeypatch, "read", lambda: cancel(head.task_id), when="behind")
    assert await stack.dead_letters.handle(body(head)) == "canceled"
    assert (await stack.head(head)).state == TaskState.TASK_STATE_CANCELED


async def test_a_finished_turn_is_left_alone(stack: Repairs) -> None:
    """The late dead letter of a turn that paused the task neither fails it nor its next turn."""
    head = await stack.move(await stack.open(), TaskState.TASK_STATE_INPUT_REQUIRED)
    assert await stack.dead_letters.handle(body(head, turn=1)) == "dropped"
    head = await stack.storage.commit(head, Commit(entries=(TurnOpened(request("more")),)))
    assert await stack.dead_letters.handle(body(head, turn=1)) == "dropped"
    assert (await stack.head(head)).state == TaskState.TASK_STATE_SUBMITTED
    head = await stack.claim(await stack.claim(head, "a"), "b")
    assert await stack.dead_letters.handle(body(head)) == "failed"


@pytest.mark.parametrize("fate", ["ended", "deleted", "expired", "made anew", "another scope"])
async def test_what_is_about_no_task_or_an_ended_one_is_dropped(stack: Repairs, fate: str) -> None:
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
    stack: Repairs, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An unreadable dead letter moves unchanged to the undecodable queue, and the log says why."""
    assert await stack.dead_letters.handle(text) == "undecodable"
    assert [kept.body for kept in await aside(stack.queue).waiting()] == [text]
    assert "dead_letter_undecodable" in actions(caplog)


async def test_without_a_queue_for_it_the_dead_letter_stays(
    stack: Repairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable message is not lost because a queue is not configured."""
    monkeypatch.setattr(stack.queue, "keep_undecodable", AsyncMock(return_value=False))
    with pytest.raises(ConfigurationError, match="A2A_UNDECODABLE_QUEUE"):
        await stack.dead_letters.handle("poison")
