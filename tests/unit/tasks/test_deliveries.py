"""What a worker does with its turn: after other writers, a failure, and the return of its agent."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from a2a.types import TaskState

from a2a_serverless.tasks.attempts import (
    DeadLetterDecision,
    DeliveryDecision,
    RefusalDecision,
    RetryPolicy,
    ReturnDecision,
    attempts_started,
    may_give_up,
    on_current_turn,
    on_dead_letter,
    on_delivery,
    on_lost_claim,
    on_refusal,
    on_return,
    waits_behind,
)
from a2a_serverless.tasks.entries import Recorded, StepId
from a2a_serverless.tasks.head import (
    ASLEEP,
    FORMAT,
    KNOWN,
    AttemptEnd,
    Head,
    Operation,
    OperationParams,
)
from a2a_serverless.tasks.rules import Commit
from tests.support.heads import with_fields
from tests.unit.tasks.heads import asked, claimed, followed, moved, opened, stepped

WAITS_FOR_CREDENTIALS = moved(claimed(), TaskState.TASK_STATE_AUTH_REQUIRED)
WITH_NEXT = followed(WAITS_FOR_CREDENTIALS)
COMPLETED = moved(claimed(), TaskState.TASK_STATE_COMPLETED)
PAUSED = moved(claimed(), TaskState.TASK_STATE_INPUT_REQUIRED)
FIRST = OperationParams.of(opened(), 1)
NEXT = OperationParams.of(WITH_NEXT, WITH_NEXT.next_turn)
RETRY = RetryPolicy(max_attempts=2)
OVER = [
    pytest.param(None, id="gone"),
    pytest.param(opened("j"), id="another task"),
    pytest.param(COMPLETED, id="ended"),
]


def test_a_delivery_works_on_the_current_turn() -> None:
    """An operation of the next turn takes the number of the one that is worked on."""
    assert on_current_turn(NEXT, WITH_NEXT).turn == 1
    assert on_current_turn(FIRST, WITH_NEXT) == FIRST


@pytest.mark.parametrize(
    ("copy", "receives", "wanted"),
    [
        (0, 1, DeliveryDecision.START),
        (0, 2, DeliveryDecision.CLAIM),
        (1, 1, DeliveryDecision.CLAIM),
    ],
)
def test_only_the_first_delivery_of_a_turn_starts_without_a_claim(
    copy: int, receives: int, wanted: DeliveryDecision
) -> None:
    """Only the first message's first delivery starts at once; redeliveries and copies claim."""
    sent = Operation(operation="run", params=OperationParams.of(opened(), 1, copy))
    assert on_delivery(opened(), sent, receives=receives) is wanted


def test_a_delivery_goes_on_with_the_turn_that_it_names() -> None:
    """After the current turn a run goes on with the later turn that it names; a cancel does not."""
    assert waits_behind(WITH_NEXT, operation("run"))
    assert not waits_behind(WITH_NEXT, operation("cancel"))
    assert not waits_behind(WITH_NEXT, Operation(operation="run", params=FIRST))


def test_nothing_waits_behind_a_turn_that_is_over() -> None:
    """Where the task has ended, a delivery does not go on with a later turn."""
    assert not waits_behind(COMPLETED, operation("run"))


@pytest.mark.parametrize("head", OVER)
@pytest.mark.parametrize("token", ["A", None])
def test_a_refused_writer_stops_where_its_task_has_ended(
    head: Head | None, token: str | None
) -> None:
    """On a task that is gone or has ended, a refused write is over, inside an attempt or not."""
    assert on_refusal(head, FIRST, token=token) is RefusalDecision.OVER


def test_a_refused_attempt_stops_where_its_turn_is_over() -> None:
    """After the turn's end an attempt stops; a writer outside of any attempt writes again."""
    assert on_refusal(PAUSED, FIRST, token="A") is RefusalDecision.OVER
    assert on_refusal(PAUSED, FIRST, token=None) is RefusalDecision.REBASE


def test_a_refused_attempt_is_fenced_by_another_owner() -> None:
    """A refused attempt writes again unless another one owns the turn, which fences it."""
    assert on_refusal(claimed(token="B"), FIRST, token="A") is RefusalDecision.FENCED
    assert on_refusal(claimed(token="A"), FIRST, token="A") is RefusalDecision.REBASE
    assert on_refusal(opened(), FIRST, token="A") is RefusalDecision.REBASE
    assert on_refusal(claimed(token="B"), FIRST, token=None) is RefusalDecision.REBASE


@pytest.mark.parametrize("head", [*OVER, pytest.param(PAUSED, id="finished")])
def test_a_lost_claim_ends_with_its_turn(head: Head | None) -> None:
    """A claim of a turn that is over, or of a task that is gone, is not repeated."""
    assert on_lost_claim(head, FIRST, RETRY) is RefusalDecision.OVER


def test_a_lost_claim_is_repeated_while_there_are_attempts() -> None:
    """A lost claim is tried again on another's turn, unless its attempts are used up."""
    assert on_lost_claim(claimed(token="B"), FIRST, RETRY) is RefusalDecision.REBASE
    assert on_lost_claim(claimed(claimed(), token="B"), FIRST, RETRY) is RefusalDecision.FENCED


def test_a_turn_is_given_up_by_who_has_seen_its_last_attempt() -> None:
    """A turn is not given up if it is over or another attempt has taken it since."""
    seen = claimed(claimed(), token="C")
    assert may_give_up(replace(seen, version=9), FIRST, seen=seen)
    assert not may_give_up(claimed(seen, token="D"), FIRST, seen=seen)
    assert not may_give_up(COMPLETED, FIRST, seen=seen)


def test_a_turn_that_goes_on_is_not_given_up() -> None:
    """Its last attempt lives, and has recorded a step, or left the turn, since it was looked at."""
    seen = claimed(claimed(), token="C")
    step = (Recorded(StepId("work", "", 1), "json", b"1"),)
    left = AttemptEnd(token="C", reason=ASLEEP, until=9)
    assert not may_give_up(stepped(seen, Commit(entries=step, token="C")), FIRST, seen=seen)
    assert not may_give_up(stepped(seen, Commit(token="C", parks=left)), FIRST, seen=seen)


@pytest.mark.parametrize("head", [*OVER, pytest.param(PAUSED, id="finished")])
def test_a_dead_letter_of_a_turn_that_is_over_is_dropped(head: Head | None) -> None:
    """A dead letter of a finished turn is dropped."""
    assert dead_letter(head) is DeadLetterDecision.DROP


@pytest.mark.parametrize("head", [opened(), claimed(), claimed(claimed(), "B"), WITH_NEXT])
def test_a_dead_letter_of_a_task_that_is_being_canceled_cancels_it(head: Head) -> None:
    """Where a cancel was requested, or is the dead letter, the task is canceled in any case."""
    assert dead_letter(asked(head)) is DeadLetterDecision.CANCEL
    assert dead_letter(asked(PAUSED)) is DeadLetterDecision.CANCEL
    assert dead_letter(head, kind="cancel") is DeadLetterDecision.CANCEL


@pytest.mark.parametrize("head", [opened(), claimed(), WITH_NEXT])
def test_a_dead_letter_fails_nothing_while_there_are_attempts(head: Head) -> None:
    """A dead letter is sent again before and after a claim, and with a message that waits."""
    assert dead_letter(head) is DeadLetterDecision.RESEND


def test_a_dead_letter_fails_a_turn_whose_attempts_are_used_up() -> None:
    """A dead letter of a turn that was claimed as often as allowed fails the task."""
    assert dead_letter(claimed(claimed(), "B")) is DeadLetterDecision.FAIL


def test_a_dead_letter_of_a_message_that_waits_is_about_the_current_turn() -> None:
    """A dead letter of a message that waits is decided by the current turn's attempts."""
    assert dead_letter(WITH_NEXT, turn=NEXT.turn) is DeadLetterDecision.RESEND
    exhausted = with_fields(WITH_NEXT, attempts=RETRY.max_attempts)
    assert dead_letter(exhausted, turn=NEXT.turn) is DeadLetterDecision.FAIL


def test_an_attempt_counts_itself() -> None:
    """Attempts are the claims that HEAD counts, plus the current one if it has not claimed."""
    assert attempts_started(opened(), is_claimed=False) == 1
    assert attempts_started(claimed(), is_claimed=True) == 1
    assert attempts_started(claimed(), is_claimed=False) == 2


NEWER = Operation(operation="archive", params=FIRST)


@pytest.mark.parametrize("head", [opened(), claimed(), WITH_NEXT, PAUSED, COMPLETED])
def test_an_operation_of_a_newer_release_is_given_back(head: Head) -> None:
    """An operation of a newer release is given back, also where its task has ended."""
    for one in (head, head if head.is_terminal else asked(head)):
        assert on_delivery(one, NEWER, receives=1) is DeliveryDecision.GIVE_BACK


@pytest.mark.parametrize("head", [None, opened("j")])
def test_an_operation_of_a_newer_release_is_dropped_with_its_task(head: Head | None) -> None:
    """An operation of a newer release is dropped where its task is gone."""
    assert on_delivery(head, NEWER, receives=1) is DeliveryDecision.DROP


@pytest.mark.parametrize("head", [opened(), claimed(), WITH_NEXT])
def test_a_dead_letter_for_a_newer_release_leaves_its_turn(head: Head) -> None:
    """One that this release cannot run leaves its turn as it is, due as the sweeper set it."""
    run = operation("run")
    left = DeadLetterDecision.LEAVE
    newer = replace(head, needs=FORMAT + 1)
    assert on_dead_letter(head, run, retry=RETRY, cannot_run=True) is left
    assert on_dead_letter(newer, run, retry=RETRY) is left
    assert on_dead_letter(head, NEWER, retry=RETRY) is left


def test_a_dead_letter_of_a_damaged_log_ends_what_may_be_ended() -> None:
    """With a damaged log a used-up turn fails its task, and a request to cancel cancels it."""
    used_up = claimed(claimed(), "B")
    for head, wanted in (
        (used_up, DeadLetterDecision.FAIL),
        (asked(used_up), DeadLetterDecision.CANCEL),
    ):
        decided = on_dead_letter(head, operation("run"), retry=RETRY, cannot_run=True)
        assert decided is wanted


def test_a_dead_letter_for_a_newer_release_without_an_open_turn_is_dropped() -> None:
    """A dead letter of a newer release's operation is dropped where no turn is open."""
    for head in (PAUSED, COMPLETED):
        assert on_dead_letter(head, NEWER, retry=RETRY) is DeadLetterDecision.DROP


def operation(kind: Literal["run", "cancel"]) -> Operation:
    return Operation(operation=kind, params=NEXT)


def dead_letter(
    head: Head | None,
    *,
    kind: Literal["run", "cancel"] = "run",
    turn: int = 1,
) -> DeadLetterDecision:
    params = FIRST.model_copy(update={"turn": turn})
    letter = Operation(operation=kind, params=params)
    return on_dead_letter(head, letter, retry=RETRY)


ENDED = {
    TaskState.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_CANCELED,
    TaskState.TASK_STATE_FAILED,
    TaskState.TASK_STATE_REJECTED,
    TaskState.TASK_STATE_INPUT_REQUIRED,
}
AT_FAULT = {TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING}


@pytest.mark.parametrize("state", sorted(KNOWN))
def test_what_follows_a_return(state: TaskState) -> None:
    """After a return the turn has ended, ends now (auth-required), or is the agent's fault."""
    met = on_return(state)
    assert (met is ReturnDecision.ENDED) == (state in ENDED)
    assert (met is ReturnDecision.AT_FAULT) == (state in AT_FAULT)
    assert (met is ReturnDecision.ENDS_TURN) == (state == TaskState.TASK_STATE_AUTH_REQUIRED)


def test_an_agent_that_said_nothing_is_at_fault() -> None:
    """An agent that returns without a state on the turn is at fault."""
    assert on_return(None) is ReturnDecision.AT_FAULT


@pytest.mark.parametrize(
    ("attempt", "longest_s"),
    [(1, 2), (2, 4), (3, 8), (7, 128), (8, 200), (5000, 200)],
)
def test_the_wait_doubles_up_to_its_cap(attempt: int, longest_s: float) -> None:
    """Attempt n waits for at most base * 2 ** (n - 1) seconds, and never longer than the cap."""
    policy = RetryPolicy(base_s=2, cap_s=200, jitter=lambda: 1.0)
    assert policy.delay_s(attempt) == longest_s


def test_the_jitter_takes_a_share_of_the_wait() -> None:
    """The wait is anything between nothing and its bound, so that turns do not come together."""
    assert RetryPolicy(base_s=4, jitter=lambda: 0.25).delay_s(1) == 1
    assert RetryPolicy(base_s=4, jitter=lambda: 0.0).delay_s(9) == 0
    assert 0 <= RetryPolicy(base_s=4).delay_s(1) <= 4


def test_attempts_are_exhausted_at_the_maximum() -> None:
    """`max_attempts` starts are all there are."""
    policy = RetryPolicy(max_attempts=3)
    assert [policy.is_exhausted(n) for n in (0, 2, 3, 4)] == [False, False, True, True]
