"""A Pydantic AI agent behind a Worker: a tool, a typed result, and a question back to the user.

The model is a function, so that it runs without a key. Put yours in `Agent(...)`, for example
`Agent("PROVIDER:MODEL", ...)`; nothing else changes.
"""

from __future__ import annotations

import re

from pydantic import BaseModel
from pydantic_ai import Agent, ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.messages import ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from a2a_serverless.worker import TaskContext, Worker

RATES = {"USD": 1.08, "GBP": 0.85, "JPY": 163.0}


class Conversion(BaseModel):
    """Euros in another currency."""

    euros: float
    currency: str
    amount: float


class Missing(BaseModel):
    """A detail that the user has to be asked for."""

    question: str


def stand_in(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Act as a model would: read the chat, call the tool, fill in the result."""
    parts = [part for message in messages for part in message.parts]
    said = " ".join(str(part.content) for part in parts if isinstance(part, UserPromptPart))
    number = re.search(r"\d+(?:\.\d+)?", said)
    currency = re.search("|".join(RATES), said.upper())
    rates = [p.content for p in parts if isinstance(p, ToolReturnPart) and p.tool_name == "rate"]
    result, missing = (tool.name for tool in info.output_tools)
    if number is None:
        call = ToolCallPart(missing, {"question": "How many euros?"})
    elif currency is None:
        call = ToolCallPart(missing, {"question": f"Into which of {', '.join(RATES)}?"})
    elif not rates:
        call = ToolCallPart("rate", {"currency": currency[0]})
    else:
        amount = round(float(number[0]) * float(str(rates[-1])), 2)
        conversion = {"euros": float(number[0]), "currency": currency[0], "amount": amount}
        call = ToolCallPart(result, conversion)
    return ModelResponse(parts=[call])


converter: Agent[None, Conversion | Missing] = Agent(
    FunctionModel(stand_in),
    output_type=[Conversion, Missing],
    instructions="Convert euros. Ask for what the user did not say.",
)


@converter.tool_plain
def rate(currency: str) -> float:
    """Return the value of one euro in `currency`."""
    return RATES[currency]


class Converter(Worker):
    """One run of the agent per turn; the context's state has the chat of each open task."""

    async def handle(self, ctx: TaskContext) -> None:
        """Complete with the conversion as data, or ask for what is missing."""
        chats = await ctx.load_context() or {}
        before = ModelMessagesTypeAdapter.validate_json(chats.pop(ctx.task_id, "[]"))
        run = await converter.run(ctx.user_text, message_history=before)
        if isinstance(run.output, Missing):
            chats[ctx.task_id] = run.all_messages_json().decode()
            await ctx.update_context(chats)
            await ctx.request_input(run.output.question)
        else:
            await ctx.update_context(chats)
            await ctx.complete_json(run.output.model_dump(), artifact_id="conversion")


agent = Converter()
