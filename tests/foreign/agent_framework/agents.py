"""Agents of Microsoft's Agent Framework behind its own executor; the chat client is a fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
)
from agent_framework.a2a import A2AExecutor

from tests.conformance.sides import Case, cancels, says


class FakeClient(FunctionInvocationLayer, BaseChatClient):  # type: ignore[misc] # as for ADK
    """Answers by the last thing that it was told."""

    def _inner_get_response(self, *, messages: Sequence[Message], stream: bool, **_: Any) -> Any:
        if stream:
            return self._build_response_stream(chunks(messages[-1]))
        return answer(messages[-1])


async def answer(told: Message) -> ChatResponse:
    return ChatResponse(messages=[Message(role="assistant", contents=await contents(told))])


async def chunks(told: Message) -> AsyncIterator[ChatResponseUpdate]:
    for content in await contents(told):
        yield ChatResponseUpdate(role="assistant", contents=[content])


async def contents(told: Message) -> list[Content]:
    """What the model answers, one content per chunk."""
    match told.text:
        case "":
            return [Content.from_text(f"It is {told.contents[-1].result}.")]
        case "weather":
            return [Content.from_function_call("call", "weather", arguments={"city": "Lisbon"})]
        case "everything":
            png = Content.from_data(b"\x89PNG\x00", "image/png")
            pdf = Content.from_uri("https://example.org/b.pdf", media_type="application/pdf")
            return [Content.from_text("Here"), png, pdf]
        case "raise":
            raise ValueError("no model")
        case "wait":
            await asyncio.Event().wait()
    return [Content.from_text("You said "), Content.from_text(f"{told.text}.")]


def weather(city: str) -> str:
    return f"sunny in {city}"


def executor(*, stream: bool) -> A2AExecutor:
    return A2AExecutor(Agent(client=FakeClient(), name="helper", tools=[weather]), stream=stream)


def cases(way: str, *, stream: bool) -> dict[str, Case]:
    made = partial(executor, stream=stream)
    plays = {
        "a text": says("hello"),
        "a tool call": says("weather"),
        "every content": says("everything"),
        "a model that raises": says("raise"),
    }
    return {f"{name}, {way}": (made, script) for name, script in plays.items()}


CASES = cases("in one piece", stream=False) | cases("streamed", stream=True)
CANCELED = {
    f"cancelled, {way}": (partial(executor, stream=stream), partial(cancels, text="wait"))
    for way, stream in (("in one piece", False), ("streamed", True))
}
