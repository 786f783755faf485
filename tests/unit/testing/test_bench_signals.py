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


@pytest.mark.parametrize(
    ("posted", "shown"),
    [
        ({"value": {"by": "pat"}}, "{'by': 'pat'}"),
        ({"value": {"by": "pat"}, "form": True}, "{'by': 'pat'}"),
        ({"value": b"%PDF"}, "None"),
        (None, "late"),
    ],
    ids=["JSON", "form", "bytes", "nothing"],
)
def test_a_signal_is_posted_when_the_turn_waits(posted: dict[str, Any] | None, shown: str) -> None:
    """The clock does not move to the end of the wait, and a kill changes nothing.

    Without a signal the time of the wait ends, as for any sleep.
    """
    with AgentBench(Approver) as bench:
        bench.signal("another", 1)
        if posted is not None:
            bench.signal("approved", **posted)
        run = bench.send("go", kill_after=step("plan"))
        assert run.artifacts["final-answer"].text == shown
        assert (bench.clock.monotonic() < 3600) is (posted is not None)
