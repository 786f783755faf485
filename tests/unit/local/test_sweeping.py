from __future__ import annotations

from typing import Any

import pytest
from a2a.types import TaskState
from botocore.exceptions import ClientError

from a2a_serverless import aws
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.operations import Operation, OperationParams
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import aws_backends, memory_backends
from a2a_serverless_tools.local.sweeping import SweepRounds
from tests.support.clocks import ManualClock
from tests.support.messages import request
from tests.support.simulation.simulated_aws import simulated_aws
from tests.support.simulation.sources import SqsSource


async def test_round_sends_a_lost_turn_again() -> None:
    """A task whose message was never sent gets one when its due time has passed."""
    clock = ManualClock()
    settings = Settings(waiting_s=1)
    backends = memory_backends(settings, clock)
    opened = await backends.storage.open_task("context", request())
    rounds = SweepRounds(backends, settings, None)

    assert not (await rounds.once()).did_something
    clock.advance(2)
    done = await rounds.once()

    assert str(done).startswith("sent 1, ")
    handle = await anext(aiter(backends.operations.deliveries()))
    assert handle.message.params.task_id == opened.head.task_id


async def test_round_ends_the_tasks_of_dead_letters() -> None:
    """Each is read once: a task without attempts left fails, what is unreadable is kept."""
    with simulated_aws() as names:
        settings = Settings(
            table=names.table, queue=names.queue, undecodable_queue=names.undecodable_queue
        )
        backends = aws_backends(settings)
        head = (await backends.storage.open_task("context", request())).head
        for attempt in range(settings.max_attempts):
            claim = Commit(token=f"attempt-{attempt}", claims=True)
            head = await backends.storage.commit(head, claim)
        params = OperationParams(
            scope=head.scope, task_id=head.task_id, incarnation=head.incarnation, turn=head.turn
        )
        for body in ("not an operation", Operation.to_run(params).model_dump_json()):
            aws.client("sqs").send_message(
                QueueUrl=names.dead_letter_queue,
                MessageBody=body,
                MessageGroupId=body[:10],
                MessageDeduplicationId=body[:10],
            )

        source = SqsSource(names.dead_letter_queue, wait_s=0)
        first = await SweepRounds(backends, settings, source).once()
        second = await SweepRounds(backends, settings, source).once()
        task = await backends.storage.load_task(head.task_id)

    assert (first.dead_letters, second.dead_letters) == (2, 0)
    assert task is not None
    assert task.status.state == TaskState.TASK_STATE_FAILED


async def test_a_letter_whose_receipt_has_expired_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A letter that took longer than its visibility comes again; the round goes on."""
    with simulated_aws() as names:
        settings = Settings(
            table=names.table, queue=names.queue, undecodable_queue=names.undecodable_queue
        )
        for body in ("one", "two"):
            aws.client("sqs").send_message(
                QueueUrl=names.dead_letter_queue,
                MessageBody=body,
                MessageGroupId=body,
                MessageDeduplicationId=body,
            )

        def expired(**_: object) -> None:
            text = "The receipt handle has expired."
            error: Any = {"Error": {"Code": "InvalidParameterValue", "Message": text}}
            raise ClientError(error, "DeleteMessage")

        monkeypatch.setattr(aws.client("sqs"), "delete_message", expired)
        source = SqsSource(names.dead_letter_queue, wait_s=0)
        done = await SweepRounds(aws_backends(settings), settings, source).once()

    assert done.dead_letters == 2
    stayed = [line for line in caplog.records if vars(line).get("action") == "dead_letter_failed"]
    assert len(stayed) == 2


async def test_round_gives_a_turn_up_in_its_time() -> None:
    """The setting counts here as in the deployed function."""
    clock = ManualClock()
    settings = Settings(give_up_hours=2)
    backends = memory_backends(settings, clock)
    await backends.storage.open_task("context", request())
    rounds = SweepRounds(backends, settings, None)

    clock.advance(2 * 3600 - 1)
    assert str(await rounds.once()).startswith("sent 1, passed 0, given up 0, ")
    clock.advance(3600)
    done = await rounds.once()

    assert done.did_something
    assert str(done).startswith("sent 0, passed 0, given up 1, ")
