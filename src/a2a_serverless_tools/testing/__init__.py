"""Tests of agents: messages in, tasks out, by the worker of production in this process's memory.

The page `testing` shows how. Nothing that is deployed imports this package.
"""

from a2a_serverless_tools.testing.agents import Outcome, StandIn
from a2a_serverless_tools.testing.bench import AgentBench, AgentSource
from a2a_serverless_tools.testing.clock import PacedClock
from a2a_serverless_tools.testing.files import FakeFiles, file_part
from a2a_serverless_tools.testing.process import StuckError
from a2a_serverless_tools.testing.run import Run, Said, SeenArtifact, When, step

__all__ = [
    "AgentBench",
    "AgentSource",
    "FakeFiles",
    "Outcome",
    "PacedClock",
    "Run",
    "Said",
    "SeenArtifact",
    "StandIn",
    "StuckError",
    "When",
    "file_part",
    "step",
]
