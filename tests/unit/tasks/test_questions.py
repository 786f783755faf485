"""Which message answers which question, as the log says it."""

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


def found(*commits: tuple[object, ...]) -> Questions:
    questions = Questions()
    for number, entries in enumerate(commits, start=2):
        questions.add(Record(version=number, entries=entries))  # type: ignore[arg-type]
    return questions


def test_a_message_without_ids_answers_all_that_is_open() -> None:
    """One that names some answers those; asked anew, a question waits for another answer."""
    some, rest = message(part("noon", "hour")), message(part("Friday"))
    questions = found(asks(DAY, HOUR), (some,))
    assert (questions.answers, [*questions.open]) == ({HOUR: some}, [DAY])
    questions = found(asks(DAY, HOUR), (some,), asks(DAY), (rest,))
    assert (questions.answers, questions.open) == ({HOUR: some, DAY: rest}, {})
    questions = found(asks(DAY), (rest,), asks(DAY))
    assert (questions.answers, [*questions.open]) == ({}, [DAY])


def test_a_message_from_before_the_question_answers_it() -> None:
    """It has waited for the end of the turn that asks, as one in auth-required is answered."""
    early, later = message(part("?")), message(part("!"))
    assert found((early,), asks(DAY)).answers == {DAY: early}
    # The turn that it has opened is over with the next question, which waits for its own answer.
    questions = found((early,), asks(DAY), asks(HOUR))
    assert (questions.answers, [*questions.open]) == ({DAY: early}, [HOUR])
    questions = found(asks(DAY), (early,), (later,), asks(HOUR))
    assert questions.answers == {DAY: early, HOUR: later}


def test_a_question_whose_time_is_over_has_no_answer() -> None:
    """The next message is not its answer; others wait on."""
    questions = found(asks(DAY, until=5), (Recorded(DAY, LATE, b""),), asks(HOUR))
    assert (questions.answers, [*questions.open]) == ({}, [HOUR])


def test_those_are_late_whose_time_has_come() -> None:
    """One without a time is never late."""
    both = (Asked(5).record(DAY), Asked().record(HOUR), TurnEnded())
    assert (found(both).late(4), found(both).late(5)) == ([], [DAY])


@pytest.mark.parametrize(
    ("step_id", "name"),
    [
        (StepId(ASK, "day", 1), "day"),
        (StepId(ASK, "day", 2), "day#2"),
        (StepId(ASK, "", 1), "#1"),
        (StepId(ASK, "", 2), "#2"),
    ],
)
def test_each_question_has_an_id_of_its_own(step_id: StepId, name: str) -> None:
    """Its own id, and a number where it was asked before or has none."""
    assert id_on_parts(step_id) == name


def test_an_answer_has_its_own_parts_and_those_of_none() -> None:
    """Parts that answer another question are left out."""
    parts = [part("Friday", "day"), part("noon", "hour"), part("!")]
    assert [each.text for each in own_parts(parts, DAY)] == ["Friday", "!"]
