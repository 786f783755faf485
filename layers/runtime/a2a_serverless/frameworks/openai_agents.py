"""An agent of the OpenAI Agents SDK as an A2A agent: `agent = OpenAIAgentsWorker(Agent(...))`.

The conversation is a session of the SDK. A tool that needs approval pauses the task with its call
as the question (input-required). Text goes out as chunks of one artifact.
"""

from __future__ import annotations

import json
from typing import Any, Final

from agents import (
    Agent,
    MaxTurnsExceeded,
    RunConfig,
    Runner,
    RunResultStreaming,
    RunState,
    UserError,
)
from agents.memory import SessionABC
from openai.types.responses import ResponseCompletedEvent, ResponseTextDeltaEvent
from pydantic_core import to_jsonable_python

from a2a_serverless.frameworks.conversation import (
    INVALID,
    TOO_MANY_STEPS,
    Answer,
    Conversation,
    Messages,
    final_errors,
    is_consent,
)
from a2a_serverless.worker import TaskContext, Worker

__all__ = ["OpenAIAgentsWorker"]

_FINAL: Final[dict[type[Exception], str]] = {MaxTurnsExceeded: TOO_MANY_STEPS, UserError: INVALID}


class OpenAIAgentsWorker(Worker):
    """Runs an agent once for each message.

    Args:
        agent: the agent that begins each run.
        run_config: the configuration of each run, such as `RunConfig(tracing_disabled=True)`.
    """

    keeps_conversation = True

    def __init__(self, agent: Agent[Any], run_config: RunConfig | None = None) -> None:
        self._agent = agent
        self._run_config = run_config

    def begin(self, ctx: TaskContext) -> Any:
        """Return the input for a task's first message: by default its text."""
        return ctx.user_text

    async def finish(self, ctx: TaskContext, output: Any) -> None:
        """End a task with the final output: a text was streamed already, other output is data."""
        if isinstance(output, str):
            await ctx.respond()
        else:
            await ctx.complete_json(to_jsonable_python(output))

    def remember(self, items: list[Any]) -> list[Any]:
        """Return what to keep of a conversation when a task has ended; by default all of it."""
        return items

    async def handle(self, ctx: TaskContext) -> None:
        """Run the agent until it ends or asks, and keep its session with the turn's ending.

        If several calls need approval, the user is asked about one at a time.
        """
        conversation = await Conversation.load(ctx, "openai-agents")
        messages = Messages.of(conversation.ended, conversation.waiting)
        session = _ConversationSession(ctx.context_id, messages.begin())
        if conversation.waiting is None:
            given = self.begin(ctx)
        else:
            given = await self._answered(conversation.waiting["run"], conversation.answer)
        with final_errors(_FINAL):
            run = Runner.run_streamed(
                self._agent, given, session=session, run_config=self._run_config
            )
            await _stream(ctx, run)
        if run.interruptions:
            kept = {**messages.waiting(session.items), "run": run.to_state().to_json()}
            await conversation.ask(_question(run.interruptions[0]), kept)
        else:
            await conversation.end(self.remember(session.items))
            await self.finish(ctx, run.final_output)

    async def _answered(self, run: dict[str, Any], answer: Any) -> Any:
        """Return the run's state, with the call that was asked about approved or refused."""
        state = await RunState.from_json(self._agent, run)
        asked = state.get_interruptions()[0]
        if is_consent(answer):
            state.approve(asked)
        else:
            state.reject(asked, rejection_message=f"The user has refused: {answer}")
        return state


class _ConversationSession(SessionABC):  # type: ignore[misc] # its environment has the types
    """The session of one turn: in memory, until the turn's ending stores it.

    Args:
        session_id: the contextId.
        items: the items of the conversation so far.
    """

    def __init__(self, session_id: str, items: list[Any]) -> None:
        self.session_id = session_id
        self.items = items

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return list(self.items) if limit is None else self.items[max(0, len(self.items) - limit) :]

    async def add_items(self, items: list[Any]) -> None:
        self.items.extend(to_jsonable_python(items))

    async def pop_item(self) -> Any | None:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        self.items.clear()


async def _stream(ctx: TaskContext, run: RunResultStreaming) -> None:
    answer, number = Answer(ctx), 0
    async for event in run.stream_events():
        data = getattr(event, "data", None)
        if isinstance(data, ResponseTextDeltaEvent) and data.delta:
            # Models without ids of items give all of them one.
            await answer.add(data.delta, (number, data.item_id))
        elif isinstance(data, ResponseCompletedEvent):
            number += 1


def _question(item: Any) -> dict[str, Any]:
    return {"tool": item.name, "arguments": json.loads(item.arguments or "{}")}
