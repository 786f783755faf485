"""The agent's turns, without a server. These hold for any agent; add what yours has to do.

What the bench can do: `.venv/bin/a2a-serverless docs testing`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from a2a_serverless_tools.testing import AgentBench
from a2a_serverless_tools.testing.fixtures import MakeBench

PROJECT = Path(__file__).parents[1]
AGENT = f"{PROJECT / 'functions/worker/agent.py'}:agent"
CARD = json.loads((PROJECT / "functions/api/agent_card.json").read_text())
EXAMPLE = next(iter(CARD["skills"][0].get("examples", [])), "Hello")


@pytest.fixture
def bench(agent_bench: MakeBench) -> AgentBench:
    """Make the agent's bench. Each turn has a new agent, as on a Lambda that scaled."""
    return agent_bench(AGENT)


def test_an_example_of_the_card_is_worked_on(bench: AgentBench) -> None:
    """The first example is answered, or asked back about."""
    run = bench.send(EXAMPLE)
    assert run.state in {"completed", "input_required"}, run


def test_a_worker_that_dies_leaves_no_trace(bench: AgentBench) -> None:
    """Another worker starts the turn over, and the client has what it has without the crash."""
    calm, crashed = bench.send(EXAMPLE), bench.send(EXAMPLE, kill_after=1)
    assert crashed.state == calm.state, crashed
    assert len(crashed.artifacts) == len(calm.artifacts), crashed


def test_a_cancel_ends_the_task(bench: AgentBench) -> None:
    """The client cancels after the first event; an agent that is done by then has completed."""
    run = bench.send(EXAMPLE, cancel_after=1)
    assert run.state in {"canceled", "completed"}, run
