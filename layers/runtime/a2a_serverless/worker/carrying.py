"""Running an agent with the context variables that its turn's message brought along."""

from __future__ import annotations

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.carried import CarriedVariables


class CarryingAgent(AgentExecutor):
    """An agent around which the variables of one turn are set.

    Each call has a task of its own, whose context ends with it: what is set here is seen by the
    agent alone, and neither by another turn nor by the worker.
    """

    def __init__(self, agent: AgentExecutor, carried: CarriedVariables, captured: str) -> None:
        self._agent = agent
        self._carried = carried
        self._captured = captured

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self._carried.restore(self._captured)
        await self._agent.execute(context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self._carried.restore(self._captured)
        await self._agent.cancel(context, event_queue)
