"""What an agent emits: the queue of the official SDK, and its events in commits.

Commits are batched, in order, and only made while the attempt owns its turn.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NoReturn, Self, TypeVar

from a2a.server.events import EventQueue
from a2a.types import (
    Message,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from google.protobuf.message import Message as ProtobufMessage

from a2a_serverless import faults
from a2a_serverless.clock import first_of
from a2a_serverless.errors import InvalidAgentEventError
from a2a_serverless.observability import metrics, spans
from a2a_serverless.observability.spans import Piece
from a2a_serverless.sources import Source
from a2a_serverless.storage.blobs import Inline
from a2a_serverless.storage.contexts import (
    PLAIN_BYTES,
    State,
    encoded,
    fits_item,
    size_of,
    value_in,
    write_of,
)
from a2a_serverless.storage.durable import MAX_COMMIT_BYTES
from a2a_serverless.tasks.attempts import Returned, on_return
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Entry,
    ModelsUsed,
    Recorded,
    StatusChanged,
    StepId,
    copied,
    encode_entries,
    is_plain,
)
from a2a_serverless.tasks.fold import Event, Record
from a2a_serverless.tasks.head import ASLEEP, HANDOVER, AttemptEnd, FailedBy, is_terminal
from a2a_serverless.tasks.pace import Pace, commit_units
from a2a_serverless.tasks.rules import Commit, ContextWrite, Waits
from a2a_serverless.worker.failures import (
    AgentFailedError,
    FinalError,
    RetryLater,
    WrongCallError,
    is_final,
)
from a2a_serverless.worker.files import AGENTS, FileInfo, Files
from a2a_serverless.worker.guard import Guard, Merged
from a2a_serverless.worker.loops import AgentCall, AgentCalls, noted
from a2a_serverless.worker.meter import Meter
from a2a_serverless.worker.steps import (
    CANCELLED,
    ENDINGS,
    MAX_APART_BYTES,
    MAX_RESULT_BYTES,
    PARK_S,
    STATE,
    DivergedError,
    Form,
    Journal,
    LeftError,
    Retry,
    Running,
    StepError,
    current_step,
    outside,
    running_step,
    until_time,
    wait_in,
)
from a2a_serverless.worker.turn import TurnView

E = TypeVar("E", bound=Event)
T = TypeVar("T")

logger = logging.getLogger(__name__)

FLUSH_AFTER_S = 0.1
"""Seconds that an entry waits for others to share its commit with, unless the last commit began as
long ago."""
PAUSE_ROUNDS = 8
"""Rounds of the event loop without a new entry after which the agent counts as waiting."""
FLUSH_BYTES = 64 * 1024
ROOM_FOR_FRAMES = 64 * 1024
"""Bytes that entries may need beyond the size of their event: frames, and ids that are added."""
BUSY_S: Final = 0.1
"""Seconds from one look at what is under way beside a sleep to the next."""
ROOM_FOR_RECORDS: Final = 1024
"""Bytes that a record may need beyond its value."""
CANCELLED_WITHIN_S: Final = 10.0
"""How many seconds later than before the agent may cancel a step that it has cancelled once."""
MANY_EVENTS: Final = 10_000
"""Events of one attempt after which the log asks whether the agent comes to an end."""


class TurnQueue(EventQueue):
    """The queue of one attempt: what is enqueued becomes the task's log.

    Events are taken in the order in which they come. One that ends the turn is committed when
    `enqueue_event` returns; others are committed when the agent pauses, within `FlushMs`. After the
    end of the turn and after `close` events are dropped, and logged. Calls from another event loop,
    for instance in an agent's thread, run in the queue's own loop: an agent that blocks that loop
    until its thread has emitted an event waits for ever.
    """

    def __init__(
        self,
        writer: TurnWriter,
        view: TurnView,
        kept: Sequence[Record] = (),
        *,
        hands_over: Callable[[float], bool] = lambda _: False,
        inline: Inline = AGENTS,
    ) -> None:
        self._writer = writer
        self._inline = inline
        self._guard = writer.guard
        self._view = view
        self._journal = Journal(kept) if kept else None
        self._hands_over = hands_over
        self._longest_s = 0.0
        """Of the steps that this attempt has run: the next one may take as long."""
        self._sleeping: dict[StepId, int] = {}
        self._busy = 0
        """Short sleeps and blocking functions under way: a sleep beside them would cut them off."""
        self.left: AttemptEnd | None = None
        """The end of the attempt, once it has left its turn at a record."""
        self._home = asyncio.get_running_loop()
        self.main: asyncio.Task[Any] | None = None
        """The task in which the agent is called; it may start others."""
        self._taking = asyncio.Lock()
        self._is_closed = False
        self._is_over = False
        self._state: ContextWrite | None = None
        self._loaded: State | None = None
        """The conversation's state that the turn has loaded."""
        self._taken = 0
        self._calls = AgentCalls()
        self._stopping = asyncio.Event()
        self.fault: InvalidAgentEventError | None = None
        """The first event that no task can hold: it fails the task, even if the agent goes on."""
        self.on_taken: Callable[[Event], Awaitable[None]] = _nothing
        """Awaited after each event that was taken; the testing kit can stop the agent there."""

    @property
    def journal(self) -> Journal:
        """Return the steps of the attempt; it has none if its agent uses none."""
        if self._journal is None:
            self._journal = Journal()
        return self._journal

    @property
    def is_main_task(self) -> bool:
        """Return True in the task in which the agent is called."""
        return self._is_home and asyncio.current_task() is self.main

    @property
    def exit(self) -> BaseException | None:
        """Return the exit that has stopped the attempt, of a task that the agent has started."""
        reason = self._guard.reason
        return reason.__cause__ if isinstance(reason, AgentFailedError) else None

    @property
    def calls(self) -> AgentCalls:
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

    def has_artifact(self, artifact_id: str) -> bool:
        """Return True if the task has an artifact, also one of earlier attempts that is kept."""
        return self._view.has_artifact(artifact_id)

    @property
    def completes_empty(self) -> bool:
        """Return True if the agent has completed the task, which has no text, data or file."""
        return self._view.completes_empty

    async def put_file(self, source: Source, media_type: str, filename: str) -> Part:
        """Store a file beside the log of the turn's task; return the part that stands for it."""
        return await self._at_home(self._files.put(source, media_type, filename))

    async def file_chunks(self, file: FileInfo) -> AsyncIterator[bytes]:
        """Yield the content of a file, see `Files.chunks`."""
        chunks = self._files.chunks(file)
        while (chunk := await self._at_home(_next(chunks))) is not None:
            yield chunk

    async def link_to(self, file: FileInfo) -> str:
        """Return a new link to a file of this service."""
        return await self._at_home(self._files.link(file))

    @property
    def _files(self) -> Files:
        return Files(self._guard.log, self._guard.head, self._inline)

    @property
    def meter(self) -> Meter:
        """Return what counts the tokens of the attempt's models."""
        return self._writer.meter

    @property
    def now_ms(self) -> int:
        """Return the time of the worker's clock, in milliseconds."""
        return self._guard.clock.now_ms()

    @property
    def key(self) -> tuple[str, str, int]:
        """Return the names of the turn: its scope, task and number."""
        return *self._guard.key, self._guard.params.turn

    @noted("event_queue")
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

    def tell_stored(self, told: Callable[[tuple[Entry, ...]], Awaitable[None]]) -> None:
        """Await `told` after each commit; the testing kit can stop the agent there."""
        self._writer.on_stored = told

    def stop_waiting(self) -> None:
        """End the agent's waits in other event loops; in this loop CancelledError ends them."""
        self._stopping.set()

    async def sleep(self, seconds: float) -> None:
        """Wait by the worker's clock.

        Raises:
            CancelledError: the client has canceled; raised here in a loop other than the worker's.
        """
        clock = self._guard.clock
        with self.busy():
            if self._is_home:
                await clock.sleep(seconds)
                return
            await self._at_home(first_of(clock.sleep(seconds), self._stopping.wait()))
        if self._stopping.is_set():
            raise asyncio.CancelledError

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Let no sleep of a minute or more leave the turn during the block."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    # -- steps ---------------------------------------------------------------------------------

    async def step(
        self, step_id: StepId, work: Callable[[], Awaitable[Any]], form: Form, retry: Retry
    ) -> Any:
        """Return the recorded result of a step; or run it, and return when its record is stored.

        Raises:
            StepError: it has failed, and is not tried again.
            WrongCallError: its result cannot be recorded.
        """
        kept = await self.recorded(step_id)
        if kept is not None and kept.form == CANCELLED:
            await self._cancelled_again(kept)
        if kept is not None and kept.form != "until":
            return form.decoded(kept)
        until, tried = wait_in(kept)
        if until > self._guard.clock.now_ms():
            await self._at_home(self._park(step_id, until))
        with running_step(self.journal, step_id, at_home=self._call_at_home) as running:
            while True:
                await self._unless_stopped()
                began = self._guard.clock.monotonic()
                try:
                    with _step_span(step_id, tried):
                        result = await work()
                    self._longest_s = max(self._longest_s, self._guard.clock.monotonic() - began)
                    break
                except asyncio.CancelledError:
                    self._cancelled(running, self._guard.clock.monotonic() - began)
                    raise
                except ENDINGS:
                    raise
                except BaseException as error:
                    await self._unless_stopped()
                    tried += 1
                    wait_s = None if running.has_streamed else retry.wait_s(tried, error)
                    if wait_s is None:
                        told = self._failed(step_id, error)
                        if told is error:
                            raise  # not `from` itself, which would cut off its causes
                        raise told from error
                    running.held.clear()
                    await self._at_home(self._wait(running, tried, wait_s))
            has_blobs = self._guard.log.table.blobs is not None
            most = MAX_APART_BYTES if has_blobs else MAX_RESULT_BYTES
            entry = form.encoded(step_id, result, most)
            await self._at_home(self._record(running, entry))
        return form.decoded(entry)

    async def recorded(self, step_id: StepId) -> Recorded | None:
        """Return the record of a step with its value; None if it has none.

        Raises:
            FinalError: its value is not stored any more.
        """
        kept = self.journal.found(step_id)
        if kept is None or not kept.is_apart:
            return kept
        whole = await self._at_home(self._guard.log.whole_record(self._guard.head, kept))
        if whole is None:
            place = kept.value.decode(errors="replace")
            raise FinalError(
                f"The record of step {step_id.name!r} cannot be read, as its blob {place} is not"
                " stored any more: restore it, and send the message again in a new task.",
                client_text="What the task has done so far cannot be read any more: send the"
                " message again in a new task.",
            )
        return whole

    async def _unless_stopped(self) -> None:
        """Return while the attempt goes on; else wait until its end cancels the caller.

        An attempt that has been stopped runs nothing more, and what its steps raise does not count.

        Raises:
            CancelledError: at once, in a loop other than the worker's.
        """
        if self._guard.stopped.is_set():
            if not self._is_home:
                raise asyncio.CancelledError
            await asyncio.get_running_loop().create_future()

    def _cancelled(self, running: Running, after_s: float) -> None:
        """Note that the agent has cancelled a step of which clients have seen a part.

        If the agent goes on, that part stays: run again, the step would say it twice.
        """
        is_agents = not (self._guard.stopped.is_set() or self._guard.is_canceling)
        if is_agents and running.has_streamed:
            self.journal.delay(Recorded(running.id, CANCELLED, json.dumps(after_s).encode()))

    async def _cancelled_again(self, kept: Recorded) -> NoReturn:
        """Wait to be cancelled, as in the attempt in which the step has run.

        Raises:
            DivergedError: it is not cancelled this time.
        """
        await self.sleep(json.loads(kept.value) + CANCELLED_WITHIN_S)
        self.diverge(f"not cancelled the step {kept.id.name!r}, as it had before")

    async def sleep_until(self, step_id: StepId, until: int) -> None:
        """Sleep until a time in milliseconds, or until the one that the sleep's record has.

        No process waits, and the code runs again after it.

        Raises:
            WrongCallError: the task expires before.
        """
        until = wait_in(self.journal.found(step_id))[0] or until
        if until > self._guard.clock.now_ms():
            await self._at_home(self._park(step_id, until))

    def _failed(self, step_id: StepId, error: BaseException) -> BaseException:
        """Return what the agent gets of a step's exception; its record waits for what follows.

        What the runtime acts on itself goes through as it is.
        """
        if isinstance(error, RetryLater | WrongCallError | InvalidAgentEventError | StepError):
            return error
        if is_final(error):
            return error
        told = StepError.of(step_id, error)
        self.journal.delay(told.record(step_id))
        return told

    async def _wait(self, running: Running, tried: int, seconds: float) -> None:
        """Wait for the next try of a step: here, or, if it takes long, asleep."""
        clock = self._guard.clock
        if seconds < PARK_S and not self._hands_over(seconds):
            await clock.sleep(seconds)
            return
        until = clock.now_ms() + int(seconds * 1000)
        await self._park(running.id, until, own=running, tried=tried)

    async def _record(self, running: Running, entry: Recorded) -> None:
        """Store a step's record, with what was held for it; leave the turn if it is time.

        Nothing is recorded any more once the agent has ended the turn.
        """
        entry = await self._apart(entry)
        # A step whose chunks clients have seen is recorded first: a record keeps all before it.
        while ahead := [one for one in self.journal.running - {running} if one.has_streamed]:
            await ahead[0].over.wait()
        async with self._in_turn(len(entry.value) + ROOM_FOR_RECORDS):
            if self.has_ended:
                return
            await self._set_delayed_apart()
            if not self._is_closed:
                for held in running.held:
                    self._put(self._view.entries_of(held))
                leaves = self.journal.running == {running} and self._hands_over(self._longest_s)
                records = self.journal.record(entry, running.caught)
                self._put_records(records, self._end(HANDOVER) if leaves else None)
        await self._stored()

    async def _park(
        self, step_id: StepId, until: int, *, own: Running | None = None, tried: int = 0
    ) -> None:
        """Leave the turn until a time, once nothing but `own` is under way; never return.

        Raises:
            WrongCallError: the task expires before.
        """
        if until >= self._guard.head.expires_at:
            raise WrongCallError(
                f"{step_id.name}: the task expires before the end of its wait. Wait for less, or"
                " keep the tasks of this deployment for longer (TtlDays)."
            )
        if own is not None or self.journal.found(step_id) is None:
            self.journal.delay(until_time(step_id, until, tried))
        caught = self.journal.failures() if own is None else own.caught
        self._sleeping[step_id] = until
        try:
            await self._nothing_beside(own)
            async with self._in_turn(ROOM_FOR_RECORDS):
                await self._set_delayed_apart()
                if not self._is_closed:
                    end = self._end(ASLEEP, until=min(self._sleeping.values()))
                    self._put_records(self.journal.waiting(caught), end)
            await self._stored()
        finally:  # the agent itself has cancelled it: the turn has not left, or leaves without it
            del self._sleeping[step_id]
            self.journal.take_back(step_id)

    async def _apart(self, entry: Recorded) -> Recorded:
        stored = await self._guard.log.record_apart(self._guard.head, entry)
        if stored is not entry:
            faults.point("blob-stored")
        return stored

    async def _set_delayed_apart(self) -> None:
        """Store what delayed records have that is large: the conversation's state.

        They are taken for a commit under the lock that the caller has, so that none is meanwhile.
        """
        for entry in self.journal.delayed:
            stored = await self._apart(entry)
            if stored is not entry:
                self.journal.delay(stored)

    async def _nothing_beside(self, own: Running | None) -> None:
        """Return when nothing but `own` is under way."""
        calm = 0  # rounds of the loop: what was begun beside it may want to sleep, too
        while calm < PAUSE_ROUNDS:
            others = [one for one in self.journal.running if one is not own]
            if others:
                await others[0].over.wait()
            elif self._busy:
                await self._guard.clock.sleep(BUSY_S)
            await asyncio.sleep(0)
            calm = 0 if others or self._busy else calm + 1

    def _end(self, reason: str, *, until: int = 0) -> AttemptEnd:
        token, now_ms = self._guard.token or "", self._guard.clock.now_ms()
        return AttemptEnd(token=token, reason=reason, at=now_ms, until=until)

    def _put_records(self, records: tuple[Recorded, ...], end: AttemptEnd | None) -> None:
        self._writer.put(*records, leaves=end)
        if end is not None:  # in this commit, so that nothing comes behind it
            self.left = end
            self._is_closed = True

    async def _stored(self) -> None:
        """Return when the records are stored; do not return if the attempt is over."""
        await self._writer.drain()
        if self._writer.failure is None and self.left is not None:
            self._guard.has_given_back = True
            self._guard.stop(LeftError())
        if self._writer.failure is not None or self._is_closed:
            await asyncio.get_running_loop().create_future()  # until the attempt is cancelled

    def _call_at_home(self, call: Callable[[], None]) -> None:
        if self._is_home:
            call()
        else:
            self._home.call_soon_threadsafe(call)

    def _is_kept(self, event: Event, *, ends_turn: bool) -> bool:
        """Return True if an event goes no further: the log keeps it, or its step holds it.

        Raises:
            DivergedError: the log keeps something else; the attempt is stopped.
        """
        if self._journal is None:
            return False
        step = current_step()
        if step is None:
            return self._was_told(event, ends_turn=ends_turn)
        if isinstance(event, TaskArtifactUpdateEvent):
            if len(self.journal.running) > 1 and not step.has_streamed:
                step.held.append(copied(event))
                return True
            for held in step.held:
                self._put(self._view.entries_of(held))
            step.held.clear()
            step.has_streamed = True
        return False

    def _was_told(self, event: Event, *, ends_turn: bool) -> bool:
        told = False
        try:
            if ends_turn or _ends(event):
                self.journal.check_all_told()
            elif isinstance(event, TaskArtifactUpdateEvent):
                told = self.journal.is_told(event.artifact)
            elif isinstance(event, TaskStatusUpdateEvent):
                told = self.journal.is_told(None)
        except DivergedError as error:
            self.stop(error)
            raise
        if told:
            self._view.repeat(event)
        return told

    def diverge(self, what: str, otherwise: str = "") -> NoReturn:
        """Stop the attempt: the agent has done something else than its records tell.

        Raises:
            DivergedError: always; the turn starts over.
        """
        error = DivergedError(what, otherwise)
        self._call_at_home(lambda: self.stop(error))
        raise error

    def stop(self, error: Exception) -> None:
        """Take nothing more, and stop the attempt for a reason."""
        self._is_closed = True
        self._guard.stop(error)

    # -- the conversation's state ----------------------------------------------------------------

    async def load_state(self) -> Any | None:
        """Return the conversation's state, as this turn has stored it if it has; None if unset."""
        return await self._at_home(self._load_state())

    async def store_state(self, value: Any, merge: Callable[[Any, Any], Any] | None = None) -> None:
        """Store the conversation's state with the agent's end of the turn, and with no other end.

        Without an earlier `load_state`, the version to replace is read here. If two tasks write at
        the same time, one of them is refused, so that no update is overwritten unseen; or it
        stores what its `merge` makes of the other's state and its own.
        """
        await self._at_home(self._store_state(value, merge))

    def size_of_state(self, value: Any) -> tuple[int, int]:
        """Return the bytes that count of a state, and the most of them that can be kept."""
        return size_of(encoded(value), has_blobs=self._guard.log.table.blobs is not None)

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

    def _log_forgotten(self, calls: list[AgentCall]) -> None:
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
            return await value_in(self._state.value)
        step_id = StepId(STATE, "", 1)
        kept = await self.recorded(step_id)
        if kept is not None:
            self._loaded = State(*json.loads(kept.value))
            return self._loaded.value
        self._loaded = state = await self._guard.state()
        loaded = [*state] if state.place else [state.value, state.version]
        self.journal.delay(Recorded(step_id, "json", json.dumps(loaded).encode()))
        return state.value

    async def _store_state(self, value: Any, merge: Callable[[Any, Any], Any] | None) -> None:
        if self._loaded is None:
            await self._load_state()
        self._state = await self._write_of(value, self._loaded or State())
        self._writer.merged = None if merge is None else partial(self._merged, merge, self._state)

    async def _merged(self, merge: Callable[[Any, Any], Any], own: ContextWrite) -> ContextWrite:
        stored = await self._guard.state(anew=True)
        own_value = await value_in(own.value)
        try:
            value = merge(stored.value, own_value)
        except Exception as error:
            raise AgentFailedError from error
        return await self._write_of(value, stored)

    async def _write_of(self, value: Any, replaced: State) -> ContextWrite:
        text = encoded(value)
        write = partial(
            write_of,
            text,
            replaced.version,
            has_blobs=self._guard.log.table.blobs is not None,
            replaced=replaced.place,
        )
        return await asyncio.to_thread(write) if len(text) > PLAIN_BYTES else write()

    async def _emit(self, event: Event, *, ends_turn: bool = False) -> None:
        takes_over = None if ends_turn or _ends(event) else outside.get()
        if takes_over is not None and current_step() is None and takes_over(event):
            await asyncio.sleep(0)
        elif self._is_home or self._takes(_kind(event)):  # after the turn that loop may be gone
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
        async with self._in_turn(_size_of(event)):
            if not self._takes(_kind(event)):
                return
            event, is_large = await self._as_stored(event)
            if self._is_kept(event, ends_turn=ends_turn):
                return
            entries = entries_of(event)
            in_step = self._journal is not None and current_step() is not None
            if not (in_step or ends_turn or _ends(event)):
                entries = tuple(_told(event, entry) for entry in entries)
            if ends_turn or self.has_ended:  # before the commit that ends the turn
                self.refuse_forgotten()
            self._put(entries, ends_turn=ends_turn)
            if is_large:
                self._writer.fill_batch()
            self._count()
        await self._settle(ends_turn=ends_turn)
        await self.on_taken(event)

    async def _as_stored(self, event: E) -> tuple[E, bool]:
        """Return an event with the ids and references that the log has, and whether it is large.

        Its large contents are stored then; the agent keeps its own event.
        """
        given: object = event  # it may be anything
        if not isinstance(given, ProtobufMessage):
            return event, False
        if self._journal is not None and isinstance(event, TaskArtifactUpdateEvent):
            given_id = event.artifact.artifact_id
            is_new = current_step() is None and not self._view.has_artifact(given_id)
            kept_id = self._journal.kept_id(event.artifact, is_new=is_new)
            if kept_id != given_id:
                event = copied(event)
                event.artifact.artifact_id = kept_id
        if is_plain(event):  # what its artifact has before it does not matter
            return event, False
        behind = self._view.raw_bytes_before(event)
        faults.point("before-blob")
        stored = await self._guard.log.set_apart(self._guard.head, event, behind=behind)
        if stored is not event:
            faults.point("blob-stored")
        return stored, stored is not event

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
    async def _in_turn(self, size: int) -> AsyncIterator[None]:
        """Wait until the events before this one are taken, and until there is room for its bytes.

        The lock is fair: events keep the order in which they came, even if several tasks emit at
        once and a full batch makes all of them wait.
        """
        if self._state is not None and fits_item(self._state):
            size += len(self._state.value)
        async with self._taking:
            while self._writer.is_full or not self._writer.has_room(size):
                await self._writer.drain()
            yield

    def _takes(self, kind: str) -> bool:
        if not (self._is_closed or self.has_ended or self.fault):
            return True
        if self.left is not None:  # it says it again when it goes on
            return False
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


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


async def _nothing(_: object) -> None:
    """Do nothing."""


def _size_of(event: object) -> int:
    return event.ByteSize() if isinstance(event, ProtobufMessage) else 0


def _kind(event: object) -> str:
    return type(event).__name__


def _told(event: Event, entry: Entry) -> Entry:
    """Return an entry with the mark of what the agent says outside of steps.

    A Task has none: said again, it adds nothing that the log has.
    """
    is_update = isinstance(event, TaskArtifactUpdateEvent | TaskStatusUpdateEvent)
    if is_update and isinstance(entry, ArtifactWritten | StatusChanged):
        return replace(entry, told=True)
    return entry


def _ends(event: Event) -> bool:
    """Return True if an event ends the turn by itself."""
    if isinstance(event, Message):
        return True
    if not isinstance(event, Task | TaskStatusUpdateEvent):
        return False
    state = event.status.state
    return is_terminal(state) or state == TaskState.TASK_STATE_INPUT_REQUIRED


# -- commits ---------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Batch:
    """Entries that wait for their commit."""

    opened_at: float
    entries: list[Entry] = field(default_factory=list)
    size: int = 0
    ends_turn: bool = False
    state: ContextWrite | None = None
    failed: AttemptEnd | None = None
    failed_by: FailedBy = FailedBy.AGENT
    waits: Waits | None = None
    leaves: AttemptEnd | None = None
    urgent: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass(kw_only=True, eq=False)
class TurnWriter:
    """The one writer of one attempt: one commit is in flight, the next batch waits behind it.

    A batch is committed when it is flushed, or when it has `FLUSH_BYTES`. Otherwise its first entry
    decides. If that entry comes `flush_after_s` or more after the last commit began, the batch is
    committed as soon as the agent pauses. If it comes earlier, the batch waits `flush_after_s` for
    the entries that follow. So after each silence chunks cost at most one commit more.

    Where a partition takes so many units a second, a batch also waits for its `Pace`. It takes
    entries meanwhile, until it is full: then `drain` keeps the agent waiting.

    A commit that fails ends the writing: the turn is stopped, and what is put from then on is
    dropped, until `discard`. Commits run in a task of the writer's own, so that cancelling the
    agent never interrupts one.
    """

    guard: Guard
    flush_after_s: float = FLUSH_AFTER_S
    meter: Meter = field(default_factory=Meter)
    accepted_at: int | None = None
    """When the turn's message was accepted, in milliseconds, until its first chunk is stored."""
    failure: Exception | None = field(default=None, init=False)
    on_stored: Callable[[tuple[Entry, ...]], Awaitable[None]] = field(
        default_factory=lambda: _nothing, init=False
    )
    """Awaited after each commit with its entries."""
    merged: Merged | None = field(default=None, init=False)
    """Awaited for the state to store with the end, if another task has changed it meanwhile."""
    _batch: _Batch | None = field(default=None, init=False)
    _opened: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _committing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _began_at: float = field(default=-math.inf, init=False)
    """When the last commit began, in monotonic seconds."""

    def __post_init__(self) -> None:
        takes = self.guard.log.table.partition_units
        self._pace = None if takes is None else Pace(takes)

    @property
    def is_idle(self) -> bool:
        return self._batch is None and not self._committing.locked()

    @property
    def is_full(self) -> bool:
        """Return True if the waiting batch is full: flush before the next `put`."""
        return self._batch is not None and self._batch.size >= FLUSH_BYTES

    def has_room(self, size: int) -> bool:
        """Return True when `size` more bytes fit into the waiting batch's commit, and its pace."""
        waiting = 0 if self._batch is None else self._batch.size
        size += waiting + ROOM_FOR_FRAMES
        keeps_pace = self._pace is None or self._units_of(size) <= self._pace.most
        return not waiting or (size <= MAX_COMMIT_BYTES and keeps_pace)

    async def __aenter__(self) -> Self:
        self._pump_task = asyncio.create_task(self._pump())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let the commit in flight end, and drop what was not flushed."""
        # Cancelled under the lock: no commit is in flight that could be interrupted.
        async with self._committing:
            self._pump_task.cancel()
        await asyncio.gather(self._pump_task, return_exceptions=True)
        self._drop()

    def put(
        self,
        *entries: Entry,
        state: ContextWrite | None = None,
        failed: AttemptEnd | None = None,
        failed_by: FailedBy = FailedBy.AGENT,
        waits: Waits | None = None,
        leaves: AttemptEnd | None = None,
    ) -> None:
        """Add entries to the batch that waits.

        If the entries end the turn, `state` is the conversation's state to store with them, and
        `failed` and `failed_by` why the attempt has failed. `waits`: the commit gives the turn
        back; `leaves`: it leaves the turn at a record.
        """
        if self.failure is not None:
            return
        batch = self._waiting()
        batch.entries.extend(entries)
        batch.size += len(encode_entries(entries))
        batch.state = state or batch.state
        if failed is not None:
            batch.failed, batch.failed_by = failed, failed_by
        batch.waits = waits or batch.waits
        batch.leaves = leaves or batch.leaves
        if batch.size >= FLUSH_BYTES:
            batch.urgent.set()

    def fill_batch(self) -> None:
        """Commit what waits without waiting for more: a part of it is stored beside the log."""
        batch = self._waiting()
        batch.size += FLUSH_BYTES
        batch.urgent.set()

    async def flush(self, *, ends_turn: bool = False) -> None:
        """Return when all that was put is committed; with `ends_turn`, end the turn as well.

        Raises:
            FencedError, TurnFinishedError: the turn is not this attempt's any more.
            StaleStateError: the conversation's state has changed since it was loaded.
            InvalidArgumentError: the batch cannot be stored.
            UnavailableError: there was no answer; the batch may have been stored.
        """
        await self.drain(ends_turn=ends_turn)
        if self.failure is not None:
            raise self.failure

    async def drain(self, *, ends_turn: bool = False) -> None:
        """Return when all that was put is committed or dropped; `failure` tells which."""
        if self.failure is not None:
            return
        batch = self._waiting() if ends_turn else self._batch
        if batch is None:
            # The commit in flight may hold what was put last.
            async with self._committing:
                return
        batch.ends_turn = batch.ends_turn or ends_turn
        batch.urgent.set()
        # Not `await batch.done`: a cancelled caller would cancel the future of all that wait.
        await asyncio.wait([batch.done])

    def discard(self) -> None:
        """Drop the waiting batch and forget the failure; the writer can be used again."""
        self.failure = None
        self._drop()

    def _waiting(self) -> _Batch:
        if self._batch is None:
            self._batch = _Batch(self.guard.clock.monotonic())
            self._opened.set()
        return self._batch

    def _drop(self) -> None:
        batch, self._batch = self._batch, None
        self._opened.clear()
        if batch is not None and not batch.done.done():
            batch.done.set_result(None)
            batch.urgent.set()

    async def _pump(self) -> None:
        while True:
            await self._opened.wait()
            batch = self._waiting()
            if batch.opened_at - self._began_at >= self.flush_after_s:
                await self._pause_of_agent(batch)
            else:
                await self._company(batch)
            await self._paced(batch)
            # One commit at a time: the log has the order of `put`.
            async with self._committing:
                if self._batch is batch:  # else it was discarded meanwhile
                    self._began_at = self.guard.clock.monotonic()
                    await self._commit_waiting(batch)

    async def _pause_of_agent(self, batch: _Batch) -> None:
        """Wait until the agent has emitted all that it emits in one go: one commit holds it."""
        seen = rounds = 0
        while rounds < PAUSE_ROUNDS and not batch.urgent.is_set() and self._wait_s(batch) > 0:
            await asyncio.sleep(0)
            rounds = rounds + 1 if len(batch.entries) == seen else 0
            seen = len(batch.entries)

    async def _company(self, batch: _Batch) -> None:
        """Wait for the entries that share the commit of the first one."""
        wait_s = self._wait_s(batch)
        if wait_s > 0 and not batch.urgent.is_set():
            await first_of(self.guard.clock.sleep(wait_s), batch.urgent.wait())

    async def _paced(self, batch: _Batch) -> None:
        """Wait until the batch keeps to the pace; what is to end the turn at once does not wait.

        Not under the lock of the commits: a batch that waits here can still be dropped.
        """
        stopped = self.guard.stopped
        while self._pace is not None and self._batch is batch and not stopped.is_set():
            units = self._units_of(batch.size)  # of a batch that may have grown
            wait_s = self._pace.wait_s(units, self.guard.clock.monotonic())
            if wait_s <= 0:
                return
            await first_of(self.guard.clock.sleep(wait_s), stopped.wait(), tasks=[batch.done])

    def _units_of(self, size: int) -> int:
        head = self.guard.head
        return commit_units(size, len(head.status or b"") + len(head.metadata or b""))

    def _wait_s(self, batch: _Batch) -> float:
        """Return the seconds for which a batch may still wait."""
        return batch.opened_at + self.flush_after_s - self.guard.clock.monotonic()

    def _tell_first_chunk(self, stored: Sequence[Entry]) -> None:
        is_first = self.accepted_at is not None
        if is_first and any(isinstance(entry, ArtifactWritten) for entry in stored):
            metrics.time("TimeToFirstChunk", self.guard.clock.now_ms() - (self.accepted_at or 0))
            self.accepted_at = None

    async def _commit_waiting(self, batch: _Batch) -> None:
        # Taken out before the commit: what is put meanwhile waits in a batch of its own.
        self._batch = None
        self._opened.clear()
        if not self.guard.must_claim:
            faults.point("between-commits")
        try:
            if self.meter.unsure:
                head = await self.guard.log.head(self.guard.params.task_id)
                await self.meter.settle(head.usage if head else ())
            with self.meter.taken() if self.meter.pending else nullcontext(()) as used:
                entries = [*batch.entries, ModelsUsed(used)] if used else batch.entries
                await self.guard.commit(
                    Commit(
                        entries=tuple(entries),
                        ends_turn=batch.ends_turn,
                        context_write=batch.state,
                        failed=batch.failed,
                        failed_by=batch.failed_by,
                        waits=batch.waits,
                        leaves=batch.leaves,
                    ),
                    merged=self.merged,
                )
            if used:
                await self.meter.stored(used)
            self._tell_first_chunk(batch.entries)
            await self.on_stored(tuple(batch.entries))
        except Exception as error:  # noqa: BLE001 - the task's edge: `flush` raises it
            self.failure = error  # before `done`: those who wait in `flush` have to find it
            self._drop()
            self.guard.stop(error)
        finally:
            if self._pace is not None:
                self._pace.spend(self._units_of(batch.size), self.guard.clock.monotonic())
            if not batch.done.done():
                batch.done.set_result(None)


def _step_span(step_id: StepId, tried: int) -> AbstractContextManager[Piece]:
    """Return the span of one try of a step; the value of a record, read again, has none."""
    about = {
        "a2a.step.name": step_id.name,
        "a2a.step.key": step_id.key or None,
        "a2a.step.number": step_id.number,
        "a2a.step.retries": tried or None,
    }
    return spans.span(f"step {step_id.name}", attributes=about)
