"""The command line, which kills itself in the middle of a turn.

    FAULTS_DIES_AT_STATE=2    when a turn hands its conversation's state over for the second time

By then the agent has done all its work, and what it has emitted is committed; the ending and the
state are not. Runs also in the environments of frameworks: `python -m tests.foreign.dying worker`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from a2a_serverless.worker.turn import ActiveTurn
from a2a_serverless_tools import cli

VARIABLE = "FAULTS_DIES_AT_STATE"


def arm(passage: int) -> None:
    """Let this process die at that passage."""
    records: Any = ActiveTurn
    store = records.store_state
    left = passage

    async def dying(each: ActiveTurn, *given: Any) -> None:
        nonlocal left
        left -= 1
        await store(each, *given)
        if left == 0:
            await each.outbox.drain()
            os.kill(os.getpid(), signal.SIGKILL)

    records.store_state = dying


if __name__ == "__main__":
    arm(int(os.environ[VARIABLE]))
    sys.exit(cli.main(sys.argv[1:]))
