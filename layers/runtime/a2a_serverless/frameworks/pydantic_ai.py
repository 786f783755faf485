"""A Pydantic AI agent as an A2A agent: `agent = PydanticAIWorker(Agent(...))`.

The message history is kept. A deferred tool call, for approval or for an answer, pauses the task
with its question (input-required); the user's next message is its result.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessage,
    ModelMessagesTypeAdapter,
    UsageLimitExceeded,
    UserError,
)
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDenied
from pydantic_core import to_jsonable_python

from a2a_serverless.frameworks.conversation import (
    INVALID,
    TOO_MANY_STEPS,
    Conversation,
    Messages,
    final_errors,
    is_consent,
)
from a2a_serverless.worker import TaskContext, Worker

__all__ = ["PydanticAIWorker"]

_FINAL: Final[dict[type[Exception], str]] = {UsageLimitExceeded: TOO_MANY_STEPS, UserError: INVALID}


class PydanticAIWorker(Worker):
    """Runs an agent once for each message.

    A tool names its own question by the metadata of `ApprovalRequired` or `CallDeferred`:
    `CallDeferred(metadata={"question": "How many euros?"})`.

    Args:
        agent: with `DeferredToolRequests` among its output types if it has deferred tools.
    """

    keeps_conversation = True

    def __init__(self, agent: Agent[None, Any]) -> None:
        self._agent = agent

    def begin(self, ctx: TaskContext) -> Any:
        """Return the prompt for a task's first message: by default its text."""
        return ctx.user_text

    async def finish(self, ctx: TaskContext, output: Any) -> None:
        """End a task with the agent's output: a text as it is, anything else as data."""
        if isinstance(output, str):
            await ctx.complete(output)
        else:
            await ctx.complete_json(to_jsonable_python(output))

    def remember(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        """Return what to keep of a conversation when a task has ended; by default all of it."""
        return messages

    async def handle(self, ctx: TaskContext) -> None:
        """Run the agent until it ends or asks, and keep its messages with the turn's ending.

        Questions of one run are asked one after the other; the run goes on when all are answered.
        """
        conversation = await Conversation.load(ctx, "pydantic-ai")
        waiting = conversation.waiting
        if waiting is not None:
            # The question that was asked last is answered.
            waiting["answers"].append({**waiting["asked"].pop(0), "answer": conversation.answer})
            if waiting["asked"]:
                await conversation.ask(waiting["asked"][0]["question"], waiting)
                return
        messages = Messages.of(conversation.ended, waiting)
        with final_errors(_FINAL):
            run = await self._agent.run(
                self.begin(ctx) if waiting is None else None,
                message_history=ModelMessagesTypeAdapter.validate_python(messages.begin()),
                deferred_tool_results=None if waiting is None else _results(waiting),
            )
        if isinstance(run.output, DeferredToolRequests):
            asked, now = _asked(run.output), _dumped(run.all_messages())
            kept = {**messages.waiting(now), "asked": asked, "answers": []}
            await conversation.ask(asked[0]["question"], kept)
        else:
            await conversation.end(_dumped(self.remember(run.all_messages())))
            await self.finish(ctx, run.output)


def _dumped(messages: list[ModelMessage]) -> list[Any]:
    dumped: list[Any] = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    return dumped


def _asked(requests: DeferredToolRequests) -> list[dict[str, Any]]:
    calls = [(call, True) for call in requests.approvals] + [(c, False) for c in requests.calls]
    return [
        {
            "id": call.tool_call_id,
            "is_approval": is_approval,
            "question": requests.metadata.get(call.tool_call_id, {}).get("question")
            or _question(call),
        }
        for call, is_approval in calls
    ]


def _question(call: ToolCallPart) -> dict[str, Any]:
    return {"tool": call.tool_name, "arguments": call.args_as_dict(), "call": call.tool_call_id}


def _results(waiting: dict[str, Any]) -> DeferredToolResults:
    results = DeferredToolResults()
    for given in waiting["answers"]:
        answer = given["answer"]
        if not given["is_approval"]:
            results.calls[given["id"]] = answer
        elif is_consent(answer):
            results.approvals[given["id"]] = True
        else:
            results.approvals[given["id"]] = ToolDenied(f"The user has refused: {answer}")
    return results
