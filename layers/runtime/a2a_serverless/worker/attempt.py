"""One attempt of an agent on a turn: its start, what may stop it, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from a2a.auth.user import User
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.types import SendMessageRequest, Task

from a2a_serverless import faults
from a2a_serverless.clock import end_tasks, error_of, first_of, with_timeout
from a2a_serverless.errors import (
    A2AServerlessError,
    FencedError,
    InvalidAgentEventError,
    StateTooLargeError,
    TurnFinishedError,
)
from a2a_serverless.queues.fifo import DONE, DeliveryOutcome
from a2a_serverless.settings import Settings
from a2a_serverless.storage.blobs import InlineLimits
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import canceled
from a2a_serverless.storage.table import Item
from a2a_serverless.tasks.attempts import RetryPolicy, ReturnDecision, on_return
from a2a_serverless.tasks.blobs import raw_bytes
from a2a_serverless.tasks.entries import Caller, content_of, contents_of, is_plain
from a2a_serverless.tasks.fold import Fold, Log, Record, extend
from a2a_serverless.tasks.head import ASKED, AttemptEnd, is_terminal, state_name
from a2a_serverless.tasks.questions import Questions, questions_of
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.tasks.waits import kept_of
from a2a_serverless.values import dataclass
from a2a_serverless.worker.agents import handler_of
from a2a_serverless.worker.calls import cancel_calls
from a2a_serverless.worker.context import enter_turn
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
from a2a_serverless.worker.lease import Lease
from a2a_serverless.worker.loops import StartedTasks, called, contained
from a2a_serverless.worker.meter import Meter
from a2a_serverless.worker.outbox import Outbox
from a2a_serverless.worker.projection import Projection
from a2a_serverless.worker.settlement import Settlement
from a2a_serverless.worker.steps import HAND_OVER_S, MAX_HAND_OVER_SHARE, ParkedError
from a2a_serverless.worker.turn import ActiveTurn

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
    projection: Projection
    log: Log
    state: Mapping[str, str]
    """For the headers of the call contexts."""
    replayed: Sequence[Record] = ()
    """The commits of earlier attempts that the next claim does not take back."""
    questions: Questions | None = None
    """What the agent's code has asked its client before; None: nothing."""
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
        agents = replace(AGENTS, link_s=inline.link_s, base_url=inline.base_url)
        if self.context.message is not None:
            await storage.show(self.context.message, agents)
        since, entries = self.log.since, [e for each in self.log.records for e in each.entries]
        is_plain_before = since is None or since.is_plain
        # Without files nothing has to be shown, and the Task need not be made.
        if not is_plain_before or not all(map(is_plain, map(content_of, entries))):
            task = self.context.current_task
            files = sum(raw_bytes(*content.parts) for content in contents_of(task))
            await storage.show(task, agents if files <= AGENTS.all_bytes else inline)
        for answer in self.questions.answers.values() if self.questions else ():
            await storage.show(answer.request.message, agents)
        return replace(self, inline=agents)


def turn_of(log: Log, state: Mapping[str, str]) -> TurnInput:
    """Return the current turn of a log that was read from its beginning.

    The agent gets the turn with which its code began, as that began. The projection has what the
    next claim keeps of earlier attempts, as `replayed` has. `state` becomes the headers of the call
    context.
    """
    turn = log.head.turn
    first, base = turn.begun or turn.number, turn.begun_base or turn.base
    fold = log.fold(first - 1)
    status = fold.status if first == base else _before(log, first, base).status
    extend(fold, log.between(first - 1, base))
    request, caller = fold.opening(first)
    context = _request_context(fold, caller, state, request)
    if first > 1:
        context.given = lambda: _before(log, first, base).task()
    replayed = log.replayed()
    return TurnInput(
        context=context,
        projection=Projection(log.restarted() if replayed else fold, status if first > 1 else None),
        log=log,
        state=state,
        replayed=replayed,
        questions=questions_of(log) if turn.begun else None,
    )


def canceled_turn_of(log: Log, state: Mapping[str, str]) -> TurnInput:
    """Return the current turn of a log for `cancel()` alone: with all that the log has."""
    now = log.fold()
    return TurnInput(
        context=_cancel_context(log, state),
        projection=Projection(now, now.status),
        log=log,
        state=state,
    )


def _cancel_context(log: Log, state: Mapping[str, str]) -> RequestContext:
    now = log.fold()
    _, caller = now.opening(log.head.turn.number)
    context = _request_context(now, caller, state)
    context.given = now.task
    return context


@dataclass(frozen=True)
class _CallerUser(User):
    """The sender of the turn's message, as the API has authenticated it."""

    _name: str

    @property
    def is_authenticated(self) -> bool:
        return bool(self._name)

    @property
    def user_name(self) -> str:
        return self._name


def _before(log: Log, first: int, base: int) -> Fold:
    """Return the task before a follow-up, without its message, as the SDK's server gives it.

    So the Task's status is still the question that the message answers. If the message had to wait
    for another turn, the Task also shows what was written until the end of that turn.
    """
    before = log.fold(first - 1)
    if first != base:
        opening = replace(log.at(first), entries=())
        extend(before, (opening, *log.between(first, base)))
    return before


class _TurnContext(RequestContext):
    """The context of a turn, whose Task is made when the agent first asks for it.

    Many agents never do, and the Task of a thousand turns costs more than all else of a turn.
    """

    given: Callable[[], Task] | None = None
    """Makes the Task; None: it is made, or there is none."""
    _task: Task | None = None

    @property
    def current_task(self) -> Task | None:
        if self.given is not None:
            self.current_task = self.given()
        return self._task

    @current_task.setter
    def current_task(self, task: Task | None) -> None:
        self._task, self.given = task, None


def _request_context(
    fold: Fold,
    caller: Caller,
    state: Mapping[str, str],
    request: SendMessageRequest | None = None,
) -> _TurnContext:
    """Return the context of `execute()`, or of `cancel()`, which has no request.

    The caller adds the Task. On a first turn there is none, as on the SDK's own server, where the
    agent's first event creates the task. `state` has the request's headers that the API sent along;
    executors look for them in the call context's `state["headers"]`.
    """
    own_request = None
    if request is not None:
        own_request = SendMessageRequest()
        own_request.CopyFrom(request)
    return _TurnContext(
        ServerCallContext(
            state={"headers": dict(state)},
            user=_CallerUser(caller.user),
            tenant=caller.tenant,
            requested_extensions=set(caller.extensions),
        ),
        request=own_request,
        task_id=fold.task_id,
        context_id=fold.context_id,
    )


@dataclass(kw_only=True, eq=False)
class AgentRun:
    """Runs `execute()` once and commits its result; or calls `cancel()` alone and ends the task.

    Nothing runs on afterwards, except an agent that refuses to stop: tasks that the agent has
    started end with the attempt. `stop_at` is in monotonic seconds; infinite without a deadline.
    """

    agent: AgentExecutor
    given: TurnInput
    lease: Lease
    settings: Settings
    retry: RetryPolicy
    stop_at: float = math.inf
    meter: Meter = field(default_factory=Meter)
    drains: Callable[[], bool] = lambda: False
    """Returns True once the process is to end: the turn leaves it at its next record."""
    found: Mapping[str, Item] | None = None
    """What is stored of the conversation; None: it was not read."""
    failure: AttemptEnd | None = field(default=None, init=False)
    """How the attempt, which is over, has failed; its agent may have failed the task without."""
    _was_blocked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._clock = self.lease.clock
        self._started = StartedTasks(self._exited)
        self.outbox = Outbox(
            lease=self.lease, flush_after_s=self.settings.flush_ms / 1000, meter=self.meter
        )
        left_s = self.stop_at - self._clock.monotonic()
        self._hand_over_at = self.stop_at - min(HAND_OVER_S, MAX_HAND_OVER_SHARE * left_s)
        self.turn = ActiveTurn(
            self.lease,
            self.outbox,
            self.given.projection,
            self.given.replayed,
            hands_over=self._hands_over,
            inline=self.given.inline,
            found=self.found,
            questions=self.given.questions,
        )

    def _hands_over(self, next_s: float) -> bool:
        """Return True if the turn leaves its process now, before a step that may take `next_s`."""
        now = self._clock.monotonic()
        is_due = now >= self._hand_over_at or now + next_s > self.stop_at or self.drains()
        return is_due and not self.lease.is_canceling

    async def run(self) -> DeliveryOutcome:
        """Run the agent until it ends or is stopped, and settle the turn.

        Raises:
            FencedError: another worker has the turn or its delivery; nothing more was written.
            TurnFinishedError: the turn was ended elsewhere.
            UnavailableError: the end of the attempt could not be stored.
        """
        lease, head = self.lease, self.lease.head
        if head.turn.checkpoint == head.turn.begun == 0:  # else it may have shown the first chunk
            self.outbox.accepted_at = self.given.log.at(head.turn.number).at
        keeping = lease.keeping_turn(is_writing=self.outbox.is_writing, on_blocked=self._blocked)
        try:
            async with self.outbox, keeping:
                try:
                    await self._supervise()
                except ParkedError:
                    self._tell_parked()
                except (FencedError, TurnFinishedError):
                    raise
                except A2AServerlessError as error:
                    self.turn.shut()  # from here on the log is the runtime's
                    settlement = Settlement(
                        error=error,
                        turn=self.turn,
                        log=self.given.log,
                        retry=self.retry,
                        keeps_texts=self.settings.keep_error_texts,
                    )
                    self.failure = settlement.end
                    return await settlement.settle()
            return DONE
        finally:
            self.turn.shut()
            self.turn.stopping.set()

    @property
    def parked(self) -> AttemptEnd | None:
        """Return how the attempt, which is over, has parked its turn at a record; None: it has not.

        If it is handed over, the caller sends the copy with which it goes on. One whose code has
        asked its client has ended the turn instead.
        """
        end = self.turn.parking
        if end is None or end.reason == ASKED or not self.turn.state.is_parked:
            return None
        return end

    def _tell_parked(self) -> None:
        if (end := self.parked) is not None:
            self.lease.logged(
                logger,
                logging.INFO,
                "turn_parked",
                "Turn left at a record",
                reason=end.reason,
                until=end.until,
                records=len(self.turn.journal),
            )

    async def cancel(self) -> None:
        """Call `cancel()` while no agent works on the turn, and end the task.

        The task is canceled even if that raises, unless the agent gives it another end. A lost
        delivery does not interrupt `cancel()`.

        Raises:
            FencedError: another worker has the turn or its delivery; nothing more was written.
            TurnFinishedError: the task was ended elsewhere.
            UnavailableError: the end could not be stored.
        """
        turn, outbox = self.turn, self.outbox
        self.lease.canceling.set()
        turn.journal.recall(kept_of(self.given.log))
        async with outbox:
            asking = self._asked_to_cancel(self.given.context)
            try:
                timeout_s = self.settings.cancel_timeout_s
                error = await with_timeout(asking, clock=self._clock, seconds=timeout_s)
            finally:
                # Before the end is committed: what `cancel()` has started may still write until
                # here.
                await self._started.end(clock=self._clock, fields=self.lease.ids)
            if error is not None:
                self._log_raised(error)
            turn.shut()
            await outbox.drain()  # the agent's own end may not be committed yet
            state = turn.projection.state
            has_ended = turn.has_ended and state is not None and is_terminal(state)
            if isinstance(outbox.failure, StaleStateError):  # so the agent's own end is not stored
                outbox.discard()
                has_ended = False
            if not has_ended:
                outbox.put(*canceled(self.lease.head).entries)
            await outbox.flush()

    async def _supervise(self) -> None:
        """Run the agent, stop it when its turn has to end, and commit the end of the turn.

        Raises:
            Exception: why it cannot end here; after it the agent has stopped.
        """
        lease = self.lease
        if lease.reason is not None:  # the delivery was lost while its turn was claimed
            raise lease.reason
        execution = asyncio.create_task(contained(self._execute(), self._started))
        deadline = asyncio.create_task(self._keep_deadline())
        try:
            await first_of(lease.stopped.wait(), lease.canceling.wait(), tasks=[execution])
            if self.turn.parking is not None:
                await self._leave(execution)
            # A cancel also counts if the agent noticed it itself and returned without an ending.
            is_cancelled = not self.turn.has_ended and lease.is_canceling
            if is_cancelled and not lease.stopped.is_set():
                await self._cancel(execution)
            await self._settle(execution, is_cancelled=is_cancelled)
        finally:
            # Before the turn is settled: the agent stops before another attempt can begin.
            await self._end(execution, deadline)
            await self._started.end(clock=self._clock, fields=lease.ids)

    async def _leave(self, execution: asyncio.Task[None]) -> None:
        """Let the agent end by TurnParked, if that comes first: its cleanup hears of no cancel."""
        await self.turn.confirm_parked()
        if not self.turn.state.is_parked or self.lease.is_canceling:
            return
        await self.turn.tell_gone()
        ending = asyncio.gather(execution, *self._started.running(), return_exceptions=True)
        if not ending.done():
            await first_of(self._clock.sleep(CANCEL_HEARD_S), tasks=[ending])

    async def _execute(self) -> None:
        if self.meter.budgets.is_set:
            await self.meter.begin()
            turn = self.lease.head.turn
            if turn.checkpoint == turn.begun == 0:  # with records, what is left may need no model
                self.meter.check()
        enter_turn(self.given.context, self.turn)
        await called(self.agent.execute, self.given.context, self.turn)

    async def _settle(self, execution: asyncio.Task[None], *, is_cancelled: bool) -> None:
        """Commit the end of the turn, or raise the reason why it cannot end."""
        turn, lease = self.turn, self.lease
        error = error_of(execution)
        if turn.has_ended:
            # The agent's own end comes first: it also counts in an attempt that is being stopped.
            await self._store_end()
            if error is not None and not is_cancelled:
                text = "Agent raised at its end"
                lease.logged(logger, logging.WARNING, "error_after_end", text, cause=error)
            return
        if lease.reason is not None:
            raise lease.reason
        # Before all errors of the agent: a task that was canceled does not fail.
        if is_cancelled:
            await self._commit(canceled(lease.head))
            return
        if turn.fault is not None:
            raise turn.fault
        if isinstance(error, AgentNotLoadedError | WrongMethodError | StateTooLargeError):
            raise error  # the runtime's own sentence, which the client may read
        if error is None or comes_of_forgetting(error):
            turn.refuse_forgotten()
        if isinstance(error, AgentFailedError):  # the agent itself wanted to end the process
            raise error
        if error is not None:
            raise AgentFailedError from error
        turn.keep_pause()
        turn.shut()  # nothing comes behind the end of the turn
        state = turn.projection.state
        if on_return(state) is ReturnDecision.AT_FAULT:
            place = place_of_function(handler_of(self.agent))
            last = "none" if state is None else state_name(state)
            raise InvalidAgentEventError(NO_ENDING.format(last), place=place)
        # The kept pause and the end of the turn are one commit: no crash comes between them.
        await self.outbox.flush(ends_turn=True)

    async def _store_end(self) -> None:
        """Commit the agent's own end; or, if its state is stale and a cancel came, the cancel."""
        try:
            await self.outbox.flush()
        except StaleStateError:
            if not self.lease.is_canceling:
                raise
            self.outbox.discard()  # first: after a failure the outbox drops what is put
            await self._commit(canceled(self.lease.head))

    async def _commit(self, end: Commit) -> None:
        self.turn.shut()  # nothing comes behind the end, not even in its own commit
        self.outbox.put(*end.entries, wanted=end)
        await self.outbox.flush()

    async def _cancel(self, execution: asyncio.Task[None]) -> None:
        """Cancel `execute()`, call `cancel()`, and wait for both as long as a cancel may take."""
        self.lease.logged(logger, logging.INFO, "canceling", "Canceling the agent")
        execution.cancel()
        self.turn.stopping.set()
        faults.point("canceling")
        asking = asyncio.create_task(self._ask_to_cancel(execution))
        try:
            both = asyncio.gather(execution, asking, return_exceptions=True)
            timeout = self._clock.sleep(self.settings.cancel_timeout_s)
            await first_of(timeout, self.lease.stopped.wait(), tasks=[both])
        finally:
            # Before the end is committed: until here `cancel()` may give the task another end.
            await self._end(asking)
            error = error_of(asking)
            if isinstance(error, Exception):  # the task is canceled anyway
                self._log_raised(error)

    async def _ask_to_cancel(self, execution: asyncio.Task[None]) -> None:
        # `execute()` comes first: `cancel()` runs at the same time only if it does not end in time.
        await first_of(self._clock.sleep(CANCEL_HEARD_S), tasks=[execution])
        await self._asked_to_cancel(self.given.cancel_context())

    async def _asked_to_cancel(self, context: RequestContext) -> None:
        """Call `cancel()`, and cancel what was called beside it; raise what `cancel()` raises."""
        error, lost = await asyncio.gather(  # in this order: a Worker names its agents first
            contained(called(self.agent.cancel, context, self.turn), self._started),
            contained(cancel_calls(self.turn), self._started),
            return_exceptions=True,
        )
        if isinstance(lost, BaseException):
            text = "The agents that were called were not all asked to cancel their tasks"
            self.lease.logged(logger, logging.WARNING, "call_not_canceled", text, cause=lost)
        if isinstance(error, BaseException):
            raise error

    def _log_raised(self, error: BaseException) -> None:
        text = "Agent's cancel() raised"
        self.lease.logged(logger, logging.WARNING, "cancel_raised", text, cause=error)

    async def _keep_deadline(self) -> None:
        if self.stop_at < math.inf:
            await self._clock.sleep(max(0, self.stop_at - self._clock.monotonic()))
            running = [step.id.name for step in self.turn.journal.active]
            self.lease.stop(DeadlineError(*running[:1]))

    async def _end(self, *tasks: asyncio.Task[None]) -> None:
        for _ in await end_tasks(*tasks, clock=self._clock):
            text = "Agent does not stop; its queue is closed"
            self.lease.logged(logger, logging.ERROR, "agent_left_behind", text)
        for task in tasks:
            error_of(task)  # retrieved, so that asyncio does not report it as lost

    def _exited(self, failure: AgentFailedError) -> None:
        """Stop the attempt, as a task that the agent has started wants to end the process.

        asyncio would end the process, even if the agent did not look at the task's end. A cancel
        goes on, and so does an end that the agent has given.
        """
        if not (self.lease.is_canceling or self.turn.has_ended):
            self.turn.stop(failure)

    def _blocked(self, seconds: float, place: str) -> None:
        """Log, once a turn, that it has blocked its loop, and so the other turns of the process."""
        if not self._was_blocked:
            self._was_blocked = True
            self.lease.logged(logger, logging.WARNING, "loop_blocked", BLOCKED, seconds, place)
