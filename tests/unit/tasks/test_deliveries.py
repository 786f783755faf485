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
TWICE = claimed(claimed(), "B")
"""A turn whose attempts are used up."""
OVER = [None, opened("j"), COMPLETED]
"""What is there of a task that is gone, whose id another one has, or that has ended."""
NEWER = Operation(operation="archive", params=FIRST)
START, CLAIM = DeliveryDecision.START, DeliveryDecision.CLAIM
STOPS, FENCED, REBASE = RefusalDecision.OVER, RefusalDecision.FENCED, RefusalDecision.REBASE


def operation(kind: Literal["run", "cancel"], *, turn: int = NEXT.turn) -> Operation:
    return Operation(operation=kind, params=NEXT.model_copy(update={"turn": turn}))


def test_a_delivery_works_on_the_current_turn() -> None:
    """An operation of the next turn takes the number of the one that is worked on."""
    assert on_current_turn(NEXT, WITH_NEXT).turn == 1
    assert on_current_turn(FIRST, WITH_NEXT) == FIRST


@pytest.mark.parametrize(
    ("copy", "receives", "wanted"), [(0, 1, START), (0, 2, CLAIM), (1, 1, CLAIM)]
)
def test_only_the_first_delivery_of_a_turn_starts_without_a_claim(
    copy: int, receives: int, wanted: DeliveryDecision
) -> None:
    """Only the first message's first delivery starts at once; redeliveries and copies claim."""
    sent = Operation(operation="run", params=OperationParams.of(opened(), 1, copy))
    assert on_delivery(opened(), sent, receives=receives) is wanted


def test_a_delivery_goes_on_with_the_turn_that_it_names() -> None:
    """After the current turn a run goes on with the later turn that it names; a cancel does not.

    Nothing waits where the task has ended.
    """
    assert waits_behind(WITH_NEXT, operation("run"))
    assert not waits_behind(WITH_NEXT, operation("cancel"))
    assert not waits_behind(WITH_NEXT, Operation(operation="run", params=FIRST))
    assert not waits_behind(COMPLETED, operation("run"))


@pytest.mark.parametrize(
    ("head", "token", "wanted"),
    [
        *((head, token, STOPS) for head in OVER for token in ("A", None)),
        (PAUSED, "A", STOPS),
        (PAUSED, None, REBASE),
        (claimed(token="B"), "A", FENCED),
        (claimed(token="B"), None, REBASE),
        (claimed(token="A"), "A", REBASE),
        (opened(), "A", REBASE),
    ],
)
def test_what_a_refused_writer_does(
    head: Head | None, token: str | None, wanted: RefusalDecision
) -> None:
    """It stops where the task is over, as an attempt does where its turn is.

    It writes again unless another one owns the turn, which fences it.
    """
    assert on_refusal(head, FIRST, token=token) is wanted


@pytest.mark.parametrize(
    ("head", "wanted"),
    [*((head, STOPS) for head in (*OVER, PAUSED)), (claimed(token="B"), REBASE), (TWICE, FENCED)],
)
def test_a_lost_claim_is_repeated_while_there_are_attempts(
    head: Head | None, wanted: RefusalDecision
) -> None:
    """A claim of a turn that is over, or of a task that is gone, is not repeated."""
    assert on_lost_claim(head, FIRST, RETRY) is wanted


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


RUN, CANCEL = operation("run", turn=1), operation("cancel", turn=1)


@pytest.mark.parametrize(
    ("head", "letter", "wanted"),
    [
        *((head, RUN, DeadLetterDecision.DROP) for head in (*OVER, PAUSED)),
        *((head, RUN, DeadLetterDecision.RESEND) for head in (opened(), claimed(), WITH_NEXT)),
        (TWICE, RUN, DeadLetterDecision.FAIL),
        # One of a message that waits is about the current turn.
        (WITH_NEXT, operation("run"), DeadLetterDecision.RESEND),
        (with_fields(WITH_NEXT, attempts=2), operation("run"), DeadLetterDecision.FAIL),
    ],
)
def test_what_is_done_with_a_dead_letter(
    head: Head | None, letter: Operation, wanted: DeadLetterDecision
) -> None:
    """One of a turn that is over is dropped; others fail nothing while there are attempts."""
    assert on_dead_letter(head, letter, retry=RETRY) is wanted


@pytest.mark.parametrize("head", [opened(), claimed(), TWICE, WITH_NEXT])
def test_a_dead_letter_of_a_task_that_is_being_canceled_cancels_it(head: Head) -> None:
    """Where a cancel was requested, or is the dead letter, the task is canceled in any case."""
    for one, letter in ((asked(head), RUN), (asked(PAUSED), RUN), (head, CANCEL)):
        assert on_dead_letter(one, letter, retry=RETRY) is DeadLetterDecision.CANCEL


def test_an_attempt_counts_itself() -> None:
    """Attempts are the claims that HEAD counts, plus the current one if it has not claimed."""
    assert attempts_started(opened(), is_claimed=False) == 1
    assert attempts_started(claimed(), is_claimed=True) == 1
    assert attempts_started(claimed(), is_claimed=False) == 2


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        *(
            (head, DeliveryDecision.GIVE_BACK)
            for each in (opened(), claimed(), WITH_NEXT, PAUSED)
            for head in (each, asked(each))
        ),
        (COMPLETED, DeliveryDecision.GIVE_BACK),
        *((head, DeliveryDecision.DROP) for head in (None, opened("j"))),
    ],
)
def test_an_operation_of_a_newer_release_is_given_back(
    head: Head | None, wanted: DeliveryDecision
) -> None:
    """Also where its task has ended; it is dropped where that is gone."""
    assert on_delivery(head, NEWER, receives=1) is wanted


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
    for head, wanted in (
        (TWICE, DeadLetterDecision.FAIL),
        (asked(TWICE), DeadLetterDecision.CANCEL),
    ):
        decided = on_dead_letter(head, operation("run"), retry=RETRY, cannot_run=True)
        assert decided is wanted


def test_a_dead_letter_for_a_newer_release_without_an_open_turn_is_dropped() -> None:
    """A dead letter of a newer release's operation is dropped where no turn is open."""
    for head in (PAUSED, COMPLETED):
        assert on_dead_letter(head, NEWER, retry=RETRY) is DeadLetterDecision.DROP


RETURNS = {
    TaskState.TASK_STATE_SUBMITTED: ReturnDecision.AT_FAULT,
    TaskState.TASK_STATE_WORKING: ReturnDecision.AT_FAULT,
    TaskState.TASK_STATE_AUTH_REQUIRED: ReturnDecision.ENDS_TURN,
}


@pytest.mark.parametrize("state", sorted(KNOWN))
def test_what_follows_a_return(state: TaskState) -> None:
    """The turn has ended, ends now (auth-required), or is at fault, as without any state."""
    assert on_return(state) is RETURNS.get(state, ReturnDecision.ENDED)
    assert on_return(None) is ReturnDecision.AT_FAULT


@pytest.mark.parametrize(
    ("attempt", "longest_s"), [(1, 2), (2, 4), (3, 8), (7, 128), (8, 200), (5000, 200)]
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
