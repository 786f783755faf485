"""Which attempt a line of the log is of."""

from __future__ import annotations

from typing import Any

from a2a.types import SendMessageRequest

from a2a_serverless.tasks.entries import Restarted, TurnEnded, TurnOpened
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import LOST, AttemptEnd
from a2a_serverless.tasks.turns import turns_of
from a2a_serverless_tools.operate.lines import LogLine, by_attempt
from tests.unit.tasks.heads import claimed

FAILED = AttemptEnd(token="A", reason="ValueError", correlation_id="first", at=9_000)
OPENING = TurnOpened(SendMessageRequest())


def line(at: int, work: object, action: str = "said", **fields: Any) -> LogLine:
    return LogLine(
        at=at,
        level="INFO",
        action=action,
        message=f"{work} at {at}",
        fields={"correlation_id": work, **fields},
    )


def claim(version: int, token: str, at: int, end: AttemptEnd | None = None) -> Record:
    return Record(version=version, entries=(Restarted(1),), token=token, at=at, ended=end)


def of(records: list[Record], lines: list[LogLine]) -> dict[int, list[int]]:
    """The times of the lines of each attempt, by its claim."""
    turns = turns_of(claimed(token="Z"), records)
    return {version: [one.at for one in own] for version, own in by_attempt(turns, lines).items()}


def test_lines_stand_with_their_attempt() -> None:
    """By the id that a failed one has stored; else by the last delivery before the claim."""
    records = [
        Record(version=1, entries=(OPENING,), at=0),
        claim(2, "A", 5_000),
        claim(3, "B", 20_000, FAILED),
        claim(4, "C", 60_000, AttemptEnd(token="B", reason=LOST)),
    ]
    lines = [
        line(4_990, "first", "attempt", turn=1, attempt=1),
        line(9_010, "first", "retry", turn=1),
        line(12_000, "died before its claim", "attempt", turn=1, attempt=2),
        line(19_900, "second", "attempt", turn=1, attempt=2),
        line(21_000, "second"),
        line(59_000, "third", "attempt", turn=1, attempt=3),
        line(61_000, "third", turn=1),
        line(62_000, "the sweeper", turn=1),
        line(63_000, ["damaged"], turn={}),
    ]
    assert of(records, lines) == {
        2: [4_990, 9_010],
        3: [19_900, 21_000],
        4: [59_000, 61_000],
        0: [12_000, 62_000, 63_000],
    }


def test_a_delivery_that_went_on_with_the_next_turn_has_two_attempts() -> None:
    """Its lines are parted by their turn; one without a turn could be of either."""
    records = [
        Record(version=1, entries=(OPENING,), at=0),
        claim(2, "A", 1_000),
        Record(version=3, entries=(OPENING,), at=2_000),
        Record(version=4, entries=(TurnEnded(),), token="A", at=3_000),
        claim(5, "B", 4_000),
    ]
    lines = [
        line(900, "one", "attempt", turn=1),
        line(3_100, "one", "turn_ended", turn=1),
        line(3_900, "one", "attempt", turn=3),
        line(4_100, "one"),
        line(4_200, "one", turn=3),
    ]
    assert of(records, lines) == {2: [900, 3_100], 5: [3_900, 4_200], 0: [4_100]}


def test_without_times_or_attempts_no_line_is_anyones() -> None:
    """A damaged claim has no time; a task that waits has no attempt."""
    lines = [line(900, "one", "attempt", turn=1)]
    opening = Record(version=1, entries=(OPENING,), at=0)
    assert of([opening], lines) == {0: [900]}
    assert of([opening, Record(version=2, entries=(), token="A")], lines) == {0: [900]}
