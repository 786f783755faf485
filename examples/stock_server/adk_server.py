"""An agent of Google's ADK, served by the ADK, whose tasks are in DynamoDB.

TABLE=a2a-tasks uvicorn examples.stock_server.adk_server:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.genai import types

from a2a_serverless.stores import DynamoDBTaskStore, file_table

TABLE = os.environ.get("TABLE", "tasks.sqlite")


class Greeter(BaseAgent):  # type: ignore[misc, unused-ignore]
    """Greets without a model."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        said = types.Content(role="model", parts=[types.Part(text="Good morning.")])
        yield Event(author=self.name, invocation_id=ctx.invocation_id, content=said)


table = file_table(TABLE) if TABLE.endswith(".sqlite") else TABLE
# The ADK's server takes no event stream: a task is followed where it runs, and read anywhere.
tasks: Any = DynamoDBTaskStore(table)
app = to_a2a(Greeter(name="greeter", description="Greets."), port=9999, task_store=tasks)
