"""A model of Google's ADK that is a fake."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types


def said(*parts: types.Part, **fields: Any) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=[*parts]), **fields)


def calling(name: str, **args: str) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, args=args))


class FakeModel(BaseLlm):  # type: ignore[misc] # its environment has the types, ours does not
    """Answers by what `reply` has for all that it was told."""

    model: str = "fake"

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - ADK's
    ) -> AsyncGenerator[LlmResponse, None]:
        yield self.reply(llm_request)

    def reply(self, request: LlmRequest) -> LlmResponse:
        raise NotImplementedError
