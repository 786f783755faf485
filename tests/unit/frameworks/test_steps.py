"""Calls of models and tools as steps, without a framework."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict

from a2a_serverless.frameworks.steps import MODEL, Steps
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.worker import TaskContext, Worker
from tests.unit.frameworks.talks import Talk, answered, killed_everywhere

GIVEN = ['{"n": 1}', "{"]


async def test_a_call_inside_a_call_belongs_to_it() -> None:
    """It has no record of its own, nor a number; what a tool is given is shown as JSON if it is."""

    class Calls(Worker):
        def __init__(self, paid: list[str]) -> None:
            self.paid = paid

        async def handle(self, ctx: TaskContext) -> None:
            steps = Steps(ctx, 0, shows_tools=True)

            async def model() -> str:
                self.paid.append("model")
                return "said"

            async def tool() -> Any:
                return await steps.run(MODEL, model)

            said = [await steps.run("tool", tool, key=one, arguments=one) for one in GIVEN]
            await ctx.complete_json([*said, await steps.run(MODEL, model)])

    async def play(paid: list[str]) -> Any:
        talk = Talk(Calls(paid), max_attempts=3)
        head, task = await talk.say("a")
        written = await talk.entries(head, StatusChanged)
        told = [MessageToDict(one.metadata)["tool"] for one in written if one.metadata]
        return answered(task), {one["call"]: one["arguments"] for one in told if "arguments" in one}

    assert await killed_everywhere(play) == ["tool", "tool", "model"]
    assert await play([]) == (["said"] * 3, {GIVEN[0]: {"n": 1}, GIVEN[1]: "{"})
