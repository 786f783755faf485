"""Decisions of the project's that do not take care any more, one guard missing in each.

They call the original and undo a single thing, so that everything else is the project's code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

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

# -- rules.advance ---------------------------------------------------------------------------


def unfenced(head: Head, commit: Commit, **kwargs: Any) -> Step:
    try:
        return rules.advance(head, commit, **kwargs)
    except FencedError:
        step = rules.advance(with_fields(head, token=commit.token), commit, **kwargs)
        token = head.turn.token if step.head.turn.token is not None else None
        return replace(step, head=with_fields(step.head, token=token))


def claims_its_own_turn_again(head: Head, commit: Commit, **kwargs: Any) -> Step:
    is_its_own = commit.claims and commit.token == head.turn.token
    owner = "another" if is_its_own else head.turn.token
    step = rules.advance(with_fields(head, token=owner), commit, **kwargs)
    return replace(step, ended=None) if is_its_own else step


def leaves_terminal_states(head: Head, commit: Commit, **kwargs: Any) -> Step:
    try:
        return rules.advance(head, commit, **kwargs)
    except TaskTerminalStateError:
        working = replace(head, state=TaskState.TASK_STATE_WORKING)
        return rules.advance(working, commit, **kwargs)


def takes_messages_at_any_time(head: Head, commit: Commit, **kwargs: Any) -> Step:
    try:
        return rules.advance(head, commit, **kwargs)
    except TaskNotAcceptingMessagesError:
        waiting = replace(head, state=TaskState.TASK_STATE_AUTH_REQUIRED, next_turn=0)
        step = rules.advance(waiting, commit, **kwargs)
        return replace(step, head=replace(step.head, state=head.state))


def keeps_what_dead_attempts_wrote(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(head, commit, **kwargs)
    kept = tuple(entry for entry in step.entries if not isinstance(entry, Restarted))
    return replace(step, entries=kept)


def claims_are_not_due(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(head, commit, **kwargs)
    return replace(step, head=replace(step.head, due_at=None)) if commit.claims else step


def follow_ups_are_not_due(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(head, commit, **kwargs)
    is_new = step.head.turn.number != head.turn.number
    return replace(step, head=replace(step.head, due_at=None)) if is_new else step


def restarts_at_the_beginning(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(head, commit, **kwargs)
    first = tuple(Restarted(1) if isinstance(e, Restarted) else e for e in step.entries)
    return replace(step, entries=first)


def keeps_the_checkpoint(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(head, commit, **kwargs)
    is_record = any(isinstance(entry, Recorded) for entry in commit.entries)
    kept = with_fields(step.head, checkpoint=head.turn.checkpoint)
    return replace(step, head=kept) if is_record else step


def forgets_the_code(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(head, commit, **kwargs)
    return replace(step, head=with_fields(step.head, begun=0, begun_base=0))


def goes_on_with_ended_code(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(head, commit, **kwargs)
    begun, base = head.turn.begun, head.turn.begun_base
    is_over = begun and not (step.head.turn.begun or step.head.is_terminal)
    return (
        replace(step, head=with_fields(step.head, begun=begun, begun_base=base))
        if is_over
        else step
    )


def waits_for_ever(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(head, commit, **kwargs)
    return replace(step, head=replace(step.head, due_at=None)) if commit.asks else step


def restarts_before_the_question(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step, base = rules.advance(head, commit, **kwargs), head.turn.begun_base
    first = tuple(Restarted(base) if isinstance(e, Restarted) else e for e in step.entries)
    return replace(step, entries=first) if base else step


def keeps_records_of_its_turn(log: Log) -> list[Record]:
    return [record for record in log.replayed() if record.version > log.head.turn.base]


def keeps_what_attempts_wrote(log: Log) -> list[Record]:
    return [record for record in log.replayed() if record.token is not None]


def sleeps_on(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step, sleeping = rules.advance(head, commit, **kwargs), head.turn
    is_woken = commit.token is None and sleeping.parked == ASLEEP and step.head.turn.is_open
    if not is_woken or step.head.turn.parked:
        return step
    turn = replace(sleeping, signaled=step.head.turn.signaled)
    return replace(step, head=replace(step.head, turn=turn, due_at=head.due_at))


def sleeps_behind_signals(head: Head, commit: Commit, **kwargs: Any) -> Step:
    return rules.advance(head, replace(commit, seen=head.version), **kwargs)


def takes_every_signal(log: Log | None, turn: int, step_id: StepId) -> SignalDecision:
    decided = on_signal(log, turn, step_id)
    is_open = log is not None and log.head.turn.is_open
    return SignalDecision.TAKE if is_open and decided is not SignalDecision.TAKE else decided


class LatestKept(Kept):
    """A wait takes the place of a signal that its writer did not know."""

    def add(self, entry: Recorded, version: int) -> None:
        known = Until.of(entry)._replace(seen=version).record(entry.id)
        super().add(known if entry.form == UNTIL else entry, version)


class LateKept(Kept):
    """The end of a wait's time takes the place of a signal that came before it."""

    def add(self, entry: Recorded, version: int) -> None:
        super().add(entry, version)
        if entry.form == TIMEOUT:
            self.records[entry.id] = entry


def shows_every_claim(head: Head, commit: Commit, **kwargs: Any) -> Step:
    if not (commit.claims and head.is_at_record):
        return rules.advance(head, commit, **kwargs)
    working = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_WORKING), archive=True)
    entries = (Restarted(head.turn.restart_base), working, *commit.entries)
    return rules.advance(head, replace(commit, entries=entries), **kwargs)


def takes_back_again(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(head, commit, **kwargs)
    takes_back = any(isinstance(entry, Restarted) for entry in step.entries)
    kept = with_fields(step.head, checkpoint=head.turn.checkpoint)
    return replace(step, head=kept) if takes_back else step


def counts_copies_on(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(head, commit, **kwargs)
    is_record = any(isinstance(entry, Recorded) for entry in commit.entries)
    kept = with_fields(step.head, requeued=head.turn.requeued)
    return replace(step, head=kept) if is_record else step


def opens_without_due(*args: Any, **kwargs: Any) -> Step:
    step = rules.open_task(*args, **kwargs)
    return replace(step, head=replace(step.head, due_at=None))


# -- conflicts -------------------------------------------------------------------------------


def replaces_whatever_is_there(current: Head, seen: Head) -> bool:
    del current, seen
    return True


def is_any_task(current: Head, seen: Head) -> bool:
    del current, seen
    return True


def is_never_applied(stored_id: str | None, commit_id: str) -> bool:
    del stored_id, commit_id
    return False


def is_always_applied(stored_id: str | None, commit_id: str) -> bool:
    del stored_id, commit_id
    return True


# -- deliveries ------------------------------------------------------------------------------


def runs_finished_turns(
    head: Head | None, operation: Operation, *, receives: int, **delivery: bool
) -> DeliveryDecision:
    wanted = attempts.on_delivery(head, operation, receives=receives, **delivery)
    if wanted is DeliveryDecision.DROP and head is not None:
        return DeliveryDecision.CLAIM if receives > 1 else DeliveryDecision.START
    return wanted


def starts_without_a_claim(*args: Any, **kwargs: Any) -> DeliveryDecision:
    wanted = attempts.on_delivery(*args, **kwargs)
    return DeliveryDecision.START if wanted is DeliveryDecision.CLAIM else wanted


def starts_copies_without_a_claim(
    head: Head | None, operation: Operation, *, receives: int, **delivery: bool
) -> DeliveryDecision:
    params = operation.params.model_copy(update={"copy_number": 0})
    first = operation.model_copy(update={"params": params})
    return attempts.on_delivery(head, first, receives=receives, **delivery)


def does_not_see_the_request(head: Head | None, *args: Any, **kwargs: Any) -> DeliveryDecision:
    return attempts.on_delivery(head and replace(head, cancel=None), *args, **kwargs)


def always_goes_on(head: Head | None, *, worked_on: Head) -> bool:
    del worked_on
    return head is not None


def begins_with_the_same_copy(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(head, commit, **kwargs)
    begins = head.next_turn and step.head.turn.number == head.next_turn
    again = with_fields(step.head, sends=0, requeued=0)
    return replace(step, head=again) if begins else step


def claims_whatever_it_meets(
    head: Head | None, params: OperationParams, retry: RetryPolicy, **kwargs: Any
) -> RefusalDecision:
    met = attempts.on_lost_claim(head, params, retry, **kwargs)
    return RefusalDecision.REBASE if met is RefusalDecision.FENCED else met


def claims_on_any_records(read: Head, newer: Head) -> bool:
    del read, newer
    return False


def claims_beside_neighbours(*args: Any, **kwargs: Any) -> RefusalDecision:
    return attempts.on_lost_claim(*args, **{**kwargs, "is_alone": True})


def has_neighbours_at_any_time(*args: Any, **kwargs: Any) -> DeliveryDecision:
    return attempts.on_delivery(*args, **{**kwargs, "has_neighbours": False})


def takes_no_release(head: Head, *args: Any, **kwargs: Any) -> DeliveryDecision:
    claimed = with_fields(head, released=None)
    wanted = attempts.on_delivery(claimed, *args, **kwargs)
    is_alone = wanted is DeliveryDecision.QUARANTINE
    return wanted if is_alone else attempts.on_delivery(head, *args, **kwargs)


def gives_back_what_runs_alone(*args: Any, **kwargs: Any) -> DeliveryDecision:
    wanted = attempts.on_delivery(*args, **kwargs)
    return DeliveryDecision.GIVE_BACK if wanted is DeliveryDecision.QUARANTINE else wanted


def gives_up_what_goes_on(head: Head, params: OperationParams, *, seen: Head) -> bool:
    return attempts.may_give_up(head, params, seen=with_fields(head, token=seen.turn.token))


def leaves_auth_turns_open(state: TaskState | None) -> ReturnDecision:
    left = attempts.on_return(state)
    return ReturnDecision.ENDED if left is ReturnDecision.ENDS_TURN else left


class RetriesForEver(RetryPolicy):
    """No number of attempts is enough."""

    def is_exhausted(self, attempts: int) -> bool:
        del attempts
        return False


def goes_on_when_fenced(*args: Any, **kwargs: Any) -> RefusalDecision:
    refused = attempts.on_refusal(*args, **kwargs)
    return RefusalDecision.REBASE if refused is RefusalDecision.FENCED else refused


def goes_on_when_over(*args: Any, **kwargs: Any) -> RefusalDecision:
    refused = attempts.on_refusal(*args, **kwargs)
    return RefusalDecision.REBASE if refused is RefusalDecision.OVER else refused


# -- cancels ---------------------------------------------------------------------------------


def tells_the_running_agent_alone(head: Head, operation: Operation) -> CancelDecision:
    way = attempts.on_cancel(head, operation)
    return (
        CancelDecision.ALONE
        if way is CancelDecision.PAUSED and operation.operation == "run"
        else way
    )


def cancels_without_a_deadline(head: Head, **kwargs: Any) -> Head:
    return replace(rules.canceling(head, **kwargs), due_at=head.due_at)


def cancels_ended_tasks(head: Head, **kwargs: Any) -> Head:
    working = replace(head, state=TaskState.TASK_STATE_WORKING)
    return replace(rules.canceling(working, **kwargs), state=head.state)


def renews_canceled_turns(head: Head, **kwargs: Any) -> Head | None:
    after = rules.renewing(replace(head, cancel=None), **kwargs)
    return after and replace(after, cancel=head.cancel)


def releases_canceled_turns(head: Head, **kwargs: Any) -> Head | None:
    after = rules.releasing(replace(head, cancel=None), **kwargs)
    return after and replace(after, cancel=head.cancel)


def moves_the_deadline(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(replace(head, cancel=None), commit, **kwargs)
    return replace(step, head=replace(step.head, cancel=head.cancel))


def watches_ended_tasks(head: Head, commit: Commit, **kwargs: Any) -> Step:
    step = rules.advance(head, commit, **kwargs)
    stays = step.head.is_terminal and not head.turn.is_open
    return replace(step, head=replace(step.head, due_at=head.due_at)) if stays else step


def is_never_overdue(head: Head | None, *, now_ms: int) -> bool:
    del head, now_ms
    return False


# -- repairs ---------------------------------------------------------------------------------


def sends_the_same_copy(*args: Any, **kwargs: Any) -> OperationParams | None:
    params = attempts.overdue_turn(*args, **kwargs)
    return params and params.model_copy(update={"copy_number": 0})


def buries_whatever_it_finds(head: Head | None, *args: Any, **kwargs: Any) -> DeadLetterDecision:
    wanted = attempts.on_dead_letter(head, *args, **kwargs)
    if wanted is DeadLetterDecision.DROP and head is not None and not head.is_terminal:
        return DeadLetterDecision.FAIL
    return wanted


def buries_what_has_attempts_left(*args: Any, **kwargs: Any) -> DeadLetterDecision:
    wanted = attempts.on_dead_letter(*args, **kwargs)
    return DeadLetterDecision.FAIL if wanted is DeadLetterDecision.RESEND else wanted


def never_gives_up(*args: Any, **kwargs: Any) -> bool:
    del args, kwargs
    return False


def gives_up_claimed_turns(head: Head, **kwargs: Any) -> bool:
    return attempts.is_given_up(with_fields(head, token=None, attempts=0), **kwargs)


def gives_up_at_once(head: Head, *, now_ms: int, **kwargs: Any) -> bool:
    del now_ms
    return attempts.is_given_up(head, now_ms=10**15, **kwargs)


# -- the thread beside the agent's loop ------------------------------------------------------


def renews_whatever_it_finds(head: Head, *, token: str, due_at: int) -> Head | None:
    return rules.renewing(with_fields(head, token=token), token=token, due_at=due_at) and replace(
        head, due_at=due_at
    )


def renews_what_was_left(head: Head, *, token: str, due_at: int) -> Head | None:
    after = rules.renewing(with_fields(head, released=None), token=token, due_at=due_at)
    return after and with_fields(after, released=head.turn.released)


# -- what readers and subscribers see --------------------------------------------------------


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


class ForgetsEarlierArtifacts(ForgetsEarlierTurns):
    """A fold that forgets as `ForgetsEarlierTurns` does, but with the right history."""

    def _restart(self, base: int) -> None:
        Fold._restart(self, base)
        self._show(self._again(base))


class TakesHalfCommits(Commits):
    """A commit counts as complete with the parts that were there when the page ended."""

    def add(self, items: Iterable[Mapping[str, Any]]) -> None:
        super().add(items)
        if self._parts:
            self._complete()


class LeavesGaps(Commits):
    """A commit counts although the one before it was not there."""

    def add(self, items: Iterable[Mapping[str, Any]]) -> None:
        for item in items:
            self.version = int(item["SK"].split("#")[2]) - 1
            super().add([item])


def stops_short(head: Head, records: Sequence[Record], reached: int) -> tuple[Record, ...] | None:
    del reached
    return belonging_to(head, records, head.version)


def takes_what_is_beyond_head(
    head: Head, records: Sequence[Record], reached: int
) -> tuple[Record, ...] | None:
    is_whole = belonging_to(head, records, reached) is not None
    return tuple(records) if is_whole else None


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


def does_not_show_restarts(record: Record, after: Fold) -> Iterator[Event]:
    kept = tuple(entry for entry in record.entries if not isinstance(entry, Restarted))
    return events_of(replace(record, entries=kept), after)
