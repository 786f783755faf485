"""The worker of the page `agentcore`, run as it stands there."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import boto3
import pytest

from a2a_serverless_tools.testing import step
from a2a_serverless_tools.testing.fixtures import MakeBench
from tests.support import pages


class Runtime:
    """A client of AgentCore that answers, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def invoke_agent_runtime(self, **request: Any) -> dict[str, Any]:
        self.asked.append(request)
        text = json.loads(request["payload"])["prompt"].upper()
        return {"response": io.BytesIO(text.encode())}


def test_a_turn_there_is_a_step(agent_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies behind the step asks once; a caller's conversation has one session."""
    source, *_ = re.findall(r"(?s)```python\n(.*?)```", pages.text("agentcore"))
    runtime, names = Runtime(), dict[str, Any]()
    monkeypatch.setattr(boto3, "client", lambda _: runtime)
    exec(source, names)  # noqa: S102 - it is the repository's own page
    bench = agent_bench(names["agent"])
    first = bench.send("hello", kill_after=step("ask"), context_id="c")
    second = bench.send("again", context_id="c")
    other = bench.send("other", context_id="d")
    answers = [run.artifacts["final-answer"].text for run in (first, second, other)]
    assert (answers, first.attempts) == (["HELLO", "AGAIN", "OTHER"], 2)
    one, again, another = (request["runtimeSessionId"] for request in runtime.asked)
    assert one == again != another
    assert all(33 <= len(session) <= 256 for session in (one, another))
