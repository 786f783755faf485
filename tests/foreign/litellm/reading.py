"""What LiteLLM gives of an answer, as if a model had said it."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

PACKAGE = "litellm"


def _asked(url: str, text: str, *, stream: bool) -> dict[str, object]:
    message = {"role": "user", "content": text}
    return {"model": "a2a/agent", "api_base": url, "messages": [message], "stream": stream}


async def read(url: str, text: str) -> str:
    answer = await litellm.acompletion(**_asked(url, text, stream=False))
    return str(answer.choices[0].message.content or "")


async def stream(url: str, text: str) -> str:
    chunks = await litellm.acompletion(**_asked(url, text, stream=True))
    return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])


READS = {"completion": read, "completion, stream=True": stream}
