"""Tests of the questionnaire: its turns, what ends it, and what a crash leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from a2a_serverless.errors import TaskTerminalStateError
from a2a_serverless_tools.testing import AgentBench
from a2a_serverless_tools.testing.fixtures import MakeBench

AGENT = f"{Path(__file__).with_name('agent.py')}:agent"


@pytest.fixture
def bench(agent_bench: MakeBench) -> AgentBench:
    """Make the bench of the questionnaire, which is loaded anew for each turn."""
    return agent_bench(AGENT)


def test_it_asks_one_question_after_the_other(bench: AgentBench) -> None:
    """Each answer brings the next question, the last one the artifact with all three."""
    run = bench.send("start")
    assert (run.state, run.text) == ("input_required", "What is your name?")
    run = run.reply("Ann")
    assert run.text == "Where do you live?"
    said = [(message.role, message.text) for message in run.history]
    assert said == [("user", "start"), ("agent", "What is your name?"), ("user", "Ann")]
    run = run.reply("Oslo")
    assert run.text == "Which language do you program in?"
    run = run.reply("Python")
    assert run.state == "completed"
    answers = {"name": "Ann", "city": "Oslo", "language": "Python"}
    assert run.artifacts["answers"].data == [answers]


@pytest.mark.parametrize("word", ["stop", " STOP "])
def test_stop_ends_it(bench: AgentBench, word: str) -> None:
    """The user may stop instead of answering; nothing is kept, and no answer is taken."""
    run = bench.send("start").reply("Ann").reply(word)
    assert (run.state, run.text) == ("rejected", "Stopped; nothing was kept.")
    assert run.artifacts == {}
    with pytest.raises(TaskTerminalStateError):
        run.reply("Ann")


@pytest.mark.parametrize(("kill_after", "attempts"), [(0, 2), (1, 1)])
def test_a_killed_worker_asks_once(bench: AgentBench, kill_after: int, attempts: int) -> None:
    """Before its question the turn starts over; behind it the question counts."""
    run = bench.send("start").reply("Ann", kill_after=kill_after)
    assert (run.text, run.attempts, len(run.history)) == ("Where do you live?", attempts, 3)
