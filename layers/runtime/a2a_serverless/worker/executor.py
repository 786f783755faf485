"""Running executors that were written for the official SDK: their context and their queue."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, ParamSpec, Self, TypeVar

from a2a.server.events import EventQueue
from a2a.types import Message, TaskState
from google.protobuf.message import Message as ProtobufMessage

from a2a_serverless.errors import InvalidAgentEventError
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.tasks.attempts import Returned, on_return
from a2a_serverless.tasks.entries import Entry
from a2a_serverless.tasks.fold import Event
from a2a_serverless.tasks.head import is_terminal
from a2a_serverless.tasks.rules import ContextWrite
from a2a_serverless.worker.failures import place
from a2a_serverless.worker.loops import first_of
from a2a_serverless.worker.turn import TurnView
from a2a_serverless.worker.writer import TurnWriter

E = TypeVar("E", bound=Event)
P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

FEW_CALLS: Final = 64
"""Calls of one attempt up to which those that were awaited are not sorted out."""
MANY_EVENTS: Final = 10_000
"""Events of one attempt after which the log asks whether the agent comes to an end."""
_RUNTIME: Final = __name__.partition(".")[0]


class _Call(NamedTuple):
    """A call of the agent: the method's name, and the line."""

    name: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """Return the line as messages name it."""
        return place(self.file, self.line)


class _Calls:
    """The calls of one attempt's agent that were made and not awaited yet, with their lines."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._made: dict[Coroutine[Any, Any, Any], _Call] = {}
        self._most = FEW_CALLS
        self._last: _Call | None = None

    @property
    def last_place(self) -> str:
        """Return the line of the agent's last call."""
        return "an unknown line" if self._last is None else self._last.place

    def note(self, name: str, made: Coroutine[Any, Any, Any]) -> None:
        """Take a coroutine that the caller's caller has asked for.

        Calls from other threads are not noted: a thread may be about to await one when the turn
        ends.
        """
        if threading.get_ident() != self._thread:
            return
        if len(self._made) >= self._most:  # rarely: thousands of calls may be made at once
            for earlier in tuple(self._made):
                if _has_begun(earlier):
                    self._made.pop(earlier, None)
            self._most = max(FEW_CALLS, 2 * len(self._made))
        frame = sys._getframe(2)  # noqa: SLF001 - the one way to it
        if frame.f_globals.get("__name__", "").partition(".")[0] != _RUNTIME:
            self._last = _Call(name, frame.f_code.co_filename, frame.f_lineno)
            self._made[made] = self._last

    def take_forgotten(self) -> list[_Call]:
        """Return the calls that were not awaited, in their order, and forget them."""
        made, self._made = self._made, {}
        forgotten = [call for each, call in made.items() if not _has_begun(each)]
        for each in made:
            if not _has_begun(each):
                each.close()  # so that Python does not warn of it a second time
        return forgotten


def _noted(
    kind: str,
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a decorator that notes each call of an `async` method in its object's `_calls`.

    `kind` is the name under which the agent has the object, such as `ctx`. The method still returns
    its coroutine, which can be made a task.
    """

    def decorate(
        method: Callable[P, Coroutine[Any, Any, T]],
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        name = f"{kind}.{method.__name__}(…)"

        @functools.wraps(method)
        def call(*args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
            made = method(*args, **options)
            owner: Any = args[0]
            owner._calls.note(name, made)  # noqa: SLF001 - what the decorator asks for
            return made

        return _marked(call)

    return decorate


def notes_calls(kind: type[T]) -> type[T]:
    """Decorate the class of an agent's `ctx`, so that calls of its `async` methods are noted."""
    for name, method in tuple(vars(kind).items()):
        if inspect.iscoroutinefunction(method) and not name.startswith("_"):
            setattr(kind, name, _noted("ctx")(method))
    return kind


def _marked(function: Callable[P, T]) -> Callable[P, T]:
    """Make `inspect.iscoroutinefunction`, which mocks use, true for a function (Python 3.12 on)."""
    mark = getattr(inspect, "markcoroutinefunction", None)
    return function if mark is None else mark(function)


def _has_begun(made: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(made) != inspect.CORO_CREATED


class TurnQueue(EventQueue):
    """The queue of one attempt: what is enqueued becomes the task's log.

    Events are taken in the order in which they come. One that ends the turn is committed when
    `enqueue_event` returns; others are committed when the agent pauses, within `FlushMs`. After the
    end of the turn and after `close` events are dropped, and logged. Calls from another event loop,
    for instance in an agent's thread, run in the queue's own loop: an agent that blocks that loop
    until its thread has emitted an event waits for ever.
    """

    def __init__(self, writer: TurnWriter, view: TurnView) -> None:
        self._writer = writer
        self._guard = writer.guard
        self._view = view
        self._home = asyncio.get_running_loop()
        self._taking = asyncio.Lock()
        self._is_closed = False
        self._is_over = False
        self._state: ContextWrite | None = None
        self._state_version: int | None = None
        self._taken = 0
        self._calls = _Calls()
        self._stopping = asyncio.Event()
        self.fault: InvalidAgentEventError | None = None
        """The first event that no task can hold: it fails the task, even if the agent goes on."""
        self.on_taken: Callable[[Event], Awaitable[None]] = _nothing
        """Awaited after each event that was taken; the testing kit can stop the agent there."""

    @property
    def calls(self) -> _Calls:
        """Return the agent's calls, of this queue and of the `ctx` before it."""
        return self._calls

    @property
    def is_cancelled(self) -> bool:
        """Return True if the client has asked to cancel; also true while the loop is blocked."""
        return self._guard.is_canceling

    @property
    def state(self) -> TaskState | None:
        """Return the last state that the agent has emitted on this turn."""
        return self._view.state

    @property
    def has_ended(self) -> bool:
        """Return True if the agent has emitted an event that ends the turn, and no `fault`."""
        is_ended = self._is_over or on_return(self._view.state) is Returned.ENDED
        return is_ended and self.fault is None

    @_noted("event_queue")
    async def enqueue_event(self, event: Event) -> None:
        """Log an event.

        Raises:
            InvalidAgentEventError: no A2A task can hold it; the turn fails.
        """
        await self._emit(event)

    async def end_with(self, event: Event) -> None:
        """Log an event that ends the turn, even if its state alone would not.

        Raises:
            InvalidAgentEventError: as `enqueue_event`.
        """
        await self._emit(event, ends_turn=True)

    async def reply(self, message: Message) -> None:
        """Answer with a message, also after task events; ends the turn."""
        await self._at_home(self._enqueue(message, self._view.replied))

    def keep_pause(self) -> None:
        """Put the pause into the log's next commit if the agent has kept it (`TurnView.kept`)."""
        entries = self._view.kept()
        if entries:
            self._put(entries)

    async def drain(self) -> None:
        """Return when all events that were taken are committed or, after a failure, dropped."""
        await self._at_home(self._writer.drain())

    def stop_waiting(self) -> None:
        """End the agent's waits in other event loops; in this loop CancelledError ends them."""
        self._stopping.set()

    async def sleep(self, seconds: float) -> None:
        """Wait by the worker's clock.

        Raises:
            CancelledError: the client has canceled; raised here in a loop other than the worker's.
        """
        clock = self._guard.clock
        if self._is_home:
            await clock.sleep(seconds)
            return
        await self._at_home(first_of(clock.sleep(seconds), self._stopping.wait()))
        if self._stopping.is_set():
            raise asyncio.CancelledError

    async def load_state(self) -> Any | None:
        """Return the conversation's state, as this turn has stored it if it has; None if unset."""
        return await self._at_home(self._load_state())

    async def store_state(self, value: Any) -> None:
        """Store the conversation's state with the agent's end of the turn, and with no other end.

        Without an earlier `load_state`, the version to replace is read here. If two tasks write at
        the same time, one of them is refused, so that no update is overwritten unseen.
        """
        await self._at_home(self._store_state(value))

    async def close(self, immediate: bool = False) -> None:  # noqa: FBT001, FBT002 - the SDK's
        """Take no more events; unless `immediate`, return when those taken are committed."""
        self.shut()
        if not immediate:
            await self.drain()

    def shut(self) -> None:
        """Take no more events; log the calls that the agent did not await."""
        self._is_closed = True
        self._log_forgotten(self._calls.take_forgotten())

    def refuse_forgotten(self) -> None:
        """Check that the agent has awaited its calls.

        Raises:
            InvalidAgentEventError: it has not, and what it wanted to say would be lost: the turn
                fails.
        """
        forgotten = self._calls.take_forgotten()
        self._log_forgotten(forgotten[1:])
        for call in forgotten[:1]:
            msg = f"The agent has not awaited {call.name}: write `await {call.name}`."
            self.fault = self.fault or InvalidAgentEventError(msg, place=call.place)
            raise self.fault

    def _log_forgotten(self, calls: list[_Call]) -> None:
        for call in calls:
            extra = {"action": "never_awaited", "task_id": self._guard.head.task_id}
            logger.warning("%s was never awaited (%s)", call.name, call.place, extra=extra)

    def is_closed(self) -> bool:
        return self._is_closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _is_home(self) -> bool:
        return asyncio.get_running_loop() is self._home

    async def _at_home(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call in the queue's own loop, whichever loop the caller runs in."""
        if self._is_home:
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._home))

    async def _load_state(self) -> Any | None:
        if self._state is not None:
            return json.loads(self._state.value)
        value, self._state_version = await self._guard.state()
        return value

    async def _store_state(self, value: Any) -> None:
        if self._state_version is None:
            await self._load_state()
        self._state = context_write(value, self._state_version)

    async def _emit(self, event: Event, *, ends_turn: bool = False) -> None:
        if self._is_home or self._takes(_kind(event)):  # after the turn that loop may be gone
            await self._at_home(self._enqueue(event, self._entries_of, ends_turn=ends_turn))

    async def _enqueue(
        self, event: E, entries_of: Callable[[E], tuple[Entry, ...]], *, ends_turn: bool = False
    ) -> None:
        # The agent yields here. So an agent that emits all the time can still be cancelled, and
        # calls that it has made tasks of have begun before an ending looks for forgotten ones.
        await asyncio.sleep(0)
        await self._take(event, entries_of, ends_turn=ends_turn)

    async def _take(
        self, event: E, entries_of: Callable[[E], tuple[Entry, ...]], *, ends_turn: bool = False
    ) -> None:
        async with self._in_turn(event):
            if not self._takes(_kind(event)):
                return
            entries = entries_of(event)
            if ends_turn or self.has_ended:  # before the commit that ends the turn
                self.refuse_forgotten()
            self._put(entries, ends_turn=ends_turn)
            self._count()
        await self._settle(ends_turn=ends_turn)
        await self.on_taken(event)

    def _entries_of(self, event: Event) -> tuple[Entry, ...]:
        try:
            return self._view.entries_of(event)
        except InvalidAgentEventError as fault:
            self.fault = self.fault or fault
            raise

    def _count(self) -> None:
        """Warn, once, of an agent that may emit without end."""
        self._taken += 1
        if self._taken == MANY_EVENTS:
            extra = {"action": "many_events", "task_id": self._guard.head.task_id}
            text = (
                "The turn has emitted %d events, the last one at %s: does its loop end? If it does,"
                " put more into one call"
            )
            logger.warning(text, MANY_EVENTS, self._calls.last_place, extra=extra)

    @asynccontextmanager
    async def _in_turn(self, event: object) -> AsyncIterator[None]:
        """Wait until the events before this one are taken, and until there is room for it.

        The lock is fair: events keep the order in which they came, even if several tasks emit at
        once and a full batch makes all of them wait.
        """
        size = event.ByteSize() if isinstance(event, ProtobufMessage) else 0
        size += 0 if self._state is None else len(self._state.value)
        async with self._taking:
            while self._writer.is_full or not self._writer.has_room(size):
                await self._writer.drain()
            yield

    def _takes(self, kind: str) -> bool:
        if not (self._is_closed or self.has_ended or self.fault):
            return True
        extra = {"action": "event_dropped", "task_id": self._guard.head.task_id, "event": kind}
        logger.warning("Event after the end of the turn", extra=extra)
        return False

    @property
    def _keeps_state(self) -> bool:
        """Return True if the conversation's state is stored: the agent itself has ended the turn.

        A failure or a cancel leaves the state as it was. So does a pause of a task that is being
        canceled, because the cancel ends that task.
        """
        is_final = self.state is not None and is_terminal(self.state)
        return self.has_ended and (is_final or not self.is_cancelled)

    def _put(self, entries: tuple[Entry, ...], *, ends_turn: bool = False) -> None:
        self._is_over = ends_turn
        self._writer.put(*entries, state=self._state if self._keeps_state else None)

    async def _settle(self, *, ends_turn: bool = False) -> None:
        """Wait for the commit of an ending, and of a batch that is full."""
        if self.has_ended or self._writer.is_full:
            # If the commit fails, the attempt is told, and stops the agent.
            await self._writer.drain(ends_turn=ends_turn)


async def _nothing(_: Event) -> None:
    """Do nothing."""


def _kind(event: object) -> str:
    return type(event).__name__
