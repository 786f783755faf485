"""What CrewAI's delegation gives of a remote agent's answer."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"

from crewai.a2a.updates import PollingConfig
from crewai.a2a.utils.delegation import aexecute_a2a_delegation

PACKAGE = "crewai"


async def read(url: str, text: str, **more: Any) -> str:
    card = f"{url}.well-known/agent-card.json"
    result = await aexecute_a2a_delegation(card, None, 60, text, **more)
    return str(result.get("result") or result.get("error") or "")


READS = {
    "delegation": read,
    "delegation by polling": partial(read, updates=PollingConfig(interval=0.2)),
}
