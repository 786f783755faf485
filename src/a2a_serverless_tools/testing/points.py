"""The agent of a test, which is stopped at the points that the test has named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.tasks.events import Event
from a2a_serverless.worker.executor import TurnQueue
from a2a_serverless_tools.testing.clock import idle
from a2a_serverless_tools.testing.run import When


@dataclass(slots=True, kw_only=True)
class Points:
    """The points at which a turn is cancelled or its worker killed, and what happened so far."""

    ask_to_cancel: Callable[[], Awaitable[None]]
    cancel_after: When | None = None
    kill_after: When | None = None
    is_asked: bool = False
    """True if the cancel was asked for."""
    is_late: bool = False
    """True if the event at which to cancel has ended the turn: ask when the turn is over."""
    queue: TurnQueue | None = None
    """The queue of the running attempt."""
    attempts: int = 0
    errors: list[Exception] = field(default_factory=list)
    _seen: int = 0

    @property
    def awaits_hearing(self) -> bool:
        """Return True while the worker does not know of a cancel that was asked for."""
        return self.is_asked and not (self.queue is not None and self.queue.is_cancelled)

    def dies_at_start(self) -> bool:
        """Return True if the worker has to die before the agent's first event, but only once."""
        dies = self.kill_after == 0
        self.kill_after = None if dies else self.kill_after
        return dies

    def take(self, event: Event) -> tuple[bool, bool]:
        """Count an event; return whether the worker has to die now, and whether to cancel now.

        Each of the two is True only once.
        """
        self._seen += 1
        dies, hears = self._is_at(self.kill_after, event), self._is_at(self.cancel_after, event)
        if dies:
            self.kill_after = None
        if hears:
            self.cancel_after = None
        return dies, hears

    def _is_at(self, point: When | None, event: Event) -> bool:
        if point is None:
            return False
        return point(event) if callable(point) else self._seen == point


class StoppedAgent(AgentExecutor):
    """Runs the agent of the present turn, up to that turn's points.

    Args:
        kill: ends the worker's process; called in its event loop.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self.agent: AgentExecutor | None = None
        self.points: Points | None = None

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        agent, points, queue = self._of_turn(event_queue)
        points.attempts += 1

        async def taken(event: Event) -> None:
            dies, hears = points.take(event)
            if dies or hears:
                await queue.drain()
            if dies:
                await self._die()
            if hears:
                await _canceled(points, queue)

        queue.on_taken = taken
        if points.dies_at_start():
            await self._die()
        try:
            await agent.execute(context, queue)
        except Exception as error:
            points.errors.append(error)
            raise

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        agent, _, queue = self._of_turn(event_queue)
        await agent.cancel(context, queue)

    def _of_turn(self, queue: EventQueue) -> tuple[AgentExecutor, Points, TurnQueue]:
        if self.agent is None or self.points is None or not isinstance(queue, TurnQueue):
            raise RuntimeError("An agent of the testing kit runs in its bench only.")
        self.points.queue = queue
        return self.agent, self.points, queue

    async def _die(self) -> None:
        self._kill()
        await asyncio.get_running_loop().create_future()  # waits for ever: the loop stops here


async def _canceled(points: Points, queue: TurnQueue) -> None:
    """Ask for the cancel; CancelledError is raised in the agent before this returns."""
    if queue.has_ended:
        points.is_late = True
        return
    await points.ask_to_cancel()
    while not queue.is_cancelled:  # noqa: ASYNC110 - the clock is moved beside it
        await asyncio.sleep(0)
    await idle()
