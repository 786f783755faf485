"""Agents of frameworks that are named as they are, without their adapter."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.worker import versions
from a2a_serverless.worker.agents import load_agent
from a2a_serverless.worker.context import WorkerExecutor
from tests.support.required import ROOT

GRAPH = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

builder = StateGraph(MessagesState)
builder.add_node("answer", lambda state: {"messages": [AIMessage("hello")]})
builder.add_edge(START, "answer")
graph = builder.compile()
"""
CREW = "import crewai\ncrew = crewai.Crew()"
PYDANTIC = """
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

agent = Agent(TestModel(custom_output_text="hello"))
"""


def loaded(folder: Path, source: str, name: str) -> Any:
    (folder / "raw_agent.py").write_text(source, encoding="utf-8")
    return load_agent(f"{folder}/raw_agent.py:{name}")


@pytest.mark.parametrize(
    ("source", "name", "adapter"),
    [(GRAPH, "graph", "LangGraphWorker"), (PYDANTIC, "agent", "PydanticAIWorker")],
)
def test_an_agent_of_a_framework_is_adapted(
    tmp_path: Path, source: str, name: str, adapter: str, agent_bench: Any
) -> None:
    """It keeps its conversation; the testing kit takes it as FILE.py:NAME and as the object."""
    agent = loaded(tmp_path, source, name)
    assert isinstance(agent, WorkerExecutor)
    assert type(agent._worker).__name__ == adapter
    assert agent.keeps_conversation
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102 - the source is this file's
    for given in (f"{tmp_path}/raw_agent.py:{name}", names[name]):
        (artifact,) = agent_bench(given).send("hi").artifacts.values()
        assert artifact.text == "hello"


@pytest.mark.parametrize(
    ("source", "name", "way_out"),
    [
        (GRAPH, "builder", "not compiled: write `agent = graph.compile()`"),
        ("from langgraph.pregel import Pregel", "Pregel", "a class of LangGraph"),
        ("from pydantic_ai import Agent", "Agent", "a class: write `agent = Agent(…)`"),
        (f"{GRAPH}\nagent = graph.with_retry()", "agent", "name the graph itself, or call"),
        ("def make(): ...", "make", "a function: call it, `agent = make_agent()`"),
        (GRAPH, "agent", "has no 'agent', but graph: write `agent = graph`, or name"),
        ("import strands\nagent = strands.Agent()", "agent", "StrandsWorker(lambda: Agent(…))"),
        (CREW, "crew", "a crew of CrewAI: `a2a-serverless docs patterns` has"),
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


def test_an_adapter_takes_its_own_framework_s_agents_alone(tmp_path: Path) -> None:
    """Each would else fail every turn, with an AttributeError of its own."""
    source = f"""{GRAPH}
from pydantic_ai import Agent
from a2a_serverless.frameworks.langgraph import LangGraphWorker
from a2a_serverless.frameworks.pydantic_ai import PydanticAIWorker
"""
    for line, given in (
        ("PydanticAIWorker(graph)", "CompiledStateGraph"),
        ("LangGraphWorker(Agent())", "Agent"),
        ("LangGraphWorker(LangGraphWorker(graph))", "LangGraphWorker"),
    ):
        with pytest.raises(ConfigurationError, match=f"was given {given}: write the adapter"):
            loaded(tmp_path, f"{source}agent = {line}", "agent")


def test_an_agent_of_two_frameworks_is_refused(tmp_path: Path) -> None:
    """One sentence names both adapters, and the line to write."""
    source = """
from langgraph.pregel import Pregel

AbstractAgent = type("AbstractAgent", (), {"__module__": "pydantic_ai.agent"})

class Both(Pregel, AbstractAgent):
    def __init__(self):
        pass

agent = Both()
"""
    says = (
        "is an agent of 2 frameworks, for which there are LangGraphWorker and PydanticAIWorker:"
        " write the one that is meant, `LangGraphWorker(…)`, from a2a_serverless.frameworks."
    )
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        loaded(tmp_path, source, "agent")


UNKNOWN = "1.0.9 is no version that its adapter knows (from {} on, before 2): install '{}'."


def test_an_unknown_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence has the extra: at a raw agent, and where the framework lacks a name."""
    monkeypatch.setattr(versions, "version", lambda _: "1.0.9")
    says = f"langgraph {UNKNOWN.format('1.2', 'a2a-serverless[langgraph]')}"
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        loaded(tmp_path, GRAPH, "graph")
    monkeypatch.setitem(sys.modules, "strands", ModuleType("strands"))
    source = "from a2a_serverless.frameworks.strands import StrandsWorker"
    says = f"strands-agents {UNKNOWN.format('1.62', 'a2a-serverless[strands]')}"
    with pytest.raises(ConfigurationError, match=f"cannot import name .*: {re.escape(says)}"):
        loaded(tmp_path, source, "agent")


def test_a_framework_that_is_no_package_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nothing says its version."""
    monkeypatch.setattr(versions, "version", Mock(side_effect=PackageNotFoundError))
    assert {versions.unknown_version(name) for name in versions.KNOWN} == {""}


def test_the_versions_are_those_of_the_extras() -> None:
    """What an adapter knows is what its extra installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for known in versions.KNOWN.values():
        needs = [f"{known.package}>={known.first},<{known.below}"]
        assert project["optional-dependencies"][known.extra] == needs
