"""The sweeper: sends lost operations again, and ends tasks that would otherwise never end.

It alone repairs every crash between a commit and its message. A turn whose operation was never
sent, or was lost after the claim, stays in the due index until the turn is finished. If no attempt
can claim it for `GIVE_UP_S`, its task fails. A task that is being canceled is in the index at its
deadline, and is ended then.

Of dead letters, operations that were delivered too often, it ends the tasks whose attempts are used
up, and sends the others again, because deliveries also run out in an outage.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Final, Literal, TypeAlias

from a2a.types import TaskState

from a2a_serverless import faults
from a2a_serverless.clock import Clock
from a2a_serverless.errors import (
    ConcurrencyError,
    ConfigurationError,
    ConversationFullError,
    InvalidArgumentError,
    NewerReleaseError,
    TaskNotFoundError,
    UndecodableMessageError,
    UnreadableTaskError,
)
from a2a_serverless.observability import metrics, spans
from a2a_serverless.observability.logs import begun, correlation_id, count_failed, works_on
from a2a_serverless.queues.batch import EventFunction, process_batch
from a2a_serverless.queues.fifo import EventRecord, FifoQueue, decode_message, send_copies
from a2a_serverless.settings import Settings
from a2a_serverless.storage.codec import live_head
from a2a_serverless.storage.conversation import start_next_turn
from a2a_serverless.storage.deletion import delete_behind_barrier
from a2a_serverless.storage.durable import DeletionBarriers, DurableStorage
from a2a_serverless.storage.endings import (
    REBASES,
    cancel_task,
    canceled,
    end_task,
    gave_up,
    never_started,
)
from a2a_serverless.storage.finding import Due, committed_at, due_tasks, opened_at
from a2a_serverless.storage.table import Item, Key
from a2a_serverless.tasks.attempts import (
    DeadLetterDecision,
    RetryPolicy,
    is_given_up,
    may_park,
    on_dead_letter,
    overdue_cancel,
    overdue_question,
    overdue_turn,
)
from a2a_serverless.tasks.entries import LATE, Recorded
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope, TaskKey, caller_number
from a2a_serverless.tasks.questions import questions_of
from a2a_serverless.tasks.rules import PARKED_MS, Commit, is_behind
from a2a_serverless.values import dataclass
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.failures import log_exceptions
from a2a_serverless.worker.shares import Shares

LONGEST_WAIT_S = 3600
"""The longest wait between two sends of one turn, in seconds; the wait doubles up to it."""

GIVE_UP_S = 24 * 3600
"""Seconds for which a turn that no attempt has claimed is sent again; then its task fails."""

NOT_READ: Final = "Overdue tasks were not read, this one and those behind it"
MOST_REQUEUED = 4
"""Turns of the line that a run requeues if none is on the queue."""

NOT_PUSHED: Final = "The webhooks whose wait is over were not all woken"
NOT_SERVED: Final = "No turn of the line was requeued"
NOT_REPAIRED: Final = "An overdue task was not repaired"
NOT_TOLD: Final = "The metrics do not have all of an overdue turn, which is repaired"

STUCK_AFTER = 3
"""Repeated sends after which a turn counts as stuck: no worker has taken it, or none ended it."""

BATCH = 10
"""Tasks whose HEADs are read, and whose operations are sent, in one request each."""

LANES = 8
"""Batches that are repaired at the same time."""

PAGE = 500
"""Tasks that one look at the due index names at most."""

BUDGET_S = 30
"""Seconds after which a run begins no new work: half of the function's timeout, because one
request may be slow."""

MOST_COPIES = 10
"""Turns without an attempt of which one run sends copies; it leaves the others to the line."""
_MOST_CALLERS: Final = 20
"""The late turns of a run whose callers are reported: each is a read of its log."""

Swept = Literal["sent", "requeued", "parked", "passed", "given_up", "canceled", "failed", "skipped"]
Fields: TypeAlias = dict[str, object]
"""The fields of a log line about a task, as far as they are known when it is written."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """The tasks that one run came across, counted by what it decided."""

    sent: int = 0
    """Turns whose operation was sent again."""
    requeued: int = 0
    """Turns whose sleep, or whose time for an answer, is over, and whose operation was sent."""
    parked: int = 0
    """Turns that stand in line for a share of the workers from now on."""
    passed: int = 0
    """Tasks that had moved on, or that another run took."""
    given_up: int = 0
    """Tasks failed because no attempt could claim their turn for too long."""
    canceled: int = 0
    """Tasks canceled at the deadline."""
    failed: int = 0
    """Tasks that met an error; the next run comes back to them."""
    skipped: int = 0
    """Tasks that stay as they are: unreadable ones, and cancels that a newer release has to end."""
    pushed: int = 0
    """Webhooks whose wait is over, and whose jobs were sent."""


@dataclass(slots=True, kw_only=True)
class _Sweep:
    """What one run may do, and what it came across."""

    until: float
    """The monotonic second at which it takes up no further task."""
    counts: Counter[str] = field(default_factory=Counter)
    overdue: int = 0
    """Tasks that the due index named."""
    pushed: int = 0
    copies: int = 0
    """Turns without an attempt of which a copy is sent."""
    late: int = 0
    """Turns that have waited too long for a worker."""
    untold: list[Head] = field(default_factory=list)
    """Overdue turns that the metrics do not have yet, as they were before their repair."""
    unreadable: set[TaskKey] = field(default_factory=set)

    def room(self, limit: int | None) -> int:
        """Return how many tasks the next look may name: those skipped count towards no limit."""
        done = self.counts.total() - self.counts["skipped"]
        return PAGE if limit is None else min(PAGE, limit - done)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """An operation to be sent again, after HEAD was postponed for it."""

    params: OperationParams
    head: Head
    """HEAD with its due time and number of sends since the postponement."""
    sends_before: int
    fields: Fields


class Sweeper:
    """Looks at what is overdue, in all scopes.

    A run goes on while its time lasts, in batches, several at a time. An unfinished turn is sent
    again after 1, 2, 4, … times `Timing.waiting_s`, at most `longest_wait_s` apart, so that copies
    of waiting operations do not make a long queue much longer. Workers drop the copies of a
    finished turn. A turn that could not be sent is tried again by the next run. Several runs at
    once do no harm.

    A task that cannot be read stays first in the due index until a person restores or deletes it.
    A run goes past such tasks, and logs each once.

    Args:
        storage: the tasks.
        queue: takes the operations.
        wake_webhooks: sends the jobs of webhooks whose wait is over, until a monotonic second, and
            returns how many; None: there are none.
        clock: by default the storage's.
        longest_wait_s: bound of the doubling wait.
        give_up_s: seconds after which a turn that was never claimed fails its task.
        retry_s: seconds for which faults that pass may keep a turn from a worker.
        budget_s: seconds after which a run leaves the rest to the next one.
    """

    def __init__(
        self,
        storage: DurableStorage,
        queue: FifoQueue[Operation],
        *,
        wake_webhooks: Callable[[float], Awaitable[int]] | None = None,
        clock: Clock | None = None,
        longest_wait_s: float = LONGEST_WAIT_S,
        give_up_s: float = GIVE_UP_S,
        retry_s: float = 0,
        budget_s: float = BUDGET_S,
    ) -> None:
        self._storage = storage
        self._queue = queue
        self._wake = wake_webhooks
        self._clock = clock or storage.clock
        self._barriers = DeletionBarriers(storage.table, self._clock)
        self._longest_wait_s = longest_wait_s
        self._give_up_s = give_up_s
        self._retry_ms = retry_s * 1000
        self._budget_s = budget_s
        self._shares = Shares(storage, queue, self._clock)

    async def sweep(self, limit: int | None = None) -> SweepReport:
        """Repair overdue tasks, the longest overdue first: `limit` at most, or as time allows.

        Tasks that are skipped count towards no limit.

        Raises:
            UnavailableError: the due index did not answer; the next run tries again.
        """
        with begun(), spans.span("sweep", {}) as span:
            report = await self._sweep(limit)
            if report == SweepReport() and not self._shares.line_stands:
                span.drop()
            return report

    async def _sweep(self, limit: int | None) -> SweepReport:
        run = _Sweep(until=self._clock.monotonic() + self._budget_s)
        await asyncio.gather(self._repair(run, limit), self._wake_webhooks(run))
        with log_exceptions(logger, logging.WARNING, NOT_SERVED, action="shares_failed"):
            await self._shares.refill(MOST_REQUEUED, patience_s=math.inf)
        report = SweepReport(**run.counts, pushed=run.pushed)
        extra = {"action": "sweep", "overdue": run.overdue, "pushed": run.pushed, **run.counts}
        logger.info("Swept", extra=extra)
        return report

    async def _wake_webhooks(self, run: _Sweep) -> None:
        if self._wake is not None:
            # Webhooks that cannot be woken hold up no turn.
            with log_exceptions(logger, logging.WARNING, NOT_PUSHED, action="wake_failed"):
                run.pushed = await self._wake(run.until)

    async def _repair(self, run: _Sweep, limit: int | None) -> None:
        now_ms, after = self._clock.now_ms(), None
        while (room := run.room(limit)) > 0 and self._clock.monotonic() < run.until:
            page = await due_tasks(self._storage, now_ms, limit=room, after=after)
            run.overdue += len(page)
            batches = (page[start : start + BATCH] for start in range(0, len(page), BATCH))
            await asyncio.gather(*(self._lane(batches, run) for _ in range(LANES)))
            # Behind the repair: what the metrics read may fail, or take long.
            while run.untold and self._clock.monotonic() < run.until:
                told, run.untold = run.untold[:BATCH], run.untold[BATCH:]
                await asyncio.gather(*(self._tell(head, run) for head in told))
            if len(page) < room:
                return
            after = page[-1]

    async def _lane(self, batches: Iterator[list[Due]], run: _Sweep) -> None:
        for batch in batches:
            if self._clock.monotonic() >= run.until:
                return
            items: dict[Key, Item | None] = {}
            fields: Fields = {"task_id": batch[0].task_id, "tasks": len(batch)}
            with log_exceptions(
                logger, logging.ERROR, NOT_READ, action="sweep_failed", fields=fields
            ):
                items = await self._storage.table.load([due.head for due in batch])
            if not items:
                run.counts["failed"] += len(batch)
                metrics.count("SweepFailures", len(batch))
                continue
            found = [self._swept(due, items[due.head], run) for due in batch]
            swept = await asyncio.gather(*found)
            copies = [each for each in swept if isinstance(each, _Copy)]
            run.counts.update(each for each in swept if not isinstance(each, _Copy))
            # All are postponed: if this process dies now, they are due again after their wait.
            run.counts.update(await self._sent_again(copies))

    async def _swept(self, due: Due, item: Item | None, run: _Sweep) -> Swept | _Copy:
        """Repair a task; log an error, so that it does not keep the others waiting."""
        swept: Swept | _Copy = "failed"
        with begun():
            # On the lines of the copy, too, which is sent with others.
            fields: Fields = {"task_id": due.task_id, "correlation_id": correlation_id()}
            with log_exceptions(
                logger, logging.ERROR, NOT_REPAIRED, action="sweep_failed", fields=fields
            ):
                try:
                    swept = await self._repaired(due, item, run, fields)
                except UnreadableTaskError as error:
                    _tell_unreadable(due, error, run.unreadable)
                    return "skipped"
        if swept == "failed":
            metrics.count("SweepFailures")
        return swept

    async def _repaired(
        self, due: Due, item: Item | None, run: _Sweep, fields: Fields
    ) -> Swept | _Copy:
        log, now_ms = self._storage.for_scope(due.scope), self._clock.now_ms()
        head = live_head(item, now_ms)
        # Before its turn: no worker is sent what is about to end.
        if head is not None and overdue_cancel(head, now_ms=now_ms):
            return await self._end_cancel(log, head, fields)
        if head is not None and overdue_question(head, now_ms=now_ms):
            return await self._end_questions(log, head, fields)
        copy = overdue_turn(head, now_ms=now_ms)
        if head is None or copy is None:
            return "passed"  # the index lags behind
        fields.update(_known_of(head))
        if head.version == 1 and await self._is_behind_barrier(head):
            # Its creator died before its second look at the barrier.
            await delete_behind_barrier(log, head)
            return "passed"
        run.untold.append(head)
        since: int | None = head.created_at
        if self._is_given_up(head, head.created_at):  # no turn is older than its task
            since = await opened_at(log, head)
            if self._is_given_up(head, since):
                return await self._give_up(log, head, since, fields)
        if may_park(head, copy):
            # Lost, or waiting for a place: in line it needs no copy to be found out.
            run.copies += 1
            if run.copies > MOST_COPIES:
                at = self._clock.now_ms() if since is None else since
                return "passed" if await log.park(head, "share", at=at) is None else "parked"
        return await self._postponed(log, head, copy, fields)

    async def _end_questions(
        self, log: DurableStorage, head: Head, fields: Fields
    ) -> Swept | _Copy:
        """Let the code of a task go on without an answer to those questions whose time is over.

        A message that was accepted first has answered them: then the commit is refused.
        """
        fields.update(_known_of(head))
        whole = await log.read(head.task_id, incarnation=head.incarnation, is_whole=False)
        late = questions_of(whole).late(self._clock.now_ms()) if whole else ()
        if not late:
            return "passed"
        entries = tuple(Recorded(step_id, LATE, b"") for step_id in late)
        try:
            after = await log.commit(head, Commit(entries=entries, goes_on=True))
        except NewerReleaseError:
            return "skipped"  # for a sweeper of that release
        except (ConcurrencyError, ConversationFullError, TaskNotFoundError):
            return "passed"  # a full conversation: the next run tries again
        faults.point("after-postpone")
        fields.update(_known_of(after))
        params = OperationParams.of(after, after.turn.number)
        return _Copy(params=params, head=after, sends_before=0, fields=fields)

    async def _is_behind_barrier(self, head: Head) -> bool:
        until = await self._barriers.until(head.scope, head.context_id)
        return is_behind(head.created_at, until)

    async def _tell(self, head: Head, run: _Sweep) -> None:
        """Report an overdue turn to the metrics; log an error, as its repair is done."""
        log, fields = self._storage.for_scope(Scope(head.scope)), {"task_id": head.task_id}
        action = "turn_not_counted"
        with log_exceptions(logger, logging.WARNING, NOT_TOLD, action=action, fields=fields):
            await self._tell_age(log, head)
            await self._tell_late(log, head, run)

    async def _tell_age(self, log: DurableStorage, head: Head) -> None:
        """Report the age of a turn that its worker has lost to the metrics, beyond `retry_s`.

        Of one with records it is the age of the last one: with it the turn has all its attempts.
        One that stands in line has no worker because others are before it.
        """
        is_counted = head.turn.token is not None and not head.turn.parked
        began = await committed_at(log, head, head.turn.restart_base) if is_counted else None
        if began is None:
            return
        beyond_ms = self._clock.now_ms() - began - self._retry_ms
        if beyond_ms >= 0:
            metrics.time("AgeOfLostTurns", beyond_ms)

    async def _tell_late(self, log: DurableStorage, head: Head, run: _Sweep) -> None:
        """Report a turn that waits for a worker, and the callers of some, which are read for it.

        One that stands in line, or stood there, waits for something else.
        """
        turn, waited_ms = head.turn, self._clock.now_ms() - head.status_at
        is_started = turn.token is not None or head.state != TaskState.TASK_STATE_SUBMITTED
        if is_started or turn.parked or turn.requeued:
            return
        metrics.time("TimeQueued", waited_ms)
        if waited_ms < log.timing.late_s * 1000:
            return
        metrics.count("LateStarts")
        run.late += 1
        if run.late <= _MOST_CALLERS and (
            read := await log.read(head.task_id, incarnation=head.incarnation)
        ):
            metrics.caller(caller_number(read.caller.user), whose="waited")

    async def _postponed(
        self, log: DurableStorage, head: Head, params: OperationParams, fields: Fields
    ) -> Swept | _Copy:
        if head.turn.parked == "asleep":
            requeued = await log.requeue(head)
            if requeued is None:
                return "passed"
            faults.point("after-postpone")
            copy = OperationParams.of(requeued, requeued.turn.number, requeued.turn.sends)
            return _Copy(params=copy, head=requeued, sends_before=head.turn.sends, fields=fields)
        if head.turn.parked:
            if head.turn.parked == "conversation":
                # The process that ended the turn before it may have died before it passed it on.
                await start_next_turn(log, head.context_id, waiting=head)
            await log.postpone(
                head,
                due_at=self._clock.now_ms() + PARKED_MS[head.turn.parked],
                sends=head.turn.sends,
            )
            return "passed"
        sends = params.copy_number
        due_at = self._clock.now_ms() + int(self._wait_s(log, head.turn.resends + 1) * 1000)
        # Postponed first: of two runs only one sends. A crash in between only costs a wait.
        after = await log.postpone(head, due_at=due_at, sends=sends)
        if after is None:
            return "passed"
        faults.point("after-postpone")
        return _Copy(params=params, head=after, sends_before=head.turn.sends, fields=fields)

    async def _sent_again(self, copies: Sequence[_Copy]) -> Counter[str]:
        """Send a batch's operations; put back the turns of those that were not sent."""
        if not copies:
            return Counter()
        errors = await send_copies(self._queue, [copy.params for copy in copies])
        failed = [(copy, error) for copy, error in zip(copies, errors, strict=True) if error]
        sent = [copy for copy, error in zip(copies, errors, strict=True) if error is None]
        for copy in sent:
            self._tell_sent(copy)
        await asyncio.gather(*(self._put_back(copy, error) for copy, error in failed))
        requeued = sum(not copy.head.turn.resends for copy in sent)
        counts = {"sent": len(sent) - requeued, "requeued": requeued, "failed": len(failed)}
        return Counter(counts)

    def _tell_sent(self, copy: _Copy) -> None:
        resends = copy.head.turn.resends
        if not resends:
            extra = {"action": "turn_requeued", **copy.fields}
            text = "A turn goes on whose sleep, or whose time for an answer, is over"
            logger.info(text, extra=extra)
            return
        metrics.count("Resends")
        if resends >= STUCK_AFTER:
            metrics.count("StuckTurns")
        was_claimed = copy.head.turn.token is not None
        why = "its worker has not renewed its lease" if was_claimed else "no worker has taken it"
        extra = {
            "action": "resend",
            "sends": resends,
            "was_claimed": was_claimed,
            "reason": why,
            **copy.fields,
        }
        logger.warning("An overdue turn was sent again", extra=extra)

    async def _put_back(self, copy: _Copy, error: Exception) -> None:
        """Make a turn due again whose copy was not sent, so that it does not wait twice as long.

        The turn is due now, behind turns that have been overdue for longer, so that it does not
        hold them up. The next run sends the same copy number, which the queue drops if it has taken
        the copy after all. A turn that has moved on meanwhile stays as it is.
        """
        metrics.count("SweepFailures")
        extra = {"action": "sweep_failed", **copy.fields}
        logger.error(NOT_REPAIRED, extra=extra, exc_info=error)
        log = self._storage.for_scope(Scope(copy.head.scope))
        # If this fails too, the turn is sent after its wait.
        with log_exceptions(
            logger,
            logging.WARNING,
            "A turn that was not sent waits on",
            action="put_back_failed",
            fields=copy.fields,
        ):
            await log.postpone(copy.head, due_at=self._clock.now_ms(), sends=copy.sends_before)

    def _is_given_up(self, head: Head, opened_at: int | None) -> bool:
        now_ms = self._clock.now_ms()
        return is_given_up(head, opened_at=opened_at, now_ms=now_ms, give_up_s=self._give_up_s)

    async def _give_up(
        self, log: DurableStorage, seen: Head, opened_at: int | None, fields: Fields
    ) -> Swept:
        def decide(head: Head) -> Commit | None:
            is_same = (head.incarnation, head.turn.number) == (seen.incarnation, seen.turn.number)
            if not is_same or not self._is_given_up(head, opened_at):
                return None
            return never_started(head, self._give_up_s)

        if not await end_task(log, seen.task_id, decide):
            return "passed"
        metrics.count("TurnsGivenUp")
        extra = {"action": "turn_given_up", "sends": seen.turn.resends, **fields}
        logger.error("A task was failed whose agent could not be started", extra=extra)
        return "given_up"

    async def _end_cancel(self, log: DurableStorage, head: Head, fields: Fields) -> Swept:
        fields.update(_known_of(head))
        try:
            if not await cancel_task(log, head):
                return "passed"
        except NewerReleaseError:
            return "skipped"  # for a sweeper of that release
        metrics.count("ForcedCancels")
        extra = {"action": "cancel_at_deadline", **fields}
        logger.warning("A task was canceled at its deadline", extra=extra)
        return "canceled"

    def _wait_s(self, log: DurableStorage, resends: int) -> float:
        """Return the seconds from resend number `resends` to the next one."""
        doublings = min(resends, 32)  # the bound is reached long before; a float would overflow
        return min(self._longest_wait_s, log.timing.waiting_s * 2.0**doublings)


class SweeperFunction(EventFunction):
    """Sweeps on a schedule event, and handles dead letters on an SQS event.

    Args:
        backends: the storage that is swept, and the queue of operations.
        settings: the attempts of a turn, and the time after which it is given up.
    """

    def __init__(self, backends: Backends, settings: Settings) -> None:
        self._backends = backends
        self._settings = settings
        self._dead_letters = DeadLetters(
            backends.storage, backends.operations, retry=settings.retry()
        )
        super().__init__()

    async def _answer(
        self,
        event: Mapping[str, Any],
        context: Any,  # noqa: ARG002 - the sweeper's budget is its own
    ) -> dict[str, Any]:
        """Return the counts of the run, or the batch response: those that stay queued."""
        if event.get("detail-type") == "Scheduled Event":
            backends = self._backends
            sweeper = Sweeper(
                backends.storage,
                backends.operations,
                wake_webhooks=backends.waking(),
                give_up_s=self._settings.give_up_s,
                retry_s=self._settings.retry_minutes * 60,
            )
            return asdict(await sweeper.sweep())
        if "Records" in event:
            return await process_batch(event["Records"], self._succeeds)
        raise InvalidArgumentError("The sweeper handles schedule events and SQS events.")

    async def _succeeds(self, record: EventRecord) -> bool:
        settled: Settled | None = None
        # An invocation's edge: the record is reported failed.
        with log_exceptions(
            logger,
            logging.ERROR,
            "A dead letter was not handled",
            action="dead_letter_error",
            fields={"message_id": record["messageId"], **ids_in(record["body"])},
        ):
            settled = await self._dead_letters.handle(record["body"])
        return settled is not None


def _tell_unreadable(due: Due, error: UnreadableTaskError, told: set[TaskKey]) -> None:
    """Log and count a task that cannot be read, once in a run."""
    task = (due.scope.digest, due.task_id)
    if task in told:
        return
    told.add(task)
    metrics.count("SweepFailures")
    logger.error(
        "An overdue task is left as it is until its item is restored from a backup or deleted: %s",
        error,
        extra={"action": "unreadable_task", "task_id": due.task_id},
    )


def _known_of(head: Head) -> Fields:
    return {"context_id": head.context_id, "turn": head.turn.number, "attempts": head.turn.attempts}


Settled = Literal["failed", "canceled", "resent", "left", "dropped", "undecodable"]

_LEVELS: Final[Mapping[Settled, int]] = {
    "failed": logging.ERROR,
    "canceled": logging.ERROR,
    "resent": logging.WARNING,
    "left": logging.WARNING,
    "dropped": logging.INFO,
}


class DeadLetters:
    """Settles every message of the dead letter queue.

    Args:
        storage: the tasks.
        queue: keeps what cannot be read.
        retry: how many attempts a turn has.
    """

    def __init__(
        self, storage: DurableStorage, queue: FifoQueue[Operation], *, retry: RetryPolicy
    ) -> None:
        self._storage = storage
        self._queue = queue
        self._retry = retry

    async def handle(self, body: str) -> Settled:
        """Settle the operation in `body`, see `end`; copy an unreadable `body` to its own queue.

        After that the message can be deleted. Idempotent.

        Raises:
            ConfigurationError: there is no queue for the unreadable message.
            ConcurrencyError, UnavailableError: the task could not be written; keep the message.
        """
        with begun():
            return await self._handled(body)

    async def _handled(self, body: str) -> Settled:
        try:
            operation = decode_message(Operation, body)
        except UndecodableMessageError as error:
            # It would never become readable: kept for a person, it is out of the way of the others.
            await self._keep_undecodable(body, str(error))
            return "undecodable"
        params = operation.params
        about = {"a2a.task.id": params.task_id, "a2a.turn": params.turn}
        with spans.messaging("process", "dead letters", self._queue.system, operation.trace, about):
            try:
                return await self.end(operation)
            # It would be as unreadable each time: those behind it go on.
            except UnreadableTaskError as error:
                extra = {"action": "unreadable_task", **operation.ids}
                logger.error("Dead letter dropped: %s", error, extra=extra)  # noqa: TRY400 - its sentence says all
                return "dropped"

    async def end(self, operation: Operation) -> Settled:
        """Apply the decision of `on_dead_letter` to the operation's task as it is now.

        Return what was done. "failed", "canceled": the task was ended. "resent": its turn was made
        due, so that the next sweep sends it again. "left": no worker of this release can run it,
        and the sweeper sends it again after its own wait. "dropped": nothing was left to do.
        """
        scope, task_id = Scope(operation.params.scope), operation.params.task_id
        storage = self._storage.for_scope(scope)
        log = await storage.read(task_id, incarnation=operation.params.incarnation)
        dead_letter = _DeadLetter(operation, self._retry, log)
        if log is not None:
            works_on(log)
        # Counted and logged only after the write: if it raises, the dead letter comes again.
        settled = await _settle(storage, dead_letter)
        self._report(dead_letter, settled, dead_letter.seen or (log.head if log else None))
        if settled == "failed" and log is not None:
            count_failed(log, is_used_up=True)
        faults.point("after-dead-letter")
        return settled

    async def _keep_undecodable(self, body: str, reason: str) -> None:
        # Raised, so that it stays in its queue: nothing else has the message any more.
        if not await self._queue.keep_undecodable(body, reason=reason):
            msg = "A2A_UNDECODABLE_QUEUE is not set: it names the queue for unreadable messages."
            raise ConfigurationError(msg)
        metrics.count("DeadLetters", outcome="undecodable")
        extra = {"action": "dead_letter_undecodable", "reason": reason}
        logger.error("An unreadable dead letter was kept for a person", extra=extra)

    def _report(self, dead_letter: _DeadLetter, settled: Settled, head: Head | None) -> None:
        metrics.count("DeadLetters", outcome=settled)
        known: dict[str, object] = {}
        if head is not None and head.incarnation == dead_letter.operation.params.incarnation:
            known = {"context_id": head.context_id, "attempts": head.turn.attempts}
        logger.log(
            _LEVELS[settled],
            "Dead letter: %s",
            settled,
            extra={
                "action": f"dead_letter_{settled}",
                "correlation_id": dead_letter.correlation_id,
                **dead_letter.operation.ids,
                **known,
            },
        )


class _DeadLetter:
    """A dead letter, and the decision about it on the HEAD that was read last."""

    def __init__(self, operation: Operation, retry: RetryPolicy, log: Log | None) -> None:
        self.operation = operation
        self.correlation_id = correlation_id()
        self.wanted = DeadLetterDecision.DROP
        self.seen: Head | None = None
        self._retry = retry
        self._cannot_run = log is not None and log.cannot_run

    def decide(self, head: Head) -> Commit | None:
        """Return the commit that ends the task; None if it is not to be ended."""
        self.seen = head
        self.wanted = on_dead_letter(
            head,
            self.operation,
            retry=self._retry,
            cannot_run=self._cannot_run,
        )
        if self.wanted is DeadLetterDecision.CANCEL:
            return canceled(head)
        if self.wanted is DeadLetterDecision.FAIL:
            return gave_up(head, self.correlation_id)
        return None


async def _settle(log: DurableStorage, dead_letter: _DeadLetter) -> Settled:
    """Apply the decision to HEAD as it is; decide again if HEAD has moved meanwhile.

    Raises:
        ConcurrencyError: others changed the task too often.
    """
    for _ in range(REBASES):
        if await end_task(log, dead_letter.operation.task_id, dead_letter.decide):
            return "canceled" if dead_letter.wanted is DeadLetterDecision.CANCEL else "failed"
        if dead_letter.wanted is DeadLetterDecision.LEAVE:
            return "left"
        if dead_letter.wanted is not DeadLetterDecision.RESEND or dead_letter.seen is None:
            return "dropped"
        # Not sent from here: the due index has one sender, the sweeper, which numbers the copies.
        if await _make_due(log, dead_letter.seen):
            return "resent"
        dead_letter.wanted = DeadLetterDecision.DROP  # unless the next HEAD says otherwise
    msg = f"The turn was changed by others {REBASES} times while it was to be made due."
    raise ConcurrencyError(msg)


async def _make_due(log: DurableStorage, head: Head) -> bool:
    """Make the open turn due now, unless it is already; return False if HEAD has moved."""
    now_ms = log.clock.now_ms()
    if head.due_at is not None and head.due_at <= now_ms:
        return True
    return await log.postpone(head, due_at=now_ms, sends=head.turn.sends) is not None


def ids_in(body: str) -> dict[str, object]:
    """Return the task and turn that a dead letter is about, for a line of the log."""
    try:
        return decode_message(Operation, body).ids
    except UndecodableMessageError:
        return {}
