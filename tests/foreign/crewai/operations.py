"""CrewAI's delegation to a remote agent: URL BINDING RECEIVER.

Prints one JSON line for each operation. Runs in the environment of its framework.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from typing import Any

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"

from crewai.a2a.config import ClientTransportConfig
from crewai.a2a.updates import PollingConfig
from crewai.a2a.utils.delegation import aexecute_a2a_delegation

from tests.foreign.tried import outcome, tried


async def main(url: str, binding: str) -> None:
    transport = ClientTransportConfig(preferred=binding, supported=[binding])
    asked: dict[str, Any] = {}

    async def said(text: str, **more: Any) -> str:
        card = f"{url}.well-known/agent-card.json"
        result = await aexecute_a2a_delegation(card, None, 60, text, transport=transport, **more)
        asked.update(result)
        return outcome(str(getattr(result["status"], "value", result["status"])), text_of(result))

    await tried("delegate", lambda: said("go"))
    await tried("poll", lambda: said("go", updates=PollingConfig(interval=0.2)))
    await tried("question", lambda: said("ask"))
    await tried("answer", lambda: said("go", conversation_history=asked["history"]))


def text_of(result: Any) -> str:
    return str(result.get("result") or result.get("error") or "")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    asyncio.run(main(sys.argv[1], sys.argv[2]))
