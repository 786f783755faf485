"""Which message answers which question, as the log says it (unit/worker/test_questions asks)."""

from __future__ import annotations

import pytest
from a2a.types import Message, Part, Role, SendMessageRequest

from a2a_serverless.tasks.entries import LATE, Caller, Recorded, StepId, TurnEnded, TurnOpened
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.questions import ASK, Asked, Questions, id_on_parts, own_parts

DAY, HOUR = StepId(ASK, "day", 1), StepId(ASK, "hour", 1)


def part(text: str, question: str = "") -> Part:
    made = Part(text=text)
    if question:
        made.metadata.update({"questionId": question})
    return made


def message(*parts: Part) -> TurnOpened:
    said = Message(message_id="m", role=Role.ROLE_USER, parts=parts)
    return TurnOpened(SendMessageRequest(message=said), Caller())


def asks(*ids: StepId, until: int = 0) -> tuple[Recorded | TurnEnded, ...]:
    return (*(Asked(until).record(each) for each in ids), TurnEnded())


SOME, REST = message(part("noon", "hour")), message(part("Friday"))
IS_LATE = (Recorded(DAY, LATE, b""),)


@pytest.mark.parametrize(
    ("commits", "answers", "is_open"),
    [
        # A message that names some answers those, another one all that is open.
        ([asks(DAY, HOUR), (SOME,)], {HOUR: SOME}, [DAY]),
        ([asks(DAY, HOUR), (SOME,), asks(DAY), (REST,)], {HOUR: SOME, DAY: REST}, []),
        ([asks(DAY), (REST,), asks(DAY)], {}, [DAY]),
        # One from before the question has waited for the end of the turn that asks, and no longer.
        ([(REST,), asks(DAY)], {DAY: REST}, []),
        ([(REST,), asks(DAY), asks(HOUR)], {DAY: REST}, [HOUR]),
        ([asks(DAY), (REST,), (SOME,), asks(HOUR)], {DAY: REST, HOUR: SOME}, []),
        # The next message is no answer to a question whose time is over.
        ([asks(DAY, until=5), IS_LATE, asks(HOUR)], {}, [HOUR]),
    ],
)
def test_a_message_answers_what_is_open(
    commits: list[tuple[object, ...]], answers: dict[StepId, TurnOpened], is_open: list[StepId]
) -> None:
    """Each question has one answer; asked anew, it waits for another one."""
    questions = Questions()
    for number, entries in enumerate(commits, start=2):
        questions.add(Record(version=number, entries=entries))  # type: ignore[arg-type]
    assert (questions.answers, [*questions.open]) == (answers, is_open)


def test_each_question_has_an_id_of_its_own() -> None:
    """Its own, or a number; parts that answer another question are left out of its answer."""
    for step, number, name in (
        ("day", 1, "day"),
        ("day", 2, "day#2"),
        ("", 1, "#1"),
        ("", 2, "#2"),
    ):
        assert id_on_parts(StepId(ASK, step, number)) == name
    parts = [part("Friday", "day"), part("noon", "hour"), part("!")]
    assert [each.text for each in own_parts(parts, DAY)] == ["Friday", "!"]
