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
    ("seconds", "ending", "failure"),
    [
        (0.5, "respond", ""),
        (0, "reject", "example, 'Hello', has ended as rejected: Well, well."),
        (60, "respond", "The agent works on 'Hello' for more than 1 s: let the card"),
    ],
)
def test_long_work_is_waited_for(seconds: float, ending: str, failure: str, tmp_path: Path) -> None:
    """Work that outlasts a blocking send is no failure, and a failure is one sentence."""
    agent, card, check = (tmp_path / name for name in ("agent.py", CARD, "tests/check.py"))
    card.parent.mkdir(parents=True)
    check.parent.mkdir()
    agent.write_text(AGENT.format(seconds=seconds, ending=ending), encoding="utf-8")
    shown = json.loads((source() / CARD).read_text("utf-8"))
    del shown["skills"][0]["examples"]
    card.write_text(json.dumps(shown), encoding="utf-8")
    limit = "LIMIT_S = 1" if seconds == 60 else "LIMIT_S = 60"
    check.write_text(WRITTEN.read_text("utf-8").replace("LIMIT_S = 600", limit), "utf-8")
    run = run_path(str(check))["test_an_example_of_the_card_is_answered"]
    options = Options(agent=f"{agent}:agent", card=card)
    fails = pytest.raises(AssertionError, match=failure) if failure else nullcontext()
    with Stack(Settings(auth="none", blocking_limit_s=0.1), options) as stack, fails:
        run(stack.url)
