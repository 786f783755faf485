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

    async def delegated(text: str, **more: Any) -> Any:
        return await aexecute_a2a_delegation(
            f"{url}.well-known/agent-card.json", None, 60, text, transport=transport, **more
        )

    async def delegate() -> str:
        return told(await delegated("go"))

    async def poll() -> str:
        return told(await delegated("go", updates=PollingConfig(interval=0.2)))

    async def ask() -> str:
        asked.update(await delegated("ask"))
        return told(asked)

    async def answer() -> str:
        return told(await delegated("go", conversation_history=asked["history"]))

    await tried("delegate", delegate)
    await tried("poll", poll)
    await tried("question", ask)
    await tried("answer", answer)


def told(result: Any) -> str:
    state = getattr(result["status"], "value", result["status"])
    return outcome(str(state), str(result.get("result") or result.get("error") or ""))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    asyncio.run(main(sys.argv[1], sys.argv[2]))
