"""Named points between two requests, at which a crash leaves work half done.

`point` marks such a place. It does nothing in a process that this package starts, and no setting
changes that. The fault tests replace it by a trap that kills the process (`tests/faults/traps.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

POINTS: Final = frozenset(
    {
        "after-create",  # API: the message is committed, its operation is not sent
        "after-send",  # API: the operation is sent, the client has no answer
        "after-cancel-flag",  # API: the flag is up, the cancel operation is not sent
        "after-cancel-send",  # API: the cancel is sent; no request waits for its end any more
        "after-receive",  # worker: the delivery has the visibility of its receive, nothing is read
        "after-claim",  # worker: the turn has an owner, which is dead
        "between-commits",  # worker: some of the attempt is committed, the next batch is not
        "before-ack",  # worker: all is committed, the message is still in the queue
        "before-nack",  # worker: the attempt is counted, its delivery is not given back
        "cancel-received",  # worker: a cancel operation is delivered, nothing is done about it
        "canceling",  # worker: a running agent is being cancelled
        "after-postpone",  # sweeper: a turn's next look is put off, its operation is not sent
        "after-overdue-cancel",  # sweeper: the task is canceled, its flag is up
        "after-dead-letter",  # dead letters: the task is ended, the letter is not deleted
        "push-stream-received",  # push: stream records are read, no job is sent
        "push-job-sent",  # push: one configuration has its job, its task's others have none
        "push-received",  # push: a job is delivered, nothing is read
        "push-before-post",  # push: an event is read, its receiver knows nothing
        "push-after-post",  # push: the receiver has answered, the cursor has not moved
        "push-after-move",  # push: the cursor has moved, the next event is not sent
        "push-before-dead-letter",  # push: an event is to be given up, nothing says so
        "push-after-dead-letter",  # push: its dead letter is sent, the cursor has not moved
        "push-before-ack",  # push: the receiver knows all, the job is still in the queue
        "push-before-nack",  # push: the failure is counted, the job is not given back
    }
)


def _pass(name: str, /) -> None:
    """Do nothing."""


point: Callable[[str], None] = _pass
"""Pass a point by its name. Call it as `faults.point`, so that a test can replace it."""
