"""The timelines of what the kill points leave behind, over logs that `make record-logs` records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from a2a_serverless_tools.operate.timeline import Timeline
from tests.faults import traps
from tests.faults.recorded import recorded
from tests.faults.test_kill_points import CASES
from tests.faults.test_push_kills import RECORDED

RAN = "ended the turn"
DONE = (RAN, "completed")
TAKEN_OVER = ("lost", *DONE)
WENT_ON = ("gave back", *DONE)
CANCELED = ("cancel asked", "canceled")

TOLD: dict[str, Sequence[str]] = {
    # A turn that was not sent: the sweeper has sent it.
    "after create, before send": ("sent again", *DONE),
    "the same, of a follow-up": ("sent again", RAN, *DONE),
    "the same, client repeats": DONE,
    # Nothing of the death is in the log: the message came again, or was acknowledged later.
    "after send": DONE,
    "after receive, before visibility": DONE,
    "after last commit, before ack": DONE,
    "file emitted, not stored": DONE,
    "file stored, not committed": DONE,
    # An attempt that died, and the one that took over.
    "after the first commit's claim": TAKEN_OVER,
    "after a claim of its own": TAKEN_OVER,
    "between two commits": TAKEN_OVER,
    "before a later commit": TAKEN_OVER,
    "after failure, before nack": WENT_ON,
    # A turn that was parked at a record and went on, or slept.
    "handed over, not sent": ("requeued", *WENT_ON),
    "sweeper: sleep over, not sent": ("sent again", "requeued", *WENT_ON),
    # Cancels: who has ended the task.
    "cancel asked, not sent: paused": (RAN, *CANCELED),
    "cancel asked, not sent: running": (RAN, *CANCELED),
    "cancel sent, nobody waits": CANCELED,
    "cancel operation received": (RAN, *CANCELED),
    "agent being cancelled": ("lost", RAN, *CANCELED),
    # Turns of one conversation: a turn that was parked ran once it was requeued.
    "turn parked, before ack": ("requeued", *DONE),
    "turn ended, next not started": ("requeued", *DONE),
    "next turn requeued, not sent": ("sent again", "requeued", *DONE),
    # Deletions: of a task that stays.
    "files of one task of two deleted": DONE,
    "files deleted, not the items": DONE,
    "items deleted, not HEAD": DONE,
    # Upkeep.
    "sweeper: postponed, not sent": ("sent again", *DONE),
    "dead letter: ended, not deleted": (*("lost",) * 5, "failed"),
    "dead letter: made due, not deleted": ("sent again", *DONE),
    RECORDED: (RAN, RAN, "given up", "completed"),
}

LARGE = "snapshot stored, not named"
"""Its log has 90 KB of text, and tells what that of "after last commit" does."""
POINTS = {case.name: case.point for cases in CASES.values() for case in cases}


def test_every_kill_point_has_a_recorded_log() -> None:
    """Each point of the fault tests is in the table, those of webhooks in one recording."""
    assert TOLD.keys() == {*POINTS, RECORDED} - {LARGE}
    of_push = {point for point in traps.POINTS if point.startswith("push-")}
    assert {point.partition(":")[0] for point in POINTS.values()} | of_push == set(traps.POINTS)


def told(shown: Timeline) -> Iterator[str]:
    """What the sweeper did, how the attempts ended, who asked for the end, and the end."""
    head = shown.head
    yield from ["sent again"] if head.turn.resends else []
    yield from ["requeued"] if head.turn.requeued else []
    yield from (attempt.outcome for turn in shown.turns for attempt in turn.attempts)
    yield from ["cancel asked"] if head.cancel else []
    yield from ("given up" for hook in shown.webhooks if hook.given_up)
    yield shown.state


@pytest.mark.parametrize("name", TOLD)
def test_a_log_tells_what_happened(name: str) -> None:
    """What died, who took over, what the sweeper did, who has ended the task."""
    shown = recorded(name)
    assert list(told(shown)) == list(TOLD[name])
    assert shown.unreadable == ()
    assert shown.head.turn.is_open is False


@pytest.mark.parametrize(
    "name", [name for name, told in TOLD.items() if told in (TAKEN_OVER, WENT_ON)]
)
def test_a_takeover_names_both_attempts(name: str) -> None:
    """The attempt that died is over when the next one claims, which discards what it had added."""
    (turn,) = recorded(name).turns
    for before, after in zip(turn.attempts, turn.attempts[1:], strict=False):
        assert before.outcome in ("lost", "gave back")
        is_lost = before.outcome == "lost"
        assert before.over_at is not None
        assert after.started_at is not None
        assert before.over_at <= after.started_at
        assert is_lost is (before.over_at == after.started_at)
        assert is_lost is (before.took_ms is None) is (after.waited_ms is None)
        assert after.number == before.number + 1
        # An attempt without a name is one that the test itself has claimed for.
        assert before.worker != after.worker or not before.worker
    changes = [change for commit in recorded(name).commits for change in commit.changes]
    discarded = [version for change in changes for version in change.discards]
    lost = turn.attempts[:-1]
    assert discarded == [v for one in lost for v in range(one.first, one.last + 1)]


def test_where_an_attempt_died_is_told_by_its_versions() -> None:
    """After its claim, or with chunks that it had committed."""
    (claim,) = recorded("after the first commit's claim").turns
    (later,) = recorded("before a later commit").turns
    assert (claim.attempts[0].first, claim.attempts[0].last) == (2, 2)
    assert (later.attempts[0].first, later.attempts[0].last) == (2, 3)


def test_a_failed_attempt_says_why() -> None:
    """The name of the error, and the id of the line in the worker's log."""
    (turn,) = recorded("after failure, before nack").turns
    assert (turn.attempts[0].outcome, turn.attempts[0].reason) == ("gave back", "RuntimeError")
    assert turn.attempts[0].correlation_id


def test_webhooks_are_told_everything() -> None:
    """After a kill at each point of push both receivers are up to date, and none is failing."""
    shown = recorded(RECORDED)
    assert len(shown.webhooks) == 2
    for webhook in shown.webhooks:
        assert (webhook.version, webhook.owed, webhook.failures) == (shown.head.version, 0, 0)
        assert webhook.receiver.startswith("http://127.0.0.1:")
