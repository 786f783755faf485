"""Tests of the questionnaire: its turns, what ends it, and what a crash or a cancel leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from a2a.types import Part

from a2a_serverless.errors import TaskNotFoundError, TaskTerminalStateError
from a2a_serverless_tools.testing import AgentBench, Run
from a2a_serverless_tools.testing.fixtures import MakeBench

AGENT = f"{Path(__file__).with_name('agent.py')}:agent"


@pytest.fixture
def bench(agent_bench: MakeBench) -> AgentBench:
    """Make the bench of the questionnaire, which is loaded anew for each turn."""
    return agent_bench(AGENT)


def answered(run: Run, *answers: str) -> Run:
    """Answer the questions one after the other."""
    for answer in answers:
        run = run.reply(answer)
    return run


def test_it_begins_with_the_first_question(bench: AgentBench) -> None:
    """The first question is for the name; the message that opens the task does not matter."""
    run = bench.send("start")
    assert (run.state, run.text) == ("input_required", "What is your name?")


def test_it_asks_one_question_after_the_other(bench: AgentBench) -> None:
    """Each answer brings the next question."""
    run = answered(bench.send("start"), "Ann")
    assert run.text == "Where do you live?"
    assert run.reply("Oslo").text == "Which language do you program in?"


def test_it_completes_with_the_answers_as_data(bench: AgentBench) -> None:
    """The last answer ends the task; the artifact has all three by their names."""
    run = answered(bench.send("start"), "Ann", "Oslo", "Python")
    assert run.state == "completed"
    answers = {"name": "Ann", "city": "Oslo", "language": "Python"}
    assert run.artifacts["answers"].data == [answers]


def test_the_history_has_questions_and_answers(bench: AgentBench) -> None:
    """Both sides of the conversation stay in the task."""
    run = answered(bench.send("start"), "Ann")
    said = [(message.role, message.text) for message in run.history]
    assert said == [("user", "start"), ("agent", "What is your name?"), ("user", "Ann")]


@pytest.mark.parametrize("word", ["stop", " STOP "])
def test_stop_ends_it(bench: AgentBench, word: str) -> None:
    """The user may stop instead of answering; nothing is kept."""
    run = answered(bench.send("start"), "Ann", word)
    assert (run.state, run.text) == ("rejected", "Stopped; nothing was kept.")
    assert run.artifacts == {}


def test_an_ended_questionnaire_takes_no_answer(bench: AgentBench) -> None:
    """A message to a task that has ended is refused."""
    stopped = bench.send("stop")
    with pytest.raises(TaskTerminalStateError):
        stopped.reply("Ann")


def test_a_file_is_no_answer_in_words(bench: AgentBench) -> None:
    """An answer without text counts as an empty one, and the next question follows."""
    run = bench.send("start").reply(Part(url="https://example.com/name.txt"))
    assert run.text == "Where do you live?"


def test_a_killed_worker_asks_once(bench: AgentBench) -> None:
    """A worker dies right after its question: the question counts, and the next turn answers it."""
    run = bench.send("start", kill_after=1)
    assert (run.text, run.attempts) == ("What is your name?", 1)
    assert run.reply("Ann").text == "Where do you live?"


def test_a_worker_killed_before_it_asks_is_replaced(bench: AgentBench) -> None:
    """Another worker starts the turn over; the client sees one question."""
    run = bench.send("start").reply("Ann", kill_after=0)
    assert (run.text, run.attempts) == ("Where do you live?", 2)
    assert len(run.history) == 3


def test_a_cancel_ends_it_while_it_waits(bench: AgentBench) -> None:
    """A paused questionnaire can be canceled."""
    assert bench.send("start").cancel().state == "canceled"


def test_an_answer_of_another_user_is_not_taken(bench: AgentBench) -> None:
    """The task belongs to the user who opened it: others do not find it."""
    run = bench.send("start", user="ann")
    with pytest.raises(TaskNotFoundError):
        run.reply("Bob", user="bob")
    assert run.reply("Ann").text == "Where do you live?"
