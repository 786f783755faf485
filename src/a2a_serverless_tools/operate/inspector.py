"""Looks at the tasks of a place: at each as a whole, and at lists of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from a2a.types import Message, StreamResponse, Task, TaskArtifactUpdateEvent
from google.protobuf.message import Message as AnyMessage

from a2a_serverless.errors import TaskNotFoundError, UnreadableTaskError
from a2a_serverless.settings import Settings
from a2a_serverless.storage.blobs import InlineLimits
from a2a_serverless.storage.conversation import conversation_queue
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.shares import ahead
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.conversation import Position
from a2a_serverless.tasks.entries import json_of
from a2a_serverless.tasks.fold import (
    Cursor,
    Event,
    Fold,
    Log,
    events_of,
    incarnation_tag,
)
from a2a_serverless.tasks.head import ASLEEP, Head
from a2a_serverless.tasks.identity import Scope, TaskKey
from a2a_serverless.tasks.usage import total
from a2a_serverless.wiring import Backends
from a2a_serverless_tools.operate.cost import Cost, CostSum, Workers, cost_of
from a2a_serverless_tools.operate.details import TaskDetails, task_details
from a2a_serverless_tools.operate.finding import find_tasks
from a2a_serverless_tools.operate.lists import Lists, TaskRow
from a2a_serverless_tools.operate.logs import Logs
from a2a_serverless_tools.operate.timeline import InLine, Timeline, timeline
from a2a_serverless_tools.operate.wording import iso

_KEPT_DETAILS: Final = 16
_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Tasks whose log is kept, and the bytes of all their entries."""
_AT_ONCE: Final = 16
"""Tasks of which the costs are counted at the same time."""
_MOST_BEFORE: Final = 1_000
"""The most turns before one in the line of its caller that are counted."""


Show: TypeAlias = Callable[[AnyMessage], Awaitable[None]]
"""Replaces what a message refers to by contents or links, in place."""
_EventLine: TypeAlias = tuple[str, Mapping[str, Any]]
"""The cursor of an event, and the event as subscribers get it: a StreamResponse as JSON."""


class Inspector:
    """Looks at tasks of all scopes.

    Args:
        storage: the storage, in any scope.
        settings: the settings of its deployment.
        place: what is looked at, for sentences, such as `the table tasks`.
        backends: the backends with the queue; None: only the table can be reached.
        logs: the logs of its functions; None: they cannot be reached.
        workers: what is known of the function that runs the agent; None: nothing.

    Every method raises:
        ConfigurationError: one sentence says what cannot be reached, and what to do.
    """

    def __init__(
        self,
        storage: DurableStorage,
        settings: Settings,
        *,
        place: str,
        backends: Backends | None = None,
        logs: Logs | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.storage = storage
        self.settings = settings
        self.place = place
        self.logs = logs
        self.backends = backends
        self._workers = workers or Workers()
        self.lists = Lists(storage)
        self._details: dict[TaskKey, TaskDetails] = {}
        """The tasks that were seen last, for `seen` to go on from."""

    async def timelines(self, task_id: str, scope: str | None = None) -> list[Timeline]:
        """Return the task of `scope`; without a scope, all tasks with this id, ordered by scope."""
        scopes = (
            [scope] if scope else [digest for digest, _ in await find_tasks(self.storage, task_id)]
        )
        found = [await self.seen(digest, task_id) for digest in scopes]
        return [one for one in found if one is not None]

    async def seen(self, scope: str, task_id: str) -> Timeline | None:
        """Return a task as far as it can be read; None if there is none.

        Of a task that was seen a while ago, only what was committed since is read.
        """
        storage = self.storage.for_scope(Scope(scope))
        details = await task_details(storage, task_id, self._details.pop((scope, task_id), None))
        if details is None:
            return None
        self._details[scope, task_id] = details
        self._forget()
        return timeline(
            details,
            now_ms=storage.clock.now_ms(),
            lease_s=storage.timing.lease_s,
            in_line=await in_line_of(storage, details.head),
            push_events=self.settings.push_events,
        )

    def cost(self, shown: Timeline) -> Cost:
        """Return what a task has cost so far."""
        return cost_of(shown, self._workers)

    async def costs(self, rows: Iterable[TaskRow]) -> list[CostSum]:
        """Return what each of some tasks has cost so far; what is gone or damaged is left out."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def cost(row: TaskRow) -> CostSum | None:
            async with slots:
                try:
                    shown = await self.seen(*row.key)
                except UnreadableTaskError:
                    return None
            if shown is None:
                return None
            found, used = self.cost(shown), total(shown.head.usage)
            return CostSum(
                day=(iso(row.head.created_at) or "")[:10],
                caller=row.asked.by or row.head.scope,
                least=found.least,
                most=found.most,
                models=found.models or 0.0,
                tokens=used.tokens,
                unpriced=int(bool(found.unpriced)),
            )

        return [one for one in await asyncio.gather(*map(cost, rows)) if one is not None]

    def _forget(self) -> None:
        """Forget the tasks that were seen longest ago, until the others are few and small."""
        while self._details and (
            len(self._details) > _KEPT_DETAILS
            or sum(one.head.size for one in self._details.values()) > _KEPT_BYTES
        ):
            del self._details[next(iter(self._details))]

    async def show(self, message: AnyMessage) -> None:
        """Replace what a message refers to by contents or links, in place."""
        await self.storage.show(message, self._inline)

    @property
    def _inline(self) -> InlineLimits:
        return self.settings.inline(self.settings.public_url)

    async def events(
        self, task_id: str, scope: str, *, is_followed: bool = False
    ) -> AsyncIterator[_EventLine]:
        """Yield the task's events from the first one on; `is_followed`: until it has ended.

        Raises:
            TaskNotFoundError: there is no such task, or it has been deleted meanwhile.
        """
        storage = self.storage.for_scope(Scope(scope))
        log = await storage.read(task_id)
        if log is None:
            raise TaskNotFoundError
        for line in event_lines(await storage.shown(log, self._inline)):
            yield line
        if not is_followed:
            return
        last = Cursor(log.head.version, 1_000_000_000, incarnation_tag(log.head.incarnation))
        tail, _ = await Tail.resume(storage, task_id, last)
        async for told in tail.events(until=lambda head: head.is_terminal, deadline=math.inf):
            await storage.show(told.event, self._inline)
            yield str(told.cursor), as_response(told.event)


async def in_line_of(storage: DurableStorage, head: Head) -> InLine | None:
    """Return the place of a turn that is left; None if it is not. One request."""
    if not head.turn.parked or head.turn.parked == ASLEEP or not head.turn.is_open:
        return None
    waits = InLine(reason=head.turn.parked)
    if head.turn.parked == "share":
        before = await ahead(storage, head, _MOST_BEFORE + 1)
        return replace(waits, before=before if before <= _MOST_BEFORE else None)
    places = (await conversation_queue(storage, head.context_id)).positions
    if not places:
        return waits
    own = next((at for at, place in enumerate(places, 1) if place == Position.of(head)), 0)
    return replace(waits, first=places[0].task_id, place=own, places=len(places))


def event_lines(log: Log) -> Iterable[_EventLine]:
    """Yield the events of a log that was read from its beginning, with their cursors."""
    fold = Fold(log.head.task_id, log.head.context_id)
    tag = incarnation_tag(log.head.incarnation)
    for record in log.records:
        fold.add(record)
        for index, event in enumerate(events_of(record, fold)):
            yield str(Cursor(record.version, index, tag)), as_response(event)


def as_response(event: Event) -> dict[str, Any]:
    """Return an event as subscribers get it."""
    match event:
        case Task():
            response = StreamResponse(task=event)
        case Message():
            response = StreamResponse(message=event)
        case TaskArtifactUpdateEvent():
            response = StreamResponse(artifact_update=event)
        case _:
            response = StreamResponse(status_update=event)
    shown: dict[str, Any] = json_of(response)
    return shown
