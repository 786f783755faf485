"""One attempt of an agent on a turn: its start, what may stop it, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from a2a.auth.user import User
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.types import SendMessageRequest, Task, TaskState

from a2a_serverless import faults
from a2a_serverless.clock import end_tasks, error_of, first_of, with_timeout
from a2a_serverless.errors import (
    A2AServerlessError,
    FencedError,
    InvalidAgentEventError,
    StateTooLargeError,
    TurnFinishedError,
)
from a2a_serverless.queues.fifo import DONE, Verdict
from a2a_serverless.settings import Settings
from a2a_serverless.storage.blobs import InlineLimits
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import canceled
from a2a_serverless.tasks.attempts import RetryPolicy, Returned, on_return
from a2a_serverless.tasks.blobs import raw_bytes
from a2a_serverless.tasks.entries import Caller, contents_of, copied
from a2a_serverless.tasks.fold import Fold, Log, Record, extend
from a2a_serverless.tasks.head import AttemptEnd, is_terminal, state_name
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.agents import handler_of
from a2a_serverless.worker.context import enter_turn
from a2a_serverless.worker.executor import TurnQueue, TurnView
from a2a_serverless.worker.failing import FailedAttempt
from a2a_serverless.worker.failures import (
    AgentFailedError,
    AgentNotLoadedError,
    DeadlineError,
    StaleStateError,
    WrongMethodError,
    comes_of_forgetting,
    place_of_function,
)
from a2a_serverless.worker.files import AGENTS
from a2a_serverless.worker.guard import Guard, TurnWriter
from a2a_serverless.worker.loops import StartedTasks, called, contained
from a2a_serverless.worker.meter import Meter
from a2a_serverless.worker.steps import HAND_OVER_S, MAX_HAND_OVER_SHARE, LeftError

logger = logging.getLogger(__name__)

NO_ENDING = (
    "The agent returned without ending its turn (its last state: {}): "
    "await ctx.complete(…), or was an await forgotten?"
)
BLOCKED = (
    "The event loop was blocked for %.1f s at %s: call blocking code by"
    " `await ctx.run_sync(func, …)`, in an AgentExecutor by `await asyncio.to_thread(func, …)`"
)
CANCEL_HEARD_S = 1.0
"""Seconds in which `execute()` may end by itself before `cancel()` is called while it runs, and in
which an agent may end by itself whose turn has left its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInput:
    """A turn of a task, ready for an attempt, or for a cancel on which no attempt works."""

    context: RequestContext
    """For `execute()`, or for a cancel's `cancel()`."""
    view: TurnView
    log: Log
    state: Mapping[str, str]
    """For the headers of the call contexts."""
    kept: Sequence[Record] = ()
    """The commits of earlier attempts that the next claim does not take back."""
    inline: InlineLimits = AGENTS
    """What the agent is shown of files in itself."""

    def cancel_context(self) -> RequestContext:
        """Return the context of `cancel()`: the Task when the attempt began, and no message."""
        return _cancel_context(self.log, self.state)

    async def shown(self, storage: DurableStorage, inline: InlineLimits) -> TurnInput:
        """Return the turn with files and long texts, or links, in what the agent is given.

        `inline` is what clients are shown: a task with more files than an agent gets in itself
        shows them to the agent in the same way.
        """
        await _show_given(storage, self.context, inline)
        return replace(self, inline=replace(AGENTS, link_s=inline.link_s, base_url=inline.base_url))


def turn_of(log: Log, state: Mapping[str, str]) -> TurnInput:
    """Return the current turn of a log that was read from its beginning.

    The agent gets the turn as it began. The view has what the next claim keeps of earlier attempts,
    as `kept` does. `state` becomes the headers of the call context.
    """
    head = log.head
    fold = log.fold(head.turn - 1)
    given = _given(log, fold) if head.turn > 1 else None
    extend(fold, log.between(head.turn - 1, head.turn_base))
    request, caller = fold.opening(head.turn)
    context = _request_context(fold, caller, request=request, given=given, state=state)
    kept = log.kept()
    return TurnInput(
        context=context,
        view=TurnView(log.restarted() if kept else fold, None if given is None else copied(given)),
        log=log,
        state=state,
        kept=kept,
    )


def canceled_turn_of(log: Log, state: Mapping[str, str]) -> TurnInput:
    """Return the current turn of a log for `cancel()` alone: with all that the log has."""
    context = _cancel_context(log, state)
    given = context.current_task
    view = TurnView(log.fold(), None if given is None else copied(given))
    return TurnInput(context=context, view=view, log=log, state=state)


async def _show_given(
    storage: DurableStorage, context: RequestContext, inline: InlineLimits
) -> None:
    agents = replace(AGENTS, link_s=inline.link_s, base_url=inline.base_url)
    if context.message is not None:
        await storage.show(context.message, agents)
    task = context.current_task
    if task is not None:
        files = sum(raw_bytes(*content.parts) for content in contents_of(task))
        await storage.show(task, agents if files <= AGENTS.all_bytes else inline)


def _cancel_context(log: Log, state: Mapping[str, str]) -> RequestContext:
    now = log.fold()
    _, caller = now.opening(log.head.turn)
    return _request_context(now, caller, request=None, given=now.task(), state=state)


class _CallerUser(User):
    """The sender of the turn's message, as the API has authenticated it."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return bool(self._name)

    @property
    def user_name(self) -> str:
        return self._name


def _given(log: Log, before: Fold) -> Task:
    """Return the Task for a follow-up, without the follow-up's message, as the SDK's server does.

    So the Task's status is still the question that the message answers. `before` is the task before
    the message was accepted. If the message had to wait for another turn, the Task also shows what
    was written until the end of that turn.
    """
    head = log.head
    if head.turn == head.turn_base:
        return before.task()
    opening = replace(log.at(head.turn), entries=())
    behind = log.between(head.turn, head.turn_base)
    return extend(log.fold(head.turn - 1), (opening, *behind)).task()


def _request_context(
    fold: Fold,
    caller: Caller,
    *,
    request: SendMessageRequest | None,
    given: Task | None,
    state: Mapping[str, str] | None = None,
) -> RequestContext:
    """Return the context of `execute()`, or of `cancel()`, which has no request.

    `given` is the Task as it was before the message: None on a first turn, as on the SDK's own
    server, where the agent's first event creates the task. `state` has the request's headers that
    the API sent along; executors look for them in the call context's `state["headers"]`.
    """
    own_request = None
    if request is not None:
        own_request = SendMessageRequest()
        own_request.CopyFrom(request)
    return RequestContext(
        ServerCallContext(
            state={"headers": dict(state or {})},
            user=_CallerUser(caller.user),
            tenant=caller.tenant,
            requested_extensions=set(caller.extensions),
        ),
        request=own_request,
        task_id=fold.task_id,
        context_id=fold.context_id,
        task=given,
    )


def _described(state: TaskState | None) -> str:
    """Return the name of a state for a sentence to the client."""
    return "none" if state is None else state_name(state)


@dataclass(kw_only=True, eq=False)
class Attempt:
    """Runs `execute()` once and commits its result; or calls `cancel()` alone and ends the task.

    Nothing runs on afterwards, except an agent that refuses to stop: tasks that the agent has
    started end with the attempt. `stop_at` is in monotonic seconds; infinite without a deadline.
    """

    agent: AgentExecutor
    turn: TurnInput
    guard: Guard
    settings: Settings
    retry: RetryPolicy
    stop_at: float = math.inf
    meter: Meter = field(default_factory=Meter)
    drains: Callable[[], bool] = lambda: False
    """Returns True once the process is to end: the turn leaves it at its next record."""
    failure: AttemptEnd | None = field(default=None, init=False)
    """How the attempt, which is over, has failed; its agent may have failed the task without."""
    _was_blocked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._clock = self.guard.clock
        self._started = StartedTasks(self._exited)
        self._writer = TurnWriter(
            guard=self.guard,
            flush_after_s=self.settings.flush_ms / 1000,
            meter=self.meter,
        )
        left_s = self.stop_at - self._clock.monotonic()
        margin_s = min(HAND_OVER_S, MAX_HAND_OVER_SHARE * left_s)
        self._hand_over_at = self.stop_at - margin_s
        self._queue = TurnQueue(
            self._writer,
            self.turn.view,
            self.turn.kept,
            hands_over=self._hands_over,
            inline=self.turn.inline,
        )

    def _hands_over(self, next_s: float) -> bool:
        """Return True if the turn leaves its process now, before a step that may take `next_s`."""
        now = self._clock.monotonic()
        is_due = now >= self._hand_over_at or now + next_s > self.stop_at or self.drains()
        return is_due and not self.guard.is_canceling

    @property
    def left(self) -> AttemptEnd | None:
        """Return how the attempt, which is over, has left its turn at a record; None: it has not.

        If it does not sleep, the caller sends the copy with which it goes on.
        """
        return self._queue.left if self.guard.has_given_back else None

    @property
    def has_failed_task(self) -> bool:
        """Return True if this attempt, which is over, has failed its task."""
        return self.guard.head.state == TaskState.TASK_STATE_FAILED

    async def run(self) -> Verdict:
        """Run the agent until it ends or is stopped.

        Raises:
            FencedError: another worker has the turn or its delivery; nothing more was written.
            TurnFinishedError: the turn was ended elsewhere.
            UnavailableError: the end of the attempt could not be stored.
        """
        head = self.guard.head
        if not head.has_records:  # else the turn, which has come back, may have shown something
            self._writer.accepted_at = self.turn.log.at(head.turn).at
        kept = self.guard.keeping_turn(
            is_writing=lambda: not self._writer.is_idle, on_blocked=self._blocked
        )
        try:
            async with self._writer, kept:
                verdict = await self._verdict()
            if self.left is not None:
                self.guard.logged(
                    logger,
                    logging.INFO,
                    "turn_left",
                    "Turn left at a record",
                    reason=self.left.reason,
                    until=self.left.until,
                    records=len(self._queue.records.journal),
                )
            return verdict
        finally:
            self._queue.shut()
            self._queue.stop_waiting()

    async def cancel(self) -> None:
        """Call `cancel()` while no agent works on the turn, and end the task.

        The task is canceled even if that raises, unless the agent gives it another end. A lost
        delivery does not interrupt `cancel()`.

        Raises:
            FencedError: another worker has the turn or its delivery; nothing more was written.
            TurnFinishedError: the task was ended elsewhere.
            UnavailableError: the end could not be stored.
        """
        queue, writer = self._queue, self._writer
        self.guard.canceling.set()
        async with writer:
            asking = self._asked_to_cancel(self.turn.context)
            try:
                timeout_s = self.settings.cancel_timeout_s
                error = await with_timeout(asking, clock=self._clock, seconds=timeout_s)
            finally:
                await self._started.end(clock=self._clock, fields=self.guard.ids())
            if error is not None:
                self._log_raised(error)
            queue.shut()
            await writer.drain()  # the agent's own end may not be committed yet
            has_ended = queue.state is not None and is_terminal(queue.state) and queue.fault is None
            if isinstance(writer.failure, StaleStateError):  # so the agent's own end is not stored
                writer.discard()
                has_ended = False
            if not has_ended:
                writer.put(*canceled(self.guard.head).entries)
            await writer.flush()

    async def _verdict(self) -> Verdict:
        try:
            await self._supervise()
        except (FencedError, TurnFinishedError):
            raise
        except LeftError:
            return DONE
        except A2AServerlessError as error:
            self._queue.shut()  # from here on the log is the runtime's
            failed = FailedAttempt(
                error=error,
                writer=self._writer,
                journal=self._queue.records.journal,
                log=self.turn.log,
                retry=self.retry,
                keeps_texts=self.settings.keep_error_texts,
            )
            self.failure = failed.end
            return await failed.settled()
        return DONE

    async def _supervise(self) -> None:
        guard = self.guard
        if guard.reason is not None:  # the delivery was lost while its turn was claimed
            raise guard.reason
        execution = asyncio.create_task(contained(self._execute(), self._started))
        deadline = asyncio.create_task(self._keep_deadline())
        try:
            await first_of(guard.stopped.wait(), guard.canceling.wait(), tasks=[execution])
            if self._queue.left is not None:
                await self._leave(execution)
            # A cancel also counts if the agent noticed it itself and returned without an ending.
            is_cancelled = guard.is_canceling and not self._queue.has_ended
            if is_cancelled and not guard.stopped.is_set():
                await self._cancel(execution)
            await self._settle(execution, is_cancelled=is_cancelled)
        finally:
            # Before the verdict: the agent stops before another attempt can begin.
            await self._end(execution, deadline)
            await self._started.end(clock=self._clock, fields=self.guard.ids())

    async def _leave(self, execution: asyncio.Task[None]) -> None:
        """Let the agent end by TurnLeft, if that comes first: its cleanup hears of no cancel."""
        await self._queue.confirm_left()
        if self.left is None or self.guard.is_canceling:
            return
        await self._queue.tell_left()
        ending = asyncio.gather(execution, *self._started.running(), return_exceptions=True)
        if not ending.done():
            await first_of(self._clock.sleep(CANCEL_HEARD_S), tasks=[ending])

    async def _execute(self) -> None:
        if self.meter.budgets.is_set:
            await self.meter.begin()
            if not self.guard.head.has_records:  # what was paid for may be all that is missing
                self.meter.check()
        enter_turn(self.turn.context, self._queue)
        await called(self.agent.execute, self.turn.context, self._queue)

    async def _settle(self, execution: asyncio.Task[None], *, is_cancelled: bool) -> None:
        """Commit the end of the turn, or raise the reason why it cannot end."""
        queue, writer = self._queue, self._writer
        error = error_of(execution)
        if queue.has_ended:
            # The agent's own end comes first: it also counts in an attempt that is being stopped.
            await self._store_end()
            if error is not None and not is_cancelled:
                self.guard.logged(
                    logger,
                    logging.WARNING,
                    "error_after_end",
                    "Agent raised at its end",
                    cause=error,
                )
            return
        if self.guard.reason is not None:
            raise self.guard.reason
        if is_cancelled:
            await self._commit(canceled(self.guard.head))
            return
        if queue.fault is not None:
            raise queue.fault
        if isinstance(error, AgentNotLoadedError | WrongMethodError | StateTooLargeError):
            raise error  # the runtime's own sentence, which the client may read
        if error is None or comes_of_forgetting(error):
            queue.refuse_forgotten()
        if isinstance(error, AgentFailedError):  # the agent itself wanted to end the process
            raise error
        if error is not None:
            raise AgentFailedError from error
        queue.keep_pause()
        queue.shut()  # nothing comes behind the end of the turn
        if on_return(queue.state) is Returned.AT_FAULT:
            place = place_of_function(handler_of(self.agent))
            raise InvalidAgentEventError(NO_ENDING.format(_described(queue.state)), place=place)
        # The kept pause and the end of the turn are one commit: no crash comes between them.
        await writer.flush(ends_turn=True)

    async def _store_end(self) -> None:
        """Commit the agent's own end; or, if its state is stale and a cancel came, the cancel."""
        try:
            await self._writer.flush()
        except StaleStateError:
            if not self.guard.is_canceling:
                raise
            self._writer.discard()  # first: after a failure the writer drops what is put
            await self._commit(canceled(self.guard.head))

    async def _commit(self, end: Commit) -> None:
        self._queue.shut()  # nothing comes behind the end, not even in its own commit
        self._writer.put(*end.entries, wanted=end)
        await self._writer.flush()

    async def _cancel(self, execution: asyncio.Task[None]) -> None:
        """Cancel `execute()`, call `cancel()`, and wait for both as long as a cancel may take."""
        self.guard.logged(logger, logging.INFO, "canceling", "Canceling the agent")
        execution.cancel()
        self._queue.stop_waiting()
        faults.point("canceling")
        asking = asyncio.create_task(self._ask_to_cancel(execution))
        try:
            both = asyncio.gather(execution, asking, return_exceptions=True)
            timeout = self._clock.sleep(self.settings.cancel_timeout_s)
            await first_of(timeout, self.guard.stopped.wait(), tasks=[both])
        finally:
            # Before the end is committed: until here `cancel()` may give the task another end.
            await self._end(asking)
            error = error_of(asking)
            if isinstance(error, Exception):  # the task is canceled anyway
                self._log_raised(error)

    async def _ask_to_cancel(self, execution: asyncio.Task[None]) -> None:
        # `execute()` comes first: `cancel()` runs at the same time only if it does not end in time.
        await first_of(self._clock.sleep(CANCEL_HEARD_S), tasks=[execution])
        await self._asked_to_cancel(self.turn.cancel_context())

    async def _asked_to_cancel(self, context: RequestContext) -> None:
        await contained(called(self.agent.cancel, context, self._queue), self._started)

    def _log_raised(self, error: BaseException) -> None:
        self.guard.logged(
            logger, logging.WARNING, "cancel_raised", "Agent's cancel() raised", cause=error
        )

    async def _keep_deadline(self) -> None:
        if self.stop_at < math.inf:
            await self._clock.sleep(max(0, self.stop_at - self._clock.monotonic()))
            running = [step.id.name for step in self._queue.records.journal.running]
            self.guard.stop(DeadlineError(*running[:1]))

    async def _end(self, *tasks: asyncio.Task[None]) -> None:
        for _ in await end_tasks(*tasks, clock=self._clock):
            self.guard.logged(
                logger,
                logging.ERROR,
                "agent_left_behind",
                "Agent does not stop; its queue is closed",
            )
        for task in tasks:
            error_of(task)  # retrieved, so that asyncio does not report it as lost

    def _exited(self, failure: AgentFailedError) -> None:
        """Stop the attempt, as a task that the agent has started wants to end the process.

        asyncio would end the process, even if the agent did not look at the task's end. A cancel
        goes on, and so does an end that the agent has given.
        """
        if not (self.guard.is_canceling or self._queue.has_ended):
            self._queue.stop(failure)

    def _blocked(self, seconds: float, place: str) -> None:
        """Log, once a turn, that it has blocked its loop, and so the other turns of the process."""
        if not self._was_blocked:
            self._was_blocked = True
            self.guard.logged(logger, logging.WARNING, "loop_blocked", BLOCKED, seconds, place)
