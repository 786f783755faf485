"""A Pydantic AI agent: a tool, a typed result, and questions by a tool that waits for the user.

The model is a function, so that it runs without a key. Put yours in `Agent(...)`, for example
`Agent("PROVIDER:MODEL", ...)`; nothing else changes.
"""

from __future__ import annotations

import re

from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, ModelMessage, ModelResponse
from pydantic_ai.messages import ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from a2a_serverless.frameworks.pydantic_ai import PydanticAIWorker

RATES = {"USD": 1.08, "GBP": 0.85, "JPY": 163.0}


class Conversion(BaseModel):
    """Euros in another currency."""

    euros: float
    currency: str
    amount: float


def stand_in(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Act as a model would: read the conversation, call the tools, fill in the result."""
    parts = [part for message in messages for part in message.parts]
    said = " ".join(text_of_user(part) for part in parts).upper().rpartition("ANOTHER")[2]
    numbers = re.findall(r"\d+(?:\.\d+)?", said)
    currencies = re.findall("|".join(RATES), said)
    last = parts[-1]
    if not numbers:
        call = ToolCallPart("ask", {"question": "How many euros?"})
    elif not currencies:
        call = ToolCallPart("ask", {"question": f"Into which of {', '.join(RATES)}?"})
    elif not (isinstance(last, ToolReturnPart) and last.tool_name == "rate"):
        call = ToolCallPart("rate", {"currency": currencies[-1]})
    else:
        euros = float(numbers[-1])
        amount = round(euros * float(str(last.content)), 2)
        conversion = {"euros": euros, "currency": currencies[-1], "amount": amount}
        call = ToolCallPart(info.output_tools[0].name, conversion)
    return ModelResponse(parts=[call])


def text_of_user(part: object) -> str:
    """Return the text of a user's message, or of an answer to a question; else nothing."""
    if isinstance(part, ToolReturnPart) and part.tool_name == "ask":
        return str(part.content)
    return str(part.content) if isinstance(part, UserPromptPart) else ""


converter: Agent[None, Conversion | DeferredToolRequests] = Agent(
    FunctionModel(stand_in),
    output_type=(Conversion, DeferredToolRequests),
    instructions="Convert euros. Ask for what the user did not say.",
)


@converter.tool_plain
def rate(currency: str) -> float:
    """Return the value of one euro in `currency`."""
    return RATES[currency]


@converter.tool_plain
def ask(question: str) -> str:
    """Ask the user; the task waits, and the answer is what this tool returns."""
    raise CallDeferred(metadata={"question": question}, kind="question")


agent = PydanticAIWorker(converter)
