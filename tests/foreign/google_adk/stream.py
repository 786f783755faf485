"""RemoteA2aAgent of Google's ADK as it comes: stream.py URL BINDING send TEXT.

It chooses the binding itself: BINDING is not read. Prints one JSON line for each of the ADK's
events. Runs in the environment of its framework.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings

from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.runners import InMemoryRunner
from google.genai import types

APP, USER = "stream", "somebody"


async def main(url: str, text: str) -> None:
    agent = RemoteA2aAgent(name="remote", agent_card=f"{url}.well-known/agent-card.json")
    runner = InMemoryRunner(agent=agent, app_name=APP)
    session = await runner.session_service.create_session(app_name=APP, user_id=USER)
    message = types.Content(role="user", parts=[types.Part(text=text)])
    async for event in runner.run_async(user_id=USER, session_id=session.id, new_message=message):
        parts = event.content.parts if event.content else []
        told = {
            "task": (event.custom_metadata or {}).get("a2a:task_id"),
            "says": "".join(part.text or "" for part in parts),
            "error": event.error_message,
        }
        sys.stdout.write(f"{json.dumps(told)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    asyncio.run(main(sys.argv[1], sys.argv[4]))
