"""RemoteA2aAgent of Google's ADK delegates: URL BINDING RECEIVER, of which URL is read.

Prints one JSON line for each operation. Runs in the environment of its framework.
"""

from __future__ import annotations

import asyncio
import sys
import warnings

from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.runners import InMemoryRunner
from google.genai import types

from tests.foreign.tried import tried

APP, USER = "matrix", "somebody"


async def main(url: str) -> None:
    agent = RemoteA2aAgent(name="remote", agent_card=f"{url}.well-known/agent-card.json")
    runner = InMemoryRunner(agent=agent, app_name=APP)

    async def said(session_id: str, text: str) -> str:
        message = types.Content(role="user", parts=[types.Part(text=text)])
        texts = []
        async for event in runner.run_async(
            user_id=USER, session_id=session_id, new_message=message
        ):
            if event.error_message:
                raise RuntimeError(event.error_message)
            parts = event.content.parts if event.content else []
            texts += [part.text for part in parts if part.text]
            # A question comes as the call of a function, with the question as its argument.
            calls = [part.function_call for part in parts if part.function_call]
            texts += [str(value) for call in calls for value in call.args.values()]
        return "".join(texts)

    async def delegate() -> str:
        session = await runner.session_service.create_session(app_name=APP, user_id=USER)
        return await said(session.id, "go")

    async def ask() -> str:
        session = await runner.session_service.create_session(app_name=APP, user_id=USER)
        asked.append(session.id)
        return await said(session.id, "ask")

    asked: list[str] = []
    await tried("delegate", delegate)
    await tried("question", ask)
    await tried("answer", lambda: said(asked[0], "go"))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    asyncio.run(main(sys.argv[1]))
