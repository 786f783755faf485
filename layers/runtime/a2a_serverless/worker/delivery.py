"""One delivery: what it asks for, the attempt that it begins, and its end at the queue."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from a2a.types import TaskState

from a2a_serverless import faults
from a2a_serverless.clock import with_timeout
from a2a_serverless.errors import ConcurrencyError, TurnFinishedError
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
from a2a_serverless.queues.fifo import (
    DONE,
    LOST,
    DeliveryOutcome,
    FifoQueue,
    Handle,
    again,
    send_copy,
    send_operation,
)
from a2a_serverless.storage.conversation import (
    ConversationQueue,
    found_in,
    join_queue,
    start_next_turn,
)
from a2a_serverless.storage.endings import cancel_task, end_task, gave_up
from a2a_serverless.storage.layout import LINE
from a2a_serverless.storage.snapshots import take_snapshot
from a2a_serverless.storage.spending import Spending
from a2a_serverless.storage.table import Item
from a2a_serverless.tasks.attempts import (
    MOST_INTERRUPTIONS,
    NEWER_DELAY_S,
    CancelDecision,
    DeliveryDecision,
    after_interruption,
    comes_late,
    early_s,
    goes_on,
    lasts_too_long,
    may_give_up,
    may_park,
    on_cancel,
    on_current_turn,
    on_delivery,
    ready_at,
    waits_behind,
)
from a2a_serverless.tasks.conversation import StartDecision, on_start
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import SHUTDOWN, FailedBy, Head, Operation, plain_state
from a2a_serverless.tasks.identity import Scope, new_token
from a2a_serverless.tasks.rules import Commit, releasing, wants_snapshot
from a2a_serverless.tasks.usage import MILLION, total
from a2a_serverless.worker.agents import PropagatingAgent
from a2a_serverless.worker.attempt import AgentRun, TurnInput, canceled_turn_of, turn_of
from a2a_serverless.worker.failures import log_exceptions, reason_of
from a2a_serverless.worker.lease import Lease, StaleReadError
from a2a_serverless.worker.meter import Meter
from a2a_serverless.worker.shares import Admission

if TYPE_CHECKING:
    from a2a_serverless.worker.adapter import WorkerAdapter

logger = logging.getLogger(__name__)

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
TOO_LONG = (
    "The agent has worked on this message for {:g} hours (A2A_MAX_TURN_HOURS), which is too long."
)
_OFTEN = (
    f"The turn was interrupted more than {MOST_INTERRUPTIONS} times: from here on each interruption"
    " uses up an attempt"
)


class Delivery:
    """One delivery on its way through the adapter.

    Args:
        adapter: of the worker that has received it.
        handle: acknowledges it, or gives it back.
        deadline: the monotonic second by which all has to be over; None without one.
        quarantine: takes the operation if its turn must have no neighbours; None if the process has
            no other turns, or they are no danger to one another.
        is_quarantined: the operation comes from there.
    """

    def __init__(
        self,
        adapter: WorkerAdapter,
        handle: Handle[Operation],
        deadline: float | None,
        *,
        quarantine: FifoQueue[Operation] | None,
        is_quarantined: bool,
    ) -> None:
        self.instead: Handle[Operation] | None = None
        """The delivery of a requeued turn that this place runs, as this one's stands in line."""
        self._adapter = adapter
        self._handle = handle
        self._deadline = deadline
        self._quarantine = quarantine
        self._is_quarantined = is_quarantined
        self._receives = handle.attempt + is_quarantined  # another queue delivered it before
        self._operation = handle.message
        self._params = handle.message.params
        self._storage = adapter.backends.storage.for_scope(Scope(self._params.scope))
        self._is_late = False
        self._was_requeued = False
        self._has_sent_copy = False
        """True once a copy was sent with which another process goes on."""
        self._run: AgentRun | None = None
        """The attempt that has begun."""

    # -- its end at the queue ----------------------------------------------------------------------

    async def process(self) -> bool:
        """Do what the delivery asks for; return True if it is done and acknowledged."""
        adapter, handle = self._adapter, self._handle
        queue = adapter.backends.operations
        if self._is_quarantined and adapter.backends.quarantine is not None:
            queue = adapter.backends.quarantine
        about = {"a2a.task.id": self._operation.task_id, "a2a.receives": handle.attempt}
        with (
            begun(**self._operation.ids, receives=handle.attempt),
            spans.messaging("process", queue.name, queue.system, self._operation.trace, about),
        ):
            try:
                outcome = await self._work()
            except asyncio.CancelledError:
                # At once: otherwise the message would come again only when its visibility ends.
                await self._cut_off()
                raise
            except Exception as error:  # noqa: BLE001 - an invocation's edge: the operation must not be lost
                spans.current().fail(reason_of(error))
                outcome = again(adapter.retry.delay_s(handle.attempt))
                text = "Delivery failed"
                await self._interrupted(
                    reason_of(error), logging.ERROR, "delivery_failed", text, error
                )
            is_done = await self._acknowledge(outcome)
            if self.instead is None and (self._was_requeued or adapter.shares.line_stands):
                with self._sharing():  # the chain of turns that requeue the next one was cut
                    await adapter.shares.refill(1)
        if self.instead is not None or self._has_sent_copy:
            # Its next copy would wait behind it, and the event source removes it only when all
            # messages of its batch are done.
            text, action = "Queue not told", "broker_not_told"
            fields = self._operation.ids
            with log_exceptions(logger, logging.WARNING, text, action=action, fields=fields):
                await handle.remove()
        return is_done

    async def _acknowledge(self, outcome: DeliveryOutcome) -> bool:
        """Tell the queue the outcome; return True if the delivery is done and acknowledged.

        An error is only logged: if a finished turn is delivered again, it is dropped.
        """
        try:
            if outcome.is_done:
                faults.point("before-ack")
                await self._handle.ack()
            elif outcome.delay_s is not None:
                faults.point("before-nack")
                # If this does not reach the queue, the message comes back all the same, once its
                # visibility timeout is over.
                await self._handle.nack(delay_s=outcome.delay_s)
        except Exception:  # noqa: BLE001 - an invocation's edge: its other deliveries go on
            self._log(logging.WARNING, "broker_not_told", "Queue not told", exc_info=True)
        return outcome.is_done

    async def _cut_off(self) -> None:
        """Give the delivery back of a worker that is told to end: another one goes on at once."""
        try:
            if self._adapter.backends.operations.is_closed:
                text = "Delivery given back: this worker shuts down"
                await self._interrupted(SHUTDOWN, logging.INFO, "shutdown", text)
            else:  # as a worker's death: the attempt counts, and the next one runs alone
                self._log(logging.ERROR, "cut_off", _CUT_OFF)
        finally:  # also if the worker is told once more
            await self._acknowledge(again(0))

    async def _interrupted(
        self, reason: str, level: int, action: str, text: str, error: Exception | None = None
    ) -> None:
        """Log why the delivery ends before its work; if an attempt has begun, note it in HEAD.

        An attempt that is interrupted because its worker stops does not count: no agent has failed.
        The note takes `RELEASE_S` at most, and changes nothing if the attempt does not own its turn
        any more, for instance after the commit that ended the turn.
        """
        run = self._run
        if run is None or run.lease.must_claim() or run.turn.state.is_released:
            self._log(level, action, text, exc_info=error or False)
            return
        head, attempts, uncounted = run.lease.head, None, None
        if reason == SHUTDOWN:
            before = head.turn.attempts - 1  # without this attempt
            attempts, uncounted = after_interruption(head.turn, before)
            if attempts > before:
                count = uncounted.interruptions
                self._log(logging.WARNING, "interrupted_often", _OFTEN, interruptions=count)
        end = run.lease.ended(reason)
        reference = end.correlation_id
        self._log(level, action, text, exc_info=error or False, correlation_id=reference)
        releases = partial(releasing, end=end, attempts=attempts, uncounted=uncounted)
        noting = self._storage.change(head, releases)
        failure = await with_timeout(noting, clock=self._adapter.clock, seconds=RELEASE_S)
        if failure is not None:  # the next claim will report the attempt as lost
            self._log(logging.WARNING, "release_failed", f"Turn not released: {failure}")

    # -- what it asks for --------------------------------------------------------------------------

    async def _work(self) -> DeliveryOutcome:
        """Do what the delivery asks for.

        If the operation's turn waits behind the current one, both are run, one after the other. It
        goes round only where HEAD has moved: a claim has met other records, or the turn has ended.
        """
        outcome, worked_on = DONE, None
        while self._deadline is None or self._adapter.clock.monotonic() < self._deadline:
            log = await self._read()
            head = None if log is None else log.head
            if worked_on is not None and not goes_on(head, worked_on=worked_on):
                return outcome
            self._was_requeued = self._was_requeued or (head is not None and head.turn.has_share)
            try:
                outcome = await self._act(log)
            except StaleReadError:
                continue
            except TurnFinishedError:  # ended elsewhere, or its task is gone
                outcome = DONE
                if head is not None:
                    await self._storage.forget_gone(head)
            run = self._run
            # Behind the end of the turn, for which a client waits, and before that of the
            # invocation, with which Lambda freezes the process.
            if outcome.is_done and run is not None and wants_snapshot(run.lease.head):
                await take_snapshot(self._storage, run.lease.head)
            is_behind = head is not None and waits_behind(head, self._operation)
            if not (outcome.is_done and is_behind):
                return outcome
            worked_on = head
        self._log(logging.WARNING, "deadline", "No time left to start")
        return again(0)

    async def _read(self) -> Log | None:
        task_id, incarnation = self._params.task_id, self._params.incarnation
        log = await self._storage.read(task_id, incarnation=incarnation, is_whole=False)
        if log is None or log.since is None or log.head.turn.is_open:
            return log
        return await self._storage.read(task_id, incarnation=incarnation)

    async def _act(self, log: Log | None) -> DeliveryOutcome:
        wanted = on_delivery(
            None if log is None else log.head,
            self._operation,
            receives=self._receives,
            cannot_run=log is not None and log.cannot_run,
            has_neighbours=self._quarantine is not None,
        )
        if log is None or wanted is DeliveryDecision.DROP:
            self._log(logging.INFO, "dropped", "Delivery dropped")
            if log is not None and log.head.serial_from:
                # The process that ended or parked the turn may have died before it passed it on.
                await start_next_turn(self._storage, log.head.context_id)
            return DONE
        if wanted is DeliveryDecision.GIVE_BACK:
            self._log(logging.WARNING, "needs_newer", f"Delivery given back: {_NEWER}")
            return again(NEWER_DELAY_S)
        if wanted is DeliveryDecision.CANCEL:
            return await self._cancel(log)
        if wanted is DeliveryDecision.QUARANTINE and self._quarantine is not None:
            # If this process dies before it has acknowledged, the operation is sent once more under
            # the same deduplication id, or finds its turn finished.
            await send_operation(self._quarantine, self._operation)
            text = "Delivery quarantined: a worker died with its turn, and neighbours run here"
            self._log(logging.WARNING, "quarantined", text)
            return DONE
        if wait_s := early_s(log.head, now_ms=self._adapter.clock.now_ms()):
            self._log(logging.INFO, "early", "Delivery given back: its turn waits")
            return again(wait_s)
        return await self._start(log, claims_first=wanted is DeliveryDecision.CLAIM)

    async def _cancel(self, log: Log) -> DeliveryOutcome:
        """Cancel a task that no agent works on; its agent is told if it has seen the task."""
        faults.point("cancel-received")
        adapter, way = self._adapter, on_cancel(log.head, self._operation)
        works_on(log)
        # A paused task has no turn to claim: its last attempt is over, and no other one follows.
        token = None if way is CancelDecision.PAUSED else new_token()
        run = await self._made(log, canceled_turn_of(log, spans.trace_context()), token)
        try:
            with observed_cancel(log):
                async with run.lease.keeping_delivery():
                    # Claimed first: its last attempt may still run, and can write nothing from here
                    # on.
                    if way is CancelDecision.CLAIMED:
                        await run.lease.take_over(log, adapter.retry)
                    if way is CancelDecision.ALONE:
                        await cancel_task(self._storage, log.head)
                    else:
                        await run.cancel()
        except ConcurrencyError as error:  # another worker has the turn, or the delivery
            metrics.count("FencedWrites")
            self._log(logging.WARNING, "fenced", f"Task not canceled here: {error}")
            return again(adapter.retry.delay_s(self._handle.attempt))
        self._log(logging.INFO, "canceled", "Task canceled", turn=log.head.turn.number)
        return DONE

    # -- its turn's attempt ------------------------------------------------------------------------

    async def _start(self, log: Log, *, claims_first: bool) -> DeliveryOutcome:
        """Start the turn, unless it has used up its time or attempts, or others come first."""
        adapter, head = self._adapter, log.head
        if adapter.retry.is_exhausted(head.turn.attempts):  # the last one died without settling it
            return await self._give_up(log)
        hours = adapter.settings.max_turn_hours
        if lasts_too_long(log, now_ms=adapter.clock.now_ms(), limit_s=hours * 3600):
            return await self._give_up(log, TOO_LONG.format(hours), failed_by=FailedBy.TOO_LONG)
        found: Mapping[str, Item] | None = None
        if head.is_serial:
            started, found = await self._place_of(head)
            if started is StartDecision.PARK:
                return await self._wait_for_conversation(head)
        elif self._storage.is_serial and self._handle.sent_at > adapter.since:
            self._log(logging.WARNING, "no_place", _NO_PLACE)
        # After the conversation: a turn that may not begin yet takes no place from other callers.
        admitted = await self._admitted(head)
        if admitted is None:
            self._log(logging.INFO, "parked", "Turn parked: others wait for a worker too")
            return DONE
        self._was_requeued = self._was_requeued or admitted.turn.has_share
        try:
            return await self._attempt(replace(log, head=admitted), found, claims_first)
        except ConcurrencyError as error:  # fenced, or the delivery has expired
            await self._storage.forget_gone(head)
            metrics.count("FencedWrites")
            self._log(logging.WARNING, "fenced", f"Attempt stopped: {error}")
            return LOST

    async def _attempt(
        self,
        log: Log,
        found: Mapping[str, Item] | None,
        claims_first: bool,  # noqa: FBT001 - as `_start` got it
    ) -> DeliveryOutcome:
        adapter, head = self._adapter, log.head
        timing = self._storage.timing
        with observed_attempt(log, clock=adapter.clock, timing=timing) as span:
            if adapter.watch is not None:
                adapter.watch.began(log)
            # The agent's own calls belong to its attempt.
            given = turn_of(log, spans.trace_context())
            run = self._run = await self._made(log, given, new_token(), found)
            try:
                async with run.lease.keeping_delivery():
                    # An earlier attempt may still run: it is fenced before the agent is called. A
                    # first attempt claims with its first commit, which saves a write.
                    if claims_first or head.turn.has_share:
                        is_alone = self._quarantine is None
                        await run.lease.take_over(log, adapter.retry, is_alone=is_alone)
                    serves = head.turn.has_share or self._is_late
                    # Beside the loop of the agents, which may be blocked.
                    async with (
                        adapter.heartbeat.over(self._serve_shares) if serves else nullcontext()
                    ):
                        outcome = await run.run()
                    if run.parked is not None and not run.lease.head.turn.parked:
                        # One that sleeps has no copy. If this process dies before, the sweeper
                        # sends it.
                        faults.point("after-hand-over")
                        await send_copy(adapter.backends.operations, run.lease.head)
                        self._has_sent_copy = True
                    elif run.parked is not None:
                        with self._sharing("The sleeping turns were not counted"):
                            await adapter.sleepers.note(Scope(head.scope).principal)
            finally:
                has_failed = _tell(span, run)
        if has_failed:
            count_failed(log)
        if adapter.watch is not None and outcome.is_done and run.parked is None:
            adapter.watch.ended(log, run.lease.head)
        return outcome

    async def _made(
        self,
        log: Log,
        given: TurnInput,
        token: str | None,
        found: Mapping[str, Item] | None = None,
    ) -> AgentRun:
        """Return the attempt at a turn, with its lease and its agent."""
        adapter, settings = self._adapter, self._adapter.settings
        stop_at, until = self._limits()
        lease = Lease(
            storage=self._storage,
            params=on_current_turn(self._params, log.head),
            head=log.head,
            token=token,
            clock=adapter.clock,
            heartbeat=adapter.heartbeat,
            poller=adapter.poller,
            handle=self._handle if adapter.has_heartbeat else None,
            visibility_s=settings.visibility_s,
            until=until,
        )
        agent = adapter.agent
        if adapter.propagated is not None:
            agent = PropagatingAgent(agent, adapter.propagated, log.caller.variables)
        spending = None
        if adapter.budgets.is_set and adapter.budgets.caller.is_set:
            principal = Scope(self._params.scope).principal
            spending = Spending(self._storage.table, principal, adapter.clock)
        return AgentRun(
            agent=agent,
            given=await given.shown(self._storage, adapter.inline),
            lease=lease,
            settings=settings,
            retry=adapter.retry,
            stop_at=stop_at,
            meter=Meter(
                budgets=adapter.budgets, by_task=lambda: lease.head.usage, spending=spending
            ),
            drains=lambda: adapter.backends.operations.is_closed,
            found=found,
        )

    def _limits(self) -> tuple[float, float | None]:
        """Return when a turn that begins now is given back, and until when its delivery is kept.

        It is given back at its limit, or before the deadline. Both are in monotonic seconds;
        without a limit and a deadline the first is infinite, and the second None.
        """
        adapter, deadline = self._adapter, self._deadline
        now, limit_s = adapter.clock.monotonic(), adapter.settings.turn_limit_s
        stop_at, until = math.inf, deadline
        if deadline is not None:
            stop_at = deadline - min(adapter.deadline_margin_s, MAX_MARGIN_SHARE * (deadline - now))
        if limit_s:
            stop_at = min(stop_at, now + limit_s)
            kept_until = now + limit_s + adapter.deadline_margin_s
            until = kept_until if deadline is None else min(kept_until, deadline)
        return stop_at, until

    async def _give_up(
        self, log: Log, why: str = "", *, failed_by: FailedBy = FailedBy.USED_UP
    ) -> DeliveryOutcome:
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
            self._log(
                logging.ERROR,
                "gave_up",
                f"Task failed after its last attempt, {reference}",
                attempts=seen.turn.attempts,
                max_attempts=self._adapter.retry.max_attempts,
                correlation_id=reference,
            )
            count_failed(log, is_used_up=True)
        return DONE

    # -- other turns -------------------------------------------------------------------------------

    async def _place_of(self, head: Head) -> tuple[StartDecision, Mapping[str, Item] | None]:
        """Return whether the turn has its conversation, and what is stored of that.

        A turn that finds the queue full runs beside it: the condition on the state parts them.
        """
        found = await found_in(self._storage, head.context_id)
        started = on_start(head, ConversationQueue.of(found.get(LINE)).positions)
        if started is StartDecision.JOIN:
            # Decided on the queue as it is stored: others may have joined since it was read.
            queue = await join_queue(self._storage, head)
            return on_start(head, queue.positions), None
        return started, found

    async def _wait_for_conversation(self, head: Head) -> DeliveryOutcome:
        """Park a turn that waits for another one of its conversation, and acknowledge."""
        if not await self._storage.park(head, "conversation"):
            return again(0)  # HEAD has changed since it was read
        faults.point("after-leave")
        self._log(logging.INFO, "parked", "Turn parked until its conversation is free")
        # The turn before it may have ended meanwhile, and found none that was parked.
        await start_next_turn(self._storage, head.context_id)
        return DONE

    async def _admitted(self, head: Head) -> Head | None:
        """Return HEAD of a turn that starts; None if it stands in line for a share."""
        adapter, handle = self._adapter, self._handle
        since = max(adapter.since, ready_at(head))
        waited_ms = handle.waited_ms(adapter.clock.now_ms(), since=since)
        late = partial(comes_late, self._operation, waited_ms=waited_ms)
        may_wait = late(line_stands=adapter.shares.line_stands) and may_park(head, self._params)
        if self._is_quarantined or not may_wait:
            return head
        admitted = Admission(head)
        with self._sharing():
            admitted = await adapter.shares.admits(handle, head)
        self.instead = admitted.instead
        is_late = late(line_stands=adapter.shares.line_stands)  # it may stand since
        self._is_late = is_late and admitted.head == head
        return admitted.head

    async def _serve_shares(self, stop: asyncio.Event) -> None:
        """Sort a backlog, or requeue the next turn; a job of the heartbeat."""
        with self._sharing():
            await self._adapter.shares.beside(self._handle, stop, is_late=self._is_late)

    def _sharing(
        self, failed: str = "The shares of the workers were not served"
    ) -> AbstractContextManager[None]:
        """Log an error and go on: the sweeper requeues what nothing else has requeued."""
        return log_exceptions(
            logger,
            logging.WARNING,
            failed,
            action="shares_failed",
            fields=self._operation.ids,
        )

    def _log(
        self,
        level: int,
        action: str,
        text: str,
        *,
        exc_info: BaseException | bool = False,
        **fields: object,
    ) -> None:
        ids = self._operation.ids
        extra = {"action": action, "receives": self._handle.attempt, **ids, **fields}
        logger.log(level, text, extra=extra, exc_info=exc_info)


def _tell(span: Span, run: AgentRun) -> bool:
    """Say on an attempt's span what has become of it; return True if it has failed its task."""
    head = run.lease.head
    span.set({"a2a.task.state": plain_state(head.state)})
    if run.meter.used:
        used = total(run.meter.used)
        span.set(
            {
                "gen_ai.usage.input_tokens": used.input_tokens,
                "gen_ai.usage.output_tokens": used.output_tokens,
                "a2a.usage.cost": used.cost / MILLION if used.cost else None,
            }
        )
    has_failed = head.state == TaskState.TASK_STATE_FAILED
    if run.failure is not None:
        span.fail(word_of(run.failure))
    elif run.parked is not None:
        span.interrupt(word_of(run.parked))
    elif has_failed:
        span.fail("failed")
    return has_failed
