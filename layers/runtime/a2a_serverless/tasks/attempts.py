"""Decisions about turns: of a worker, and of the sweeper and the consumer of dead letters."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final

from a2a.types import TaskState

from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Head, Operation, OperationParams, Turn, Uncounted, is_terminal
from a2a_serverless.tasks.rules import Timing, runs_alone, slept_ms
from a2a_serverless.values import dataclass

NEWER_DELAY_S: Final = 30.0
"""Seconds until a delivery comes again that only a newer release may work on."""
MOST_STARTS: Final = 10
"""The most starts on one turn that may end with a fault that passes."""
MOST_INTERRUPTIONS: Final = 20
"""The most starts on one turn that may be interrupted without using up an attempt."""
EARLY_S: Final = 1.0
"""Seconds before the end of a wait from which on a delivery is not early."""


LATE_MS: Final = 1000
"""Milliseconds on the queue after which a delivery is the sign of a backlog."""


class DeliveryDecision(Enum):
    """The work that a delivery asks for."""

    DROP = "drop"
    """Nothing: the task is gone or has ended, or the turn is finished. Acknowledge."""
    QUARANTINE = "quarantine"
    """Nothing here: the turn has to run alone. Send the operation to the quarantine queue, whose
    consumers run one turn each; then acknowledge."""
    CANCEL = "cancel"
    """End the task as canceled; its agent must not start."""
    CLAIM = "claim"
    """Claim the turn before the agent starts: another attempt may run, or have run."""
    GIVE_BACK = "give back"
    """Nothing here: only a worker of a newer release may run the task, or knows the operation."""
    START = "start"
    """Start the agent; its first commit claims the turn."""


class RefusalDecision(Enum):
    """The meaning of a refused write for its writer."""

    OVER = "over"
    """The task is gone, has ended, or the turn is finished: stop, acknowledge."""
    FENCED = "fenced"
    """Another attempt owns the turn: stop, write nothing, report the delivery failed."""
    REBASE = "rebase"
    """Another writer came first, but the turn is unharmed: commit again on the new HEAD."""


def is_over(head: Head | None, params: OperationParams) -> bool:
    """Return True if nothing is left to do for the turn that `params` names.

    An operation of another incarnation is about a task that is gone.
    """
    if head is None or head.incarnation != params.incarnation:
        return True
    return head.is_over(params.turn)


def on_delivery(
    head: Head | None,
    operation: Operation,
    *,
    receives: int,
    cannot_run: bool = False,
    has_neighbours: bool = False,
) -> DeliveryDecision:
    """Return the work to do on a delivery, given HEAD as it is now.

    `cannot_run`: the log has an entry that this release must not skip, or not the turn's opening.
    `has_neighbours`: the process works on other turns too. Then all operations of a task whose turn
    `runs_alone` go to the quarantine queue, so that they keep their order.

    An operation that this release does not know is given back, even if its task has ended: only a
    newer release knows whether something is left to do. If its task is gone, the operation is
    dropped, because no release has anything left to do for it.

    `receives` counts the deliveries of the operation, including this one. An operation of a turn
    that waits behind the current one works on the current one: if it waited, it would hold up the
    copy that the sweeper sends for the current turn. A copy claims the turn first, as a redelivery
    does: the attempt of the first message may still run without having written anything.
    """
    params = operation.params
    if head is None or head.incarnation != params.incarnation:
        return DeliveryDecision.DROP
    if operation.needs_newer:
        return DeliveryDecision.GIVE_BACK
    if head.is_terminal:
        return DeliveryDecision.DROP
    if cannot_run or head.needs_newer:
        return DeliveryDecision.GIVE_BACK
    is_cancel = head.cancel is not None or operation.operation == "cancel"
    if not is_cancel and (head.is_over(params.turn) or not head.turn.is_open):
        return DeliveryDecision.DROP
    if has_neighbours and runs_alone(head):
        return DeliveryDecision.QUARANTINE
    if is_cancel:
        return DeliveryDecision.CANCEL
    if head.turn.parked:  # an earlier copy: the turn gets another one when it is requeued
        return DeliveryDecision.DROP
    is_first = receives == 1 and params.copy_number == 0
    return (
        DeliveryDecision.START if is_first and head.turn.token is None else DeliveryDecision.CLAIM
    )


def comes_late(operation: Operation, *, waited_ms: int, line_stands: bool) -> bool:
    """Return True if the turn of a delivery may have to stand in line.

    One that has waited long is the sign of a backlog. While turns stand in line, one that has just
    come must not overtake them.
    """
    return operation.operation == "run" and (line_stands or waited_ms > LATE_MS)


def may_park(head: Head, params: OperationParams) -> bool:
    """Return True if the turn of a delivery may stand in line: no attempt works on it.

    A turn that was requeued has had its wait: parked again and again, it might never start.
    """
    is_current = head.incarnation == params.incarnation and head.turn.number == params.turn
    is_waiting = head.turn.is_open and not (
        head.turn.is_claimed or head.turn.parked or head.turn.has_share
    )
    return is_current and is_waiting and head.cancel is None and not head.needs_newer


def on_current_turn(params: OperationParams, head: Head) -> OperationParams:
    """Return the parameters of the current turn for a delivery that may name a later one.

    An attempt that used the later turn's number would not notice the end of the current turn, and
    would go on writing.
    """
    return params.model_copy(update={"turn": head.turn.number})


def waits_behind(head: Head, operation: Operation) -> bool:
    """Return True if a delivery that is done with the current turn goes on with the one it names.

    False once the task has ended: the later turn never begins.
    """
    is_later = head.turn.number < operation.params.turn
    return operation.operation == "run" and head.turn.is_open and is_later


def goes_on(head: Head | None, *, worked_on: Head) -> bool:
    """Return True if a delivery that `waits_behind` goes on, given HEAD as it is now.

    That is so once the turn of `worked_on`, the HEAD that it had read before, is not the current
    one any more. A turn that was parked, quarantined or handed over still is: its delivery ends,
    because looking again would change nothing.
    """
    return head is not None and head.turn.number != worked_on.turn.number


def on_refusal(head: Head | None, params: OperationParams, *, token: str | None) -> RefusalDecision:
    """Return what the writer does after its commit was refused by a changed HEAD or by the fence.

    A turn that is unclaimed or still this attempt's can be written to again. `token` None is a
    writer outside of any attempt: it only needs a task that has not ended.
    """
    if head is None or head.incarnation != params.incarnation or head.is_terminal:
        return RefusalDecision.OVER
    if token is None:
        return RefusalDecision.REBASE
    if head.is_over(params.turn):
        return RefusalDecision.OVER
    return RefusalDecision.REBASE if head.turn.token in (None, token) else RefusalDecision.FENCED


def on_lost_claim(
    head: Head | None, params: OperationParams, retry: RetryPolicy, *, is_alone: bool = True
) -> RefusalDecision:
    """Return what an attempt does after its claim was refused because HEAD had changed.

    A claim takes the turn from any attempt that has it, as long as the turn has an attempt left.
    An attempt that is not `is_alone` in its process does not claim a turn that `runs_alone`.
    """
    if head is None or is_over(head, params):
        return RefusalDecision.OVER
    is_in_danger = runs_alone(head) and not is_alone
    return (
        RefusalDecision.FENCED
        if is_in_danger or retry.is_exhausted(head.turn.attempts)
        else RefusalDecision.REBASE
    )


def is_stale(read: Head, newer: Head) -> bool:
    """Return True if an attempt reads the log again before it claims its turn on `newer`.

    The turn has other records than the log that it has read: its steps would run again.
    """
    return newer.turn.restart_base != read.turn.restart_base


def may_give_up(head: Head, params: OperationParams, *, seen: Head) -> bool:
    """Return True if a turn whose attempts were used up in `seen` may still be failed for that.

    False if another attempt has taken it since: that attempt ends it. False also if its attempt has
    recorded a step or parked the turn since, which gives the turn attempts again.
    """
    has_gone_on = is_stale(seen, head) or head.turn.attempts < seen.turn.attempts
    return head.turn.token == seen.turn.token and not has_gone_on and not is_over(head, params)


class ReturnDecision(Enum):
    """The work that is left on the turn of an agent that has returned."""

    ENDED = "ended"
    """Nothing: the commit of its last state has ended the turn."""
    ENDS_TURN = "ends turn"
    """A commit that ends the turn: the agent waited for credentials, and did not go on."""
    AT_FAULT = "at fault"
    """The task fails: without an end its turn would stay open for ever."""


def on_return(state: TaskState | None) -> ReturnDecision:
    """Return the work left after an agent returned with `state` as its last state on the turn."""
    if state is None:
        return ReturnDecision.AT_FAULT
    if is_terminal(state) or state == TaskState.TASK_STATE_INPUT_REQUIRED:
        return ReturnDecision.ENDED
    is_waiting = state == TaskState.TASK_STATE_AUTH_REQUIRED
    return ReturnDecision.ENDS_TURN if is_waiting else ReturnDecision.AT_FAULT


class CancelDecision(Enum):
    """The way in which a worker ends a task as canceled."""

    ALONE = "alone"
    """No agent has seen the task: end it, from outside of any attempt."""
    PAUSED = "paused"
    """Tell the agent, then end the task from outside of any attempt: no turn is open."""
    WAITING = "waiting"
    """Tell the agent, then end the task with a commit that claims its turn."""
    CLAIMED = "claimed"
    """Claim the turn, so that its attempt stops; tell the agent, then end the task."""


def on_cancel(head: Head, operation: Operation) -> CancelDecision:
    """Return how to cancel the task of `head`.

    The agent is told if it has had a turn of the task, or if the operation itself is "cancel".
    """
    agent_knows_it = head.turn.number > 1 or not head.turn.is_open or head.turn.token is not None
    if not agent_knows_it and operation.operation != "cancel":
        return CancelDecision.ALONE
    if not head.turn.is_open:
        return CancelDecision.PAUSED
    return CancelDecision.CLAIMED if head.turn.token is not None else CancelDecision.WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The attempts of one turn, and the waits between them, in seconds.

    Attempt n is followed by a wait between 0 and `base_s * 2 ** (n - 1)`, at most `cap_s`: the
    bound grows, and the jitter spreads the turns that failed together.

    Faults that pass have a policy of their own: the turn is started again for `window_s`, at most
    `MOST_STARTS` times; 0: they count as any other failure.
    """

    max_attempts: int = 3
    base_s: float = 2
    cap_s: float = 300
    window_s: float = 900
    jitter: Callable[[], float] = random.random

    def is_exhausted(self, attempts: int) -> bool:
        """Return True if a turn gets no more than `attempts` starts."""
        return attempts >= self.max_attempts

    def ceiling_s(self, attempts: int) -> float:
        """Return the longest wait after attempt `attempts`, counted from 1."""
        doublings = min(max(attempts, 1) - 1, 64)  # beyond it every cap is reached
        return float(min(self.cap_s, self.base_s * 2**doublings))

    def delay_s(self, attempts: int) -> float:
        """Return a random wait after attempt `attempts`, counted from 1."""
        return self.jitter() * self.ceiling_s(attempts)

    def passing_s(self, faults: int) -> float:
        """Return a random wait after the `faults`-th fault that passes, counted from 1.

        Its bound doubles from one to the next, and the bounds of all waits are three quarters of
        the window together. The wait is at least half of its bound.
        """
        share: float = 2 ** (min(faults, MOST_STARTS) - 1) / (2 ** (MOST_STARTS - 1) - 1)
        return 0.75 * self.window_s * share * (0.5 + self.jitter() / 2)


def attempts_started(head: Head, *, is_claimed: bool) -> int:
    """Return the starts of the agent on the current turn, including that of the running attempt.

    HEAD counts an attempt when it claims. `is_claimed` False: HEAD does not count this one yet.
    """
    return head.turn.attempts + (not is_claimed)


def attempts_that_differ(log: Log, attempts: int) -> int:
    """Return the attempts that count of a turn whose code does not do what its records tell.

    `attempts` count since the last record, and the code would make records again and again which
    the next attempt takes back. So each beginning of the turn counts. The log was read from its
    beginning.
    """
    return max(attempts, log.beginnings())


def after_passing(
    uncounted: Uncounted, retry: RetryPolicy, *, asked_s: float = 0
) -> Uncounted | None:
    """Return HEAD's count of uncounted starts after a fault that passes; None: the task fails.

    The turn starts again after the milliseconds that it adds to `waited`. All waits together are at
    most `retry.window_s`; the time in which the agent runs is no part of them. `asked_s` is the
    wait that the service has asked for. The turn does not start earlier, and not at all if that
    wait is longer than what is left of the window.
    """
    faults, left_s = uncounted.faults + 1, left_of(uncounted, retry)
    if faults >= MOST_STARTS or left_s <= 0 or asked_s > left_s:
        return None
    # Turns that were told the same time do not start together.
    spread_s = asked_s * (1 + retry.jitter() / 10)
    delay_s = min(left_s, max(spread_s, retry.passing_s(faults)))
    waited = uncounted.waited + int(delay_s * 1000)
    return replace(uncounted, faults=faults, waited=waited)


def left_of(uncounted: Uncounted, retry: RetryPolicy) -> float:
    """Return the seconds for which a turn may still wait for faults to pass."""
    return retry.window_s - uncounted.waited / 1000


def after_interruption(turn: Turn, attempts: int) -> tuple[int, Uncounted]:
    """Return the attempts that count after one was interrupted, and the starts that do not.

    `attempts` are those that count of `turn` without that one. An interruption uses up no attempt,
    as no agent has failed. Beyond `MOST_INTERRUPTIONS` it does: the turn may be what ends its
    workers.
    """
    uncounted = replace(turn.uncounted, interruptions=turn.uncounted.interruptions + 1)
    is_uncounted = uncounted.interruptions <= MOST_INTERRUPTIONS
    return attempts + (not is_uncounted), uncounted


def lasts_too_long(log: Log, *, now_ms: int, limit_s: float) -> bool:
    """Return True if a turn that goes on at its records has been worked on for too long.

    It counts from its first attempt, without the time that it has slept. A turn without records is
    bounded by its attempts. The log was read from its beginning.
    """
    head = log.head
    if head.turn.checkpoint == 0 or head.cancel is not None:
        return False
    own = (
        record.at
        for record in log.between(head.turn.base, head.version)
        if record.token is not None
    )
    began = next((at for at in own if at is not None), now_ms)
    slept = head.turn.slept_ms + slept_ms(head, now_ms)
    return now_ms - began - slept > limit_s * 1000


def early_s(head: Head, *, now_ms: int) -> float:
    """Return the seconds until the turn may start again; 0: now.

    A delivery can come early: a copy, or one that the queue was not told to hold back.
    """
    released = head.turn.released
    if released is None:
        return 0
    left_s = (released.until - now_ms) / 1000
    return left_s if left_s > EARLY_S else 0


def ready_at(head: Head) -> int:
    """Return when a turn that was given back could start again, in milliseconds; 0: it was not.

    Its message has waited for a place only since then.
    """
    released = head.turn.released
    if released is None:
        return 0
    return max(released.until, released.at or 0)


class FailureDecision(Enum):
    """What follows an attempt that has failed."""

    AGAIN = "again"
    """Another attempt, after a wait: the turn is given back."""
    AT_FAULT = "at fault"
    """The task fails with the fault, which the next attempt would repeat."""
    GAVE_UP = "gave up"
    """The task fails: no attempt is left, or the agent says that none can succeed."""


def on_failure(
    attempts: int, retry: RetryPolicy, *, is_at_fault: bool = False, is_final: bool = False
) -> FailureDecision:
    """Return what follows the failure of attempt `attempts` of its turn, counted from 1.

    `is_at_fault`: the agent has emitted what no task can hold. `is_final`: the agent has declared
    that trying again cannot help.
    """
    if is_at_fault:
        return FailureDecision.AT_FAULT
    return (
        FailureDecision.GAVE_UP
        if is_final or retry.is_exhausted(attempts)
        else FailureDecision.AGAIN
    )


def lease_end(now_ms: int, timing: Timing) -> int:
    """Return the due time of a turn that is claimed, or whose lease is renewed, at `now_ms`."""
    return now_ms + int(timing.lease_s * 1000)


class DeadLetterDecision(Enum):
    """The work that a dead letter asks for: an operation that was delivered too often."""

    DROP = "drop"
    """Nothing: the task is gone or has ended, or the turn is finished."""
    CANCEL = "cancel"
    """End the task as canceled."""
    RESEND = "resend"
    """Make the current turn due now, so that the sweeper sends it again."""
    LEAVE = "leave"
    """Nothing: no worker of this release can start the turn. The sweeper sends it again; each wait
    is twice as long as the one before."""
    FAIL = "fail"
    """End the task as failed: its turn has had all its attempts."""


def on_dead_letter(
    head: Head | None,
    operation: Operation,
    *,
    retry: RetryPolicy,
    cannot_run: bool = False,
) -> DeadLetterDecision:
    """Return the work to do on a dead letter, given HEAD as it is now.

    `cannot_run`: the log has an entry that this release must not skip, or not the turn's opening.
    So no worker of this release can start the turn: if it were made due at once, it would come back
    as a dead letter again and again. A turn whose attempts are used up fails all the same, and a
    turn that no attempt has claimed is given up by the sweeper.

    The queue counts deliveries, and HEAD counts attempts of the agent. Deliveries also run out
    when no attempt can begin, as in an outage of the storage; no task fails because of that.
    """
    wanted = on_delivery(head, operation, receives=1)
    if head is None or wanted is DeliveryDecision.DROP:
        return DeadLetterDecision.DROP
    if wanted is DeliveryDecision.CANCEL:
        return DeadLetterDecision.CANCEL
    if wanted is DeliveryDecision.GIVE_BACK:
        return DeadLetterDecision.LEAVE if head.turn.is_open else DeadLetterDecision.DROP
    if retry.is_exhausted(head.turn.attempts):
        return DeadLetterDecision.FAIL
    return DeadLetterDecision.LEAVE if cannot_run else DeadLetterDecision.RESEND


def overdue_turn(head: Head | None, *, now_ms: int) -> OperationParams | None:
    """Return the next copy of an overdue turn's operation; None if the turn has moved on.

    A task that is being canceled gets no copy: its cancel ends it.

    The copy has a number of its own, because the queue drops a number that it has seen within its
    5 minutes of deduplication. It may be sent once HEAD was postponed with `sends` = its number.
    """
    if head is None or not head.turn.is_open or head.cancel is not None:
        return None
    if not _is_due(head, now_ms):
        return None
    return OperationParams.of(head, head.turn.number, head.turn.sends + 1)


def _is_due(head: Head, now_ms: int) -> bool:
    return head.due_at is not None and head.due_at <= now_ms


def is_given_up(head: Head, *, opened_at: int | None, now_ms: int, give_up_s: float) -> bool:
    """Return True if the open turn fails because no attempt has claimed it for `give_up_s`.

    `opened_at` is when the turn became the current one, in milliseconds: the time of the commit
    `head.turn.base`. A turn whose time is unknown (None) is never given up. A turn that needs a
    newer release is not given up either: it waits for a worker of that release; nor is one that
    waits for its conversation. One that was requeued, or waits for a share since its conversation
    was free, counts from then on.
    """
    if opened_at is None or not head.turn.is_open or head.needs_newer:
        return False
    if head.turn.parked == "conversation":
        return False
    return (
        head.turn.token is None
        and max(opened_at, head.turn.waits_since) + int(give_up_s * 1000) <= now_ms
    )


def repeated_turn(head: Head | None, turn: int) -> OperationParams | None:
    """Return the operation of `turn` once more, for a client that repeats its message.

    None if a worker has the turn, or had it: the due index watches such a turn. None also if the
    turn is parked: it gets its next copy when it is requeued.
    """
    if head is None or head.turn.number != turn or not head.turn.is_open:
        return None
    if head.turn.token is not None or head.turn.parked:
        return None
    return OperationParams.of(head, turn, head.turn.sends)


def overdue_cancel(head: Head | None, *, now_ms: int) -> bool:
    """Return True if the sweeper cancels the task: from the deadline of its cancel on."""
    return head is not None and head.is_being_canceled and _is_due(head, now_ms)


def overdue_question(head: Head | None, *, now_ms: int) -> bool:
    """Return True if nobody has answered a question of the agent's code in time.

    The question of a task that is being canceled has no end of its own: its cancel ends it.
    """
    if head is None or not head.turn.asks or head.cancel is not None or head.is_terminal:
        return False
    return _is_due(head, now_ms)
