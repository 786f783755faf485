"""The project's own decisions that the model drives.

A guard is switched off by replacing one of these; see `guards.py`. Two are no decisions but
the order of two requests: those are switches, and tests of the worker and of the queues show that
the order is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from a2a_serverless.storage.codec import Commits
from a2a_serverless.tasks import attempts, rules, waits
from a2a_serverless.tasks.fold import Event, Fold, Log, Record, belonging_to, events_of
from a2a_serverless.tasks.head import Head, OperationParams
from a2a_serverless.worker.projection import Projection


def is_same_task(current: Head, seen: Head) -> bool:
    """Whether a HEAD is one of the task that was read, and not of a later one with its id."""
    return current.incarnation == seen.incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Pure functions of the project, each of which can be replaced."""

    # what a commit does
    open_task: Callable[..., rules.Step] = rules.open_task
    advance: Callable[..., rules.Step] = rules.advance
    is_applied: Callable[..., bool] = rules.is_applied
    conflict: Callable[..., Exception] = rules.conflict

    # what a worker does
    on_delivery: Callable[..., attempts.DeliveryDecision] = attempts.on_delivery
    on_current_turn: Callable[..., OperationParams] = attempts.on_current_turn
    waits_behind: Callable[..., bool] = attempts.waits_behind
    goes_on: Callable[..., bool] = attempts.goes_on
    on_refusal: Callable[..., attempts.RefusalDecision] = attempts.on_refusal
    on_lost_claim: Callable[..., attempts.RefusalDecision] = attempts.on_lost_claim
    is_stale: Callable[[Head, Head], bool] = attempts.is_stale
    may_give_up: Callable[..., bool] = attempts.may_give_up
    on_return: Callable[..., attempts.ReturnDecision] = attempts.on_return
    retry_policy: type[attempts.RetryPolicy] = attempts.RetryPolicy
    attempts_started: Callable[..., int] = attempts.attempts_started
    view: type[Projection] = Projection

    # how HEAD is changed
    replaces: Callable[[Head, Head], bool] = operator.eq
    """Whether a write on the second HEAD replaces the first one, which is stored."""
    is_same_task: Callable[[Head, Head], bool] = is_same_task
    """Whether `change` decides anew on the first HEAD, which is stored instead of the second."""
    renewing: Callable[..., Head | None] = rules.renewing
    releasing: Callable[..., Head | None] = rules.releasing

    # questions
    replayed: Callable[[Log], list[Record]] = Log.replayed
    overdue_question: Callable[..., bool] = attempts.overdue_question

    # signals from outside
    on_signal: Callable[..., waits.SignalDecision] = waits.on_signal
    kept: type[waits.Kept] = waits.Kept

    # cancels
    check_open: Callable[..., Head] = rules.check_open
    canceling: Callable[..., Head] = rules.canceling
    on_cancel: Callable[..., attempts.CancelDecision] = attempts.on_cancel

    # shares of the workers
    may_park: Callable[..., bool] = attempts.may_park
    parking: Callable[..., Head | None] = rules.parking
    requeueing: Callable[..., Head | None] = rules.requeueing

    # repairs
    postponing: Callable[..., Head | None] = rules.postponing
    overdue_turn: Callable[..., OperationParams | None] = attempts.overdue_turn
    repeated_turn: Callable[..., OperationParams | None] = attempts.repeated_turn
    overdue_cancel: Callable[..., bool] = attempts.overdue_cancel
    is_given_up: Callable[..., bool] = attempts.is_given_up
    on_dead_letter: Callable[..., attempts.DeadLetterDecision] = attempts.on_dead_letter

    # what readers see
    commits: type[Commits] = Commits
    belonging_to: Callable[..., tuple[Record, ...] | None] = belonging_to
    fold: type[Fold] = Fold
    events_of: Callable[[Record, Fold], Iterable[Event]] = events_of

    # the order of two requests
    keeps_delivery: bool = True
    """The agent starts after its delivery was extended, which one that has run out cannot be."""
    looks_behind_timeout: bool = True
    """An attempt that has stored that a wait is over looks whether a signal has come before."""
    acknowledges_last: bool = True
    """A delivery is acknowledged after its last commit, not when it arrives."""
