"""Agents of frameworks that are named as they are, without their adapter."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.worker.agents import load_agent
from a2a_serverless.worker.context import WorkerExecutor
from a2a_serverless_tools.testing import Run

GRAPH = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

builder = StateGraph(MessagesState)
builder.add_node("answer", lambda state: {"messages": [AIMessage("hello")]})
builder.add_edge(START, "answer")
graph = builder.compile()
"""
PYDANTIC = """
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

agent = Agent(TestModel(custom_output_text="hello"))
"""


def said(run: Run) -> str:
    return "".join(artifact.text for artifact in run.artifacts.values())


def loaded(folder: Path, source: str, name: str) -> Any:
    (folder / "raw_agent.py").write_text(source, encoding="utf-8")
    return load_agent(f"{folder}/raw_agent.py:{name}")


@pytest.mark.parametrize(
    ("source", "name", "adapter"),
    [(GRAPH, "graph", "LangGraphWorker"), (PYDANTIC, "agent", "PydanticAIWorker")],
)
async def test_an_agent_of_a_framework_is_adapted(
    tmp_path: Path, source: str, name: str, adapter: str, agent_bench: Any
) -> None:
    """It answers, and keeps its conversation as its adapter does."""
    agent = loaded(tmp_path, source, name)
    assert isinstance(agent, WorkerExecutor)
    assert type(agent._worker).__name__ == adapter
    assert agent.keeps_conversation


@pytest.mark.parametrize(("source", "name"), [(GRAPH, "graph"), (PYDANTIC, "agent")])
def test_the_testing_kit_takes_it_too(
    tmp_path: Path, source: str, name: str, agent_bench: Any
) -> None:
    """As FILE.py:NAME, and as the object itself."""
    reference = f"{tmp_path}/raw_agent.py:{name}"
    loaded(tmp_path, source, name)
    assert said(agent_bench(reference).send("hi")) == "hello"
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102 - the source is this file's
    assert said(agent_bench(names[name]).send("hi")) == "hello"


def test_a_worker_of_a_module_that_is_called_as_a_framework_is_a_worker(tmp_path: Path) -> None:
    """A class `Agent` of the author's own module `agents` is not taken for OpenAI's."""
    source = """
from a2a_serverless.worker import Worker

class Agent(Worker):
    async def handle(self, ctx):
        await ctx.complete("hello")

Agent.__module__ = "agents.own"
agent = Agent()
"""
    assert type(loaded(tmp_path, source, "agent")._worker).__name__ == "Agent"


@pytest.mark.parametrize(
    ("source", "name", "way_out"),
    [
        (GRAPH, "builder", "not compiled: write `agent = graph.compile()`"),
        ("from langgraph.pregel import Pregel", "Pregel", "a class of LangGraph"),
        ("import strands\nagent = strands.Agent()", "agent", "StrandsWorker(lambda: Agent(…))"),
        ("import crewai\ncrew = crewai.Crew()", "crew", "`kickoff_async` in a Worker"),
    ],
)
def test_what_has_no_adapter_gets_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, name: str, way_out: str
) -> None:
    """One sentence says what it is and what to write; here two frameworks are played."""
    for package, cls in (("strands", "Agent"), ("crewai", "Crew")):
        module = ModuleType(package)
        vars(module)[cls] = type(cls, (), {"__module__": f"{package}.inner"})
        monkeypatch.setitem(sys.modules, package, module)
    with pytest.raises(ConfigurationError, match=re.escape(way_out)):
        loaded(tmp_path, source, name)
