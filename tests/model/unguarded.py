"""Decisions of the project's that do not take care any more, one guard missing in each.

They call the original and undo a single thing, so that everything else is the project's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from a2a.types import TaskArtifactUpdateEvent, TaskState, TaskStatus

from a2a_serverless.errors import (
    FencedError,
    TaskNotAcceptingMessagesError,
    TaskTerminalStateError,
)
from a2a_serverless.storage.codec import Commits
from a2a_serverless.tasks import attempts, rules
from a2a_serverless.tasks.attempts import (
    CancelDecision,
    DeadLetterDecision,
    DeliveryDecision,
    RefusalDecision,
    RetryPolicy,
    ReturnDecision,
)
from a2a_serverless.tasks.entries import (
    TIMEOUT,
    UNTIL,
    ArtifactWritten,
    Entry,
    Recorded,
    Restarted,
    StatusChanged,
    StepId,
    copied,
)
from a2a_serverless.tasks.fold import Event, Fold, Log, Record, belonging_to, events_of
from a2a_serverless.tasks.head import ASLEEP, Head, Operation, OperationParams
from a2a_serverless.tasks.rules import Commit, Step
from a2a_serverless.tasks.waits import Kept, SignalDecision, Until, on_signal
from a2a_serverless.worker.projection import Projection
from tests.support.heads import with_fields

T = TypeVar("T")


def _yes(*_: object, **__: object) -> bool:
    return True


def _no(*_: object, **__: object) -> bool:
    return False


def _instead(rule: Callable[..., Any], decision: object, other: object) -> Callable[..., Any]:
    """A rule that never comes to one decision."""

    def decided(*args: Any, **named: Any) -> Any:
        return other if (made := rule(*args, **named)) is decision else made

    return decided


def _given(rule: Callable[..., Any], **fixed: object) -> Callable[..., Any]:
    """A rule that is told the same at any time."""
    return lambda *args, **named: rule(*args, **{**named, **fixed})


def _sees(rule: Callable[..., Any], **fields: object) -> Callable[..., Any]:
    """A rule that sees HEAD with other values."""
    return lambda head, *args, **named: rule(head and with_fields(head, **fields), *args, **named)


def _uncanceled(rule: Callable[..., Head | None]) -> Callable[..., Head | None]:
    """A change of HEAD that knows no cancel."""

    def changed(head: Head, **named: Any) -> Head | None:
        after = rule(replace(head, cancel=None), **named)
        return after and replace(after, cancel=head.cancel)

    return changed


_REBASE = RefusalDecision.REBASE
_GOES_ON = _instead(attempts.on_refusal, RefusalDecision.FENCED, _REBASE)
_START = DeliveryDecision.START

WITHOUT: dict[str, dict[str, Any]] = {
    "ack-last": {"acknowledges_last": False},
    "auth-turn-end": {
        "on_return": _instead(attempts.on_return, ReturnDecision.ENDS_TURN, ReturnDecision.ENDED)
    },
    "cancel-before-start": {"on_delivery": _sees(attempts.on_delivery, cancel=None)},
    "claim-before-start": {
        "on_delivery": _instead(attempts.on_delivery, DeliveryDecision.CLAIM, _START)
    },
    "claim-bound": {
        "on_lost_claim": _instead(attempts.on_lost_claim, RefusalDecision.FENCED, _REBASE)
    },
    "claim-on-read": {"is_stale": _no},
    "claims-alone": {"on_lost_claim": _given(attempts.on_lost_claim, is_alone=True)},
    "commit-id": {"is_applied": _no},
    "dead-letter-resend": {
        "on_dead_letter": _instead(
            attempts.on_dead_letter, DeadLetterDecision.RESEND, DeadLetterDecision.FAIL
        )
    },
    "fence": {"on_refusal": _GOES_ON},
    "fence-worker": {"on_refusal": _GOES_ON},
    "give-up": {"is_given_up": _no},
    "give-up-hours": {"is_given_up": _given(attempts.is_given_up, now_ms=10**15)},
    "give-up-unclaimed": {"is_given_up": _sees(attempts.is_given_up, token=None, attempts=0)},
    "keeps-delivery": {"keeps_delivery": False},
    "mark-incarnation": {"is_same_task": _yes},
    "moved-on": {"goes_on": lambda head, **_: head is not None},
    "over-worker": {"on_refusal": _instead(attempts.on_refusal, RefusalDecision.OVER, _REBASE)},
    "overdue-cancel": {"overdue_cancel": _no},
    "quarantines": {
        "on_delivery": _instead(
            attempts.on_delivery, DeliveryDecision.QUARANTINE, DeliveryDecision.GIVE_BACK
        )
    },
    "release-waits": {"releasing": _uncanceled(rules.releasing)},
    "renew-waits": {"renewing": _uncanceled(rules.renewing)},
    "replaces": {"replaces": _yes},
    "runs-alone": {"on_delivery": _given(attempts.on_delivery, has_neighbours=False)},
    "signal-look": {"looks_behind_timeout": False},
    "unanswered": {"is_applied": _yes},
}
"""What replaces which rules while a guard is off."""


def _off(guard: str, rule: str) -> Callable[[T], T]:
    """Let a function or a class stand for a rule while the guard is off."""

    def added(without: T) -> T:
        WITHOUT.setdefault(guard, {})[rule] = without
        return without

    return added


class _Made(NamedTuple):
    """What `rules.advance` has made of a commit."""

    before: Head
    commit: Commit
    step: Step

    def has(self, kind: type[Entry]) -> bool:
        return any(isinstance(entry, kind) for entry in self.step.entries)

    def with_head(self, **fields: Any) -> Step:
        return replace(self.step, head=with_fields(self.step.head, **fields))

    def restarts_at(self, base: int) -> Step:
        entries = (Restarted(base) if isinstance(e, Restarted) else e for e in self.step.entries)
        return replace(self.step, entries=tuple(entries))


def _after(guard: str) -> Callable[[Callable[[_Made], Step]], Callable[[_Made], Step]]:
    """Let a function change what `rules.advance` makes, while the guard is off."""

    def added(changed: Callable[[_Made], Step]) -> Callable[[_Made], Step]:
        def advance(head: Head, commit: Commit, **named: Any) -> Step:
            return changed(_Made(head, commit, rules.advance(head, commit, **named)))

        _off(guard, "advance")(advance)
        return changed

    return added


# -- rules.advance ---------------------------------------------------------------------------


@_off("fence", "advance")
def unfenced(head: Head, commit: Commit, **named: Any) -> Step:
    try:
        return rules.advance(head, commit, **named)
    except FencedError:
        step = rules.advance(with_fields(head, token=commit.token), commit, **named)
        token = head.turn.token if step.head.turn.token is not None else None
        return replace(step, head=with_fields(step.head, token=token))


@_off("owner-claim", "advance")
def claims_its_own_turn_again(head: Head, commit: Commit, **named: Any) -> Step:
    is_its_own = commit.claims and commit.token == head.turn.token
    owner = "another" if is_its_own else head.turn.token
    step = rules.advance(with_fields(head, token=owner), commit, **named)
    return replace(step, ended=None) if is_its_own else step


@_off("terminal", "advance")
def leaves_terminal_states(head: Head, commit: Commit, **named: Any) -> Step:
    try:
        return rules.advance(head, commit, **named)
    except TaskTerminalStateError:
        working = replace(head, state=TaskState.TASK_STATE_WORKING)
        return rules.advance(working, commit, **named)


@_off("busy", "advance")
def takes_messages_at_any_time(head: Head, commit: Commit, **named: Any) -> Step:
    try:
        return rules.advance(head, commit, **named)
    except TaskNotAcceptingMessagesError:
        waiting = replace(head, state=TaskState.TASK_STATE_AUTH_REQUIRED, next_turn=0)
        step = rules.advance(waiting, commit, **named)
        return replace(step, head=replace(step.head, state=head.state))


@_off("signal-seen", "advance")
def sleeps_behind_signals(head: Head, commit: Commit, **named: Any) -> Step:
    return rules.advance(head, replace(commit, seen=head.version), **named)


@_off("quiet-claim", "advance")
def shows_every_claim(head: Head, commit: Commit, **named: Any) -> Step:
    if not (commit.claims and head.is_at_record):
        return rules.advance(head, commit, **named)
    working = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_WORKING), archive=True)
    entries = (Restarted(head.turn.restart_base), working, *commit.entries)
    return rules.advance(head, replace(commit, entries=entries), **named)


@_off("watched", "advance")
def moves_the_deadline(head: Head, commit: Commit, **named: Any) -> Step:
    step = rules.advance(replace(head, cancel=None), commit, **named)
    return replace(step, head=replace(step.head, cancel=head.cancel))


@_after("restart-discards")
def keeps_what_dead_attempts_wrote(made: _Made) -> Step:
    kept = tuple(entry for entry in made.step.entries if not isinstance(entry, Restarted))
    return replace(made.step, entries=kept)


@_after("due-claim")
def claims_are_not_due(made: _Made) -> Step:
    return made.with_head(due_at=None) if made.commit.claims else made.step


@_after("due-follow-up")
def follow_ups_are_not_due(made: _Made) -> Step:
    is_new = made.step.head.turn.number != made.before.turn.number
    return made.with_head(due_at=None) if is_new else made.step


@_after("restart-base")
def restarts_at_the_beginning(made: _Made) -> Step:
    return made.restarts_at(1)


@_after("question-restart")
def restarts_before_the_question(made: _Made) -> Step:
    base = made.before.turn.begun_base
    return made.restarts_at(base) if base else made.step


@_after("checkpoint")
def keeps_the_checkpoint(made: _Made) -> Step:
    kept = made.with_head(checkpoint=made.before.turn.checkpoint)
    return kept if made.has(Recorded) else made.step


@_after("taken-back")
def takes_back_again(made: _Made) -> Step:
    kept = made.with_head(checkpoint=made.before.turn.checkpoint)
    return kept if made.has(Restarted) else made.step


@_after("sends-reset")
def counts_copies_on(made: _Made) -> Step:
    kept = made.with_head(requeued=made.before.turn.requeued)
    return kept if made.has(Recorded) else made.step


@_after("question-goes-on")
def forgets_the_code(made: _Made) -> Step:
    return made.with_head(begun=0, begun_base=0)


@_after("question-ends")
def goes_on_with_ended_code(made: _Made) -> Step:
    begun, base = made.before.turn.begun, made.before.turn.begun_base
    is_over = begun and not (made.step.head.turn.begun or made.step.head.is_terminal)
    return made.with_head(begun=begun, begun_base=base) if is_over else made.step


@_after("question-due")
def waits_for_ever(made: _Made) -> Step:
    return made.with_head(due_at=None) if made.commit.asks else made.step


@_after("signal-wakes")
def sleeps_on(made: _Made) -> Step:
    before, head = made.before, made.step.head
    is_woken = made.commit.token is None and before.turn.parked == ASLEEP and head.turn.is_open
    if not is_woken or head.turn.parked:
        return made.step
    turn = replace(before.turn, signaled=head.turn.signaled)
    return replace(made.step, head=replace(head, turn=turn, due_at=before.due_at))


@_after("next-copy")
def begins_with_the_same_copy(made: _Made) -> Step:
    begins = made.before.next_turn and made.step.head.turn.number == made.before.next_turn
    return made.with_head(sends=0, requeued=0) if begins else made.step


@_after("watched-end")
def watches_ended_tasks(made: _Made) -> Step:
    stays = made.step.head.is_terminal and not made.before.turn.is_open
    return made.with_head(due_at=made.before.due_at) if stays else made.step


@_off("due-open", "open_task")
def opens_without_due(*args: Any, **named: Any) -> Step:
    step = rules.open_task(*args, **named)
    return replace(step, head=replace(step.head, due_at=None))


# -- records and signals ---------------------------------------------------------------------


@_off("question-records", "replayed")
def keeps_records_of_its_turn(log: Log) -> list[Record]:
    return [record for record in log.replayed() if record.version > log.head.turn.base]


@_off("question-late", "replayed")
def keeps_what_attempts_wrote(log: Log) -> list[Record]:
    return [record for record in log.replayed() if record.token is not None]


@_off("signal-late", "on_signal")
def takes_every_signal(log: Log | None, turn: int, step_id: StepId) -> SignalDecision:
    is_open = log is not None and log.head.turn.is_open
    return SignalDecision.TAKE if is_open else on_signal(log, turn, step_id)


@_off("signal-kept", "kept")
class LatestKept(Kept):
    """A wait takes the place of a signal that its writer did not know."""

    def add(self, entry: Recorded, version: int) -> None:
        known = Until.of(entry)._replace(seen=version).record(entry.id)
        super().add(known if entry.form == UNTIL else entry, version)


@_off("signal-first", "kept")
class LateKept(Kept):
    """The end of a wait's time takes the place of a signal that came before it."""

    def add(self, entry: Recorded, version: int) -> None:
        super().add(entry, version)
        if entry.form == TIMEOUT:
            self.records[entry.id] = entry


# -- deliveries ------------------------------------------------------------------------------


@_off("turn-finished", "on_delivery")
def runs_finished_turns(
    head: Head | None, operation: Operation, *, receives: int, **delivery: bool
) -> DeliveryDecision:
    wanted = attempts.on_delivery(head, operation, receives=receives, **delivery)
    if wanted is DeliveryDecision.DROP and head is not None:
        return DeliveryDecision.CLAIM if receives > 1 else _START
    return wanted


@_off("copy-claims", "on_delivery")
def starts_copies_without_a_claim(
    head: Head | None, operation: Operation, *, receives: int, **delivery: bool
) -> DeliveryDecision:
    params = operation.params.model_copy(update={"copy_number": 0})
    first = operation.model_copy(update={"params": params})
    return attempts.on_delivery(head, first, receives=receives, **delivery)


@_off("released-shares", "on_delivery")
def takes_no_release(head: Head, *args: Any, **named: Any) -> DeliveryDecision:
    wanted = attempts.on_delivery(with_fields(head, released=None), *args, **named)
    is_alone = wanted is DeliveryDecision.QUARANTINE
    return wanted if is_alone else attempts.on_delivery(head, *args, **named)


@_off("gives-up-what-stands", "may_give_up")
def gives_up_what_goes_on(head: Head, params: OperationParams, *, seen: Head) -> bool:
    return attempts.may_give_up(head, params, seen=with_fields(head, token=seen.turn.token))


@_off("max-attempts", "retry_policy")
class RetriesForEver(RetryPolicy):
    """No number of attempts is enough."""

    is_exhausted = _no


# -- cancels and repairs ---------------------------------------------------------------------


@_off("tells-agent", "on_cancel")
def tells_the_running_agent_alone(head: Head, operation: Operation) -> CancelDecision:
    way = attempts.on_cancel(head, operation)
    is_told = way is CancelDecision.PAUSED and operation.operation == "run"
    return CancelDecision.ALONE if is_told else way


@_off("mark-makes-due", "canceling")
def cancels_without_a_deadline(head: Head, **named: Any) -> Head:
    return replace(rules.canceling(head, **named), due_at=head.due_at)


@_off("mark-open-task", "canceling")
def cancels_ended_tasks(head: Head, **named: Any) -> Head:
    working = replace(head, state=TaskState.TASK_STATE_WORKING)
    return replace(rules.canceling(working, **named), state=head.state)


@_off("copy-number", "overdue_turn")
def sends_the_same_copy(*args: Any, **named: Any) -> OperationParams | None:
    params = attempts.overdue_turn(*args, **named)
    return params and params.model_copy(update={"copy_number": 0})


@_off("dead-letter", "on_dead_letter")
def buries_whatever_it_finds(head: Head | None, *args: Any, **named: Any) -> DeadLetterDecision:
    wanted = attempts.on_dead_letter(head, *args, **named)
    if wanted is DeadLetterDecision.DROP and head is not None and not head.is_terminal:
        return DeadLetterDecision.FAIL
    return wanted


@_off("lease-owner", "renewing")
def renews_whatever_it_finds(head: Head, *, token: str, due_at: int) -> Head | None:
    after = rules.renewing(with_fields(head, token=token), token=token, due_at=due_at)
    return after and replace(head, due_at=due_at)


@_off("renewed", "renewing")
def renews_what_was_left(head: Head, *, token: str, due_at: int) -> Head | None:
    after = rules.renewing(with_fields(head, released=None), token=token, due_at=due_at)
    return after and with_fields(after, released=head.turn.released)


# -- what readers and subscribers see --------------------------------------------------------


@_off("restart-keeps", "fold")
class ForgetsEarlierTurns(Fold):
    """A restart replays the log, and the earlier restarts in it take back all that was before."""

    def __init__(self, task_id: str, context_id: str) -> None:
        super().__init__(task_id, context_id)
        self.records: list[Record] = []

    def add(self, record: Record, *, skips: bool = False) -> None:
        super().add(record, skips=skips)
        self.records.append(record)

    def _restart(self, base: int) -> None:
        again = self._again(base)
        self.status, self.metadata, self.reply = again.status, again.metadata, again.reply
        self.history = again.history
        self._show(again)

    def _again(self, base: int) -> Fold:
        again = type(self)(self.task_id, self.context_id)
        for record in self.records:
            if record.version <= base or record.token is None:
                for entry in record.entries:
                    again.apply(entry, record)
        return again

    def _show(self, again: Fold) -> None:
        self.artifacts, self._seams, self._ended = again.artifacts, again._seams, again._ended
        self._restored = [(copied(artifact), seams) for artifact, seams in self._artifacts()]


@_off("restart-artifacts", "fold")
class ForgetsEarlierArtifacts(ForgetsEarlierTurns):
    """A fold that forgets as `ForgetsEarlierTurns` does, but with the right history."""

    def _restart(self, base: int) -> None:
        Fold._restart(self, base)
        self._show(self._again(base))


@_off("complete-parts", "commits")
class TakesHalfCommits(Commits):
    """A commit counts as complete with the parts that were there when the page ended."""

    def add(self, items: Iterable[Mapping[str, Any]]) -> None:
        super().add(items)
        if self._parts:
            self._complete()


@_off("unbroken-order", "commits")
class LeavesGaps(Commits):
    """A commit counts although the one before it was not there."""

    def add(self, items: Iterable[Mapping[str, Any]]) -> None:
        for item in items:
            self.version = int(item["SK"].split("#")[2]) - 1
            super().add([item])


@_off("reads-on", "belonging_to")
def stops_short(head: Head, records: Sequence[Record], reached: int) -> tuple[Record, ...] | None:
    del reached
    return belonging_to(head, records, head.version)


@_off("cut-at-head", "belonging_to")
def takes_what_is_beyond_head(
    head: Head, records: Sequence[Record], reached: int
) -> tuple[Record, ...] | None:
    is_whole = belonging_to(head, records, reached) is not None
    return tuple(records) if is_whole else None


@_off("first-chunk", "view")
class AppendsFirstChunks(Projection):
    """The first chunk of an artifact is appended if the agent says so."""

    def entries_of(self, event: object) -> tuple[Entry, ...]:
        entries = super().entries_of(event)
        if isinstance(event, TaskArtifactUpdateEvent):
            return tuple(
                replace(e, append=event.append) if isinstance(e, ArtifactWritten) else e
                for e in entries
            )
        return entries


@_off("restart-shown", "events_of")
def does_not_show_restarts(record: Record, after: Fold) -> Iterator[Event]:
    kept = tuple(entry for entry in record.entries if not isinstance(entry, Restarted))
    return events_of(replace(record, entries=kept), after)
