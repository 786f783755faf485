"""A Strands agent as an A2A agent: `agent = StrandsWorker(lambda: Agent(...))`.

Messages, state and conversation manager are kept as a snapshot of the SDK. An interrupt of a tool
or a hook pauses the task with its reason as the question (input-required). Text goes out as chunks
of one artifact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from strands import Agent, Snapshot
from strands.types.exceptions import (
    ContextWindowOverflowException,
    MaxTokensReachedException,
    SnapshotException,
)
from strands.types.session import decode_bytes_values, encode_bytes_values

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.frameworks.conversation import (
    INVALID,
    TOO_LONG,
    Answer,
    Conversation,
    Messages,
    final_errors,
)
from a2a_serverless.worker import TaskContext, Worker

__all__ = ["StrandsWorker"]

_FINAL: Final[dict[type[Exception], str]] = {
    ContextWindowOverflowException: TOO_LONG,
    MaxTokensReachedException: TOO_LONG,
    SnapshotException: INVALID,
}


class StrandsWorker(Worker):
    """Runs an agent once for each message.

    Args:
        make_agent: returns a new agent; one object is one conversation, so that each turn has its
            own. `callback_handler=None` keeps it from printing.

    Raises:
        ConfigurationError: it is an agent.
    """

    keeps_conversation = True

    def __init__(self, make_agent: Callable[[], Agent]) -> None:
        if isinstance(make_agent, Agent):
            raise ConfigurationError(
                "An agent of Strands is one conversation: pass a function that makes one,"
                " `StrandsWorker(lambda: Agent(…))`."
            )
        self._make_agent = make_agent

    def begin(self, ctx: TaskContext) -> Any:
        """Return the prompt for a task's first message: by default its text."""
        return ctx.user_text

    async def finish(self, ctx: TaskContext, agent: Agent) -> None:  # noqa: ARG002 - for overriding
        """End a task whose agent has answered; by default without further output."""
        await ctx.respond()

    async def handle(self, ctx: TaskContext) -> None:
        """Run the agent until it ends or asks, and keep its snapshot with the turn's ending.

        If there are several interrupts, the user is asked about one at a time.
        """
        conversation = await Conversation.load(ctx, "strands")
        waiting, ended = conversation.waiting, conversation.ended or {}
        messages = Messages.of(ended.get("messages"), waiting)
        agent = self._make_agent()
        with final_errors(_FINAL):
            _restore(agent, (waiting or ended).get("snapshot"), messages.begin())
        if waiting is None:
            prompt = self.begin(ctx)
        else:
            answer = {"interruptId": waiting["asked"], "response": conversation.answer}
            prompt = [{"interruptResponse": answer}]
        with final_errors(_FINAL):
            interrupts = await _stream(ctx, agent, prompt)
        now, snapshot = _taken(agent)
        if interrupts:
            kept = {**messages.waiting(now), "asked": interrupts[0].id, "snapshot": snapshot}
            await conversation.ask(interrupts[0].reason or interrupts[0].name, kept)
        else:
            await conversation.end({"messages": now, "snapshot": snapshot})
            await self.finish(ctx, agent)


async def _stream(ctx: TaskContext, agent: Agent, prompt: Any) -> Any:
    """Run the agent, and send the text of its model; return the interrupts that it ends with."""
    answer, number, interrupts = Answer(ctx), 0, ()
    async for event in agent.stream_async(prompt):
        if text := event.get("data"):
            await answer.add(text, number)
        elif "message" in event:
            number += 1
        elif "result" in event:
            interrupts = event["result"].interrupts or ()
    return interrupts


def _taken(agent: Agent) -> tuple[list[Any], dict[str, Any]]:
    snapshot = encode_bytes_values(agent.take_snapshot(preset="session").to_dict())
    return snapshot["data"].pop("messages"), snapshot


def _restore(agent: Agent, snapshot: dict[str, Any] | None, messages: list[Any]) -> None:
    if snapshot is not None:
        data = {**snapshot["data"], "messages": messages}
        agent.load_snapshot(Snapshot.from_dict(decode_bytes_values({**snapshot, "data": data})))
