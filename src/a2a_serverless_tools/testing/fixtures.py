"""The testing kit as fixtures of pytest: name this module in `pytest_plugins` of a conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from a2a_serverless_tools.testing.bench import AgentBench, AgentSource
from a2a_serverless_tools.testing.files import FakeFiles


class MakeBench(Protocol):
    """The type of the fixture `agent_bench`."""

    def __call__(self, agent: AgentSource, **options: Any) -> AgentBench:
        """Return a bench for an agent, with the options of `AgentBench`; it ends with the test."""
        ...


@pytest.fixture
def agent_bench() -> Iterator[MakeBench]:
    """Make benches for agents.

    >>> def test_it_asks(agent_bench: MakeBench) -> None:
    ...     bench = agent_bench("functions/worker/agent.py:agent")
    ...     assert bench.send("Hello").state == "input_required"
    """
    with ExitStack() as benches:

        def make(agent: AgentSource, **options: Any) -> AgentBench:
            return benches.enter_context(AgentBench(agent, **options))

        yield make


@pytest.fixture
def fake_files() -> Iterator[FakeFiles]:
    """Serve files to the agent, from this machine."""
    with FakeFiles() as files:
        yield files
