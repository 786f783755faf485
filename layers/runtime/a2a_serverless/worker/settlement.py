"""Settling a turn whose attempt has failed: it is given back, or its task ends."""

from __future__ import annotations

import logging
from dataclasses import field, replace
from functools import partial
from typing import Any

from a2a.types import TaskState, TaskStatus

from a2a_serverless.errors import InvalidAgentEventError, InvalidArgumentError, UnavailableError
from a2a_serverless.observability import metrics
from a2a_serverless.queues.fifo import DONE, DeliveryOutcome, again
from a2a_serverless.storage.endings import ending, gave_up, stated
from a2a_serverless.tasks.attempts import (
    MOST_STARTS,
    FailureDecision,
    RetryPolicy,
    after_interruption,
    after_passing,
    attempts_started,
    attempts_that_differ,
    lease_end,
    on_failure,
)
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import AttemptEnd, FailedBy, Uncounted
from a2a_serverless.tasks.rules import Backoff, Commit, releasing
from a2a_serverless.values import dataclass
from a2a_serverless.worker.failures import (
    MOST_OF_ERROR,
    AgentFailedError,
    DeadlineError,
    StaleStateError,
    client_text_of,
    is_final,
    members,
    raised_at,
    reason_of,
    text_of,
    where,
)
from a2a_serverless.worker.meter import BudgetError
from a2a_serverless.worker.services import Meaning, Passing, Refusal, meaning_of, no_longer, waits
from a2a_serverless.worker.steps import NonDeterminismError
from a2a_serverless.worker.turn import ActiveTurn, TurnState

logger = logging.getLogger(__name__)

STALE = (
    "Another turn has changed the state of this conversation since this turn has loaded it, and"
    " this turn has gone on from what it has recorded: send the message again."
)
TOO_LONG = (
    "The step %r needs longer than a worker has: cut it into smaller steps, or let another service"
    " do the work, and look for its result after `ctx.sleep`."
)
DIFFERS = (
    "The agent's code has run again and %s, and the turn has no attempt left: take what differs"
    " from run to run, such as the time or a random number, from a step%s."
)
_OWN_ERRORS = {
    AgentFailedError: FailedBy.RAISED,
    DeadlineError: FailedBy.DEADLINE,
    NonDeterminismError: FailedBy.NON_DETERMINISM,
    StaleStateError: FailedBy.STALE,
}


def failed_by(error: Exception, meaning: Meaning) -> FailedBy:
    """Return why a task fails whose last attempt has ended with `error`.

    `meaning` is what a service's answer among its causes means, if there is one.
    """
    if meaning is not None:
        return FailedBy.REFUSED if isinstance(meaning, Refusal) else FailedBy.UNAVAILABLE
    if any(isinstance(one, BudgetError) for one in members(error.__cause__)):
        return FailedBy.BUDGET
    return next(
        (by for kind, by in _OWN_ERRORS.items() if isinstance(error, kind)), FailedBy.UNAVAILABLE
    )


@dataclass(kw_only=True, eq=False)
class Settlement:
    """Settles an attempt that an error has ended: its agent has stopped, and emits nothing more.

    What the agent has emitted and nothing has committed is dropped.

    Args:
        error: why it could not end its turn.
        turn: of the attempt.
        log: the task's log before the attempt, read from its beginning.
        retry: how often an agent is started, and when.
        keeps_texts: True: the text of the error is stored.
    """

    error: Exception
    turn: ActiveTurn
    log: Log
    retry: RetryPolicy
    keeps_texts: bool
    end: AttemptEnd = field(init=False)
    """The end of the attempt, with the error's name and place."""

    def __post_init__(self) -> None:
        error, lease = self.error, self.turn.lease
        self._lease, self._outbox, self._clock = lease, self.turn.outbox, lease.clock
        if error is self._outbox.failure:
            self._outbox.discard()
        has_raised = isinstance(error, AgentFailedError) and not is_final(error.__cause__)
        now_ms = self._clock.now_ms()
        self._meaning = meaning_of(error.__cause__, now_ms) if has_raised else None
        self._attempts, self._uncounted = self._counted()
        place = raised_at(error)
        left = MOST_OF_ERROR - len(place.encode())
        said = text_of(error, left) if self.keeps_texts else ""
        self.end = lease.ended(reason_of(error), place=place, message=said)

    def _counted(self) -> tuple[int, Uncounted | None]:
        """Return the attempts used up so far, and the starts that use up none.

        The second is None unless this start is one of those.
        """
        head = self._lease.head
        attempts = attempts_started(head, is_claimed=not self._lease.must_claim())
        if isinstance(self.error, StaleStateError):  # no agent has failed: another turn came first
            return after_interruption(head.turn, attempts - 1)
        if isinstance(self.error, NonDeterminismError):
            return attempts_that_differ(self.log, attempts), None
        return attempts, None

    async def settle(self) -> DeliveryOutcome:
        """End the task, or give its turn back for another attempt.

        Raises:
            FencedError, TurnFinishedError: the turn is not this attempt's any more.
            UnavailableError: the end could not be stored.
        """
        error, retry, meaning, why = self.error, self.retry, self._meaning, self._why()
        if isinstance(meaning, Passing) and retry.window_s:
            before = self._lease.head.turn.uncounted
            passed = after_passing(before, retry, asked_s=meaning.asked_s)
            if passed is not None:
                return await self._wait(meaning, passed)
            why = no_longer(meaning, before, retry)
        wanted = on_failure(
            self._attempts,
            retry,
            is_at_fault=isinstance(error, InvalidAgentEventError | InvalidArgumentError),
            is_final=bool(why) or is_final(error.__cause__),
        )
        if wanted is FailureDecision.AGAIN:
            return await self._give_back()
        last = self._at_fault() if wanted is FailureDecision.AT_FAULT else self._gave_up(why)
        self._outbox.put(*last.entries, wanted=replace(last, failed=self.end))
        await self._outbox.flush()
        return DONE

    def _why(self) -> str:
        """Return what clients are told of an error beside its reference; empty: nothing."""
        error, is_last = self.error, self.retry.is_exhausted(self._attempts)
        if isinstance(error, StaleStateError) and self.turn.journal.keeps_state:
            return STALE
        if isinstance(error, DeadlineError) and error.step:
            self._log(logging.WARNING, "step_too_long", TOO_LONG, error.step)
            if is_last:
                return TOO_LONG % error.step
        if isinstance(error, NonDeterminismError):
            self._log(logging.WARNING, "non_determinism", "%s%s", error, where(error))
            if is_last:
                return DIFFERS % (error.what, error.otherwise)
        if isinstance(self._meaning, Refusal):
            return self._meaning.text
        return client_text_of(error.__cause__)

    # -- the end of the task -----------------------------------------------------------------

    def _at_fault(self) -> Commit:
        error = self.error
        self._log(
            logging.ERROR,
            "agent_at_fault",
            "Task failed: %s%s",
            error,
            where(error),
            **self._fields(),
        )
        last = ending(self._lease.head, TaskState.TASK_STATE_FAILED, str(error))
        return replace(last, failed_by=FailedBy.AT_FAULT)

    def _gave_up(self, why: str) -> Commit:
        reference, by = self.end.correlation_id, failed_by(self.error, self._meaning)
        reason = why if isinstance(self._meaning, Refusal) else self.end.reason
        fields = self._fields(reason=reason)
        text = "Task failed, %s"
        self._log(logging.ERROR, "gave_up", text, reference, cause=self.error, **fields)
        return gave_up(self._lease.head, reference, why, failed_by=by)

    # -- another attempt ---------------------------------------------------------------------

    async def _give_back(self) -> DeliveryOutcome:
        """Count the attempt in HEAD and drop its uncommitted entries; the next one starts over.

        The wait that a service has asked for counts up to the longest back-off.
        """
        self._outbox.discard()
        if self._lease.must_claim():
            self._outbox.put(StatusChanged(TaskStatus(state=TaskState.TASK_STATE_WORKING)))
            # Claimed before the delivery goes back: otherwise this attempt would not be counted.
            await self._outbox.flush()
        elif self._outbox.meter.pending or self._outbox.meter.unsure:
            # What failed has cost its tokens all the same, and no commit follows by itself.
            self._outbox.put()
            await self._outbox.flush()
        metrics.count("Retries")
        at_once = isinstance(self.error, DeadlineError)
        starts = self._attempts if self._uncounted is None else self._uncounted.interruptions
        asked_s = self._meaning.asked_s if isinstance(self._meaning, Passing) else 0
        own_s = 0 if at_once else self.retry.delay_s(starts)
        delay_s = max(own_s, min(asked_s, self.retry.cap_s))
        # Before the delivery goes back: the next attempt finds in HEAD where it begins.
        await self._release(delay_s)
        self._log(
            logging.WARNING,
            "deadline" if at_once else "retry",
            "Turn given back",
            cause=self.error,
            delay_s=delay_s,
            **self._fields(),
        )
        return again(delay_s)

    async def _wait(self, passing: Passing, uncounted: Uncounted) -> DeliveryOutcome:
        """Give the turn back until a fault has passed; the attempt does not count.

        The status that says what the turn waits for is in the same commit, so that the next attempt
        takes it back.
        """
        self._outbox.discard()
        head, reason = self._lease.head, self.end.reason
        delay_s = (uncounted.waited - head.turn.uncounted.waited) / 1000
        until = self._clock.now_ms() + int(delay_s * 1000)
        reason = f"{reason}: {passing.what}" if passing.what else reason
        end = replace(self.end, reason=reason, until=until)
        text = waits(passing, until)
        status = stated(head, TaskState.TASK_STATE_WORKING, text)
        wanted = Commit(backoff=Backoff(end=end, uncounted=uncounted))
        self._outbox.put(StatusChanged(status), wanted=wanted)
        await self._outbox.flush()
        self.turn.state = TurnState.GIVEN_BACK
        metrics.count("Retries")
        self._log(
            logging.WARNING,
            "retry_later",
            "%s Start %d of %d",
            text,
            uncounted.faults,
            MOST_STARTS,
            cause=self.error,
            delay_s=delay_s,
            **self._fields(reason=reason),
        )
        return again(delay_s)

    async def _release(self, delay_s: float) -> None:
        """Note in HEAD why the attempt ends, before its delivery goes back.

        If the lease could end before the delay, it is renewed: the turn comes back by itself, so
        the sweeper need not send a copy.
        """
        due_at, again_ms = None, self._clock.now_ms() + int(delay_s * 1000)
        storage = self._lease.storage
        if delay_s > storage.timing.renew_before_s:
            due_at = lease_end(again_ms, storage.timing)
        try:
            releases = partial(
                releasing,
                end=replace(self.end, until=again_ms if delay_s else 0),
                due_at=due_at,
                attempts=self._attempts if self._uncounted else None,
                uncounted=self._uncounted,
                starts_over=isinstance(self.error, NonDeterminismError),
            )
            await storage.change(self._lease.head, releases)
            self.turn.state = TurnState.GIVEN_BACK
        except UnavailableError as failure:  # at worst the sweeper sends a copy
            self._log(logging.WARNING, "release_failed", "Turn not released: %s", failure)

    # -- the lines ---------------------------------------------------------------------------

    def _fields(self, *, reason: str | None = None) -> dict[str, Any]:
        return {
            "attempts": self._attempts,
            "max_attempts": self.retry.max_attempts,
            "correlation_id": self.end.correlation_id,
            "reason": self.end.reason if reason is None else reason,
        }

    def _log(
        self,
        level: int,
        action: str,
        text: str,
        *args: object,
        cause: BaseException | None = None,
        **fields: object,
    ) -> None:
        self._lease.logged(logger, level, action, text, *args, cause=cause, **fields)
