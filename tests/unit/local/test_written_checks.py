"""The test of the endpoint that `init` writes into a project, at agents that it does not know."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from runpy import run_path

import pytest

from a2a_serverless.settings import Settings
from a2a_serverless_tools.local.stack import Options, Stack
from a2a_serverless_tools.scaffold import project
from a2a_serverless_tools.scaffold.source import CARD, source
from tests.support.a2a_calls import Caller

WRITTEN = Path(project.__file__).parent / "written/checks/test_endpoint.py"
AGENT = """
import asyncio
from a2a_serverless.worker import TaskContext, Worker

class Slow(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await asyncio.sleep({seconds})
        await ctx.{ending}("Well, well.")

agent = Slow()
"""


@pytest.mark.parametrize(
    ("test", "seconds", "ending", "failure"),
    [
        ("is_answered", 0, "reject", "example, 'Hello', has ended as rejected: Well, well."),
        ("is_streamed", 3600, "respond", ""),
    ],
)
def test_any_length(test: str, seconds: float, ending: str, failure: str, tmp_path: Path) -> None:
    """Long work is no failure, and is canceled; a failure is one sentence."""
    agent, card, check = (tmp_path / name for name in ("agent.py", CARD, "tests/check.py"))
    card.parent.mkdir(parents=True)
    check.parent.mkdir()
    agent.write_text(AGENT.format(seconds=seconds, ending=ending), encoding="utf-8")
    shown = json.loads((source() / CARD).read_text("utf-8"))
    del shown["skills"][0]["examples"]
    card.write_text(json.dumps(shown), encoding="utf-8")
    patience = f"PATIENCE_S = {1 if seconds else 60}"
    check.write_text(WRITTEN.read_text("utf-8").replace("PATIENCE_S = 60", patience), "utf-8")
    run = run_path(str(check))[f"test_an_example_of_the_card_{test}"]
    options = Options(agent=f"{agent}:agent", card=card)
    settings = Settings(auth="none", blocking_limit_s=0.1 if seconds else 20, cancel_timeout_s=1)
    fails = pytest.raises(AssertionError, match=failure) if failure else nullcontext()
    with Stack(settings, options) as stack, Caller(stack.url) as caller:
        with fails:
            run(stack.url)
        (task,) = caller.http.get("/tasks").json()["tasks"]
    ended = "CANCELED" if seconds else "REJECTED" if failure else "COMPLETED"
    assert task["status"]["state"] == f"TASK_STATE_{ended}"
