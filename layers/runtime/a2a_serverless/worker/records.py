"""What a turn records: the results of its steps, its sleeps, and the conversation's state.

`worker/steps.py` knows what was recorded; here it is done, and stored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from a2a.types import TaskArtifactUpdateEvent, TaskStatusUpdateEvent

from a2a_serverless import faults
from a2a_serverless.errors import InvalidAgentEventError
from a2a_serverless.observability import spans
from a2a_serverless.observability.spans import Span
from a2a_serverless.storage.contexts import State, value_in
from a2a_serverless.tasks.entries import Recorded, StepId, copied
from a2a_serverless.tasks.fold import Event, Record
from a2a_serverless.tasks.head import ASLEEP, HANDOVER, AttemptEnd
from a2a_serverless.tasks.rules import Commit, ContextWrite
from a2a_serverless.worker.failures import (
    AgentFailedError,
    FinalError,
    RetryLater,
    WrongCallError,
    is_final,
)
from a2a_serverless.worker.guard import PAUSE_ROUNDS, TurnWriter
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
    Retry,
    Running,
    StepError,
    current_step,
    running_step,
    until_time,
    wait_in,
)

if TYPE_CHECKING:
    from a2a_serverless.worker.executor import TurnQueue, TurnView

E = TypeVar("E", bound=Event)

BUSY_S: Final = 0.1
"""Seconds from one look at what is under way beside a sleep to the next."""
ROOM_FOR_RECORDS: Final = 1024
"""Bytes that a record may need beyond its value."""
CANCELLED_WITHIN_S: Final = 10.0
"""How many seconds later than before the agent may cancel a step that it has cancelled once."""


class TurnRecords:
    """What one attempt records, and what earlier attempts of its turn have left.

    Args:
        queue: that of the attempt; calls from other event loops run in its loop.
        writer: stores the records.
        view: the task as the attempt sees it.
        kept: the commits of earlier attempts that were not taken back.
        hands_over: returns True if the turn is to leave its process before a step that may take so
            many seconds.
    """

    def __init__(
        self,
        queue: TurnQueue,
        writer: TurnWriter,
        view: TurnView,
        kept: Sequence[Record],
        hands_over: Callable[[float], bool],
    ) -> None:
        self._queue = queue
        self._writer = writer
        self._guard = writer.guard
        self._view = view
        self._hands_over = hands_over
        self.journal = Journal(kept)
        self._longest_s = 0.0
        """Of the steps that this attempt has run: the next one may take as long."""
        self._unrecorded_s = 0.0
        """What sleeps have taken that are not recorded yet."""
        self._sleeping: dict[StepId, int] = {}
        self.state: ContextWrite | None = None
        """The conversation's state, to be stored with the agent's end of the turn."""
        self._loaded: State | None = None
        """The one that the turn has loaded."""

    # -- steps and sleeps ------------------------------------------------------------------------

    async def step(
        self, step_id: StepId, work: Callable[[], Awaitable[Any]], form: Form, retry: Retry
    ) -> Any:
        """Return the recorded result of a step; or run it, and return when its record is stored.

        Raises:
            StepError: it has failed, and is not tried again.
            WrongCallError: its result cannot be recorded.
        """
        await self._queue.unless_left()
        kept = await self.recorded(step_id)
        if kept is not None and kept.form == CANCELLED:
            await self._cancelled_again(kept)
        if kept is not None and kept.form != "until":
            return form.decoded(kept)
        until, tried = wait_in(kept)
        if until > self._guard.clock.now_ms():
            await self._queue.wait(self._park(step_id, until, self.journal.failures()))
        with running_step(self.journal, step_id, at_home=self._queue.call_at_home) as running:
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
                    await self._queue.wait(self._wait(running, tried, wait_s))
            has_blobs = self._guard.log.table.blobs is not None
            most = MAX_APART_BYTES if has_blobs else MAX_RESULT_BYTES
            entry = form.encoded(step_id, result, most)
            await self._queue.at_home(self._record(running, entry))
        return form.decoded(entry)

    async def recorded(self, step_id: StepId) -> Recorded | None:
        """Return the record of a step with its value; None if it has none.

        Raises:
            FinalError: its value is not stored any more.
        """
        kept = self.journal.found(step_id)
        if kept is None or not kept.is_apart:
            return kept
        whole = await self._queue.at_home(self._guard.log.whole_record(self._guard.head, kept))
        if whole is None:
            place = kept.value.decode(errors="replace")
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
        kept, now_ms, caught = self.journal.found(step_id), self._now_ms(), self.journal.failures()
        until = now_ms + int(seconds * 1000) if kept is None else wait_in(kept)[0]
        left_s = seconds if kept is None else max(0.0, (until - now_ms) / 1000)
        if kept is not None and not left_s:
            return
        has_to_leave = len(self.journal) > 0 and self._hands_over(left_s + self._longest_s)
        if left_s >= PARK_S or has_to_leave:
            await self._queue.wait(self._park(step_id, until, caught))
        else:
            await self._queue.sleep(left_s)
        if kept is None:
            await self._queue.at_home(self._slept(step_id, until, seconds, caught))

    async def _slept(
        self, step_id: StepId, until: int, seconds: float, caught: frozenset[StepId]
    ) -> None:
        """Take the record of a sleep that is over; store it if those that wait are a minute."""
        self.journal.end_sleep(step_id, until)
        self._unrecorded_s += seconds
        if self._unrecorded_s < PARK_S:
            return
        async with self._queue.in_turn(ROOM_FOR_RECORDS):
            await self._set_delayed_apart()
            # A step whose chunks clients have seen has to be recorded first, and takes it along.
            is_free = not any(one.has_streamed for one in self.journal.running)
            is_open = not (self._queue.has_ended or self._queue.is_closed())
            if is_free and is_open and self._unrecorded_s >= PARK_S:
                self._put_records(self.journal.waiting(caught), None)
        if not self._queue.has_ended:
            await self._queue.stored()

    def diverge(self, what: str, otherwise: str = "") -> NoReturn:
        """Stop the attempt: the agent has done something else than its records tell.

        Raises:
            DivergedError: always; the turn starts over.
        """
        error = DivergedError(what, otherwise)
        self._queue.call_at_home(lambda: self._queue.stop(error))
        raise error

    async def _unless_stopped(self) -> None:
        """Return while the attempt goes on; else wait until its end cancels the caller.

        An attempt that has been stopped runs nothing more, and what its steps raise does not count.

        Raises:
            TurnLeft: the turn has left this process.
            CancelledError: at once, in a loop other than the worker's.
        """
        await self._queue.unless_left()
        if self._guard.stopped.is_set():
            if not self._queue.is_home:
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
        await self._queue.sleep(json.loads(kept.value) + CANCELLED_WITHIN_S)
        self.diverge(f"not cancelled the step {kept.id.name!r}, as it had before")

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
        await self._park(running.id, until, running.caught, own=running, tried=tried)

    async def _record(self, running: Running, entry: Recorded) -> None:
        """Store a step's record, with what was held for it; leave the turn if it is time.

        Nothing is recorded any more once the agent has ended the turn.
        """
        entry = await self._apart(entry)
        # A step whose chunks clients have seen is recorded first: a record keeps all before it.
        while ahead := [one for one in self.journal.running - {running} if one.has_streamed]:
            await ahead[0].over.wait()
        async with self._queue.in_turn(len(entry.value) + ROOM_FOR_RECORDS):
            if self._queue.has_ended:
                return
            await self._set_delayed_apart()
            if not self._queue.is_closed():
                for held in running.held:
                    self._queue.put(self._view.entries_of(held))
                leaves = self.journal.running == {running} and self._hands_over(self._longest_s)
                records = self.journal.record(entry, running.caught)
                self._put_records(records, self._end(HANDOVER) if leaves else None)
        await self._queue.stored()

    async def _park(
        self,
        step_id: StepId,
        until: int,
        caught: frozenset[StepId],
        *,
        own: Running | None = None,
        tried: int = 0,
    ) -> None:
        """Leave the turn until a time, once nothing but `own` is under way.

        It returns only if that time comes first, as in a function of `ctx.run_sync`. `caught` are
        the steps that had failed before.

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
        self._sleeping[step_id] = until
        try:
            if not await self._nothing_beside(own, until):
                return
            async with self._queue.in_turn(ROOM_FOR_RECORDS):
                await self._set_delayed_apart()
                if not self._queue.is_closed():
                    end = self._end(ASLEEP, until=min(self._sleeping.values()))
                    self._put_records(self.journal.waiting(caught), end)
            await self._queue.stored()
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

    async def _nothing_beside(self, own: Running | None, until: int) -> bool:
        """Return True when nothing but `own` is under way, or False at `until`.

        A function of `ctx.run_sync` is under way while it waits itself.
        """
        calm = 0  # rounds of the loop: what was begun beside it may want to sleep, too
        while calm < PAUSE_ROUNDS:
            others = [one for one in self.journal.running if one is not own]
            if others:
                await others[0].over.wait()
            elif self._queue.under_way:
                if (left_ms := until - self._guard.clock.now_ms()) <= 0:
                    return False
                await self._guard.clock.sleep(min(BUSY_S, left_ms / 1000))
            await asyncio.sleep(0)
            calm = 0 if others or self._queue.under_way else calm + 1
        return True

    def _end(self, reason: str, *, until: int = 0) -> AttemptEnd:
        token, now_ms = self._guard.token or "", self._guard.clock.now_ms()
        return AttemptEnd(token=token, reason=reason, at=now_ms, until=until)

    def _now_ms(self) -> int:
        return self._guard.clock.now_ms()

    def _put_records(self, records: tuple[Recorded, ...], end: AttemptEnd | None) -> None:
        self._unrecorded_s = 0.0
        self._writer.put(*records, wanted=Commit(leaves=end))
        if end is not None:  # in this commit, so that nothing comes behind it
            self._queue.leave(end)

    # -- events that an earlier attempt has emitted ----------------------------------------------

    def keeps(self, event: Event, *, is_end: bool) -> bool:
        """Return True if an event goes no further: the log keeps it, or its step holds it.

        `is_end`: it ends the turn.

        Raises:
            DivergedError: the log keeps something else; the attempt is stopped.
        """
        step = current_step()
        if step is None:
            return self._was_told(event, is_end=is_end)
        if isinstance(event, TaskArtifactUpdateEvent):
            if len(self.journal.running) > 1 and not step.has_streamed:
                step.held.append(copied(event))
                return True
            for held in step.held:
                self._queue.put(self._view.entries_of(held))
            step.held.clear()
            step.has_streamed = True
        return False

    def _was_told(self, event: Event, *, is_end: bool) -> bool:
        told = False
        try:
            if is_end:
                self.journal.check_all_told()
            elif isinstance(event, TaskArtifactUpdateEvent):
                told = self.journal.is_told(event.artifact)
            elif isinstance(event, TaskStatusUpdateEvent):
                told = self.journal.is_told(None)
        except DivergedError as error:
            self._queue.stop(error)
            raise
        if told:
            self._view.repeat(event)
        return told

    def named(self, event: E) -> E:
        """Return an event; that of an artifact has the id that the log has for it."""
        if not isinstance(event, TaskArtifactUpdateEvent):
            return event
        given_id = event.artifact.artifact_id
        is_new = current_step() is None and not self._view.has_artifact(given_id)
        kept_id = self.journal.kept_id(event.artifact, is_new=is_new)
        if kept_id == given_id:
            return event
        event = copied(event)
        event.artifact.artifact_id = kept_id
        return event

    # -- the conversation's state ----------------------------------------------------------------

    async def load_state(self) -> Any | None:
        """Return the conversation's state, as this turn has stored it if it has; None if unset."""
        return await self._queue.at_home(self._load_state())

    async def store_state(self, value: Any, merge: Callable[[Any, Any], Any] | None = None) -> None:
        """Store the conversation's state with the agent's end of the turn, and with no other end.

        Without an earlier `load_state`, the version to replace is read here. If two tasks write at
        the same time, one of them is refused, so that no update is overwritten unseen; or it
        stores what its `merge` makes of the other's state and its own.
        """
        await self._queue.at_home(self._store_state(value, merge))

    def size_of_state(self, value: Any) -> tuple[int, int]:
        """Return the bytes that count of a state, and the most of them that can be kept."""
        return self._guard.log.contexts.size_of(value)

    async def _load_state(self) -> Any | None:
        if self.state is not None:
            return await value_in(self.state.value)
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
        self.state = await self._guard.log.contexts.write_of(value, self._loaded or State())
        self._writer.merged = None if merge is None else partial(self._merged, merge, self.state)

    async def _merged(self, merge: Callable[[Any, Any], Any], own: ContextWrite) -> ContextWrite:
        stored = await self._guard.state(anew=True)
        own_value = await value_in(own.value)
        try:
            value = merge(stored.value, own_value)
        except Exception as error:
            raise AgentFailedError from error
        return await self._guard.log.contexts.write_of(value, stored)


def _step_span(step_id: StepId, tried: int) -> AbstractContextManager[Span]:
    """Return the span of one try of a step; the value of a record, read again, has none."""
    about = {
        "a2a.step.name": step_id.name,
        "a2a.step.key": step_id.key or None,
        "a2a.step.number": step_id.number,
        "a2a.step.retries": tried or None,
    }
    return spans.span(f"step {step_id.name}", attributes=about)
