"""What a queue is told of a delivery: one kernel for turns and notifications."""

from __future__ import annotations

import sys

import pytest

from a2a_serverless.errors import UnavailableError
from a2a_serverless.queues.fifo import DONE, LOST, Handle, Verdict, again, conclude
from a2a_serverless.tasks.operations import Operation, OperationParams

OPERATION = Operation(
    operation="run", params=OperationParams(scope="s", task_id="t", incarnation="i", turn=1)
)
RECORD = {
    "body": OPERATION.model_dump_json(),
    "attributes": {"ApproximateReceiveCount": "1"},
}


class Told(Handle[Operation]):
    """A delivery that notes what happens, and whose queue may be down."""

    def __init__(self, *, is_down: bool = False) -> None:
        super().__init__(Operation, RECORD)
        self.notes: list[object] = []
        self._is_down = is_down

    async def ack(self) -> None:
        self._note("acked")

    async def nack(self, *, delay_s: float = 0) -> None:
        self._note(delay_s)

    async def extend(self, lease_s: float) -> None:
        raise AssertionError

    def _note(self, note: object) -> None:
        if self._is_down:
            raise UnavailableError
        self.notes.append(note)


async def concluded(handle: Told, verdict: Verdict) -> bool:
    return await conclude(
        handle,
        verdict,
        before_ack=lambda: handle.notes.append("before ack"),
        before_nack=lambda: handle.notes.append("before nack"),
        on_error=lambda: handle.notes.append(sys.exc_info()[0]),
    )


@pytest.mark.parametrize(
    ("verdict", "notes"),
    [
        (DONE, ["before ack", "acked"]),
        (again(2.5), ["before nack", 2.5]),
        (again(0), ["before nack", 0]),
        (LOST, []),
    ],
)
async def test_a_queue_is_told_what_was_decided(verdict: Verdict, notes: list[object]) -> None:
    """Done is acknowledged, again is given back with its wait, lost is left to expire."""
    handle = Told()
    assert await concluded(handle, verdict) is verdict.is_done
    assert handle.notes == notes


@pytest.mark.parametrize("verdict", [DONE, again(1)])
async def test_a_queue_that_is_down_changes_no_verdict(verdict: Verdict) -> None:
    """The exception is there to be logged; the delivery expires by itself."""
    handle = Told(is_down=True)
    assert await concluded(handle, verdict) is verdict.is_done
    assert handle.notes[1:] == [UnavailableError]
