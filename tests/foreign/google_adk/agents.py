"""Agents of Google's ADK behind its own executor; the model is a fake, and the rest is not.

The executor has two converters of events; a client chooses the newer one by naming an extension.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from a2a.helpers import new_data_part
from a2a.types import Part, TaskState
from google.adk.a2a.executor.a2a_agent_executor import A2aAgentExecutor
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.models import LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import LongRunningFunctionTool
from google.genai import types
from google.protobuf.json_format import MessageToDict

from tests.conformance.sides import Case, Play, cancels, says
from tests.foreign.google_adk.fake import FakeModel, calling, said

EXTENSION = "https://google.github.io/adk-docs/a2a/a2a-extension/"


class Told(FakeModel):
    """Answers by the last thing that it was told."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - ADK's
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[-1]
        match last.text:
            case None:
                yield says_text(f"It is {last.function_response.response['result']}.")
            case "weather" | "booking" as tool:
                yield said(calling(tool, city="Lisbon"))
            case "chunks":
                for text in ("one ", "two"):
                    yield says_text(text, partial=True)
                yield says_text("one two")
            case "error":
                yield LlmResponse(error_code="500", error_message="No model")
            case "raise":
                raise ValueError("no model")
            case "wait":
                await asyncio.Event().wait()
            case text:
                yield says_text(f"You said {text}.")


def says_text(text: str, **fields: object) -> LlmResponse:
    return said(types.Part(text=text), **fields)


def weather(city: str) -> str:
    return f"sunny in {city}"


def booking(city: str) -> dict[str, str]:
    """Book a hotel, which a person has to approve."""
    return {"result": f"pending in {city}"}


def notes_the_start(callback_context: CallbackContext) -> None:
    """Change the session's state, which is an event with actions and no content."""
    callback_context.state["started"] = True


def executor(*, notes: bool = False) -> A2aAgentExecutor:
    agent = LlmAgent(
        name="helper",
        model=Told(),
        tools=[weather, LongRunningFunctionTool(booking)],
        before_agent_callback=notes_the_start if notes else None,
    )
    return A2aAgentExecutor(runner=InMemoryRunner(agent, app_name="compared"))


async def approves(play: Play, *, extension: str) -> None:
    """Ask for what a person has to approve, say something else, and then approve it."""
    await play.send("booking", extension=extension)
    if extension:  # the older converter takes any text for an answer
        await play.send("hm", extension=extension)
    await play.send("", await approval(play), extension=extension)


async def approval(play: Play) -> Part:
    """The answer to the call for which the task waits."""
    task = await play.task()
    assert task is not None
    assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    messages = [*task.history, task.status.message]
    parts = [MessageToDict(part) for message in messages for part in message.parts]
    call = next(p["data"] for p in parts if p.get("metadata", {}).get("adk_is_long_running"))
    part = new_data_part({"id": call["id"], "name": call["name"], "response": {"result": "booked"}})
    part.metadata["adk_type"] = "function_response"
    return part


def cases(converter: str, extension: str) -> dict[str, Case]:
    told = partial(says, extension=extension)
    plays: dict[str, Case] = {
        "a text": (executor, told("hello")),
        "a tool call": (executor, told("weather")),
        "an event without content": (partial(executor, notes=True), told("hello")),
        "chunks": (executor, told("chunks")),
        "a call that waits for a person": (executor, partial(approves, extension=extension)),
        "an error of the model": (executor, told("error")),
        "a model that raises": (executor, told("raise")),
    }
    return {f"{name}, {converter} converter": case for name, case in plays.items()}


CASES = cases("older", "") | cases("newer", EXTENSION)
CANCELED = {
    "cancelled, older converter": (executor, partial(cancels, text="wait")),
    "cancelled, newer converter": (executor, partial(cancels, text="wait", extension=EXTENSION)),
}
