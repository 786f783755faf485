"""Running operations: from a delivery to its acknowledgement."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import replace
from functools import partial

from a2a.server.agent_execution import AgentExecutor

from a2a_serverless import faults
from a2a_serverless.clock import Clock, with_timeout
from a2a_serverless.errors import (
    A2AServerlessError,
    ConcurrencyError,
    ConfigurationError,
    TurnFinishedError,
)
from a2a_serverless.observability import metrics, spans
from a2a_serverless.observability.logs import (
    begun,
    correlation_id,
    count_failed,
    observed_attempt,
    observed_cancel,
    word_of,
    works_on,
)
from a2a_serverless.observability.spans import Span
from a2a_serverless.propagated import propagated_variables
from a2a_serverless.queues.fifo import (
    DONE,
    LOST,
    FifoQueue,
    Handle,
    Verdict,
    again,
    conclude,
    send_copy,
    send_operation,
)
from a2a_serverless.settings import Settings
from a2a_serverless.storage.activity import TELL_MS, tell_of_process
from a2a_serverless.storage.conversation import Line, found_in, pass_on, take_place
from a2a_serverless.storage.endings import cancel_task, end_task, gave_up
from a2a_serverless.storage.layout import LINE
from a2a_serverless.storage.snapshots import take_snapshot
from a2a_serverless.storage.spending import Spending
from a2a_serverless.storage.table import Item, Table
from a2a_serverless.tasks.attempts import (
    MOST_INTERRUPTIONS,
    NEWER_DELAY_S,
    Canceled,
    Delivered,
    after_interruption,
    comes_late,
    early_s,
    goes_on,
    lasts_too_long,
    may_be_left,
    may_give_up,
    on_cancel,
    on_current_turn,
    on_delivery,
    ready_at,
    waits_behind,
)
from a2a_serverless.tasks.conversation import Started, on_start
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import SHUTDOWN, FailedBy, Head, Operation, plain_state
from a2a_serverless.tasks.identity import Scope, new_token
from a2a_serverless.tasks.rules import Commit, releasing, wants_snapshot
from a2a_serverless.tasks.usage import MILLION, total
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.agents import PropagatingAgent, TurnAgents
from a2a_serverless.worker.attempt import Attempt, TurnInput, canceled_turn_of, turn_of
from a2a_serverless.worker.failures import log_exceptions, reason_of
from a2a_serverless.worker.guard import Guard, Looks, StaleReadError
from a2a_serverless.worker.loops import Keeper, have_threads, name_origins, survive_exits
from a2a_serverless.worker.meter import Budgets, Meter
from a2a_serverless.worker.shares import Admitted, Shares

logger = logging.getLogger(__name__)

DEADLINE_MARGIN_S = 10.0
MAX_MARGIN_SHARE = 0.2
"""The margin before a deadline is at most this share of the time that is left at the start."""
_NEWER = (
    "a newer release of this service wrote its task, and only a worker of that release may run it,"
    " or the message that opened its turn is damaged"
)
_CUT_OFF = (
    "Delivery cancelled, though this worker does not end: the agent of one of its turns has"
    " cancelled tasks that it has not started"
)
_NO_PLACE = (
    "This turn may run beside others of its conversation: here A2A_CONVERSATIONS is serial, but the"
    " API that accepted its message runs with parallel. Set Conversations of both to the same"
)
RELEASE_S = 6.0
"""Seconds to wait at most until HEAD notes that an interrupted attempt is over. This is a little
longer than a request's read time-out, so that hardly any request is under way afterwards."""
TOO_LONG = "The agent has worked on this message for {:g} hours (MaxTurnHours), which is too long."
_OFTEN = (
    f"The turn was interrupted more than {MOST_INTERRUPTIONS} times: from here on each interruption"
    " uses up an attempt"
)
LONG_POLL_S = 20.0
"""Seconds of one poll in pull mode."""
MOST_AT_ONCE = 10
"""Deliveries that one poll brings at most."""
PULL_LIMIT_S = 11.5 * 3600
"""The longest turn in pull mode: SQS lets a message be invisible for 12 hours at most."""


class Presence:
    """Tells once a minute that this process works, while it does.

    Args:
        table: where that is stored.
        clock: tells the minutes.
    """

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._told_at = -TELL_MS
        self.turns = 0
        """The turns that it runs now."""

    @asynccontextmanager
    async def over_turn(self) -> AsyncIterator[None]:
        """Count a turn for the block, and tell of the process beside it if that is due."""
        self.turns += 1
        telling = asyncio.create_task(self.tell())
        try:
            yield
        finally:
            self.turns -= 1
            await telling

    async def tell(self) -> None:
        """Tell that the process works, at most once a minute; an error is logged."""
        now_ms = self._clock.now_ms()
        if 0 <= now_ms - self._told_at < TELL_MS:
            return
        self._told_at = now_ms
        try:
            await tell_of_process(self._table, turns=self.turns, now_ms=now_ms)
        except A2AServerlessError as error:
            extra = {"action": "presence_failed"}
            logger.warning("This process is not seen as working: %s", error, extra=extra)


class Watch:
    """Hears of a worker's attempts, with what the log does not say: the content of their tasks."""

    def began(self, log: Log) -> None:
        """Take note of an attempt that begins; `log` was read from its beginning."""

    def ended(self, log: Log, head: Head) -> None:
        """Take note that this attempt has ended its turn; `head` is as it has left the task."""


class WorkerAdapter:
    """Runs one agent on the operations of a queue.

    Args:
        backends: storage and queue, seen through any scope.
        agent: runs all turns, several at a time; or a `TurnAgents`, which gives each turn its own.
        settings: retries, visibility and the time a cancel may take.
        deadline_margin_s: how long before its deadline a turn is given back.
        has_heartbeat: False where the queue keeps a delivery for as long as a turn can take.
        keeper: runs what goes on while the agent blocks its event loop.
        watch: hears of the attempts.
        presence: that of the process, if it has several adapters.

    Raises:
        ConfigurationError: A2A_CONTEXT_VARIABLES names something that is no context variable; or
            the price list cannot be used.
    """

    def __init__(
        self,
        backends: Backends,
        agent: AgentExecutor | TurnAgents,
        settings: Settings,
        *,
        deadline_margin_s: float = DEADLINE_MARGIN_S,
        has_heartbeat: bool = True,
        keeper: Keeper | None = None,
        watch: Watch | None = None,
        presence: Presence | None = None,
    ) -> None:
        self.watch = watch or Watch()
        self.backends = backends
        self.agent = agent
        self.propagated = propagated_variables(settings.context_variables)
        self.settings = settings
        self.clock = backends.storage.clock
        self.retry = settings.retry()
        self.budgets = Budgets.of(settings)
        self.inline = settings.inline(settings.public_url or settings.push_issuer)
        self.keeper = keeper or Keeper()
        self.presence = presence or Presence(backends.storage.table, self.clock)
        self.looks = Looks(backends.storage, self.clock, beside=self.presence.tell)
        self.since = self.clock.now_ms()
        """A message that waited for the process to start is no sign of a backlog."""
        self.shares = Shares(
            backends.storage,
            backends.operations,
            self.clock,
            # Without shared turns nothing consumes that queue.
            quarantine=backends.quarantine if settings.worker_turns > 1 else None,
            since=self.since,
        )
        self.deadline_margin_s = deadline_margin_s
        self.has_heartbeat = has_heartbeat

    async def process(
        self,
        handle: Handle[Operation],
        *,
        deadline: float | None = None,
        quarantine: FifoQueue[Operation] | None = None,
        is_quarantined: bool = False,
    ) -> bool:
        """Run one delivery to its end; nothing runs on afterwards.

        Return True if it is done and acknowledged. Return False if it will be delivered again: then
        an event source has to be told that it failed. `deadline` is in the clock's monotonic
        seconds; the turn is given back some time before it. `quarantine` takes the operation if its
        turn must have no neighbours; None if the process has no other turns, or they are no danger
        to one another. `is_quarantined`: the operation comes from there.
        """
        faults.point("after-receive")
        survive_exits(asyncio.get_running_loop())
        name_origins()
        delivery = _Delivery(
            self, handle, deadline, quarantine=quarantine, is_quarantined=is_quarantined
        )
        async with self.presence.over_turn():
            is_done = await self._processed(delivery)
            if delivery.instead is not None:
                await self.process(delivery.instead, deadline=deadline, quarantine=quarantine)
            return is_done

    async def _processed(self, delivery: _Delivery) -> bool:
        handle = delivery.handle
        with (
            begun(**handle.message.ids, receives=handle.attempt),
            self._span_of(delivery),
        ):
            try:
                verdict = await delivery.verdict()
            except asyncio.CancelledError:
                try:
                    if self.backends.operations.is_closed:
                        text = "Delivery given back: this worker shuts down"
                        await delivery.interrupted(SHUTDOWN, logging.INFO, "shutdown", text)
                    else:  # as a worker's death: the attempt counts, and the next one runs alone
                        _log(handle, logging.ERROR, "cut_off", _CUT_OFF)
                finally:  # also if the worker is told once more: another one goes on at once
                    await self._conclude(handle, again(0))
                raise
            except Exception as error:  # noqa: BLE001 - an invocation's edge: the operation must not be lost
                spans.current().fail(reason_of(error))
                verdict = again(self.retry.delay_s(handle.attempt))
                await delivery.interrupted(
                    reason_of(error), logging.ERROR, "delivery_failed", "Delivery failed", error
                )
            concluding = self._conclude(handle, verdict)
            is_done, _ = await asyncio.gather(concluding, delivery.refill_shares())
        if delivery.instead is not None or delivery.is_handed_over:
            await self._remove(handle)
        return is_done

    async def serve(self, *, concurrency: int) -> None:
        """Pull operations, `concurrency` at a time, until the queue is shut down.

        One poll at a time asks for as many as find a place. Cancelled after the queue's shutdown,
        it gives back what it works on.

        Raises:
            ConfigurationError: there is no such queue any more; the turns that ran have ended.
        """
        operations, running = self.backends.operations, set[asyncio.Task[None]]()
        missing: ConfigurationError | None = None
        have_threads(asyncio.get_running_loop(), concurrency)
        self.shares.idle = lambda: concurrency - len(running)
        async with self.keeper.over(), asyncio.TaskGroup() as deliveries:
            while not operations.is_closed:
                if len(running) >= concurrency:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    continue  # the callback has removed what is done
                free = concurrency - len(running)
                try:
                    handles = await operations.pull(min(MOST_AT_ONCE, free), LONG_POLL_S)
                except ConfigurationError as error:  # raised in the group, it would end the turns
                    missing = error
                    break
                if not handles:
                    await self.presence.tell()
                for handle in handles:
                    task = deliveries.create_task(self._work(handle))
                    running.add(task)
                    task.add_done_callback(running.discard)
        if missing is not None:
            raise missing

    async def _work(self, handle: Handle[Operation]) -> None:
        try:
            await self.process(handle, deadline=self.clock.monotonic() + PULL_LIMIT_S)
        finally:
            metrics.flush()

    def _span_of(self, delivery: _Delivery) -> AbstractContextManager[Span]:
        handle, quarantine = delivery.handle, self.backends.quarantine
        queue = (quarantine if delivery.is_quarantined else None) or self.backends.operations
        about = {"a2a.task.id": handle.message.task_id, "a2a.receives": handle.attempt}
        return spans.messaging("process", queue.name, queue.system, handle.message.trace, about)

    async def _remove(self, handle: Handle[Operation]) -> None:
        """Remove the message of a turn that was left: its next copy would wait behind it.

        The event source removes it only when all messages of its batch are done.
        """
        fields, action = handle.message.ids, "broker_not_told"
        with log_exceptions(
            logger, logging.WARNING, "Queue not told", action=action, fields=fields
        ):
            await handle.remove()

    async def _conclude(self, handle: Handle[Operation], verdict: Verdict) -> bool:
        """Tell the queue the verdict; return True if the delivery is done and acknowledged.

        An error is only logged: if a finished turn is delivered again, it is dropped.
        """

        def not_told() -> None:
            _log(handle, logging.WARNING, "broker_not_told", "Queue not told", exc_info=True)

        return await conclude(
            handle,
            verdict,
            before_ack=lambda: faults.point("before-ack"),
            before_nack=lambda: faults.point("before-nack"),
            on_error=not_told,
        )


class _Delivery:
    """One delivery on its way through the adapter."""

    def __init__(
        self,
        adapter: WorkerAdapter,
        handle: Handle[Operation],
        deadline: float | None,
        *,
        quarantine: FifoQueue[Operation] | None,
        is_quarantined: bool,
    ) -> None:
        self._adapter = adapter
        self.handle = handle
        self._quarantine = quarantine
        self.is_quarantined = is_quarantined
        self._is_late = False
        self._receives = handle.attempt + is_quarantined  # another queue delivered it before
        self._operation = handle.message
        self._params = handle.message.params
        self._deadline = deadline
        scope = Scope(self._params.scope)
        self._storage = adapter.backends.storage.for_scope(scope)
        self._attempted: Guard | None = None
        """Of the attempt that has begun."""
        self._was_woken = False
        self.is_handed_over = False
        """True once a copy was sent with which another process goes on."""
        self.instead: Handle[Operation] | None = None
        """The delivery of a woken turn that the place of this one, which is left, runs."""

    async def verdict(self) -> Verdict:
        """Do what the delivery asks for.

        If the operation's turn waits behind the current one, both are run, one after the other. It
        goes round only where HEAD has moved: a claim has met other records, or the turn has ended.
        """
        verdict, worked_on = DONE, None
        while self._deadline is None or self._adapter.clock.monotonic() < self._deadline:
            log = await self._read()
            head = None if log is None else log.head
            if worked_on is not None and not goes_on(head, worked_on=worked_on):
                return verdict
            self._was_woken = self._was_woken or (head is not None and head.woken)
            try:
                verdict = await self._act(log)
            except StaleReadError:
                continue
            except TurnFinishedError:  # ended elsewhere, or its task is gone
                verdict = DONE
                if head is not None:
                    await self._storage.forget_gone(head)
            guard = self._attempted
            if verdict.is_done and guard is not None and wants_snapshot(guard.head):
                await take_snapshot(self._storage, guard.head)
            is_behind = head is not None and waits_behind(head, self._operation)
            if not (verdict.is_done and is_behind):
                return verdict
            worked_on = head
        _log(self.handle, logging.WARNING, "deadline", "No time left to start")
        return again(0)

    async def _read(self) -> Log | None:
        task_id, incarnation = self._params.task_id, self._params.incarnation
        log = await self._storage.read(task_id, incarnation=incarnation, is_whole=False)
        if log is None or log.since is None or log.head.turn_is_open:
            return log
        return await self._storage.read(task_id, incarnation=incarnation)

    async def _admitted(self, head: Head) -> Head | None:
        """Return HEAD of a turn that starts; None if it stands in line for a share."""
        may_wait = self._comes_late(head) and may_be_left(head, self._params)
        if self.is_quarantined or not may_wait:
            return head
        admitted = Admitted(head)
        with self._sharing():
            admitted = await self._adapter.shares.admits(self.handle, head)
        self.instead = admitted.instead
        self._is_late = self._comes_late(head) and admitted.head == head
        return admitted.head

    def _comes_late(self, head: Head) -> bool:
        adapter, handle = self._adapter, self.handle
        since = max(adapter.since, ready_at(head))
        waited_ms = handle.waited_ms(adapter.clock.now_ms(), since=since)
        line_stands = adapter.shares.line_stands
        return comes_late(handle.message, waited_ms=waited_ms, line_stands=line_stands)

    async def _serve_shares(self, stop: asyncio.Event) -> None:
        """Sort a backlog, or wake the next turn; a duty of the keeper: an agent may block."""
        with self._sharing():
            await self._adapter.shares.beside(self.handle, stop, is_late=self._is_late)

    async def refill_shares(self) -> None:
        """Wake a turn if the chain of wakes was cut."""
        if self.instead is None and (self._was_woken or self._adapter.shares.line_stands):
            with self._sharing():
                await self._adapter.shares.refill(1)

    def _sharing(self) -> AbstractContextManager[None]:
        """Log an error and go on: the sweeper wakes what nothing else has woken."""
        fields = self._operation.ids
        return log_exceptions(
            logger,
            logging.WARNING,
            "The shares of the workers were not served",
            action="shares_failed",
            fields=fields,
        )

    async def interrupted(
        self, reason: str, level: int, action: str, text: str, error: Exception | None = None
    ) -> None:
        """Log why the delivery ends before its work; if an attempt has begun, note it in HEAD.

        An attempt that is interrupted because its worker stops does not count: no agent has failed.
        The note takes `RELEASE_S` at most, and changes nothing if the attempt does not own its turn
        any more, for instance after the commit that ended the turn.
        """
        guard = self._attempted
        if guard is None or guard.must_claim or guard.has_given_back:
            _log(self.handle, level, action, text, exc_info=error or False)
            return
        head, attempts, spared = guard.head, None, None
        if reason == SHUTDOWN:
            before = head.attempts - 1  # without this attempt
            attempts, spared = after_interruption(replace(head, attempts=before))
            if attempts > before:
                _log(
                    self.handle,
                    logging.WARNING,
                    "interrupted_often",
                    _OFTEN,
                    interruptions=spared.interruptions,
                )
        end = guard.ended(reason)
        reference = end.correlation_id
        _log(self.handle, level, action, text, exc_info=error or False, correlation_id=reference)
        clock = self._adapter.clock
        releases = partial(releasing, end=end, attempts=attempts, spared=spared)
        noting = self._storage.change(head, releases)
        failure = await with_timeout(noting, clock=clock, seconds=RELEASE_S)
        if failure is not None:  # the next claim will report the attempt as lost
            text = f"Turn not released: {failure}"
            _log(self.handle, logging.WARNING, "release_failed", text)

    async def _act(self, log: Log | None) -> Verdict:
        wanted = on_delivery(
            None if log is None else log.head,
            self._operation,
            receives=self._receives,
            cannot_run=log is not None and log.cannot_run,
            has_neighbours=self._quarantine is not None,
        )
        if log is None or wanted is Delivered.DROP:
            _log(self.handle, logging.INFO, "dropped", "Delivery dropped")
            verdict = DONE
            if log is not None and log.head.serial_from:
                # The process that ended or left the turn may have died before it passed it on.
                await pass_on(self._storage, log.head.context_id)
        elif wanted is Delivered.GIVE_BACK:
            _log(self.handle, logging.WARNING, "needs_newer", f"Delivery given back: {_NEWER}")
            verdict = again(NEWER_DELAY_S)
        elif wanted is Delivered.CANCEL:
            verdict = await self._cancel(log)
        elif wanted is Delivered.QUARANTINE and self._quarantine is not None:
            return await self._pass_on(self._quarantine)
        elif wait_s := early_s(log.head, now_ms=self._adapter.clock.now_ms()):
            _log(self.handle, logging.INFO, "early", "Delivery given back: its turn waits")
            verdict = again(wait_s)
        else:
            verdict = await self._run(log, claims_first=wanted is Delivered.CLAIM)
        return verdict

    async def _pass_on(self, quarantine: FifoQueue[Operation]) -> Verdict:
        """Hand the operation over to a process that has no other turn.

        If this process dies before it has acknowledged, the operation is sent once more under the
        same deduplication id, or finds its turn finished.
        """
        await send_operation(quarantine, self._operation)
        text = "Delivery quarantined: a worker died with its turn, and neighbours run here"
        _log(self.handle, logging.WARNING, "quarantined", text)
        return DONE

    async def _cancel(self, log: Log) -> Verdict:
        """Cancel a task that no agent works on; its agent is told if it has seen the task."""
        faults.point("cancel-received")
        adapter, way = self._adapter, on_cancel(log.head, self._operation)
        agent = await self._agent(log)
        # A paused task has no turn to claim: its last attempt is over, and no other one follows.
        guard = self._guard(log, None if way is Canceled.PAUSED else new_token())
        works_on(log)
        turn = await self._shown(canceled_turn_of(log, spans.trace_context()))
        attempt = self._attempt(guard, turn, agent)
        try:
            with observed_cancel(log):
                async with guard.keeping_delivery():
                    if way is Canceled.CLAIMED:
                        await guard.take_over(log, adapter.retry)
                    if way is Canceled.ALONE:
                        await cancel_task(self._storage, log.head)
                    else:
                        await attempt.cancel()
        except ConcurrencyError as error:  # another worker has the turn, or the delivery
            metrics.count("FencedWrites")
            _log(self.handle, logging.WARNING, "fenced", f"Task not canceled here: {error}")
            return again(adapter.retry.delay_s(self.handle.attempt))
        _log(self.handle, logging.INFO, "canceled", "Task canceled", turn=log.head.turn)
        return DONE

    async def _run(self, log: Log, *, claims_first: bool) -> Verdict:
        adapter = self._adapter
        if adapter.retry.is_exhausted(log.head.attempts):  # the last one died without settling it
            return await self._give_up(log)
        if lasts_too_long(
            log, now_ms=adapter.clock.now_ms(), limit_s=adapter.settings.max_turn_hours * 3600
        ):
            why = TOO_LONG.format(adapter.settings.max_turn_hours)
            return await self._give_up(log, why, failed_by=FailedBy.TOO_LONG)
        found: Mapping[str, Item] | None = None
        if log.head.is_in_line:
            started, found = await self._started(log.head)
            if started is Started.LEAVE:
                return await self._leave(log.head)
        elif self._storage.is_serial and self.handle.sent_at > adapter.since:
            _log(self.handle, logging.WARNING, "no_place", _NO_PLACE)
        admitted = await self._admitted(log.head)
        if admitted is None:
            _log(self.handle, logging.INFO, "left", "Turn left: others wait for a worker too")
            return DONE
        log = replace(log, head=admitted)
        self._was_woken = self._was_woken or admitted.woken
        try:
            timing = self._storage.timing
            works_on(log, adapter.clock.now_ms())
            with observed_attempt(log, clock=adapter.clock, timing=timing) as span:
                adapter.watch.began(log)
                agent = await self._agent(log)
                guard = self._attempted = self._guard(log, new_token(), found)
                # The agent's own calls belong to its attempt.
                turn = await self._shown(turn_of(log, spans.trace_context()))
                attempt = self._attempt(guard, turn, agent)
                with _told(span, attempt):
                    async with guard.keeping_delivery():
                        if claims_first or log.head.woken:
                            is_alone = self._quarantine is None
                            await guard.take_over(log, adapter.retry, is_alone=is_alone)
                        serves = log.head.woken or self._is_late
                        async with adapter.keeper.over(*([self._serve_shares] if serves else [])):
                            verdict = await attempt.run()
                        if attempt.left is not None:
                            await self._left(guard.head)
                self._tell_end(attempt, verdict, log)
                return verdict
        except ConcurrencyError as error:  # fenced, or the delivery has expired
            await self._storage.forget_gone(log.head)
            metrics.count("FencedWrites")
            _log(self.handle, logging.WARNING, "fenced", f"Attempt stopped: {error}")
            return LOST

    def _tell_end(self, attempt: Attempt, verdict: Verdict, log: Log) -> None:
        if attempt.has_failed_task:
            count_failed(log)
        if verdict.is_done and attempt.left is None:
            self._adapter.watch.ended(log, attempt.guard.head)

    async def _shown(self, turn: TurnInput) -> TurnInput:
        return await turn.shown(self._storage, self._adapter.inline)

    async def _left(self, head: Head) -> None:
        """Send the copy with which a turn that was handed over goes on; one that sleeps has none.

        If this process dies before, the sweeper sends it.
        """
        if head.left:
            return
        faults.point("after-hand-over")
        await send_copy(self._adapter.backends.operations, head)
        self.is_handed_over = True

    async def _started(self, head: Head) -> tuple[Started, Mapping[str, Item] | None]:
        """Return whether the turn has its conversation, and what is stored of that.

        A turn that finds the line full runs beside it: the condition on the state parts them.
        """
        found = await found_in(self._storage, head.context_id)
        started = on_start(head, Line.of(found.get(LINE)).places)
        if started is Started.JOIN:
            line = await take_place(self._storage, head)
            return on_start(head, line.places), None
        return started, found

    async def _leave(self, head: Head) -> Verdict:
        """Leave a turn that waits for another one of its conversation, and acknowledge."""
        if not await self._storage.leave(head, "conversation"):
            return again(0)  # HEAD has changed since it was read
        faults.point("after-leave")
        _log(self.handle, logging.INFO, "left", "Turn left until its conversation is free")
        await pass_on(self._storage, head.context_id)
        return DONE

    def _guard(self, log: Log, token: str | None, found: Mapping[str, Item] | None = None) -> Guard:
        adapter = self._adapter
        return Guard(
            log=self._storage,
            params=on_current_turn(self._params, log.head),
            head=log.head,
            token=token,
            clock=adapter.clock,
            keeper=adapter.keeper,
            looks=adapter.looks,
            handle=self.handle if adapter.has_heartbeat else None,
            visibility_s=adapter.settings.visibility_s,
            until=self._limit(),
            found=found,
        )

    def _attempt(self, guard: Guard, turn: TurnInput, agent: AgentExecutor) -> Attempt:
        adapter = self._adapter
        return Attempt(
            agent=agent,
            turn=turn,
            guard=guard,
            settings=adapter.settings,
            retry=adapter.retry,
            stop_at=self._stop_at(),
            meter=Meter(
                budgets=adapter.budgets,
                by_task=lambda: guard.head.usage,
                spending=self._spending() if adapter.budgets.is_set else None,
            ),
            drains=lambda: adapter.backends.operations.is_closed,
        )

    def _spending(self) -> Spending | None:
        """Return the counter of the caller's day, if it has a budget."""
        adapter = self._adapter
        if not adapter.budgets.caller.is_set:
            return None
        person = Scope(self._params.scope).person
        return Spending(self._storage.table, person, adapter.clock)

    async def _agent(self, log: Log) -> AgentExecutor:
        """Return the agent, with the context variables of the current turn's message."""
        adapter, agent = self._adapter, self._adapter.agent
        if isinstance(agent, TurnAgents):
            # In a thread: it may import the agent, which must not hold up the turns beside it.
            agent = await asyncio.to_thread(agent.for_turn)
        if adapter.propagated is None:
            return agent
        return PropagatingAgent(agent, adapter.propagated, log.caller.variables)

    def _stop_at(self) -> float:
        """Return when a turn that begins now is given back: at its limit, or before the deadline.

        In monotonic seconds; infinite without either.
        """
        now, ends = self._adapter.clock.monotonic(), [math.inf]
        if self._adapter.settings.turn_limit_s:
            ends.append(now + self._adapter.settings.turn_limit_s)
        if self._deadline is not None:
            margin_s = min(
                self._adapter.deadline_margin_s, MAX_MARGIN_SHARE * (self._deadline - now)
            )
            ends.append(self._deadline - margin_s)
        return min(ends)

    def _limit(self) -> float | None:
        """Return the latest time until which the delivery of a turn that begins now is kept."""
        limit_s, ends = self._adapter.settings.turn_limit_s, self._deadline
        if not limit_s:
            return ends
        limit = self._adapter.clock.monotonic() + limit_s + self._adapter.deadline_margin_s
        return limit if ends is None else min(limit, ends)

    async def _give_up(
        self, log: Log, why: str = "", *, failed_by: FailedBy = FailedBy.USED_UP
    ) -> Verdict:
        """Fail a task whose attempts are used up, unless another attempt has taken its turn.

        A task that is being canceled is left to its cancel. `why` is for the client.
        """
        reference, seen = correlation_id(), log.head
        works_on(log)
        params = on_current_turn(self._params, seen)

        def decide(head: Head) -> Commit | None:
            is_given_up = may_give_up(head, params, seen=seen) and head.cancel is None
            return gave_up(head, reference, why, failed_by=failed_by) if is_given_up else None

        if await end_task(self._storage, params.task_id, decide):
            _log(
                self.handle,
                logging.ERROR,
                "gave_up",
                f"Task failed after its last attempt, {reference}",
                attempts=seen.attempts,
                max_attempts=self._adapter.retry.max_attempts,
                correlation_id=reference,
            )
            count_failed(log, is_used_up=True)
        return DONE


@contextmanager
def _told(span: Span, attempt: Attempt) -> Iterator[None]:
    """Say on an attempt's span what has become of it, and what its models have used."""
    try:
        yield
    finally:
        span.set({"a2a.task.state": plain_state(attempt.guard.head.state)})
        if attempt.meter.used:
            used = total(attempt.meter.used)
            span.set(
                {
                    "gen_ai.usage.input_tokens": used.input_tokens,
                    "gen_ai.usage.output_tokens": used.output_tokens,
                    "a2a.usage.cost": used.cost / MILLION if used.cost else None,
                }
            )
        if attempt.failure is not None:
            span.fail(word_of(attempt.failure))
        elif attempt.left is not None:
            span.interrupt(word_of(attempt.left))
        elif attempt.has_failed_task:
            span.fail("failed")


def _log(
    handle: Handle[Operation],
    level: int,
    action: str,
    text: str,
    *,
    exc_info: BaseException | bool = False,
    **fields: object,
) -> None:
    extra = {"action": action, "receives": handle.attempt, **handle.message.ids}
    logger.log(level, text, extra=extra | fields, exc_info=exc_info)
