"""Tests of the planner: three agents of which one fails and one asks back, kills and a cancel."""

from __future__ import annotations

from pathlib import Path

import pytest

from a2a_serverless.worker import HistoryMessage
from a2a_serverless_tools.testing import AgentBench, Outcome, step
from a2a_serverless_tools.testing.fixtures import MakeBench

AGENT = f"{Path(__file__).with_name('agent.py')}:agent"
PLAN = "TP123 at noon; no hotel: please look for one yourself; a table for four."


def tables(said: HistoryMessage) -> Outcome | str:
    """Ask how many come, after twenty minutes; then book at once."""
    if said.text == "Lisbon":
        return Outcome("For how many?", "input_required", after_s=1200)
    return f"a table for {said.text}"


@pytest.fixture
def bench(agent_bench: MakeBench) -> AgentBench:
    """Make the bench of the planner, with the three agents as functions."""
    agents = {
        "flights": lambda _: Outcome("TP123 at noon", after_s=600),
        "hotels": lambda _: Outcome("all are full", "failed", after_s=60),
        "tables": tables,
    }
    return agent_bench(AGENT, agents=agents)


def said(bench: AgentBench) -> dict[str, list[str]]:
    """Return what each agent was told."""
    return {name: [each.text for each in one.said] for name, one in bench.agents.items()}


ONCE = {"flights": ["Lisbon"], "hotels": ["Lisbon"], "tables": ["Lisbon", "four"]}


def test_it_plans_with_what_there_is(bench: AgentBench) -> None:
    """The client answers the one that asks back, and the plan does without the one that failed."""
    run = bench.send("Lisbon")
    assert run.questions == {"tables": "For how many?"}
    run = bench.answer(run, "four")
    assert run.artifacts["final-answer"].text == PLAN
    assert said(bench) == ONCE


@pytest.mark.parametrize(
    ("name", "record"), [("flights", "message "), ("hotels", "sent "), ("tables", "")]
)
def test_a_kill_calls_nobody_twice(bench: AgentBench, name: str, record: str) -> None:
    """Killed behind each record of each call, it goes on with the tasks that it has opened."""
    call = "ctx.call_agent." if record else "ctx.call_agent "
    run = bench.send("Lisbon", kill_after=step(f"{call}{record}{name}"))
    assert bench.answer(run, "four").artifacts["final-answer"].text == PLAN
    assert said(bench) == ONCE


def test_no_flight_ends_it(agent_bench: MakeBench) -> None:
    """Without a flight the task fails, whatever the others have found."""
    agents = {name: lambda _: "found" for name in ("hotels", "tables")}
    bench = agent_bench(AGENT, agents={"flights": lambda _: Outcome("no", "rejected"), **agents})
    assert bench.send("Lisbon").text == "There is no flight to Lisbon: nothing was planned."


def test_a_late_agent_is_done_without(agent_bench: MakeBench) -> None:
    """After an hour the hotel is given up, and its task canceled."""
    late = Outcome("found", after_s=7200)
    bench = agent_bench(
        AGENT,
        agents={"flights": lambda _: "TP1", "hotels": lambda _: late, "tables": lambda _: "none"},
    )
    assert "no hotel" in bench.send("Lisbon").artifacts["final-answer"].text
    assert len(bench.agents["hotels"].canceled) == 1


def test_a_cancel_cancels_what_is_open(bench: AgentBench) -> None:
    """While the client is asked, one task is open: that of the agent that asks."""
    assert bench.send("Lisbon").cancel().state == "canceled"
    canceled = {name: len(one.canceled) for name, one in bench.agents.items()}
    assert canceled == {"flights": 0, "hotels": 0, "tables": 1}
