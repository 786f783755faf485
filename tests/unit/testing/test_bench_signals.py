"""Signals in tests of agents: what is posted to a callback once the agent waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_serverless.worker import TaskContext, WaitTimeoutError, Worker
from a2a_serverless_tools.testing import AgentBench, step


class Approver(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.step("plan", len, ctx.user_text)
        callback = await ctx.callback("approved")
        assert callback.url.startswith("https://agent.example/callbacks/")
        try:
            posted = await callback.wait(timeout_s=3600)
        except WaitTimeoutError:
            await ctx.complete("late")
        else:
            await ctx.step("book", len, "x")
            await ctx.complete(str(posted.data))


def test_a_signal_is_posted_when_the_turn_waits() -> None:
    """The clock does not move to the end of the wait, and a kill changes nothing."""
    with AgentBench(Approver) as bench:
        bench.signal("approved", {"by": "pat"})
        run = bench.send("go", kill_after=step("plan"))
        assert run.artifacts["final-answer"].text == "{'by': 'pat'}"
        assert bench.clock.monotonic() < 3600


def test_without_a_signal_the_time_of_the_wait_ends() -> None:
    """As for any sleep."""
    with AgentBench(Approver) as bench:
        bench.signal("another", 1)
        assert bench.send("go").artifacts["final-answer"].text == "late"


@pytest.mark.parametrize(
    ("posted", "shown"),
    [({"value": {"by": "pat"}, "form": True}, "{'by': 'pat'}"), ({"value": b"%PDF"}, "None")],
    ids=["form", "bytes"],
)
def test_a_form_and_bytes_are_posted(posted: dict[str, Any], shown: str) -> None:
    """As a browser's form, and as they are."""
    with AgentBench(Approver) as bench:
        bench.signal("approved", **posted)
        assert bench.send("go").artifacts["final-answer"].text == shown
