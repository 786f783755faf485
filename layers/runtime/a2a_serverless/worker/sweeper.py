"""The sweeper: sends again what got lost, and ends the cancels that nobody has ended.

It is the one repair for every crash between a commit and its message: a turn whose operation was
never sent, or was lost after the claim, stays in the due index until it is finished.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from a2a.types import TaskState

from a2a_serverless import faults
from a2a_serverless.broker.base import Broker
from a2a_serverless.cancel.base import CancelRegistry, OverdueCancel
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.observability import metrics
from a2a_serverless.storage.log import Due, TaskLog
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.repairs import overdue_cancel, overdue_turn
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.endings import CANCEL_TIMED_OUT, end_task, ending

LONGEST_WAIT_S = 3600
"""The wait between two sends of one turn doubles up to an hour."""

STUCK_AFTER = 3
"""A turn that is sent so many times again is stuck: no worker took it, or none ended it."""

BUDGET_S = 30
"""How long a run begins new work; half of the function's timeout, as one request may take long."""

Outcome = Literal["sent", "passed", "canceled", "removed", "failed"]
Work = TypeVar("Work", Due, OverdueCancel)
Fields: TypeAlias = dict[str, object]
"""What a line of the log says about a task, as far as it is known by then."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What one run came across, counted by what it did about it."""

    sent: int = 0
    """Turns whose operation was sent again."""
    passed: int = 0
    """Turns that had moved on, or that another run took."""
    canceled: int = 0
    """Tasks canceled at the deadline."""
    removed: int = 0
    """Flags removed from tasks that had ended or were gone."""
    failed: int = 0
    """Tasks that met an error; the next run comes back to them."""


class Sweeper:
    """Looks at what is overdue, in all scopes.

    A run costs the queue at most `limit` messages. An unfinished turn is sent after 1, 2, 4, …
    times `Timing.waiting_s`, at most `longest_wait_s` apart: a long queue is not made longer by
    copies of what waits in it, and the copies that are left over are dropped as finished. Several
    runs at once do no harm.

    Args:
        log: the tasks.
        broker: takes the operations.
        registry: the cancel flags.
        clock: by default the system's.
        longest_wait_s: bound of the doubling wait.
        budget_s: seconds after which a run leaves the rest to the next one.
    """

    def __init__(
        self,
        log: TaskLog,
        broker: Broker,
        registry: CancelRegistry,
        *,
        clock: Clock | None = None,
        longest_wait_s: float = LONGEST_WAIT_S,
        budget_s: float = BUDGET_S,
    ) -> None:
        self._tasks = log
        self._broker = broker
        self._registry = registry
        self._clock = clock or SystemClock()
        self._longest_wait_s = longest_wait_s
        self._budget_s = budget_s

    async def sweep(self, limit: int = 500) -> SweepReport:
        """End up to `limit` overdue cancels and send up to `limit` overdue turns again.

        Raises:
            UnavailableError: the due index did not answer; the next run comes anyway.
        """
        until = self._clock.monotonic() + self._budget_s
        now_ms = self._clock.now_ms()
        cancels = await self._registry.overdue(now_ms, limit=limit)
        outcomes = await self._each(cancels, self._end_cancel, until)
        turns = await self._tasks.due(now_ms, limit=limit)
        outcomes += await self._each(turns, self._send_again, until)
        report = SweepReport(**outcomes)
        _log.info(
            "Swept",
            extra={"action": "sweep", "overdue": len(cancels) + len(turns), **outcomes},
        )
        return report

    async def _each(
        self,
        overdue: Iterable[Work],
        step: Callable[[Work, Fields], Awaitable[Outcome]],
        until: float,
    ) -> Counter[str]:
        outcomes: Counter[str] = Counter()
        for work in overdue:
            if self._clock.monotonic() >= until:
                break
            fields: Fields = {"task_id": work.task_id}
            try:
                outcomes[await step(work, fields)] += 1
            except Exception:  # noqa: BLE001 - logged as a whole; see below
                # One task that cannot be read or written must not keep the others waiting.
                outcomes["failed"] += 1
                metrics.count("SweepFailures")
                _log.exception(
                    "An overdue task was not repaired",
                    extra={"action": "sweep_failed", **fields},
                )
        return outcomes

    async def _send_again(self, due: Due, fields: Fields) -> Outcome:
        log = self._tasks.for_scope(due.scope)
        head = await log.head(due.task_id)
        now_ms = self._clock.now_ms()
        copy = overdue_turn(head, now_ms=now_ms)
        if head is None or copy is None:
            return "passed"  # the index lags behind
        fields.update(_known_of(head))
        sends = copy.copy_number
        due_at = now_ms + int(self._wait_s(log, sends) * 1000)
        # Postponed first: of two runs one sends, and a crash in between costs one wait, not a copy.
        if not await log.postpone(head, due_at=due_at, sends=sends):
            return "passed"
        faults.point("after-postpone")
        await self._broker.run_task(copy)
        metrics.count("Resends")
        if sends >= STUCK_AFTER:
            metrics.count("StuckTurns")
        _log.warning(
            "An overdue turn was sent again",
            extra={
                "action": "resend",
                "sends": sends,
                "was_claimed": head.token is not None,
                **fields,
            },
        )
        return "sent"

    async def _end_cancel(self, overdue: OverdueCancel, fields: Fields) -> Outcome:
        log = self._tasks.for_scope(overdue.scope)
        registry = self._registry.for_scope(overdue.scope)
        task_id = overdue.task_id

        def decide(head: Head) -> Commit | None:
            if not overdue_cancel(head, incarnation=overdue.incarnation):
                return None
            fields.update(_known_of(head))
            return ending(head, TaskState.TASK_STATE_CANCELED, CANCEL_TIMED_OUT)

        has_ended = await end_task(log, task_id, decide)
        if has_ended:
            metrics.count("ForcedCancels")
            extra = {"action": "cancel_at_deadline", **fields}
            _log.warning("A task was canceled at its deadline", extra=extra)
        faults.point("after-overdue-cancel")
        await registry.cleanup(task_id, incarnation=overdue.incarnation)
        return "canceled" if has_ended else "removed"

    def _wait_s(self, log: TaskLog, sends: int) -> float:
        """Seconds from send number `sends` to the next one."""
        doublings = min(sends, 32)  # the bound is reached long before; a float has an end
        return min(self._longest_wait_s, log.timing.waiting_s * 2.0**doublings)


def _known_of(head: Head) -> Fields:
    return {"context_id": head.context_id, "turn": head.turn, "attempts": head.attempts}
