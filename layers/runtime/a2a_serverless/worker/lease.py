"""The lease of one turn: its delivery, its claim on HEAD, and what HEAD says meanwhile.

An attempt owns its turn by its delivery, which a heartbeat renews, and from its first commit on by
its token in HEAD. Whatever has to go on while an agent blocks its loop runs in the heartbeat's
thread: renewing delivery and claim, claiming the turn of a silent agent, polling HEAD for a cancel.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import field, replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from a2a_serverless import faults
from a2a_serverless.clock import Clock, call_in, first_of
from a2a_serverless.errors import (
    ConcurrencyError,
    FencedError,
    TaskNotFoundError,
    TaskTerminalStateError,
    TurnFinishedError,
    UnavailableError,
)
from a2a_serverless.observability import metrics, spans
from a2a_serverless.observability.logs import correlation_id
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.storage.activity import process_name
from a2a_serverless.storage.changes import MOST_TRIES, Change, pause_after
from a2a_serverless.storage.durable import LOOK_AT_ONCE, DurableStorage
from a2a_serverless.tasks.attempts import (
    RefusalDecision,
    RetryPolicy,
    is_stale,
    lease_end,
    on_lost_claim,
    on_refusal,
)
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import AttemptEnd, Head, Operation, OperationParams
from a2a_serverless.tasks.identity import TaskKey, new_token
from a2a_serverless.tasks.rules import Commit, ContextWrite, renewing
from a2a_serverless.values import dataclass
from a2a_serverless.worker.failures import StaleStateError, log_exceptions
from a2a_serverless.worker.heartbeat import LOOK_S, Heartbeat, OnBlocked
from a2a_serverless.worker.steps import ParkedError

Merged: TypeAlias = Callable[[], Awaitable[ContextWrite]]

logger = logging.getLogger(__name__)

CLAIM_AFTER_S: Final = 1.0
"""Seconds for which an agent may emit nothing before the heartbeat claims its turn."""
AGAIN_S: Final = 5.0
"""Seconds until a claim or renewal that AWS has not answered is tried again."""
POLL_S: Final = 1.0
"""Seconds from one poll of HEAD to the next."""

RENEW_AFTER: Final = 1 / 3
RETRY_AFTER: Final = 1 / 12
LOST_AFTER: Final = 3 / 4
GRACE_S: Final = 6.0
MIN_S: Final = 1.0
"""The first three are shares of the visibility: after them it is renewed, a failed renewal is tried
again, and a delivery without renewal counts as lost (before another worker can get it). At its end
the lease waits `GRACE_S` for a renewal under way: a little longer than a request's read time-out.
A delivery is kept for at least `MIN_S`, because 0 seconds would give it back."""

_LOST: Final = f"The turn's write lost {MOST_TRIES} races."
_OVER: Final = "The turn is over, or its task is gone."
_NOT_POLLED: Final = "Turns not watched"


class StaleReadError(Exception):
    """The log has to be read again before its turn is claimed."""


class _Polled(Protocol):
    """A task whose HEAD is polled."""

    @property
    def key(self) -> TaskKey: ...

    def on_head(self, head: Head | None, /) -> Awaitable[None]:
        """Take HEAD, as a poll has shown it; it may be out of date."""


class HeadPoller:
    """Polls, once a second, HEAD of all tasks whose turns a process runs.

    One request serves `LOOK_AT_ONCE` tasks. A poll that fails, or has no capacity, shows nothing;
    the next one follows after `interval_s`. `beside` is awaited before each.
    """

    def __init__(
        self,
        storage: DurableStorage,
        clock: Clock,
        *,
        beside: Callable[[], Awaitable[None]] | None = None,
        interval_s: float = POLL_S,
    ) -> None:
        self._storage = storage
        self._beside = beside
        self._clock = clock
        self._interval_s = interval_s
        self._tasks: set[_Polled] = set()
        self._next_at = 0.0
        self._polling = asyncio.Lock()

    async def over(self, task: _Polled, stop: asyncio.Event) -> None:
        """Poll HEAD of a task until `stop`; a job of the heartbeat.

        The first of the jobs that wake up polls for all tasks; one poll ends before the next one
        begins.
        """
        if not self._tasks:
            self._next_at = self._clock.monotonic() + self._interval_s
        self._tasks.add(task)
        try:
            while True:
                next_at = self._next_at
                wait_s = max(0, next_at - self._clock.monotonic())
                if await _stopped(self._clock, wait_s, stop):
                    return
                if self._next_at != next_at:
                    continue
                self._next_at = self._clock.monotonic() + self._interval_s
                if not self._polling.locked():
                    # A turn that ends does not wait for the poll: the next job polls for all of
                    # them.
                    async with self._polling:
                        await first_of(self._poll_all(), stop.wait())
                    self._next_at = self._clock.monotonic() + self._interval_s
        finally:
            self._tasks.discard(task)

    async def _poll_all(self) -> None:
        keys = list({task.key for task in self._tasks})
        starts = range(0, len(keys), LOOK_AT_ONCE)
        if self._beside is not None:
            with log_exceptions(logger, logging.WARNING, _NOT_POLLED, action="watch_failed"):
                await self._beside()
        await asyncio.gather(*(self._poll(keys[at : at + LOOK_AT_ONCE]) for at in starts))

    async def _poll(self, keys: list[TaskKey]) -> None:
        fields = {"tasks": len(keys)}
        with log_exceptions(
            logger, logging.WARNING, _NOT_POLLED, action="watch_failed", fields=fields
        ):
            heads = await self._storage.look(keys)
            seen = [task for task in self._tasks if task.key in heads]
            await asyncio.gather(*(self._tell(task, heads[task.key]) for task in seen))

    async def _tell(self, task: _Polled, head: Head | None) -> None:
        fields = {"task_id": task.key[1]}  # one failed task must not end the polling of the others
        with log_exceptions(
            logger, logging.WARNING, _NOT_POLLED, action="watch_failed", fields=fields
        ):
            await task.on_head(head)


@dataclass(kw_only=True, eq=False)
class Lease:
    """Keeps one turn for a worker, and tells it when the turn is lost or to be canceled.

    It belongs to the event loop that makes it. Without a token it writes from outside of any
    attempt, and needs only a task that has not ended.

    Args:
        storage: of the turn's scope.
        params: the ids of the turn.
        head: HEAD as it was read for the turn.
        token: the attempt's claim.
        clock: times renewals and polls.
        heartbeat: runs what goes on beside the agent.
        poller: polls HEAD, for all turns of the process.
        handle: the delivery; None if the queue keeps it for as long as the turn can take.
        visibility_s: the seconds for which each renewal keeps the delivery.
        until: the monotonic second beyond which the delivery is not renewed, so that an agent that
            blocks its loop for ever holds up its neighbours no longer; None without one.
    """

    storage: DurableStorage
    params: OperationParams
    head: Head
    """The newest HEAD that is known to be this writer's, or unclaimed."""
    token: str | None
    clock: Clock
    heartbeat: Heartbeat
    poller: HeadPoller
    handle: Handle[Operation] | None = None
    visibility_s: float = 0
    until: float | None = None
    reason: Exception | None = field(default=None, init=False)
    """Why the turn has to end here; after a FencedError nothing more is written."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when there is a reason."""
    canceling: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the task is to be canceled."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _counts_until: float = field(default=math.inf, init=False)
    """The monotonic second at which the delivery counts as lost without another renewal."""

    def __post_init__(self) -> None:
        self._home = asyncio.get_running_loop()
        self.storage = self.storage.joined_by(self._acknowledging)
        self.key: TaskKey = self.head.scope, self.head.task_id
        self.ids: dict[str, object] = {
            "task_id": self.params.task_id,
            "turn": self.params.turn,
        }
        """The fields that name the turn, for a line of the log."""

    def must_claim(self, head: Head | None = None) -> bool:
        """Return True if a commit on `head`, by default the newest, has to claim its turn.

        It does not if the turn is over there.
        """
        head = self.head if head is None else head
        is_open = not head.is_over(self.params.turn)
        return is_open and self.token is not None and head.turn.token != self.token

    @property
    def is_canceling(self) -> bool:
        """Return True once it is known that the task is to be canceled, also in other threads."""
        return self.head.cancel is not None or self.canceling.is_set()

    @property
    def is_lost(self) -> bool:
        """Return True if the turn is another attempt's, or may be: its delivery was not kept."""
        return isinstance(self.reason, FencedError)

    def stop(self, reason: Exception) -> None:
        """Let the turn end as soon as possible."""
        self._keep_reason(reason)
        self.stopped.set()

    def _keep_reason(self, reason: Exception) -> None:
        """Keep the first reason, unless the turn or its delivery is lost: that replaces it.

        It does not replace that the turn is parked, which is stored.
        """
        with self._lock:  # the heartbeat's thread tells of a lost delivery
            is_loss = isinstance(reason, FencedError) and not isinstance(self.reason, ParkedError)
            if self.reason is None or is_loss:
                self.reason = reason

    # -- writing -------------------------------------------------------------------------------

    async def take_over(self, read: Log, retry: RetryPolicy, *, is_alone: bool = True) -> None:
        """Claim the turn, even if another attempt owns it.

        `read` is the task's log from its beginning. `is_alone` False: the process has other turns.

        Raises:
            StaleReadError: the turn has other records than `read` has: its steps would run again.
            TurnFinishedError: the turn is over.
            FencedError: others have used up the turn's attempts meanwhile, or the turn has to run
                alone in its process and would not.
            UnavailableError: too many races were lost.
        """
        for attempt in range(1, MOST_TRIES + 1):
            try:
                # By a commit of its own, before the agent runs: whatever the other attempt still
                # writes is refused from here on.
                return await self._commit_on(read.head, Commit())
            except ConcurrencyError:
                await pause_after(self.storage.clock, attempt)
                newer = await self.storage.read(self.params.task_id, is_whole=False)
            if newer is None:  # deleted or expired: the read is consistent, so it is not just late
                raise TurnFinishedError(_OVER)
            met = on_lost_claim(newer.head, self.params, retry, is_alone=is_alone)
            head = _unless(met, newer.head)
            if head.turn.token == self.token:  # by a claim whose answer was lost
                return self._take(head)
            if is_stale(self.head, head):
                raise StaleReadError
            read = newer
        raise UnavailableError(_LOST)

    async def commit(self, wanted: Commit | None = None, *, merged: Merged | None = None) -> None:
        """Commit under the claim, or claim with the commit; without `wanted`, only claim.

        `merged` returns the write to try next when the conversation's state has changed.

        Raises:
            FencedError, TurnFinishedError: the turn is not this writer's any more.
            StaleStateError: the conversation's state has changed since it was loaded.
            InvalidArgumentError, UnavailableError: as `DurableStorage.commit`.
        """
        for attempt in range(1, MOST_TRIES + 1):
            if wanted is None and not self.must_claim():
                return
            # Asked before every try: the delivery may be lost while others win the race.
            if self.reason is not None and self.is_lost:
                raise self.reason
            seen = self.head
            try:
                await self._commit_on(seen, wanted or Commit())
            except ConcurrencyError as lost:  # also if the heartbeat has claimed on a newer HEAD
                await pause_after(self.storage.clock, attempt)
                # Checked before the next try: no commit goes to a turn that another attempt owns.
                head = self._checked(await self.storage.head(self.params.task_id))
                is_same = head.mark == seen.mark
                if is_same and wanted is not None and wanted.context_write is not None:
                    # HEAD did not move, so the condition on the conversation's state has failed.
                    if merged is None:
                        raise StaleStateError from lost
                    wanted = replace(wanted, context_write=await merged())
                self._take(head)
            else:
                return
        raise UnavailableError(_LOST)

    async def _commit_on(self, head: Head, wanted: Commit) -> None:
        """Try a commit on `head`, and claim with it if need be.

        Raises:
            ConcurrencyError: HEAD was another one.
        """
        # By `head`, not `self.head`: if the other loop has claimed since, HEAD's condition refuses
        # this commit.
        claims = self.must_claim(head)
        worker = process_name() if claims else ""
        commit = replace(  # with an id of its own: a rebased write is another request
            wanted, token=self.token, claims=claims, worker=worker, commit_id=new_token()
        )
        try:
            committed = await self.storage.commit(head, commit)
        except (TaskNotFoundError, TaskTerminalStateError) as error:
            raise TurnFinishedError from error
        self._take(committed)
        if claims:
            spans.current().event("claimed", {"a2a.commit": committed.version})
            faults.point("after-claim")

    async def _acknowledging(self, head: Head) -> list[Change[Any]]:
        """Return the acknowledgement of the delivery, if the commit that makes `head` stores it.

        That is so where the task ends, as no turn can follow. After another end the next turn
        begins with the acknowledgement, and so it comes when no code of this turn runs any more. In
        a serial conversation it comes when the conversation goes on: if this process dies before
        that, the delivery comes again.
        """
        if self.handle is None or not head.is_terminal or head.serial_from:
            return []
        acknowledging = await self.handle.acknowledging(self.storage.table)
        return [] if acknowledging is None else [acknowledging]

    def ended(self, reason: str, *, place: str = "", message: str = "") -> AttemptEnd:
        """Return the end of this attempt, with the correlation id of its lines in the log."""
        return AttemptEnd(
            token=self.token or "",
            reason=reason,
            correlation_id=correlation_id(),
            at=self.clock.now_ms(),
            place=place,
            message=message,
        )

    # -- what is known of HEAD -----------------------------------------------------------------

    async def on_head(self, head: Head | None) -> None:
        """Take HEAD as a poll shows it; stop the turn if it is not this writer's any more."""
        if head is None or head.incarnation != self.params.incarnation:
            # A poll may be older than the task: only a consistent read tells that the task is gone.
            head = await self.storage.head(self.params.task_id)
        elif head.version < self.head.version:
            return
        try:
            self._take(self._checked(head))
        except (FencedError, TurnFinishedError) as reason:
            self._at_home(partial(self._hear_of_loss, reason))

    def _hear_of_loss(self, reason: Exception) -> None:
        # A commit under way may be what HEAD shows; it will be refused if the turn is lost.
        if not self._is_writing() and not self.head.is_over(self.params.turn):
            self.stop(reason)

    def _checked(self, head: Head | None) -> Head:
        """Return HEAD, if the turn is still this writer's, or unclaimed.

        Raises:
            TurnFinishedError: the task is gone or has ended, or the turn is over.
            FencedError: another attempt owns the turn.
        """
        return _unless(on_refusal(head, self.params, token=self.token), head)

    def _take(self, head: Head) -> None:
        """Go on from `head` unless a newer one is known; tell of a cancel that it shows."""
        with self._lock:  # commits come from both loops
            known = self.head
            is_older = head.version < known.version or (
                head.version == known.version and head.cancel is None and known.cancel is not None
            )
            self.head = known if is_older else head
        if self.head.cancel is not None:
            self._at_home(self.canceling.set)

    def _at_home(self, call: Callable[[], object]) -> None:
        """Make a call in the loop of the turn: at once, if this is it."""
        if asyncio.get_running_loop() is self._home:
            call()
        else:
            call_in(self._home, call)

    # -- the turn, beside its agent --------------------------------------------------------------

    @asynccontextmanager
    async def keeping_turn(
        self, *, is_writing: Callable[[], bool], on_blocked: OnBlocked
    ) -> AsyncIterator[None]:
        """Claim the turn of a silent agent, renew its claim, and poll HEAD, during the block.

        `is_writing` returns True while the agent's events wait for their commit. `on_blocked` is as
        for `Heartbeat.over`.
        """
        self._is_writing = is_writing
        if self.head.cancel is not None:  # it came after the delivery was read
            self.canceling.set()
        polling = partial(self.poller.over, self)
        jobs = (self._keep_claim, polling)
        async with self.heartbeat.over(*jobs, on_blocked=on_blocked, later=True):
            yield

    async def _keep_claim(self, stop: asyncio.Event) -> None:
        """Claim the turn unless its outbox does; then renew the claim, until it is another's.

        The renewals tell the sweeper that the turn is worked on: it sends no copy.
        """
        timing, was_writing, is_claimed = self.storage.timing, False, False
        renewed_after_s = timing.lease_s - timing.renew_before_s
        wait_s = CLAIM_AFTER_S
        while not await _stopped(self.clock, wait_s, stop):
            if not is_claimed and self._is_writing() and self.must_claim() and not was_writing:
                was_writing = True  # its first commit claims, unless the agent blocks the loop
                continue
            try:
                if not is_claimed:
                    await self.commit()
                    is_claimed = True
                elif not await self._renew_claim():
                    return
                wait_s = renewed_after_s
            except (FencedError, TurnFinishedError):
                return  # the turn learns it from a poll
            except Exception as error:  # noqa: BLE001 - the thread's edge: tried again, and logged
                what, action = "renewal", "renewal_failed"
                if not is_claimed:
                    what, action = "claim", "claim_failed"
                text = "The turn's %s has failed: %r"
                self.logged(logger, logging.WARNING, action, text, what, error)
                wait_s = min(AGAIN_S, renewed_after_s)

    async def _renew_claim(self) -> bool:
        """Renew the claim; return False if the turn is not this attempt's any more."""
        due_at = lease_end(self.clock.now_ms(), self.storage.timing)
        renews = partial(renewing, token=self.token or "", due_at=due_at)
        # No commit: a renewal is nothing for the readers of the log.
        head = await self.storage.change(self.head, renews)
        if head is None:
            return False
        self._take(head)  # the next commit replaces this HEAD, and not the one before it
        metrics.count("LeasesRenewed")
        return True

    # -- the delivery ----------------------------------------------------------------------------

    @asynccontextmanager
    async def keeping_delivery(self) -> AsyncIterator[None]:
        """Renew the delivery during the block; after it there are no more renewals.

        It is renewed at the beginning, unless it was received so recently that this adds little.
        Without a renewal in time the delivery is lost, and the turn is stopped.

        Raises:
            ConcurrencyError: the delivery has expired already.
            UnavailableError: no thread could be started.
        """
        handle = self.handle
        if handle is None:
            yield
            return
        asked_at = self.clock.monotonic()
        seconds = self._visible_s(asked_at)
        kept_s = (handle.hidden_until - self.clock.now_ms()) / 1000
        # Not if it is kept for longer: were this worker to die, its turn would wait for that.
        if LOST_AFTER * seconds < kept_s <= seconds:
            seconds = kept_s
        else:
            await handle.extend(seconds)
        self._count_from(asked_at, seconds)
        keeping, later = partial(self._keep_delivery, handle), RENEW_AFTER * seconds > LOOK_S
        async with self.heartbeat.over(keeping, later=later):
            yield

    async def _keep_delivery(self, handle: Handle[Operation], stop: asyncio.Event) -> None:
        """Renew the delivery until `stop`; if it is lost, stop the turn."""
        pause_s = self.visibility_s * RENEW_AFTER
        try:
            while (left_s := self._counts_until - self.clock.monotonic()) > 0:
                is_last = self.until is not None and self._counts_until >= self.until
                if await _stopped(self.clock, left_s if is_last else min(pause_s, left_s), stop):
                    return
                if self._counts_until <= self.clock.monotonic():
                    return
                is_renewed = await self._renew(handle, stop)
                pause_s = self.visibility_s * (RENEW_AFTER if is_renewed else RETRY_AFTER)
        except ConcurrencyError:
            return
        finally:
            if not stop.is_set():  # lost, or ended unasked, for instance with its loop
                # Here, and not in the agents' loop, which may be blocked: nothing more is written.
                self._keep_reason(FencedError("The delivery is lost."))
                self.logged(logger, logging.ERROR, "delivery_lost", "Delivery lost")
                call_in(self._home, self.stopped.set)

    async def _renew(self, handle: Handle[Operation], stop: asyncio.Event) -> bool:
        """Extend the delivery once; return False if that failed or had no answer in time.

        Raises:
            ConcurrencyError: the delivery has expired.
        """
        asked_at = self.clock.monotonic()
        seconds = self._visible_s(asked_at)
        extending = asyncio.ensure_future(handle.extend(seconds))
        # Only for as long as the delivery counts: a later answer would come too late.
        limit = self.clock.sleep(self._counts_until - asked_at)
        await first_of(limit, stop.wait(), tasks=[extending])
        if not extending.done():
            if stop.is_set():
                # A request that is under way would undo a later nack, or freeze with the Lambda.
                await asyncio.wait({extending}, timeout=GRACE_S)
            extending.cancel()
            await asyncio.gather(extending, return_exceptions=True)
            return False
        error = extending.exception()
        if error is None:
            self._count_from(asked_at, seconds)
            return True
        text = "Visibility not renewed: %s"
        self.logged(logger, logging.WARNING, "renewal_failed", text, error)
        if isinstance(error, ConcurrencyError):
            raise error
        return False

    def _visible_s(self, now: float) -> float:
        """Return the seconds for which to keep the delivery from now; fewer just before `until`."""
        left_s = math.inf if self.until is None else self.until - now
        return min(self.visibility_s, max(MIN_S, left_s))

    def _count_from(self, asked_at: float, seconds: float) -> None:
        """Note when the delivery, renewed at `asked_at`, counts as lost without another renewal.

        One that reaches `until` is not renewed any more: nothing is done with it after that.
        """
        self._counts_until = asked_at + LOST_AFTER * seconds
        if self.until is not None and asked_at + seconds >= self.until:
            self._counts_until = self.until

    def logged(
        self,
        log: logging.Logger,
        level: int,
        action: str,
        text: str,
        *args: object,
        cause: BaseException | None = None,
        **fields: object,
    ) -> None:
        """Log a line about the turn; `cause` is an exception that it shows."""
        extra = {"action": action, **self.ids, **fields}
        log.log(level, text, *args, extra=extra, exc_info=cause)


def _unless(met: RefusalDecision, head: Head | None) -> Head:
    """Return HEAD for another try, or raise the error for the refusal that was `met`."""
    if head is None or met is RefusalDecision.OVER:
        raise TurnFinishedError(_OVER)
    if met is RefusalDecision.FENCED:
        raise FencedError(current_version=head.version)
    return head


async def _stopped(clock: Clock, seconds: float, stop: asyncio.Event) -> bool:
    """Wait for `seconds`, or until `stop`; return True if it is set."""
    await first_of(clock.sleep(seconds), stop.wait())
    return stop.is_set()
