"""What app-foundation gives of an answer, once the task has ended."""

from __future__ import annotations

import asyncio

from app_foundation.a2a.client import A2AClient
from app_foundation.net.policy import OutboundEndpointPolicy

PACKAGE = "app-foundation"
POLICY = OutboundEndpointPolicy(allow_http=True, allow_private_networks=True)


async def read(url: str, text: str) -> str:
    client = A2AClient(endpoint_policy=POLICY)
    card = await client.fetch_card(f"{url}.well-known/agent-card.json")
    task = await client.send_message(card, headers={}, text=text)
    while task.state in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"):
        await asyncio.sleep(0.1)
        task = await client.get_task(card, headers={}, task_id=task.task_id)
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    return "".join(str(part.text or part.data) for part in parts) + str(task.status_text)


READS = {"get_task": read}
