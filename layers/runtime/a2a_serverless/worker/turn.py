"""The turn that runs: how it stands, what its agent emits, and the steps that it records.

The official SDK gives it to an executor as the event queue. An event becomes entries of the log by
the projection; a step's result is an entry, too. Both go out through the outbox, in one order.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from enum import Enum
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar

from a2a.server.events import EventQueue
from a2a.types import (
    Message,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from google.protobuf.message import Message as ProtobufMessage

from a2a_serverless import faults
from a2a_serverless.clock import first_of
from a2a_serverless.errors import InvalidAgentEventError
from a2a_serverless.observability import spans
from a2a_serverless.observability.spans import Span
from a2a_serverless.storage.blobs import InlineLimits
from a2a_serverless.storage.contexts import State, fits_item, value_in
from a2a_serverless.storage.layout import CONTEXT
from a2a_serverless.storage.signals import wait_secret
from a2a_serverless.storage.table import Item
from a2a_serverless.tasks.attempts import ReturnDecision, on_return
from a2a_serverless.tasks.entries import (
    LATE,
    TIMEOUT,
    UNTIL,
    ArtifactWritten,
    Entry,
    Recorded,
    StatusChanged,
    StepId,
    copied,
    is_plain,
)
from a2a_serverless.tasks.fold import Event, Record
from a2a_serverless.tasks.head import ASKED, ASLEEP, HANDOVER, AttemptEnd, is_terminal
from a2a_serverless.tasks.questions import Asked, Questions
from a2a_serverless.tasks.rules import Commit, ContextWrite
from a2a_serverless.tasks.waits import Until, Waited
from a2a_serverless.worker.failures import (
    AgentFailedError,
    FinalError,
    RetryLater,
    WrongCallError,
    is_final,
)
from a2a_serverless.worker.files import AGENTS, FileInfo, Files
from a2a_serverless.worker.lease import Lease
from a2a_serverless.worker.loops import (
    AgentCall,
    AgentCalls,
    has_tasks,
    noted,
    runtimes_own,
    task_number,
)
from a2a_serverless.worker.outbox import PAUSE_ROUNDS, Outbox
from a2a_serverless.worker.projection import Projection
from a2a_serverless.worker.questions import (
    MOST_WRONG,
    TAKEN,
    Answer,
    Question,
    WaitTimeoutError,
    WrongAnswerError,
)
from a2a_serverless.worker.services import Passing, meaning_of
from a2a_serverless.worker.steps import (
    CANCELLED,
    ENDINGS,
    MAX_OFFLOADED_BYTES,
    MAX_RESULT_BYTES,
    PARK_S,
    STATE,
    ActiveStep,
    Codec,
    Journal,
    NonDeterminismError,
    ParkedError,
    Retry,
    StepError,
    TurnParked,
    active_step,
    current_step,
    outside,
)
from a2a_serverless.worker.waits import NotYetError

if TYPE_CHECKING:
    from a2a_serverless.worker.calls import Remote

E = TypeVar("E", bound=Event)
T = TypeVar("T")

logger = logging.getLogger(__name__)

MANY_EVENTS: Final = 10_000
"""Events of one attempt after which the log asks whether the agent comes to an end."""
BUSY_S: Final = 0.1
"""Seconds from one look at what is under way beside a sleep to the next."""
ROOM_FOR_RECORDS: Final = 1024
"""Bytes that a record may need beyond its value."""
MOST_DELAYED: Final = 64 * 1024
"""Bytes of results that wait for the next record together."""
CANCELLED_WITHIN_S: Final = 10.0
"""How many seconds later than before the agent may cancel a step that it has cancelled once."""


class TurnState(Enum):
    """What this attempt may still do with its turn; HEAD's token says who owns it."""

    OPEN = "open"
    """It takes what the agent emits and records."""
    ENDED = "ended"
    """The agent has ended it: its end is in the outbox, or stored. Nothing more is taken."""
    PARKING = "parking"
    """The record with which it leaves this process is in the outbox. Nothing more is taken."""
    PARKED = "parked"
    """That is stored: the turn sleeps, or its code goes on in another attempt or turn."""
    GONE = "gone"
    """And the agent knows it: all its calls raise TurnParked."""
    CLOSED = "closed"
    """The runtime takes nothing more; the lease may have the reason."""
    GIVEN_BACK = "given back"
    """HEAD says how this attempt has ended, and when the next one begins."""

    @property
    def is_parked(self) -> bool:
        """Return True if HEAD says that the turn has left this process."""
        return self in (TurnState.PARKED, TurnState.GONE)

    @property
    def is_released(self) -> bool:
        """Return True if HEAD says how this attempt has given its turn back."""
        return self.is_parked or self is TurnState.GIVEN_BACK


class ActiveTurn(EventQueue):
    """One attempt's turn: what its agent emits and records becomes the task's log.

    Events are taken in the order in which they come. One that ends the turn is committed when
    `enqueue_event` returns; others are committed when the agent pauses, within `A2A_FLUSH_MS`.
    After the end of the turn and after `close` events are dropped, and logged. Calls from another
    event loop, for instance in an agent's thread, run in the turn's own loop: an agent that blocks
    that loop until its thread has emitted an event waits for ever.

    Args:
        lease: of the turn.
        outbox: stores what is emitted and recorded.
        projection: the task as the attempt sees it.
        replayed: the commits of earlier attempts that were not taken back.
        hands_over: returns True if the turn is to leave its process before a step that may take so
            many seconds.
        inline: what the agent is shown of files in itself.
        found: what is stored of the conversation, if the turn has it; None: it was not read.
        questions: what the agent's code has asked its client before.
    """

    agents: Mapping[str, Remote] = MappingProxyType({})
    """The other agents that the code may call by name."""

    def __init__(
        self,
        lease: Lease,
        outbox: Outbox,
        projection: Projection,
        replayed: Sequence[Record] = (),
        *,
        hands_over: Callable[[float], bool] = lambda _: False,
        inline: InlineLimits = AGENTS,
        found: Mapping[str, Item] | None = None,
        questions: Questions | None = None,
    ) -> None:
        self.lease = lease
        self.outbox = outbox
        self.projection = projection
        self.state = TurnState.OPEN
        self.parking: AttemptEnd | None = None
        """The end of the attempt that parks its turn at a record; None: it does not."""
        self.fault: InvalidAgentEventError | None = None
        """The first event that no task can hold: it fails the task, even if the agent goes on."""
        self.calls = self._calls = AgentCalls()
        """The agent's calls of this turn, and of the `ctx` before it."""
        self.main: asyncio.Task[Any] | None = None
        """The task in which the agent is called; it may start others."""
        self.under_way = 0
        """Short sleeps and blocking functions under way: a sleep beside them would cut them off."""
        self.halves: dict[tuple[ActiveStep | None, str], str] = {}
        """The half of a surrogate pair with which a chunk ended, by its step and artifact."""
        self.on_taken: Callable[[Event], Awaitable[None]] | None = None
        """Awaited after each event that was taken; the testing kit can stop the agent there."""
        self._clock = lease.clock
        self._home = asyncio.get_running_loop()
        self._hands_over = hands_over
        self._inline = inline
        self._found = found
        self._seen = lease.head.version
        """The version up to which the signals from outside are known."""
        self._taking = asyncio.Lock()
        self._taken = 0
        self.stopping = asyncio.Event()
        """Set at the end of the attempt: the agent's waits in other event loops end. In this one
        CancelledError ends them."""
        self._leaving = asyncio.Event()
        """Set when the turn leaves its process: all waits of the agent end."""
        self._leavers: list[tuple[int, asyncio.Future[None]]] = []
        """The calls that wait until then, with the numbers of their tasks."""
        self._journal = Journal(replayed, questions) if replayed else None
        self._longest_s = 0.0
        """Of the steps that this attempt has run: the next one may take as long."""
        self._unrecorded_s = 0.0
        """What sleeps have taken that are not recorded yet."""
        self._sleeping: dict[StepId, Until] = {}
        """The waits that stand, each with what it knew of the signals when it last looked."""
        self._asking: dict[StepId, tuple[Question, Asked]] = {}
        """The questions that wait for their commit."""
        self._kept_state: ContextWrite | None = None
        """The conversation's state, to be stored with the agent's end of the turn."""
        self._loaded: State | None = None
        """The one that the turn has loaded."""
        self._gave_state = False
        """True: the agent has asked for it."""
        self._is_outdated = False
        """True: the agent has a state that it has loaded before a question."""

    # -- how it stands -----------------------------------------------------------------------------

    @property
    def journal(self) -> Journal:
        """Return the steps of the attempt; most agents have none."""
        if self._journal is None:
            self._journal = Journal()
        return self._journal

    @property
    def is_home(self) -> bool:
        """Return True in the turn's own loop."""
        return asyncio.get_running_loop() is self._home

    @property
    def is_main_task(self) -> bool:
        """Return True in the task in which the agent is called."""
        return self.is_home and asyncio.current_task() is self.main

    @property
    def exit(self) -> BaseException | None:
        """Return the exit that has stopped the attempt, of a task that the agent has started."""
        reason = self.lease.reason
        return reason.__cause__ if isinstance(reason, AgentFailedError) else None

    @property
    def is_cancelled(self) -> bool:
        """Return True if the client has asked to cancel; also true while the loop is blocked."""
        return self.lease.is_canceling

    @property
    def has_ended(self) -> bool:
        """Return True if the agent has emitted an event that ends the turn."""
        return self.state is TurnState.ENDED

    @property
    def files(self) -> Files:
        """Return the files of the turn's task; what it does is awaited `at_home`."""
        return Files(self.lease.storage, self.lease.head, self._inline)

    @property
    def key(self) -> tuple[str, str, int]:
        """Return the names of the agent's code: scope and task, and the turn that it began with."""
        return *self.lease.key, self.lease.head.turn.begun or self.lease.params.turn

    def stop(self, error: Exception) -> None:
        """Take nothing more, and stop the attempt for a reason."""
        self._close()
        self.lease.stop(error)

    def shut(self) -> None:
        """Take no more events; log the calls that the agent did not await."""
        self._close()
        if forgotten := self.calls.take_forgotten():
            self._log_forgotten(forgotten)

    def _close(self) -> None:
        # The agent's end stays: it also counts in an attempt that is being stopped.
        if self.state is TurnState.OPEN:
            self.state = TurnState.CLOSED

    def is_closed(self) -> bool:
        return self.state is not TurnState.OPEN

    async def close(self, immediate: bool = False) -> None:  # noqa: FBT001, FBT002 - the SDK's
        """Take no more events; unless `immediate`, return when those taken are committed."""
        self.shut()
        if not immediate:
            await self.drain()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def at_home(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call in the turn's own loop, whichever loop the caller runs in."""
        if self.is_home:
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._home))

    def call_at_home(self, call: Callable[[], None]) -> None:
        """Make a call in the turn's own loop."""
        if self.is_home:
            call()
        else:
            self._home.call_soon_threadsafe(call)

    async def drain(self) -> None:
        """Return when all events that were taken are committed or, after a failure, dropped."""
        await self.at_home(self.outbox.drain())

    # -- what the agent emits ----------------------------------------------------------------------

    @noted("event_queue")
    async def enqueue_event(self, event: Event) -> None:
        """Log an event.

        Raises:
            InvalidAgentEventError: no A2A task can hold it; the turn fails.
        """
        await self.emit(event)

    async def emit(self, event: Event, *, ends_turn: bool = False) -> None:
        """Log an event; `ends_turn`: it ends the turn, even if its state alone would not.

        A message that ends the turn is its answer, also after task events.

        Raises:
            InvalidAgentEventError: as `enqueue_event`.
            TurnParked: the turn leaves this process.
        """
        if self.parking is not None:
            await self.unless_parked()
        takes_over = None if ends_turn or _ends(event) else outside.get()
        if takes_over is not None and current_step() is None and takes_over(event):
            await asyncio.sleep(0)
        elif self.is_home:
            await self._take(event, ends_turn=ends_turn)
        elif self.state is not TurnState.OPEN:  # after the turn its own loop may be gone
            self._drop(event)
        else:
            await self.at_home(self._take(event, ends_turn=ends_turn))

    async def _take(self, event: Event, *, ends_turn: bool) -> None:
        # The agent yields here. So an agent that emits all the time can still be cancelled, and
        # calls that it has made tasks of have begun before an ending looks for forgotten ones.
        await asyncio.sleep(0)
        given: object = event  # it may be anything
        size = given.ByteSize() if isinstance(given, ProtobufMessage) else 0
        async with self._in_turn(size):
            if self.state is not TurnState.OPEN:
                self._drop(event)
                return
            is_large = False
            if isinstance(given, ProtobufMessage):
                event, is_large = await self._as_stored(event)
                if self.is_closed():  # the attempt has ended during an upload
                    self._drop(event)
                    return
            journal = self._journal
            if journal is not None and self._is_replayed(event, journal, ends_turn=ends_turn):
                return
            self._put_event(event, ends_turn=ends_turn, is_large=is_large)
        if self.has_ended or self.outbox.is_full:
            # If the commit fails, the attempt is told, and stops the agent.
            await self.outbox.drain(ends_turn=ends_turn)
        if self.on_taken is not None:
            await self.on_taken(event)
        if self.parking is not None:
            await self.unless_parked()

    def _put_event(self, event: Event, *, ends_turn: bool, is_large: bool) -> None:
        """Put the entries of an event into the log's next commit.

        Raises:
            InvalidAgentEventError: no task can hold it, or its end would cut off a call that the
                agent has not awaited; the turn fails.
        """
        try:
            if ends_turn and isinstance(event, Message):
                entries = self.projection.replied(event)
            else:
                entries = self.projection.entries_of(event)
        except InvalidAgentEventError as fault:
            self.fault = self.fault or fault
            self._close()
            raise
        in_step = self._journal is not None and current_step() is not None
        is_end = ends_turn or _ends(event)
        if isinstance(event, TaskArtifactUpdateEvent | TaskStatusUpdateEvent) and not (
            in_step or is_end
        ):
            # Said again by the next attempt, it is not logged twice. A Task needs no such mark: it
            # adds nothing that the log has.
            entries = tuple(
                replace(entry, outside_steps=True)
                for entry in entries
                if isinstance(entry, ArtifactWritten | StatusChanged)
            )
        ends = ends_turn or on_return(self.projection.state) is ReturnDecision.ENDED
        if ends:  # before the commit that ends the turn
            self.refuse_forgotten()
        self._put(entries, ends=ends, fills=is_large)
        self._taken += 1
        if self._taken == MANY_EVENTS:
            self._warn_of_many()

    def _put(self, entries: tuple[Entry, ...], *, ends: bool = False, fills: bool = False) -> None:
        """Put entries into the log's next commit; with the agent's end goes what it keeps.

        A failure or a cancel leaves the conversation's state as it was. So does a pause of a task
        that is being canceled, because the cancel ends that task.
        """
        wanted = None
        if ends:
            self.state = TurnState.ENDED
            state = self.projection.state
            is_final = state is not None and is_terminal(state)
            if self._kept_state is not None and (is_final or not self.is_cancelled):
                wanted = Commit(context_write=self._kept_state)
        self.outbox.put(*entries, wanted=wanted, fills=fills)

    def keep_pause(self) -> None:
        """Put the pause into the log's next commit if the agent has kept it, see `Projection`."""
        if entries := self.projection.pause():
            self._put(entries, ends=on_return(self.projection.state) is ReturnDecision.ENDED)

    def _drop(self, event: object) -> None:
        if self.parking is None:  # else it says it again when it goes on
            kind = type(event).__name__
            extra = {"action": "event_dropped", "task_id": self.lease.head.task_id, "event": kind}
            logger.warning("Event after the end of the turn", extra=extra)

    async def _as_stored(self, event: E) -> tuple[E, bool]:
        """Return an event with the ids and references that the log has, and whether it is large.

        Its large contents are stored then; the agent keeps its own event.
        """
        if self._journal is not None:
            event = self._named(event, self._journal)
        if is_plain(event):  # what its artifact has before it does not matter
            return event, False
        behind = self.projection.raw_bytes_before(event)
        faults.point("before-blob")
        stored = await self.lease.storage.offload(self.lease.head, event, behind=behind)
        if stored is not event:
            faults.point("blob-stored")
        return stored, stored is not event

    @asynccontextmanager
    async def _in_turn(self, size: int = 0, *, records: bool = False) -> AsyncIterator[None]:
        """Wait until the events before this one are taken, and until there is room for its bytes.

        The lock is fair: events keep the order in which they came, even if several tasks emit at
        once and a full batch makes all of them wait. `records`: the delayed ones go along.
        """
        if self._kept_state is not None and fits_item(self._kept_state):
            size += len(self._kept_state.value)
        async with self._taking:
            if records:
                size += ROOM_FOR_RECORDS + self._delayed_bytes
            await self.outbox.make_room(size)
            if records:
                await self._offload_delayed()
            yield

    def refuse_forgotten(self) -> None:
        """Check that the agent has awaited its calls.

        Raises:
            InvalidAgentEventError: it has not, and what it wanted to say would be lost: the turn
                fails.
        """
        if forgotten := self.calls.take_forgotten():
            call, *others = forgotten
            self._log_forgotten(others)
            msg = f"The agent has not awaited {call.name}: write `await {call.name}`."
            self.fault = self.fault or InvalidAgentEventError(msg, place=call.place)
            self._close()
            raise self.fault

    def _log_forgotten(self, calls: list[AgentCall]) -> None:
        for call in calls:
            extra = {"action": "never_awaited", "task_id": self.lease.head.task_id}
            logger.warning("%s was never awaited (%s)", call.name, call.place, extra=extra)

    def _warn_of_many(self) -> None:
        """Warn of an agent that may emit without end."""
        extra = {"action": "many_events", "task_id": self.lease.head.task_id}
        text = (
            "The turn has emitted %d events, the last one at %s: does its loop end? If it does, put"
            " more into one call"
        )
        logger.warning(text, MANY_EVENTS, self.calls.last_place, extra=extra)

    async def file_chunks(self, file: FileInfo) -> AsyncIterator[bytes]:
        """Yield the content of a file, see `Files.chunks`."""
        chunks = self.files.chunks(file)
        while (chunk := await self.at_home(_next(chunks))) is not None:
            yield chunk

    # -- waiting, and leaving this process ---------------------------------------------------------

    async def wait_here(self, seconds: float) -> None:
        """Wait by the worker's clock, in this process.

        Raises:
            TurnParked: the turn has left this process meanwhile.
            CancelledError: the client has canceled; raised here in a loop other than the worker's.
        """
        # A long sleep in a parallel branch must not take the turn out of this process now: this
        # wait has no record from which the next attempt could go on.
        with self.busy():
            await self._wait(self._clock.sleep(seconds))

    async def _wait(self, wait: Coroutine[Any, Any, None]) -> None:
        """Await `wait` for the agent; a cancel of the client ends it at once.

        Raises:
            TurnParked: the turn has left this process meanwhile.
            CancelledError: the client has canceled; raised here in a loop other than the worker's.
        """
        stopping = () if self.is_home else (self.stopping.wait(),)
        with runtimes_own():
            await self.at_home(first_of(wait, self._leaving.wait(), *stopping))
        await self.unless_parked()
        if stopping and self.stopping.is_set():
            raise asyncio.CancelledError

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Let no sleep of a minute or more park the turn during the block."""
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    async def unless_parked(self) -> None:
        """Return unless the turn leaves this process.

        Raises:
            TurnParked: it has left.
        """
        if self.parking is None:
            return
        if self.state is TurnState.GONE:  # in another loop: the turn's own may not run any more
            await asyncio.sleep(0)
            raise TurnParked
        if not self.is_cancelled:
            await self.at_home(self._stored())

    async def _stored(self) -> None:
        """Return when all that was put is stored; do not return if the attempt is over by then.

        To be awaited in the turn's own loop.

        Raises:
            TurnParked: the turn has left this process with that.
        """
        await self.confirm_parked()
        if self.state.is_parked and not self.is_cancelled:
            if self.state is TurnState.PARKED:  # all leave at once, see `tell_gone`
                leaver = self._home.create_future()
                self._leavers.append((task_number(), leaver))
                await leaver
            raise TurnParked
        # After a fault the agent goes on: nothing stops the attempt before its end.
        is_over = self.fault is None and self.state not in (TurnState.OPEN, TurnState.ENDED)
        if is_over or self.outbox.failure is not None:
            await self._home.create_future()  # until the attempt is cancelled

    async def confirm_parked(self) -> None:
        """Stop the attempt if it parks its turn, once the commit with that is stored."""
        await self.outbox.drain()
        if self.state is TurnState.PARKING:
            if self.outbox.failure is not None or self.parking is None:
                self.state = TurnState.CLOSED
            else:
                self.state = TurnState.PARKED
                # Behind a signal it was handed over instead of falling asleep.
                self.parking = self.lease.head.turn.released or self.parking
                self.lease.stop(ParkedError(self.parking.reason))

    async def tell_gone(self) -> None:
        """Let all calls of the agent raise TurnParked; return when they have.

        They do so in one round of the loop, and tasks before those that have started them: a
        TaskGroup of them finds none to cancel.
        """
        self._leaving.set()
        await _rounds()
        self.state = TurnState.GONE
        for _, leaver in sorted(self._leavers, key=itemgetter(0), reverse=True):
            if not leaver.done():  # its call was cancelled
                leaver.set_result(None)
        await _rounds()

    async def _park(
        self,
        step_id: StepId,
        wait: Until,
        caught: frozenset[StepId],
        *,
        own: ActiveStep | None = None,
    ) -> None:
        """Park the turn until `wait.at`, once nothing but `own` is under way.

        It returns only if that time or a signal comes first, as in a function of `ctx.run_sync`.
        `caught` are the steps that had failed before.

        Raises:
            WrongCallError: the task expires before.
        """
        if wait.at >= self.lease.head.expires_at:
            raise WrongCallError(
                f"{step_id.name}: the task expires before the end of its wait. Wait for less, or"
                " keep the tasks of this deployment for longer (TtlDays)."
            )
        if own is not None or self.journal.found(step_id) is None:
            self.journal.delay(wait.record(step_id))
        self._sleeping[step_id] = wait
        try:
            if not await self._nothing_beside(own, step_id, wait):
                return
            async with self._in_turn(records=True):
                # Another task may have ended the turn, or parked it, while this one waited. The
                # turn wakes for the first of all that sleep.
                if self.state is TurnState.OPEN and self._asking:
                    await self._put_questions()  # the sleep goes on beside them
                elif self.state is TurnState.OPEN:
                    end = self._end(ASLEEP, until=min(each.at for each in self._sleeping.values()))
                    self._put_records(self.journal.waiting(caught), end)
            await self._stored()
        finally:  # also if the agent has cancelled the sleep: no later record may contain it
            del self._sleeping[step_id]
            self.journal.take_back(step_id)

    async def _nothing_beside(
        self, own: ActiveStep | None, step_id: StepId, wait: Until | None = None
    ) -> bool:
        """Return True when nothing but `own` is under way, or False when a step's wait is over.

        A function of `ctx.run_sync` is under way while it waits itself.
        """
        calm = 0  # rounds of the loop: what was begun beside it may want to sleep, too
        while calm < PAUSE_ROUNDS:
            others = [one for one in self.journal.active if one is not own]
            if others:
                await others[0].over.wait()
            elif self.under_way:
                left_s = BUSY_S
                if wait is not None:
                    await self._hear()
                    left_s = (wait.at - self._clock.now_ms()) / 1000
                    if left_s <= 0 or self.journal.is_signaled(step_id, wait.seen):
                        return False
                await self._clock.sleep(min(BUSY_S, left_s))
            await asyncio.sleep(0)
            calm = 0 if others or self.under_way else calm + 1
        return True

    def _end(self, reason: str, *, until: int = 0) -> AttemptEnd:
        token, now_ms = self.lease.token or "", self._clock.now_ms()
        return AttemptEnd(token=token, reason=reason, at=now_ms, until=until)

    def _put_records(self, records: tuple[Recorded, ...], parks: AttemptEnd | None) -> None:
        """Put records into the log's next commit; `parks`: the turn leaves this process with it."""
        self._unrecorded_s = 0.0
        # One wait may have heard what has come for another one, which does not look any more.
        seen = min((each.seen for each in self._sleeping.values()), default=self._seen)
        self.outbox.put(*records, wanted=Commit(parks=parks, seen=seen))
        if parks is not None:  # in this commit, so that nothing comes behind it
            self.parking, self.state = parks, TurnState.PARKING

    # -- steps and sleeps --------------------------------------------------------------------------

    async def step(
        self,
        step_id: StepId,
        work: Callable[[], Awaitable[Any]],
        codec: Codec,
        retry: Retry,
        *,
        deadline: int = 0,
        delays: Callable[[Any], bool] = lambda _: False,
    ) -> Any:
        """Return the recorded result of a step; or run it, and return when its record is stored.

        `deadline`: the time of its last try at the latest, in milliseconds; 0: there is none.
        `delays` says of a result that the step has the same one if it runs again: the record of a
        short one is stored with the next record.

        Raises:
            StepError: it has failed, and is not tried again.
            WrongCallError: its result cannot be recorded.
        """
        await self.unless_parked()
        found = await self.recorded(step_id)
        if found is not None and found.form == CANCELLED:
            await self._cancelled_again(found)
        if found is not None and found.form != UNTIL and not found.is_signal:
            return codec.decoded(found)
        wait = Until.of(found)._replace(seen=self._seen)
        tried = wait.before
        if wait.at > self._clock.now_ms():
            await self._wait(self._park(step_id, wait, self.journal.failures()))
        with active_step(self.journal, step_id, at_home=self.call_at_home) as running:
            while True:
                await self._unless_stopped()
                running.calls.clear()  # each try makes them under the same numbers
                began, seen = self._clock.monotonic(), self._seen  # see `signal`
                try:
                    with _step_span(step_id, tried):
                        result = await work()
                    self._longest_s = max(self._longest_s, self._clock.monotonic() - began)
                    break
                except asyncio.CancelledError:
                    self._note_cancel(running, self._clock.monotonic() - began)
                    raise
                except ENDINGS:  # of the attempt, or of its process: the step has not failed
                    raise
                except BaseException as error:
                    await self._unless_stopped()
                    tried += 1
                    # Clients have seen a part of one that has streamed: it is not said twice.
                    wait_s = None if running.has_streamed else retry.wait_s(tried, error)
                    if wait_s is None:
                        failure = self._failed(step_id, error)
                        if failure is error:
                            raise  # not `from` itself, which would cut off its causes
                        raise failure from error
                    running.held.clear()
                    wait = Until(before=tried, deadline=deadline, seen=seen)
                    await self._wait(self._wait_for_try(running, wait, wait_s))
            entry = codec.encoded(step_id, result, self._most_recorded)
            if delays(result) and self._delayed_bytes + len(entry.value) <= MOST_DELAYED:
                self.journal.delay(entry)
            else:
                await self.at_home(self._record(running, entry))
        return codec.decoded(entry)

    @property
    def _delayed_bytes(self) -> int:
        return sum(len(each.value) for each in self.journal.delayed)

    @property
    def _most_recorded(self) -> int:
        """Return the most bytes of a record's value."""
        has_blobs = self.lease.storage.table.blobs is not None
        return MAX_OFFLOADED_BYTES if has_blobs else MAX_RESULT_BYTES

    def delay(self, step_id: StepId, value: Any) -> None:
        """Record a JSON value with the next commit.

        Raises:
            WrongCallError: it cannot be recorded.
        """
        self.journal.delay(Codec("json").encoded(step_id, value, self._most_recorded))

    async def recorded(self, step_id: StepId) -> Recorded | None:
        """Return the record of a step with its value; None if it has none.

        Raises:
            FinalError: its value is not stored any more.
        """
        found = self.journal.found(step_id)
        if found is None or not found.is_offloaded:
            return found
        whole = await self.at_home(self.lease.storage.whole_record(self.lease.head, found))
        if whole is None:
            place = found.value.decode(errors="replace")
            raise FinalError(
                f"The record of step {step_id.name!r} cannot be read, as its blob {place} is not"
                " stored any more: restore it, and send the message again in a new task.",
                client_text="What the task has done so far cannot be read any more: send the"
                " message again in a new task.",
            )
        return whole

    async def sleep(self, step_id: StepId, seconds: float) -> None:
        """Sleep for so long, or until the time that the sleep's record has.

        From a minute on no process waits, nor where a turn with records would have to leave its
        process before the next step: then the code runs again. A shorter sleep is recorded when it
        is over, as the agent may cancel it: with the next record, or once such sleeps have taken a
        minute. So no attempt waits again for longer.

        Raises:
            WrongCallError: the task expires before.
        """
        found, now_ms = self.journal.found(step_id), self._clock.now_ms()
        caught = self.journal.failures()
        until = now_ms + int(seconds * 1000) if found is None else Until.of(found).at
        left_s = seconds if found is None else max(0.0, (until - now_ms) / 1000)
        if found is not None and not left_s:
            return
        has_to_leave = len(self.journal) > 0 and self._hands_over(left_s + self._longest_s)
        if left_s >= PARK_S or has_to_leave:
            await self._wait(self._park(step_id, Until(until, seen=self._seen), caught))
        else:
            await self.wait_here(left_s)
        if found is None:
            await self.at_home(self._slept(step_id, until, seconds, caught))

    def leaves_within(self, seconds: float) -> bool:
        """Return True if the turn leaves its process at a record that comes after some seconds."""
        return self._hands_over(seconds)

    async def _slept(
        self, step_id: StepId, until: int, seconds: float, caught: frozenset[StepId]
    ) -> None:
        """Take the record of a sleep that is over; store it if those that wait are a minute."""
        self.journal.end_sleep(step_id, until)
        self._unrecorded_s += seconds
        if self._unrecorded_s < PARK_S:
            return
        async with self._in_turn(records=True):
            # A step whose chunks clients have seen has to be recorded first, and takes it along.
            is_free = not any(one.has_streamed for one in self.journal.active)
            if is_free and self.state is TurnState.OPEN and self._unrecorded_s >= PARK_S:
                self._put_records(self.journal.waiting(caught), None)
        await self._stored()

    # -- waits for what comes from outside ---------------------------------------------------------

    async def poll(
        self,
        step_id: StepId,
        look: Callable[[], Awaitable[Any]],
        codec: Codec,
        looks: Retry,
        timeout_s: float,
    ) -> Any:
        """Return what a look has found other than None, as it is recorded; look again until then.

        A look that finds nothing writes nothing, unless the turn leaves its process then.

        Raises:
            StepError: a look has raised what does not pass.
            TurnParked: the next look is in another process.
            WaitTimeoutError: nothing was found in time; recorded, so that it stays so.
            WrongCallError: the task expires before, or a look has emitted something.
        """
        found = self.journal.found(step_id)
        if found is not None and found.form == TIMEOUT:
            raise timed_out(step_id)
        if found is None:
            deadline = self._deadline("ctx.poll", timeout_s)
        else:  # one with a result needs no deadline
            deadline = Until.of(found).deadline
        looked = partial(self._looked, step_id, look, deadline)
        return await self.step(step_id, looked, codec, looks, deadline=deadline)

    async def _looked(
        self, step_id: StepId, look: Callable[[], Awaitable[Any]], deadline: int
    ) -> Any:
        """Return what a look has found; raise NotYetError if it is nothing, or a fault passes."""
        not_yet = NotYetError()
        try:
            result = await look()
        except Exception as error:
            meaning = meaning_of(error, self._clock.now_ms())
            if not isinstance(meaning, Passing):
                raise
            result, not_yet = None, NotYetError(meaning.asked_s)
        running = current_step()
        if result is None and running is not None and (running.has_streamed or running.held):
            raise WrongCallError(
                f"A look of {step_id.name!r} has emitted something and found nothing: emit what is"
                " found behind the poll."
            )
        if result is None and self._clock.now_ms() >= deadline:
            self.journal.delay(Recorded(step_id, TIMEOUT, b""))
            raise timed_out(step_id)
        if result is None:
            raise not_yet
        return result

    async def signal(self, step_id: StepId, timeout_s: float) -> Recorded | None:
        """Return the record of the signal that has ended a wait; None: none has come in time.

        Meanwhile the turn is in no process. What is committed first counts: a signal, or that the
        time is over. To be awaited in the turn's own loop, outside of steps.

        Raises:
            TurnParked: the turn goes on with the signal, or when the time is over.
            WrongCallError: the task expires before.
        """
        until = 0
        while True:
            await self.unless_parked()
            if self.is_cancelled:
                raise asyncio.CancelledError
            await self._hear()
            found = await self.recorded(step_id)
            if found is not None and found.form != UNTIL:
                return None if found.form == TIMEOUT else found
            seen = self._seen  # with `found`: what another wait hears from here on is not known
            until = Until.of(found).at or until or self._deadline("callback.wait", timeout_s)
            if until > self._clock.now_ms():
                wait = Until(until, seen=seen)
                await self._wait(self._park(step_id, wait, self.journal.failures()))
            else:
                await self._wait(self._time_out(step_id))
            if self.state is not TurnState.OPEN:
                raise RuntimeError("The turn has ended already: wait before its end.")

    async def callback_url(self, step_id: StepId) -> str:
        """Return the address that ends a wait.

        Raises:
            WrongCallError: the address of the service is not known.
        """
        base_url, head = self._inline.base_url.rstrip("/"), self.lease.head
        if not base_url:
            raise WrongCallError(
                "ctx.callback needs the address of the service: set A2A_PUBLIC_URL."
            )
        *_, turn = self.key
        waited = Waited(head.scope, head.task_id, head.incarnation, turn, step_id)
        secret = await wait_secret(self.lease.storage.table)
        return f"{base_url}/callbacks/{waited.token(secret)}"

    async def _hear(self) -> None:
        """Read the signals that have come since the log was read, if HEAD has any."""
        if self.lease.head.turn.signaled <= self._seen:
            return
        storage, head = self.lease.storage, self.lease.head
        log = await storage.read(head.task_id, after=self._seen, incarnation=head.incarnation)
        if log is not None:
            self.journal.hear(log.records)
            self._seen = log.head.version

    async def _time_out(self, step_id: StepId) -> None:
        """Store that a wait is over without a signal; one that has come first counts all the same.

        Once it is stored, a later signal is refused.
        """
        async with self._in_turn(records=True):
            if self.state is TurnState.OPEN:
                caught = self.journal.failures()
                records = self.journal.record(Recorded(step_id, TIMEOUT, b""), caught)
                self._put_records(records, None)
        await self._stored()

    # -- questions to the client -------------------------------------------------------------------

    async def ask(self, question: Question, timeout_s: float | None) -> Answer:
        """Return the answer to a question; ask it if it has none that fits.

        With the question this turn ends, and the code leaves its process. It goes on in the turn of
        the answer. What is committed first counts: a message that answers, or that
        `timeout_s` is over.

        Raises:
            TurnParked: the client is asked.
            NonDeterminismError: the code has not asked what its client has answered; it is stopped.
            WaitTimeoutError: nobody has answered in time.
            WrongAnswerError: no answer has fitted.
            WrongCallError: the task expires before the end of `timeout_s`.
        """
        await self.unless_parked()
        if self.is_cancelled:
            raise asyncio.CancelledError
        found, answer = self.journal.found(question.id), None
        if found is None:
            if self.is_main_task and not has_tasks():  # else another one may ask it yet
                self._check_all_asked()
            until = 0 if timeout_s is None else self._deadline("ctx.ask", timeout_s)
            await self._wait(self._ask(question, Asked(until)))
        elif found.form == LATE:
            self._pass(question)
            late = f"Nobody has answered the question {question.name!r} in time."
            again = "Send the message again in a new task."
            raise WaitTimeoutError(late, client_text=f"{late} {again}")
        else:
            answer = await self._answered(question, found)
        if answer is None:
            raise RuntimeError("The turn has ended already: ask before its end.")
        return answer

    def _check_all_asked(self) -> None:
        try:
            self.journal.check_all_asked()
        except NonDeterminismError as error:
            self.stop(error)
            raise

    def _deadline(self, call: str, timeout_s: float) -> int:
        """Return when a wait ends that begins now, in milliseconds.

        Raises:
            WrongCallError: the task expires before.
        """
        until = self._clock.now_ms() + int(timeout_s * 1000)
        if until >= self.lease.head.expires_at:
            raise WrongCallError(
                f"{call}: the task expires before the end of `timeout_s`. Wait for less, or keep"
                " the tasks of this deployment for longer (TtlDays)."
            )
        return until

    async def _answered(self, question: Question, found: Recorded) -> Answer | None:
        """Return the answer to a question that was asked; ask it again if there is none that fits.

        Raises:
            WrongAnswerError, WrongCallError: as `ask`.
        """
        opening = self.journal.questions.answers.get(question.id)
        if opening is None:
            await self._wait(self._ask(question, Asked.of(found)))
            return None
        answer = question.answer(opening)
        if isinstance(answer, Answer):
            self._pass(question)
            if question.type is not None and found.form != TAKEN:
                self.journal.delay(Recorded(question.id, TAKEN, b""))
            return answer
        if found.form == TAKEN:
            raise WrongCallError(
                f"The answer to the question {question.name!r} does not fit its `schema` any more,"
                " as the code has changed since: give it another id."
            )
        asked = Asked.of(found)
        asked = asked._replace(wrong=asked.wrong + 1)
        if asked.wrong >= MOST_WRONG:
            self._pass(question)
            raise WrongAnswerError(
                f"Of {MOST_WRONG} answers to the question {question.name!r} none fits its schema.",
                client_text=f"None of your answers to the question {question.name!r} fits:"
                f" {answer}. Send the message again in a new task.",
            )
        await self._wait(self._ask(question.again(answer), asked))
        return None

    def _pass(self, question: Question) -> None:
        """Go on behind a question.

        What was to be stored with it is stored, and the conversation may have changed since.
        """
        self.journal.passed.add(question.id)
        self._is_outdated = self._gave_state
        self._kept_state = self._loaded = self.outbox.merged = None

    async def _ask(self, question: Question, asked: Asked) -> None:
        """Put a question to the client once nothing is under way, with those asked beside it."""
        self._asking[question.id] = question, asked
        try:
            await self._nothing_beside(None, question.id)
            size = sum(each.status.ByteSize() for each, _ in self._asking.values())
            async with self._in_turn(size, records=True):
                if self.state is TurnState.OPEN:
                    await self._put_questions()
            await self._stored()
        finally:
            del self._asking[question.id]
            self.journal.take_back(question.id)

    async def _put_questions(self) -> None:
        """Put all questions that wait into one status, which ends the turn, and their records.

        The conversation's state goes with them, unless it has gone with them before.
        """
        asking, journal = [*self._asking.values()], self.journal
        event = copied(asking[0][0].status)
        for question, _ in asking[1:]:
            event.status.message.parts.extend(question.status.status.message.parts)
        event, is_large = await self._as_stored(event)
        if self.state is not TurnState.OPEN:
            return
        is_new = any(journal.found(question.id) is None for question, _ in asking)
        for question, asked in asking:
            journal.delay(asked.record(question.id))
        untils = [asked.until for _, asked in asking if asked.until]
        wanted = Commit(
            asks=min(untils, default=0), context_write=self._kept_state if is_new else None
        )
        records = journal.waiting(journal.failures())
        entries = self.projection.entries_of(event)
        self.outbox.put(*records, *entries, wanted=wanted, fills=is_large)
        self.parking, self.state = self._end(ASKED), TurnState.PARKING

    async def _wait_for_try(self, running: ActiveStep, wait: Until, seconds: float) -> None:
        """Wait for the next try of a step: here, or, if it takes long, asleep."""
        now_ms = self._clock.now_ms()
        if wait.deadline:
            seconds = min(seconds, max(0.0, (wait.deadline - now_ms) / 1000))
        if seconds < PARK_S and not self._hands_over(seconds):
            await self._clock.sleep(seconds)
            return
        wait = wait._replace(at=now_ms + int(seconds * 1000))
        running.pause(self.journal)  # else two that wait beside one another would wait for ever
        await self._park(running.id, wait, running.caught, own=running)
        running.go_on(self.journal)

    async def _record(self, running: ActiveStep, entry: Recorded) -> None:
        """Store a step's record, with what was held for it; leave the process if it is time.

        Nothing is recorded any more once the agent has ended the turn.
        """
        entry = await self._offload(entry)
        # A step whose chunks clients have seen is recorded first: a record keeps all before it.
        while ahead := [one for one in self.journal.active - {running} if one.has_streamed]:
            await ahead[0].over.wait()
        async with self._in_turn(len(entry.value), records=True):
            if self.has_ended:
                return
            if self.state is TurnState.OPEN:
                self._put_held(running)
                # Not beside another step, which would be cut off and run again.
                leaves = self.journal.active == {running} and self._hands_over(self._longest_s)
                records = self.journal.record(entry, running.caught)
                self._put_records(records, self._end(HANDOVER) if leaves else None)
        await self._stored()

    async def _offload(self, entry: Recorded) -> Recorded:
        stored = await self.lease.storage.offload_record(self.lease.head, entry)
        if stored is not entry:
            faults.point("blob-stored")
        return stored

    async def _offload_delayed(self) -> None:
        """Store what delayed records have that is large: the conversation's state.

        They are taken for a commit under the lock that the caller has, so that none is meanwhile.
        """
        for entry in self.journal.delayed:
            stored = await self._offload(entry)
            if stored is not entry:
                self.journal.delay(stored)

    def _put_held(self, step: ActiveStep) -> None:
        """Put what was held of a step while others ran beside it."""
        for held in step.held:
            self._put(self.projection.entries_of(held))
        step.held.clear()

    def _failed(self, step_id: StepId, error: BaseException) -> BaseException:
        """Return what the agent gets of a step's exception; its record waits for what follows.

        What the runtime acts on itself goes through as it is.
        """
        own = (RetryLater, WrongCallError, InvalidAgentEventError, StepError)
        if isinstance(error, own) or is_final(error):
            return error
        failure = StepError.of(step_id, error)
        self.journal.delay(failure.record(step_id))
        return failure

    def raise_non_determinism(self, what: str, otherwise: str = "") -> NoReturn:
        """Stop the attempt: the agent has done something else than its records tell.

        Raises:
            NonDeterminismError: always; the turn starts over.
        """
        error = NonDeterminismError(what, otherwise)
        self.call_at_home(partial(self.stop, error))
        raise error

    async def _unless_stopped(self) -> None:
        """Return while the attempt goes on; else wait until its end cancels the caller.

        An attempt that has been stopped runs nothing more, and what its steps raise does not count.

        Raises:
            TurnParked: the turn has left this process.
            CancelledError: at once, in a loop other than the worker's.
        """
        await self.unless_parked()
        if self.lease.stopped.is_set():
            if not self.is_home:
                raise asyncio.CancelledError
            await self._home.create_future()

    def _note_cancel(self, running: ActiveStep, after_s: float) -> None:
        """Note that the agent has cancelled a step of which clients have seen a part.

        If the agent goes on, that part stays: run again, the step would say it twice.
        """
        is_agents = not (self.lease.stopped.is_set() or self.is_cancelled)
        if is_agents and running.has_streamed:
            self.journal.delay(Recorded(running.id, CANCELLED, json.dumps(after_s).encode()))

    async def _cancelled_again(self, found: Recorded) -> NoReturn:
        """Wait to be cancelled, as in the attempt in which the step has run.

        Raises:
            NonDeterminismError: it is not cancelled this time.
        """
        await self.wait_here(json.loads(found.value) + CANCELLED_WITHIN_S)
        self.raise_non_determinism(f"not cancelled the step {found.id.name!r}, as it had before")

    # -- events that an earlier attempt has emitted ------------------------------------------------

    def _is_replayed(self, event: Event, journal: Journal, *, ends_turn: bool) -> bool:
        """Return True if an event goes no further: the log has it, or its step holds it.

        Raises:
            NonDeterminismError: the log has something else; the attempt is stopped.
        """
        step = current_step()
        if step is not None:
            return isinstance(event, TaskArtifactUpdateEvent) and self._is_held(event, step)
        is_replayed = False
        try:
            if ends_turn or _ends(event):
                journal.check_all_emitted()
            elif isinstance(event, TaskArtifactUpdateEvent):
                is_replayed = journal.is_emitted(event.artifact)
            elif isinstance(event, TaskStatusUpdateEvent):
                is_replayed = journal.is_emitted(None)
        except NonDeterminismError as error:
            self.stop(error)
            raise
        if is_replayed:
            self.projection.replay(event)
        return is_replayed

    def _is_held(self, event: TaskArtifactUpdateEvent, step: ActiveStep) -> bool:
        """Return True if a step's artifact waits for its record, as other steps run beside it."""
        if len(self.journal.active) > 1 and not step.has_streamed:
            step.held.append(copied(event))
            return True
        self._put_held(step)
        step.has_streamed = True
        return False

    def _named(self, event: E, journal: Journal) -> E:
        """Return an event; that of an artifact has the id that the log has for it."""
        if not isinstance(event, TaskArtifactUpdateEvent):
            return event
        given_id = event.artifact.artifact_id
        is_new = current_step() is None and not self.projection.has_artifact(given_id)
        replayed_id = journal.replayed_id(event.artifact, is_new=is_new)
        if replayed_id == given_id:
            return event
        event = copied(event)
        event.artifact.artifact_id = replayed_id
        return event

    # -- the conversation's state ------------------------------------------------------------------

    async def load_state(self) -> Any | None:
        """Return the conversation's state, as this turn has stored it if it has; None if unset."""
        self._gave_state = True
        return await self.at_home(self._load_state())

    async def store_state(self, value: Any, merge: Callable[[Any, Any], Any] | None = None) -> None:
        """Store the conversation's state with the agent's end of the turn, and with no other end.

        Without an earlier `load_state`, the version to replace is read here. If two tasks write at
        the same time, one of them is refused, so that no update is overwritten unseen; or it
        stores what its `merge` makes of the other's state and its own.
        """
        await self.at_home(self._store_state(value, merge))

    def size_of_state(self, value: Any) -> tuple[int, int]:
        """Return the bytes that count of a state, and the most of them that can be kept."""
        return self.lease.storage.contexts.size_of(value)

    async def _load_state(self) -> Any | None:
        if self._kept_state is not None:
            return await value_in(self._kept_state.value)
        # Behind a question it is loaded anew: others may have changed it since.
        step_id = StepId(STATE, "", 1 + len(self.journal.passed))
        found = await self.recorded(step_id)
        if found is not None:
            self._loaded = State(*json.loads(found.value))
            return self._loaded.value
        self._loaded = state = await self._stored_state()
        loaded = [*state] if state.place else [state.value, state.version]
        self.journal.delay(Recorded(step_id, "json", json.dumps(loaded).encode()))
        return state.value

    async def _stored_state(self, *, anew: bool = False) -> State:
        """Return the conversation's state; `anew`: as it is stored now.

        Raises:
            UnreadableTaskError: it is damaged.
        """
        context_id, contexts = self.lease.head.context_id, self.lease.storage.contexts
        if anew or self._found is None:
            return await contexts.find(context_id)
        return await contexts.read(context_id, self._found.get(CONTEXT))

    async def _store_state(self, value: Any, merge: Callable[[Any, Any], Any] | None) -> None:
        if self._loaded is None and self._is_outdated:
            raise WrongCallError(
                "ctx.update_context would store a state that was loaded before a question, and"
                " others may have changed it since: load it again behind the question, `state ="
                " await ctx.load_context()`, and change that."
            )
        if self._loaded is None:
            await self._load_state()
        contexts = self.lease.storage.contexts
        own = self._kept_state = await contexts.write_of(value, self._loaded or State())
        self.outbox.merged = None if merge is None else partial(self._merged, merge, own)

    async def _merged(self, merge: Callable[[Any, Any], Any], own: ContextWrite) -> ContextWrite:
        stored = await self._stored_state(anew=True)
        own_value = await value_in(own.value)
        try:
            value = merge(stored.value, own_value)
        except Exception as error:
            raise AgentFailedError from error
        return await self.lease.storage.contexts.write_of(value, stored)


def timed_out(step_id: StepId) -> WaitTimeoutError:
    """Return the error of a wait that nothing has ended in time."""
    name = step_id.name.partition(" ")[2] or step_id.name
    late = f"{name!r}, for which the agent has waited, has not come in time."
    return WaitTimeoutError(late, client_text=f"{late} Send the message again in a new task.")


async def _rounds() -> None:
    """Let the loop make so many rounds that each wait that has ended is over."""
    for _ in range(2 * PAUSE_ROUNDS):
        await asyncio.sleep(0)


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


def _ends(event: Event) -> bool:
    """Return True if an event ends the turn by itself."""
    if isinstance(event, Message):
        return True
    if not isinstance(event, Task | TaskStatusUpdateEvent):
        return False
    state = event.status.state
    return is_terminal(state) or state == TaskState.TASK_STATE_INPUT_REQUIRED


def _step_span(step_id: StepId, tried: int) -> AbstractContextManager[Span]:
    """Return the span of one try of a step; the value of a record, read again, has none."""
    about = {
        "a2a.step.name": step_id.name,
        "a2a.step.key": step_id.key or None,
        "a2a.step.number": step_id.number,
        "a2a.step.retries": tried or None,
    }
    return spans.span(f"step {step_id.name}", attributes=about)
