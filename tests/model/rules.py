"""The project's own decisions that the model drives, and the conditions its backends enforce.

A guard is switched off by replacing one of these; see `guards.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from a2a_serverless.storage.dynamodb_items import Commits
from a2a_serverless.tasks import deliveries, repairs, rules
from a2a_serverless.tasks.events import Event, events_of
from a2a_serverless.tasks.fold import Fold, Record
from a2a_serverless.worker.translation import TurnView


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Pure functions of the project, and switches for what only a backend can enforce."""

    open_task: Callable[..., rules.Step] = rules.open_task
    advance: Callable[..., rules.Step] = rules.advance
    on_delivery: Callable[..., deliveries.Delivered] = deliveries.on_delivery
    on_dead_letter: Callable[..., deliveries.Delivered] = deliveries.on_delivery
    on_refusal: Callable[..., deliveries.Refused] = deliveries.on_refusal
    is_over: Callable[..., bool] = deliveries.is_over
    overdue_turn: Callable[..., object] = repairs.overdue_turn
    repeated_turn: Callable[..., object] = repairs.repeated_turn
    overdue_cancel: Callable[..., bool] = repairs.overdue_cancel
    fold: type[Fold] = Fold
    view: type[TurnView] = TurnView
    events_of: Callable[[Record, Fold], Iterable[Event]] = events_of
    commits: type[Commits] = Commits

    checks_version: bool = True
    """A commit's condition on HEAD's version."""
    checks_incarnation: bool = True
    """A commit's condition on HEAD's incarnation."""
    checks_commit_id: bool = True
    """An unanswered commit is looked for in the log by its id."""
    trusts_unanswered: bool = False
    """An unanswered commit counts as applied."""
    sweeps_cancels: bool = True
    """The sweeper looks at cancel flags whose deadline has passed."""
    cleanup_names_incarnation: bool = True
    """A flag is removed only if it is that of the task which has ended."""
    flag_names_incarnation: bool = True
    """A flag counts only for the incarnation that it names."""
    flag_needs_open_task: bool = True
    """A flag is raised in one transaction with a check that the task has not ended."""
    ends_auth_turns: bool = True
    """An agent that returns in auth-required ends its turn."""
    next_turn_waits: bool = False
    """An operation of a turn behind the current one is given back."""
    counts_attempts: bool = True
    """Attempts that are used up fail the task."""
    keeps_delivery: bool = True
    """No agent starts on a delivery that has run out: its visibility is extended before."""
    acknowledges_last: bool = True
    """A delivery is acknowledged after its last commit, not when it arrives."""
    reads_up_to_head: bool = True
    """A read goes on until its commits reach HEAD's version."""
    cuts_at_head: bool = True
    """A read leaves out commits beyond the HEAD that it has seen."""
