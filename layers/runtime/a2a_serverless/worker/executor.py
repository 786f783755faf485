"""Running executors that were written for the official SDK: their context and their queue."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

from a2a.server.events import EventQueue
from a2a.types import Message, TaskState
from google.protobuf.message import Message as ProtobufMessage

from a2a_serverless.errors import InvalidAgentEventError
from a2a_serverless.storage.durable import DurableStorage, context_write
from a2a_serverless.tasks.attempts import Returned, on_return
from a2a_serverless.tasks.entries import Entry
from a2a_serverless.tasks.events import Event
from a2a_serverless.tasks.head import is_terminal
from a2a_serverless.tasks.rules import ContextWrite
from a2a_serverless.worker.translation import TurnView
from a2a_serverless.worker.writer import TurnWriter

E = TypeVar("E")
T = TypeVar("T")

logger = logging.getLogger(__name__)


class TurnQueue(EventQueue):
    """The queue of one attempt: what is enqueued becomes the task's log.

    Events are taken in the order in which they come. One that ends the turn is committed when
    `enqueue_event` returns; others follow when the agent pauses, within 0.1 s. After the end of the
    turn and after `close` events are dropped, and logged. Calls from another event loop, as of an
    agent's thread, run in the queue's own: an agent that blocks that loop until its thread has
    emitted waits for itself.
    """

    def __init__(self, writer: TurnWriter, view: TurnView, storage: DurableStorage) -> None:
        self._writer = writer
        self._view = view
        self._storage = storage
        self._home = asyncio.get_running_loop()
        self._taking = asyncio.Lock()
        self._is_closed = False
        self._is_over = False
        self._state: ContextWrite | None = None
        self._state_version: int | None = None
        self.fault: InvalidAgentEventError | None = None
        """The first event that no task can hold: it fails the task, even if the agent goes on."""
        self.is_cancelled = False
        """True if the client has asked to cancel the task."""

    @property
    def state(self) -> TaskState | None:
        """Return the last state that the agent has emitted on this turn."""
        return self._view.state

    @property
    def has_ended(self) -> bool:
        """Return True if the agent has emitted an event that ends the turn."""
        return self._is_over or on_return(self._view.state) is Returned.ENDED

    async def enqueue_event(self, event: Event) -> None:
        """Log an event.

        Raises:
            InvalidAgentEventError: no A2A task can hold it; the turn fails.
        """
        await self._emit(event)

    async def end_with(self, event: Event) -> None:
        """Log an event that ends the turn, also where its state alone would not.

        Raises:
            InvalidAgentEventError: as `enqueue_event`.
        """
        await self._emit(event, ends_turn=True)

    async def reply(self, message: Message) -> None:
        """Answer with a message, also after task events; ends the turn."""
        await self._at_home(self._take(message, self._view.replied))

    def keep_pause(self) -> None:
        """Put the pause to log if the agent returned with the given status (`TurnView.kept`)."""
        entries = self._view.kept()
        if entries:
            self._put(entries)

    async def load_state(self) -> Any | None:
        """Return the conversation's state, with what this turn has stored; None without any."""
        return await self._at_home(self._load_state())

    async def store_state(self, value: Any) -> None:
        """Store the conversation's state with the agent's end of the turn, and with no other end.

        Without an earlier `load_state`, the version to replace is read here. Of two tasks that
        write at the same time one is refused: neither silently overwrites the other.
        """
        await self._at_home(self._store_state(value))

    async def close(self, immediate: bool = False) -> None:  # noqa: FBT001, FBT002 - the SDK's
        """Take no more events; unless `immediate`, return when those taken are committed."""
        self.shut()
        if not immediate:
            await self._at_home(self._writer.drain())

    def shut(self) -> None:
        """Take no more events."""
        self._is_closed = True

    def is_closed(self) -> bool:
        return self._is_closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _at_home(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call in the queue's own loop, whichever loop the caller runs in."""
        if asyncio.get_running_loop() is self._home:
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._home))

    async def _load_state(self) -> Any | None:
        if self._state is not None:
            return json.loads(self._state.value)
        context_id = self._writer.head.context_id
        value, self._state_version = await self._storage.load_context_version(context_id)
        return value

    async def _store_state(self, value: Any) -> None:
        if self._state_version is None:
            await self._load_state()
        self._state = context_write(value, self._state_version)

    async def _emit(self, event: Event, *, ends_turn: bool = False) -> None:
        is_home = asyncio.get_running_loop() is self._home
        if is_home or self._takes(_kind(event)):  # else that loop may be gone with the turn
            await self._at_home(self._enqueue(event, ends_turn=ends_turn))

    async def _enqueue(self, event: Event, *, ends_turn: bool = False) -> None:
        # The agent yields here, so that one that emits all the time can still be cancelled.
        await asyncio.sleep(0)
        await self._take(event, self._entries_of, ends_turn=ends_turn)

    async def _take(
        self, event: E, entries_of: Callable[[E], tuple[Entry, ...]], *, ends_turn: bool = False
    ) -> None:
        async with self._in_turn(event):
            if not self._takes(_kind(event)):
                return
            self._put(entries_of(event), ends_turn=ends_turn)
        await self._settle(ends_turn=ends_turn)

    def _entries_of(self, event: Event) -> tuple[Entry, ...]:
        try:
            return self._view.entries_of(event)
        except InvalidAgentEventError as fault:
            self.fault = self.fault or fault
            raise

    @asynccontextmanager
    async def _in_turn(self, event: object) -> AsyncIterator[None]:
        """Wait until the events before this one are taken, and until there is room for it.

        The lock is fair: events keep the order in which they came, also where several tasks emit at
        once and a full batch makes all of them wait.
        """
        size = event.ByteSize() if isinstance(event, ProtobufMessage) else 0
        async with self._taking:
            while self._writer.is_full or not self._writer.has_room(size):
                await self._writer.drain()
            yield

    def _takes(self, kind: str) -> bool:
        if not (self._is_closed or self.has_ended or self.fault):
            return True
        extra = {"action": "event_dropped", "task_id": self._writer.head.task_id, "event": kind}
        logger.warning("Event after the end of the turn", extra=extra)
        return False

    @property
    def _keeps_state(self) -> bool:
        """Return True if the agent has ended the turn, and nothing else ends the task in its place.

        A failure and a cancel leave the state as it was; so does a pause of a task that is being
        canceled, which the cancel ends.
        """
        is_final = self.state is not None and is_terminal(self.state)
        return self.has_ended and (is_final or not self.is_cancelled)

    def _put(self, entries: tuple[Entry, ...], *, ends_turn: bool = False) -> None:
        self._is_over = ends_turn
        self._writer.put(*entries, state=self._state if self._keeps_state else None)

    async def _settle(self, *, ends_turn: bool = False) -> None:
        """Wait for the commit of an ending, and of a batch that is full."""
        if self.has_ended or self._writer.is_full:
            # Where it fails, the attempt is told, and stops the agent.
            await self._writer.drain(ends_turn=ends_turn)


def _kind(event: object) -> str:
    return type(event).__name__
