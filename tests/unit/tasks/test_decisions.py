"""Decisions on HEADs that small worlds meet seldom; and the pace of a turn."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pytest
from a2a.types import TaskState, TaskStatus

from a2a_serverless.errors import TaskNotAcceptingMessagesError
from a2a_serverless.tasks import attempts
from a2a_serverless.tasks.conversation import FirstDecision, Position, on_first
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.fold import Record, belonging_to
from a2a_serverless.tasks.head import FORMAT, MAX_INLINE_BYTES, Head, Operation, OperationParams
from a2a_serverless.tasks.pace import PART_BYTES, Pace, commit_units
from a2a_serverless.tasks.rules import Commit, content_digest
from tests.support.commits import AUTH_REQUIRED, COMPLETED, INPUT_REQUIRED, WORKING, claim, to
from tests.support.heads import with_fields
from tests.support.messages import message
from tests.unit.tasks.heads import asked, claimed, followed, moved, opened, stepped

ENDED = moved(claimed(), COMPLETED)
PAUSED = moved(claimed(), INPUT_REQUIRED)
SECOND_TURN = followed(PAUSED)
WAITS_FOR_CREDENTIALS = moved(claimed(), AUTH_REQUIRED)
FIRST = OperationParams.of(opened(), 1)
RETRY = attempts.RetryPolicy(max_attempts=2)
TWICE = claimed(claimed(), "B")
"""A turn whose attempts are used up."""
OVER = [None, opened("j"), ENDED]
"""What is there of a task that is gone, whose id another one has, or that has ended."""
STOPS, FENCED, REBASE = (
    attempts.RefusalDecision.OVER,
    attempts.RefusalDecision.FENCED,
    attempts.RefusalDecision.REBASE,
)
LATE = 10**15


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
def test_what_a_refused_writer_does(head: Head | None, token: str | None, wanted: object) -> None:
    """It stops where task or turn is over or another's, and else writes or claims again."""
    assert attempts.on_refusal(head, FIRST, token=token) is wanted
    if head in (*OVER, PAUSED):
        assert attempts.on_lost_claim(head, FIRST, RETRY) is STOPS
    assert attempts.on_lost_claim(claimed(token="B"), FIRST, RETRY) is REBASE
    assert attempts.on_lost_claim(TWICE, FIRST, RETRY) is FENCED


def test_which_deliveries_start_claim_and_go_on() -> None:
    """Only a first delivery starts without a claim; a run goes on with the later turn it names."""
    for copy, receives in ((0, 1), (0, 2), (1, 1)):
        sent = Operation(operation="run", params=OperationParams.of(opened(), 1, copy))
        is_first = (copy, receives) == (0, 1)
        wanted = attempts.DeliveryDecision.START if is_first else attempts.DeliveryDecision.CLAIM
        assert attempts.on_delivery(opened(), sent, receives=receives) is wanted
    queued = followed(WAITS_FOR_CREDENTIALS)
    later = OperationParams.of(queued, queued.next_turn)
    run, cancel = Operation.to_run(later), Operation(operation="cancel", params=later)
    asked_of = ((queued, run), (queued, cancel), (queued, Operation.to_run(FIRST)), (ENDED, run))
    assert [attempts.waits_behind(*each) for each in asked_of] == [True, False, False, False]
    owned = claimed()
    assert stepped(owned, claim("A")) == replace(owned, version=owned.version + 1)


@pytest.mark.parametrize(
    ("head", "by_run", "by_cancel"),
    [
        (opened(), attempts.CancelDecision.ALONE, attempts.CancelDecision.WAITING),
        (claimed(), attempts.CancelDecision.CLAIMED, attempts.CancelDecision.CLAIMED),
        (SECOND_TURN, attempts.CancelDecision.WAITING, attempts.CancelDecision.WAITING),
        (PAUSED, attempts.CancelDecision.PAUSED, attempts.CancelDecision.PAUSED),
    ],
    ids=["no agent has seen it", "an attempt has it", "a later turn waits", "paused"],
)
def test_how_it_is_canceled(
    head: Head, by_run: attempts.CancelDecision, by_cancel: attempts.CancelDecision
) -> None:
    """The agent is told of what it knows; a cancel operation tells it in any case."""
    kind: Literal["run", "cancel"]
    for kind, wanted in (("run", by_run), ("cancel", by_cancel)):
        params = OperationParams.of(head, head.turn.number)
        assert attempts.on_cancel(head, Operation(operation=kind, params=params)) is wanted


@pytest.mark.parametrize(
    ("head", "copy", "is_over"),
    [
        (with_fields(opened(), sends=2), (1, 2), True),
        (SECOND_TURN, None, True),
        (claimed(), None, False),
        (PAUSED, None, False),
        (ENDED, None, False),
    ],
    ids=["waits", "another turn", "claimed", "paused", "ended"],
)
def test_what_is_done_with_a_turn_nobody_claims(head: Head, copy: Any, *, is_over: bool) -> None:
    """A repeated message sends its newest copy; at last it is given up, unless a worker had it."""
    found = attempts.repeated_turn(head, 1)
    assert copy == (None if found is None else (found.turn, found.copy_number))
    assert attempts.repeated_turn(None, 1) is None
    assert attempts.is_given_up(head, opened_at=5, now_ms=3_600_005, give_up_s=3600) is is_over
    assert not attempts.is_given_up(head, opened_at=5, now_ms=3_600_004, give_up_s=3600)
    assert not attempts.is_given_up(head, opened_at=None, now_ms=LATE, give_up_s=3600)
    if head.state != COMPLETED:
        assert attempts.overdue_turn(asked(head), now_ms=LATE) is None


def test_what_a_newer_release_has_sent_is_left_to_it() -> None:
    """Its operations are given back, its dead letters leave their turns as they are."""
    newer = Operation(operation="archive", params=FIRST)
    run = Operation(operation="run", params=FIRST)
    for head in (opened(), claimed(), PAUSED, asked(claimed()), ENDED):
        assert attempts.on_delivery(head, newer, receives=1) is attempts.DeliveryDecision.GIVE_BACK
    for head in (opened(), claimed()):
        left = replace(head, needs=FORMAT + 1)
        for at, letter in ((head, newer), (left, run)):
            assert (
                attempts.on_dead_letter(at, letter, retry=RETRY)
                is attempts.DeadLetterDecision.LEAVE
            )


def test_a_turn_that_got_its_share_keeps_its_conversation_from_then_on() -> None:
    """Others wait for it as long as for one that has just become the first."""
    head = opened()
    head = replace(head, turn=replace(head.turn, has_share=True, waits_since=5000))
    first = partial(on_first, head, Position.of(head), since=1000, waiting=1, hold_s=60)
    assert first(now_ms=65_000) is FirstDecision.STAYS
    assert first(now_ms=65_001) is FirstDecision.DROP


def test_one_message_waits_behind_an_attempt_that_waits_for_credentials() -> None:
    """The attempt keeps the turn; the message's turn follows, or is dropped with the task."""
    queued = followed(WAITS_FOR_CREDENTIALS)
    assert (queued.turn.number, queued.next_turn, queued.turn.token) == (1, queued.version, "A")
    with pytest.raises(TaskNotAcceptingMessagesError):
        followed(queued)
    ended = stepped(queued, Commit(token="A", ends_turn=True))
    assert (ended.turn.number, ended.turn.base) == (queued.version, ended.version)
    assert (ended.next_turn, ended.turn.is_open, ended.turn.token) == (0, True, None)
    dropped = stepped(queued, to(TaskState.TASK_STATE_CANCELED))
    assert (dropped.turn.is_open, dropped.next_turn, dropped.due_at) == (False, 0, None)


def test_the_latest_message_is_remembered_for_recognition() -> None:
    """HEAD keeps a digest of its content, with the server's ids left out."""
    bound = message("hello", message_id="m2")
    bound.task_id, bound.context_id = "t", "c"
    assert SECOND_TURN.content_digest == content_digest(bound)


def test_a_status_in_head_is_short_and_has_the_time_of_its_commit() -> None:
    """HEAD is rewritten by every commit, so points to a large one; agents' times go."""
    early = TaskStatus(state=WORKING)
    early.timestamp.FromMilliseconds(5)
    head = stepped(claimed(), Commit(entries=(StatusChanged(early),), token="A"))
    assert head.status is not None
    assert TaskStatus.FromString(head.status).timestamp.ToMilliseconds() < 5
    assert stepped(head, to(WORKING, "x" * (MAX_INLINE_BYTES + 1), token="A")).status is None


@pytest.mark.parametrize(
    ("read", "highest", "belong"),
    [
        ([1, 2, 3, 4], 4, [1, 2, 3, 4]),
        ([4], 4, [4]),
        ([], 4, []),  # the reader has the newest version
        ([3, 4, 5, 6], 6, [3, 4]),  # what is beyond HEAD is for the next read
        ([5], 5, []),
        ([], 1, None),  # behind version 1 it misses commits, however much it has
        ([2], 2, None),
        ([2, 3], 3, None),
    ],
)
def test_which_commits_are_the_log(read: list[int], highest: int, belong: list[int] | None) -> None:
    """A log ends with the version of the HEAD that it comes with; a read that misses it goes on."""
    records = [Record(version=version, entries=()) for version in read]
    found = belonging_to(replace(opened(), version=4), records, highest)
    assert belong == (None if found is None else [record.version for record in found])


@pytest.mark.parametrize(("n", "most_s"), [(1, 2), (2, 4), (3, 8), (7, 128), (8, 200), (5000, 200)])
def test_the_wait_doubles_up_to_its_cap(n: int, most_s: float) -> None:
    """Attempt n waits for any part of base * 2 ** (n - 1) seconds, or of the cap at most."""
    for share in (0, 0.25, 1):
        policy = attempts.RetryPolicy(base_s=2, cap_s=200, jitter=lambda: share)  # noqa: B023
        assert policy.delay_s(n) == share * most_s
    assert 0 <= attempts.RetryPolicy(base_s=4).delay_s(1) <= 4


@pytest.mark.parametrize("seed", range(20))
def test_no_second_has_more_units(seed: int) -> None:
    """Commits keep to nine tenths in each second; a larger one is alone in its seconds."""
    draw, pace, now = random.Random(seed), Pace(1000), 0.0  # noqa: S311 - a seeded schedule
    written: list[tuple[float, int]] = []
    for _ in range(300):
        units = draw.choice([draw.randint(1, 20), draw.randint(1, 900), draw.randint(900, 9000)])
        counted = [(at + max(1.0, one / 900), one) for at, one in written]
        room = 900 - sum(one for until, one in counted if until > now)
        wait_s = pace.wait_s(units, now)
        assert (wait_s == 0) == (units <= room or room == 900)
        now += wait_s
        assert pace.wait_s(units, now) <= 1e-9
        still = sum(one for until, one in counted if until > now + 1e-9)
        assert still == 0 or still + units <= 900
        now += draw.choice([0, 0.01])  # until it is answered
        pace.spend(units, now)
        written.append((now, units))
        now += draw.choice([0, 0, 0.3, 2])


def test_units_of_a_commit() -> None:
    """A begun KB costs two units, of each part; and so does HEAD, with its status."""
    assert commit_units(0) == commit_units(724) == 4
    assert (commit_units(725), commit_units(0, inline=4096)) == (6, 12)
    assert commit_units(PART_BYTES + 1) == commit_units(PART_BYTES) + 2
