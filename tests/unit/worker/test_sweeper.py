"""The sweeper, and the consumer of dead letters, over the backends in memory."""

from __future__ import annotations

from typing import Any, Literal
from unittest.mock import AsyncMock, Mock

import pytest
from a2a.types import TaskState, TaskStatus

from a2a_serverless.errors import ConcurrencyError, ConfigurationError, UnavailableError
from a2a_serverless.observability import metrics
from a2a_serverless.settings import Settings
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import _CANCELED, REBASES
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.layout import BY_LINE, INDEXES, barrier_item
from a2a_serverless.storage.table import Update
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.head import Head, Operation, OperationParams, Reason
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import table_backends
from a2a_serverless.worker import sweeper
from a2a_serverless.worker.sweeper import BATCH, LANES, MOST_COPIES, Sweeper, SweepReport
from tests.support.clocks import ManualClock
from tests.support.commits import asleep, follow_up
from tests.support.messages import request
from tests.support.present import present
from tests.support.queues import aside, left
from tests.support.workers import status_text
from tests.unit.worker.stand import Log, Patch, Repairs, actions, beside, line, lines

SCOPE = Scope.of("tenant", "someone")
WAITING_S = 60
LEASE_S = 300
TIMEOUT_S = 10
DAY_S = 24 * 3600


@pytest.fixture
def stack() -> Repairs:
    """Backends in memory under a clock of the test's own; a turn has two attempts."""
    made = Repairs(SCOPE)
    timing = made.storage.timing
    assert (timing.waiting_s, timing.lease_s, timing.cancel_s) == (WAITING_S, LEASE_S, TIMEOUT_S)
    return made


def copies(stack: Repairs) -> list[int]:
    return [operation.params.copy_number for operation in left(stack.queue)]


# -- turns -----------------------------------------------------------------------------------


async def test_a_turn_that_was_never_sent_is_sent_ever_more_rarely(stack: Repairs) -> None:
    """Each copy has a number of its own; the waits between them double up to a bound."""
    scope = Scope.of("tenant", "another")
    stack.storage = stack.storage.for_scope(scope)
    head, waits = await stack.open(), []
    for _ in range(8):
        waits.append((present((await stack.head(head)).due_at) - stack.clock.now_ms()) / 1000)
        stack.clock.advance(waits[-1])
        assert await stack.sweep(longest_wait_s=1000) == SweepReport(sent=1)
        assert await stack.sweep(longest_wait_s=1000) == SweepReport()
    assert waits == [60, 120, 240, 480, 960, 1000, 1000, 1000]
    sent = left(stack.queue)
    wanted = [OperationParams.of(head, head.turn.number, number) for number in range(1, 9)]
    assert [(each.operation, each.params) for each in sent] == [("run", one) for one in wanted]
    assert sent[0].params.scope == scope.digest
    assert len({each.deduplication_id for each in sent}) == 8


@pytest.mark.parametrize("reason", ["share", "conversation"])
async def test_a_turn_that_was_woken_often_is_not_stuck(
    stack: Repairs, reason: Reason, caplog: Log, monkeypatch: Patch
) -> None:
    """Waits double, and a turn counts as stuck, by the copies that were sent as one seemed lost."""
    monkeypatch.setattr(metrics, "count", counted := Mock())
    head = await stack.open()
    for _ in range(sweeper.STUCK_AFTER):
        parked = present(await stack.storage.park(head, reason))
        head = present(await stack.storage.requeue(parked))
    for wait in (60, 120, 240):
        assert (await stack.head(head)).due_at == stack.clock.now_ms() + wait * 1000
        stack.clock.advance(wait)
        assert "StuckTurns" not in [call.args[0] for call in counted.call_args_list]
        assert await stack.sweep() == SweepReport(sent=1)
    assert [call.args[0] for call in counted.call_args_list].count("StuckTurns") == 1
    assert [line["sends"] for line in lines(caplog, "resend")] == [1, 2, 3]


async def test_only_a_turn_out_of_line_is_lost(stack: Repairs, monkeypatch: Patch) -> None:
    """A turn that has lost its conversation waits for others: its age rings no alarm."""
    told: list[str] = []
    monkeypatch.setattr(metrics, "time", lambda name, _: told.append(name))
    head = await stack.claim(await stack.open())
    stack.clock.advance(LEASE_S)
    await stack.sweep()
    assert told.count("AgeOfLostTurns") == 1
    assert await stack.storage.park(await stack.head(head), "conversation")
    stack.clock.advance(LEASE_S)
    assert (await stack.sweep(), told.count("AgeOfLostTurns")) == (SweepReport(passed=1), 1)


async def test_an_index_that_lags_costs_nothing(stack: Repairs, monkeypatch: Patch) -> None:
    """Turns that the index still shows are passed over if HEAD says that they are not due."""
    finished, postponed, deleted = [await stack.open() for _ in range(3)]
    stack.clock.advance(WAITING_S)
    stale = await due_tasks(stack.storage, stack.clock.now_ms())
    await stack.move(finished, TaskState.TASK_STATE_COMPLETED)
    await stack.storage.postpone(postponed, due_at=stack.clock.now_ms() + 1, sends=1)
    await delete_task(stack.storage, deleted.task_id)
    monkeypatch.setattr(sweeper, "due_tasks", AsyncMock(return_value=stale))
    assert (await stack.sweep(), copies(stack)) == (SweepReport(passed=3), [])


async def test_of_two_sweepers_one_sends(stack: Repairs, monkeypatch: Patch) -> None:
    """The postponement is conditional: who loses it sends nothing, and keeps its dead letter."""
    head = await stack.open()
    monkeypatch.setattr(DurableStorage, "postpone", AsyncMock(return_value=None))
    with pytest.raises(ConcurrencyError, match="due"):
        await stack.dead_letters.handle(body(head))
    stack.clock.advance(WAITING_S)
    assert await stack.sweep() == SweepReport(passed=1)
    assert (copies(stack), (await stack.head(head)).turn.sends) == ([], 0)


async def test_of_two_sweepers_one_wakes(stack: Repairs, monkeypatch: Patch) -> None:
    """Who finds that a sleeper was woken meanwhile sends nothing."""
    await asleep(stack.storage, "someone", stack.clock.now_ms() + 1000)
    monkeypatch.setattr(DurableStorage, "requeue", AsyncMock(return_value=None))
    stack.clock.advance(2)
    assert (await stack.sweep(), copies(stack)) == (SweepReport(passed=1), [])


async def test_a_late_message_of_an_old_task_is_not_given_up(stack: Repairs) -> None:
    """The age of its own turn counts."""
    head = await stack.move(await stack.open(), TaskState.TASK_STATE_INPUT_REQUIRED)
    stack.clock.advance(DAY_S)
    head = await stack.storage.commit(head, follow_up())
    stack.clock.advance(WAITING_S)
    assert await stack.sweep() == SweepReport(sent=1)
    assert (await stack.head(head)).state == TaskState.TASK_STATE_SUBMITTED


async def test_a_dead_queue_costs_no_wait(stack: Repairs, caplog: Log, monkeypatch: Patch) -> None:
    """A turn that cannot be sent is put back: each run tries the same copy, until one succeeds."""
    head = await stack.open()
    stack.clock.advance(WAITING_S)
    with monkeypatch.context() as outage:
        outage.setattr(stack.queue, "send", AsyncMock(side_effect=UnavailableError))
        for _ in range(10):
            assert await stack.sweep() == SweepReport(failed=1)
            assert (await stack.head(head)).turn.sends == 0
            stack.clock.advance(60)
    assert "sweep_failed" in actions(caplog)
    assert (await stack.sweep(), copies(stack)) == (SweepReport(sent=1), [1])
    assert (await stack.head(head)).due_at == stack.clock.now_ms() + 2 * WAITING_S * 1000


async def test_a_claim_beside_a_send_that_fails_stays(stack: Repairs, monkeypatch: Patch) -> None:
    """The answer of the send is lost, and a worker has taken the copy: its due time counts."""
    head = await stack.open()
    stack.clock.advance(WAITING_S)

    async def taken(*_: object, **__: object) -> None:
        await stack.claim(await stack.head(head))
        raise UnavailableError

    monkeypatch.setattr(stack.queue, "send", taken)
    assert await stack.sweep() == SweepReport(failed=1)
    claimed = await stack.head(head)
    assert (claimed.turn.token, claimed.turn.sends) == ("t", 1)
    assert (claimed.due_at or 0) > stack.clock.now_ms()


async def test_what_is_created_behind_a_deletion_is_deleted(stack: Repairs) -> None:
    """Its creator has died before it could take it back: no worker gets it, and nothing is left."""
    head, now_ms = await stack.open(), stack.clock.now_ms()
    values = {"until": now_ms + 1, "expires_at": now_ms // 1000 + DAY_S}
    barrier = barrier_item(SCOPE.digest, "of the deletion")
    await stack.storage.table.write(Update(key=barrier, values=values))
    stack.clock.advance(WAITING_S)
    assert await stack.sweep() == SweepReport(passed=1)
    assert (await stack.storage.head(head.task_id), copies(stack)) == (None, [])


# -- turns that are given up -----------------------------------------------------------------


async def test_a_turn_that_was_never_claimed_fails_in_the_end(stack: Repairs, caplog: Log) -> None:
    """An unclaimed turn fails its task after a day, not before, with a reason and a log line."""
    head = await stack.open()
    stack.clock.advance(DAY_S - 0.001)
    assert await stack.sweep() == SweepReport(sent=1)
    stack.clock.advance(2 * WAITING_S)
    assert await stack.sweep() == SweepReport(given_up=1)
    assert (await stack.head(head)).state == TaskState.TASK_STATE_FAILED
    assert status_text(await stack.task(head)) == (
        "The agent could not be started within 24 hours, so the task has failed."
        " Send the message again in a new task."
    )
    told = line(caplog, "turn_given_up")
    assert (told["levelname"], told["task_id"]) == ("ERROR", head.task_id)
    stack.clock.advance(DAY_S)
    assert (await stack.sweep(), len(copies(stack))) == (SweepReport(), 1)


async def test_a_turn_claimed_meanwhile_is_not_given_up(stack: Repairs, monkeypatch: Patch) -> None:
    """The worker is back in the last moment: the commit is refused, and the turn runs on."""
    head = await stack.open()
    stack.clock.advance(DAY_S)
    beside(monkeypatch, "commit", lambda: stack.claim(head))
    assert await stack.sweep() == SweepReport(passed=1)
    assert (await stack.head(head)).state == TaskState.TASK_STATE_WORKING


# -- runs ------------------------------------------------------------------------------------


async def test_bad_tasks_hold_up_no_other(stack: Repairs, monkeypatch: Patch, caplog: Log) -> None:
    """An error about one task is logged and counted, and its neighbours are repaired."""
    bad, good = await stack.open(), await stack.open()
    stack.clock.advance(WAITING_S)
    postpone = DurableStorage.postpone

    async def postponed(self: DurableStorage, head: Head, **due: Any) -> Head | None:
        if head.task_id == bad.task_id:
            raise ValueError(head.task_id)
        return await postpone(self, head, **due)

    monkeypatch.setattr(DurableStorage, "postpone", postponed)
    assert await stack.sweep() == SweepReport(sent=1, failed=1)
    assert [each.task_id for each in left(stack.queue)] == [good.task_id]
    assert bad.task_id in {getattr(record, "task_id", "") for record in caplog.records}


async def test_a_run_ends_with_its_budget(stack: Repairs, monkeypatch: Patch) -> None:
    """Slow requests do not carry a run beyond the function's timeout; the next one goes on."""
    at_once = LANES * BATCH
    for _ in range(at_once + 20):
        await stack.open()
    stack.clock.advance(WAITING_S)

    def slow(request: Any) -> Any:
        async def slowed(self: DurableStorage, *args: Any, **options: Any) -> Any:
            await self.clock.sleep(10)
            return await request(self, *args, **options)

        return slowed

    for name in ("postpone", "park"):
        monkeypatch.setattr(DurableStorage, name, slow(getattr(DurableStorage, name)))
    expected = SweepReport(sent=MOST_COPIES, parked=at_once - MOST_COPIES)
    assert await stack.sweep(budget_s=25) == expected
    last = await stack.sweep(budget_s=25)
    assert last.sent + last.parked >= 20


async def test_a_batch_whose_heads_cannot_be_read_is_left_to_the_next_run(
    stack: Repairs, monkeypatch: Patch, caplog: Log
) -> None:
    """Its tasks are counted as failed, the other batches are repaired, and nothing is lost."""
    for _ in range(2 * BATCH):
        await stack.open()
    stack.clock.advance(WAITING_S)
    load, calls = stack.storage.table.load, [0]

    async def down_once(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise UnavailableError
        return await load(*args, **kwargs)

    monkeypatch.setattr(stack.storage.table, "load", down_once)
    assert await stack.sweep() == SweepReport(sent=BATCH, failed=BATCH)
    assert "sweep_failed" in actions(caplog)
    assert await stack.sweep() == SweepReport(sent=BATCH)


# -- cancels ---------------------------------------------------------------------------------


async def cancelled(stack: Repairs) -> Head:
    head = await stack.claim(await stack.open())
    await stack.storage.request_cancel(head.task_id)
    stack.clock.advance(TIMEOUT_S)
    return head


async def test_an_overdue_cancel_is_ended(stack: Repairs) -> None:
    """The task is canceled with the sentence of every cancel; the fence is up."""
    head = await cancelled(stack)
    assert await stack.sweep() == SweepReport(canceled=1)
    task = await stack.task(head)
    assert (task.status.state, status_text(task)) == (TaskState.TASK_STATE_CANCELED, _CANCELED)
    assert (task.status.message.task_id, task.status.message.context_id) == (task.id, "context")
    late = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_COMPLETED))
    with pytest.raises(ConcurrencyError):
        await stack.storage.commit(head, Commit(entries=(late,), token="t"))
    assert await stack.sweep() == SweepReport()


async def test_rebasing_is_bounded(stack: Repairs, monkeypatch: Patch) -> None:
    """After a number of lost races the cancel is left to the next run."""
    head = await cancelled(stack)
    lost = ConcurrencyError(current_version=head.version + 1)
    with monkeypatch.context() as others:
        others.setattr(DurableStorage, "commit", commits := AsyncMock(side_effect=lost))
        assert await stack.sweep() == SweepReport(failed=1)
    assert commits.await_count == REBASES
    assert (await stack.head(head)).is_being_canceled
    assert await stack.sweep() == SweepReport(canceled=1)


async def test_a_task_that_ends_meanwhile_stays_ended(stack: Repairs, monkeypatch: Patch) -> None:
    """Completion wins the race."""
    head = await cancelled(stack)
    beside(monkeypatch, "commit", lambda: stack.move(head, TaskState.TASK_STATE_COMPLETED))
    assert await stack.sweep() == SweepReport(passed=1)
    assert (await stack.head(head)).state == TaskState.TASK_STATE_COMPLETED


async def test_an_index_that_is_missing_is_one_line(caplog: Log) -> None:
    """A sweep on a table without `by-line` goes on; its line says what is missing, no traceback."""
    table = MemoryTable({name: index for name, index in INDEXES.items() if name != BY_LINE})
    backends = table_backends(Settings(), table, ManualClock())
    await Sweeper(backends.storage, backends.operations, clock=backends.storage.clock).sweep()
    told = line(caplog, "shares_failed")
    assert told["said"].endswith("The table has no index by-line.")
    assert not told["exc_info"]


# -- dead letters ----------------------------------------------------------------------------------


Kind = Literal["run", "cancel"]


def body(head: Head, kind: Kind = "run", *, turn: int | None = None) -> str:
    params = OperationParams.of(head, turn or head.turn.number)
    return Operation(operation=kind, params=params).model_dump_json()


async def used_up(stack: Repairs) -> Head:
    """A task whose turn has had all its attempts."""
    return await stack.claim(await stack.claim(await stack.open(), "a"), "b")


async def test_the_task_of_a_dead_letter_fails(stack: Repairs, caplog: Log) -> None:
    """By a fixed sentence with the log's correlation id; delivered again, nothing happens."""
    head = await used_up(stack)
    assert await stack.dead_letters.handle(body(head)) == "failed"
    failed = await stack.head(head)
    assert failed.state == TaskState.TASK_STATE_FAILED
    told = line(caplog, "dead_letter_failed")
    text = f"The agent could not finish the task. Correlation id: {told['correlation_id']}."
    assert (status_text(await stack.task(head)), told["task_id"]) == (text, head.task_id)
    assert await stack.dead_letters.handle(body(head)) == "dropped"
    assert await stack.head(head) == failed


@pytest.mark.parametrize("attempts", [0, 1])
async def test_turns_with_attempts_left_are_due(stack: Repairs, attempts: int, caplog: Log) -> None:
    """Deliveries ran out, attempts did not: nothing fails or waits; an overdue one stays so."""
    head = await stack.open()
    assert await stack.storage.postpone(head, due_at=stack.clock.now_ms() + 3_600_000, sends=7)
    head = await stack.head(head)
    if attempts:
        head = await stack.claim(head)
    assert await stack.dead_letters.handle(body(head)) == "resent"
    resent = await stack.head(head)
    assert (resent.version, resent.turn.sends) == (head.version, 7)
    assert resent.due_at == stack.clock.now_ms()
    told = line(caplog, "dead_letter_resent")
    assert (told["levelname"], told["task_id"]) == ("WARNING", head.task_id)
    assert told["attempts"] == attempts
    stack.clock.advance(7200)
    assert await stack.dead_letters.handle(body(head)) == "resent"
    assert (await stack.head(head), await stack.sweep()) == (resent, SweepReport(sent=1))


async def test_a_turn_claimed_meanwhile_is_read_again(stack: Repairs, monkeypatch: Patch) -> None:
    """The dead letter is decided on the HEAD as it then is: here its attempts are used up."""
    head = await stack.claim(await stack.open(), "a")
    beside(monkeypatch, "postpone", lambda: stack.claim(head, "b"))
    assert await stack.dead_letters.handle(body(head)) == "failed"
    assert (await stack.head(head)).turn.attempts == 2


async def test_a_cancel_that_comes_meanwhile_counts(stack: Repairs, monkeypatch: Patch) -> None:
    """A cancel between the read of the log and the decision is seen by its mark on HEAD."""
    head = await used_up(stack)
    cancel = stack.storage.request_cancel
    beside(monkeypatch, "read", lambda: cancel(head.task_id), when="behind")
    assert await stack.dead_letters.handle(body(head)) == "canceled"
    assert (await stack.head(head)).state == TaskState.TASK_STATE_CANCELED


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
async def test_an_unreadable_dead_letter_is_kept(stack: Repairs, text: str, caplog: Log) -> None:
    """An unreadable dead letter moves unchanged to the undecodable queue, and the log says why."""
    assert await stack.dead_letters.handle(text) == "undecodable"
    assert [kept.body for kept in await aside(stack.queue).waiting()] == [text]
    assert "dead_letter_undecodable" in actions(caplog)


async def test_without_its_queue_a_dead_letter_stays(stack: Repairs, monkeypatch: Patch) -> None:
    """An unreadable message is not lost because a queue is not configured."""
    monkeypatch.setattr(stack.queue, "keep_undecodable", AsyncMock(return_value=False))
    with pytest.raises(ConfigurationError, match="A2A_UNDECODABLE_QUEUE"):
        await stack.dead_letters.handle("poison")
