"""Tests of an executor of the official SDK: the bench runs it as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from a2a_serverless_tools.testing import AgentBench
from a2a_serverless_tools.testing.fixtures import MakeBench

AGENT = f"{Path(__file__).with_name('agent.py')}:agent"


@pytest.fixture
def bench(agent_bench: MakeBench) -> AgentBench:
    """Make the bench of the echo, which is loaded anew for each turn."""
    return agent_bench(AGENT)


def test_it_repeats_the_words_in_chunks(bench: AgentBench) -> None:
    """Each word is a chunk of one artifact; the status message counts them, also none."""
    run = bench.send("hello there you")
    assert (run.state, run.text) == ("completed", "3 words.")
    assert run.chunks("echo") == ["hello", " there", " you"]
    run = bench.send("  ")
    assert (run.text, run.artifacts) == ("0 words.", {})


def test_a_cancel_stops_it_between_two_words(bench: AgentBench) -> None:
    """What was said stays, and no word follows. Two events come before the words."""
    run = bench.send("one two three", cancel_after=3)
    assert run.state == "canceled"
    assert run.artifacts["echo"].text == "one"


def test_a_killed_worker_doubles_no_word(bench: AgentBench) -> None:
    """The turn starts over, and the words of the dead worker are taken back."""
    run = bench.send("one two three", kill_after=4)
    assert (run.state, run.attempts) == ("completed", 2)
    assert run.artifacts["echo"].text == "one two three"
