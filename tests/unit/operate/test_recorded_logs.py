"""The timelines of what the kill points leave behind, over logs that `make record-logs` records."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.faults import traps
from tests.faults.recorded import recorded
from tests.faults.test_kill_points import CASES
from tests.faults.test_push_kills import RECORDED

NEW = "accepted"
RAN = ("started", "reached")
TAKEN_OVER = ("started", "lost", "took over", "reached")
WENT_ON = ("recorded", "gave back", "went on")
CANCELED = ("cancel asked", "reached without an attempt")
USED_UP = ("started", *("lost", "took over") * 4, "lost", "reached without an attempt")

TOLD: dict[str, Sequence[str]] = {
    # A turn that was not sent: the sweeper has sent it.
    "after create, before send": (NEW, "sent again", *RAN),
    "the same, of a follow-up": (NEW, *RAN, NEW, "sent again", *RAN),
    "the same, client repeats": (NEW, *RAN),
    # Nothing of the death is in the log: the message came again, or was acknowledged later.
    "after send": (NEW, *RAN),
    "after receive, before visibility": (NEW, *RAN),
    "after last commit, before ack": (NEW, *RAN),
    "file emitted, not stored": (NEW, *RAN),
    "file stored, not committed": (NEW, *RAN),
    # An attempt that died, and the one that took over.
    "after the first commit's claim": (NEW, *TAKEN_OVER),
    "after a claim of its own": (NEW, *TAKEN_OVER),
    "between two commits": (NEW, *TAKEN_OVER),
    "before a later commit": (NEW, *TAKEN_OVER),
    "after failure, before nack": (NEW, "started", "gave back", "took over", "reached"),
    # A turn that was left at a record and went on, or slept.
    "handed over, not sent": (NEW, "woken", "started", *WENT_ON, "recorded", "reached"),
    "sweeper: sleep over, not sent": (NEW, "sent again", "started", *WENT_ON, "reached"),
    # Cancels: who has ended the task.
    "cancel asked, not sent: paused": (NEW, *RAN, *CANCELED),
    "cancel asked, not sent: running": (NEW, "started", "cancel asked", "reached"),
    "cancel sent, nobody waits": (NEW, *CANCELED),
    "cancel operation received": (NEW, *RAN, *CANCELED),
    "agent being cancelled": (NEW, "started", "lost", "cancel asked", "took over", "reached"),
    # Turns of one conversation: a turn that was left ran once it was woken.
    "turn left, before ack": (NEW, "woken", *RAN),
    "turn ended, not passed on": (NEW, "woken", *RAN),
    "next turn woken, not sent": (NEW, "woken", "sent again", *RAN),
    # Deletions: of a task that stays.
    "files of one task of two deleted": (NEW, *RAN),
    "files deleted, not the items": (NEW, *RAN),
    "items deleted, not HEAD": (NEW, *RAN),
    # Upkeep.
    "sweeper: postponed, not sent": (NEW, "sent again", *RAN),
    "dead letter: ended, not deleted": (NEW, *USED_UP),
    "dead letter: made due, not deleted": (NEW, "sent again", *RAN),
    RECORDED: (NEW, *RAN, NEW, *RAN, "given up"),
}

LARGE = "snapshot stored, not named"
"""Its log has 90 KB of text, and tells what that of "after last commit" does."""
POINTS = {case.name: case.point for cases in CASES.values() for case in cases}


def test_every_kill_point_has_a_recorded_log() -> None:
    """Each point of the fault tests is in the table, those of webhooks in one recording."""
    assert TOLD.keys() == {*POINTS, RECORDED} - {LARGE}
    of_push = {point for point in traps.POINTS if point.startswith("push-")}
    assert {point.partition(":")[0] for point in POINTS.values()} | of_push == set(traps.POINTS)


@pytest.mark.parametrize("name", TOLD)
def test_a_log_tells_what_happened(name: str) -> None:
    """What died, who took over, what the sweeper did, who has ended the task: in order, no more."""
    shown = recorded(name)
    assert [one.what for one in shown.story] == list(TOLD[name])
    assert shown.unreadable == ()
    assert shown.turn_is_open is False


@pytest.mark.parametrize("name", [name for name, told in TOLD.items() if "took over" in told])
def test_a_takeover_names_both_attempts(name: str) -> None:
    """The attempt that died is over when the next one claims, which discards what it had added.

    An attempt that has given back its turn has ended at a time of its own.
    """
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
    takeovers = [one for one in recorded(name).story if one.what == "took over"]
    discarded = [version for one in takeovers for version in one.discards]
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
        assert (webhook.version, webhook.owed, webhook.failures) == (shown.version, 0, 0)
        assert webhook.receiver.startswith("http://127.0.0.1:")
