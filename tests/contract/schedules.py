"""Requests to a table in an order that is drawn from a seed, one at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.dynamodb import DynamoTable
from a2a_serverless.storage.layout import INDEXES
from tests.support.databases import Database


class Schedule:
    """Lets one request through at a time, whose next is drawn from a seed.

    A writer waits here with each request until it is drawn; the draw is made when every writer
    that runs has come to wait, so that a seed always gives the same order.
    """

    def __init__(self, seed: int, writers: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a seeded schedule
        self._running = writers
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.order: list[int] = []

    async def turn(self, writer: int) -> None:
        """Wait for this writer's turn to send a request."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((writer, turn))
        self._running -= 1
        self._draw()
        await turn

    def end(self) -> None:
        """A writer is done."""
        self._running -= 1
        self._draw()

    def _draw(self) -> None:
        if self._running or not self._waiting:
            return
        self._waiting.sort(key=lambda one: one[0])
        writer, turn = self._waiting.pop(self._random.randrange(len(self._waiting)))
        self.order.append(writer)
        self._running += 1
        turn.set_result(None)


class _ScheduledTable(DynamoTable):
    """A table whose requests wait for their turn."""

    schedule: Schedule
    writer: int

    async def _repeat(self, operation: str, **request: Any) -> Any:
        await self.schedule.turn(self.writer)
        return await super()._repeat(operation, **request)


async def play(
    database: Database,
    storage: DurableStorage,
    seed: int,
    writers: Sequence[Callable[[DurableStorage], Awaitable[None]]],
) -> list[int]:
    """Let writers run to their end, each over a view of its own; return who sent each request."""
    schedule = Schedule(seed, len(writers))

    async def follow(number: int) -> None:
        view = storage.for_scope(storage.scope)
        view.table = table = _ScheduledTable(
            database.table, INDEXES, client=database.client, clock=storage.clock
        )
        table.schedule, table.writer = schedule, number
        try:
            await writers[number](view)
        finally:
            schedule.end()

    async with asyncio.TaskGroup() as group:
        for number in range(len(writers)):
            group.create_task(follow(number))
    return schedule.order
