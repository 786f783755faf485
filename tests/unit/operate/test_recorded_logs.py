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
