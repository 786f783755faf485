"""The guard of a turn: it keeps the turn's delivery and claim, and hears what happens to its task.

In the loop of the agents it commits for the turn. Whatever has to go on while an agent blocks that
loop runs in the keeper's thread: renewing the delivery and the lease, claiming the turn of a silent
agent, looking at HEAD.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeAlias, TypeVar

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
from a2a_serverless.storage.contexts import State
from a2a_serverless.storage.durable import LOOK_AT_ONCE, DurableStorage
from a2a_serverless.storage.layout import CONTEXT
from a2a_serverless.storage.table import Item
from a2a_serverless.tasks.attempts import (
    Refused,
    RetryPolicy,
    is_over,
    is_stale,
    lease_end,
    on_lost_claim,
    on_refusal,
)
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import AttemptEnd, Head, Operation, OperationParams
from a2a_serverless.tasks.identity import TaskKey, new_token
from a2a_serverless.tasks.rules import Commit, ContextWrite, is_still
from a2a_serverless.worker.failures import StaleStateError, going_on
from a2a_serverless.worker.loops import Keeper, OnBlocked

T = TypeVar("T")
Merged: TypeAlias = Callable[[], Awaitable[ContextWrite]]

logger = logging.getLogger(__name__)

MAX_REBASES: Final = 16
"""Tries of a write by the turn's owner, each on the newer HEAD that another writer has made."""
CLAIM_AFTER_S: Final = 1.0
"""Seconds for which an agent may emit nothing before the keeper claims its turn."""
AGAIN_S: Final = 5.0
"""Seconds until a claim or renewal that AWS has not answered is tried again."""
POLL_S: Final = 1.0
"""Seconds from one look at HEAD to the next."""

RENEW_AFTER: Final = 1 / 3
RETRY_AFTER: Final = 1 / 12
LOST_AFTER: Final = 3 / 4
GRACE_S: Final = 6.0
MIN_S: Final = 1.0
"""The first three are shares of the visibility: after them it is renewed, a failed renewal is tried
again, and a delivery without renewal counts as lost (before another worker can get it). At its end
the guard waits `GRACE_S` for a renewal under way: a little longer than a request's read time-out.
A delivery is kept for at least `MIN_S`, because 0 seconds would give it back."""


class StaleReadError(Exception):
    """The log has to be read again before its turn is claimed."""


_LOST: Final = f"The turn's write lost {MAX_REBASES} races."
_OVER: Final = "The turn is over, or its task is gone."


class _LookedAt(Protocol):
    """A task at which `Looks` looks."""

    @property
    def key(self) -> TaskKey: ...

    def on_look(self, head: Head | None, /) -> Awaitable[None]:
        """Take a look; it may be out of date."""


class Looks:
    """Looks once a second at HEAD of all tasks whose turns a process runs.

    One request serves `LOOK_AT_ONCE` tasks. A look that fails, or has no capacity, shows nothing;
    the next one follows after `interval_s`. `beside` is awaited before each.
    """

    def __init__(
        self,
        log: DurableStorage,
        clock: Clock,
        *,
        beside: Callable[[], Awaitable[None]] | None = None,
        interval_s: float = POLL_S,
    ) -> None:
        self._log = log
        self._beside = beside
        self._clock = clock
        self._interval_s = interval_s
        self._tasks: set[_LookedAt] = set()
        self._next_at = 0.0
        self._looking = asyncio.Lock()

    async def over(self, task: _LookedAt, stop: asyncio.Event) -> None:
        """Look at a task until `stop`; a duty of the keeper.

        The first of the duties that wake up looks at the tasks of all; one look ends before the
        next one begins.
        """
        if not self._tasks:
            self._put_off()
        self._tasks.add(task)
        try:
            while True:
                next_at = self._next_at
                wait_s = max(0, next_at - self._clock.monotonic())
                if await _stopped(self._clock, wait_s, stop):
                    return
                if self._next_at != next_at:
                    continue
                self._put_off()
                if not self._looking.locked():
                    async with self._looking:
                        await first_of(self._look_at_all(), stop.wait())
                    self._put_off()
        finally:
            self._tasks.discard(task)

    def _put_off(self) -> None:
        self._next_at = self._clock.monotonic() + self._interval_s

    async def _look_at_all(self) -> None:
        keys = list({task.key for task in self._tasks})
        starts = range(0, len(keys), LOOK_AT_ONCE)
        if self._beside is not None:
            await self._beside()
        await asyncio.gather(*(self._look(keys[at : at + LOOK_AT_ONCE]) for at in starts))

    async def _look(self, keys: list[TaskKey]) -> None:
        with _going_on(tasks=len(keys)):
            looks = await self._log.look(keys)
            seen = [task for task in self._tasks if task.key in looks]
            await asyncio.gather(*(self._tell(task, looks[task.key]) for task in seen))

    async def _tell(self, task: _LookedAt, head: Head | None) -> None:
        with _going_on(task_id=task.key[1]):
            await task.on_look(head)


@dataclass(kw_only=True, eq=False)
class Guard:
    """Keeps one turn for a worker, and tells it when the turn is lost or to be canceled.

    It belongs to the event loop that makes it. Without a token it writes from outside of any
    attempt, and needs only a task that has not ended.

    Args:
        log: storage of the turn's scope.
        params: the ids of the turn.
        head: HEAD as it was read for the turn.
        token: the attempt's claim.
        clock: times renewals and looks.
        keeper: runs what goes on beside the agent.
        looks: looks at HEAD, for all turns of the process.
        handle: the delivery; None if the queue keeps it for as long as the turn can take.
        visibility_s: the seconds for which each renewal keeps the delivery.
        until: the monotonic second beyond which the delivery is not renewed, so that an agent that
            blocks its loop for ever holds up its neighbours no longer; None without one.
        found: what is stored of the conversation, if the turn has it; None: it was not read.
    """

    log: DurableStorage
    params: OperationParams
    head: Head
    """The newest HEAD that is known to be this writer's, or unclaimed."""
    token: str | None
    clock: Clock
    keeper: Keeper
    looks: Looks
    handle: Handle[Operation] | None = None
    visibility_s: float = 0
    until: float | None = None
    found: Mapping[str, Item] | None = None
    claimed: bool = field(default=False, init=False)
    """True once HEAD has had the token."""
    is_lost: bool = field(default=False, init=False)
    """True once the delivery is lost: then nothing more is written."""
    has_given_back: bool = field(default=False, init=False)
    """True once HEAD says how this attempt has given its turn back."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the turn has to end; `reason` says why."""
    reason: Exception | None = field(default=None, init=False)
    canceling: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the task is to be canceled."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._home = asyncio.get_running_loop()

    @property
    def key(self) -> TaskKey:
        return self.head.scope, self.head.task_id

    @property
    def must_claim(self) -> bool:
        """Return True when the next commit of an attempt has to claim the turn."""
        return self.token is not None and not self.claimed

    @property
    def is_canceling(self) -> bool:
        """Return True once it is known that the task is to be canceled, also in other threads."""
        return self.head.cancel is not None or self.canceling.is_set()

    def stop(self, reason: Exception) -> None:
        """Let the turn end as soon as possible; the first reason counts."""
        self.reason = self.reason or reason
        self.stopped.set()

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
        for _ in range(MAX_REBASES):
            restores = read.restores() if read.head.token is not None else 0
            try:
                return await self._commit_on(read.head, Commit(restores=restores))
            except ConcurrencyError:
                newer = await self.log.read(self.params.task_id, is_whole=False)
            if newer is None:
                raise TurnFinishedError(_OVER)
            met = on_lost_claim(newer.head, self.params, retry, is_alone=is_alone)
            head = _unless(met, newer.head)
            if head.token == self.token:  # by a claim whose answer was lost
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
        for _ in range(MAX_REBASES):
            if wanted is None and not self.must_claim:
                return
            # Asked before every try: the delivery may be lost while others win the race.
            if self.is_lost:
                raise FencedError("The delivery is lost.")
            seen = self.head
            try:
                await self._commit_on(seen, wanted or Commit())
            except ConcurrencyError as lost:  # also if the keeper has claimed on a newer HEAD
                # Checked before the next try: no commit goes to a turn that another attempt owns.
                head = self._checked(await self.log.head(self.params.task_id))
                if is_still(head, seen) and wanted is not None and wanted.context_write is not None:
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
        claims = self.must_claim
        worker = process_name() if claims else ""
        commit = replace(  # with an id of its own: a rebased write is another request
            wanted, token=self.token, claims=claims, worker=worker, commit_id=new_token()
        )
        try:
            committed = await self.log.commit(head, commit)
        except (TaskNotFoundError, TaskTerminalStateError) as error:
            raise TurnFinishedError from error
        self.claimed = True
        self._take(committed)
        if claims:
            spans.current().event("claimed", {"a2a.commit": committed.version})
            faults.point("after-claim")

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

    async def state(self, *, anew: bool = False) -> State:
        """Return the conversation's state; `anew`: as it is stored now.

        Raises:
            UnreadableTaskError: it is damaged.
        """
        context_id, contexts = self.head.context_id, self.log.contexts
        if anew or self.found is None:
            return await contexts.find(context_id)
        return await contexts.read(context_id, self.found.get(CONTEXT))

    # -- what is known of HEAD -----------------------------------------------------------------

    async def on_look(self, head: Head | None) -> None:
        """Take a look at HEAD; stop the turn if it is not this writer's any more."""
        if head is None or head.incarnation != self.params.incarnation:
            # A look may be older than the task: only a consistent read tells that the task is gone.
            head = await self.log.head(self.params.task_id)
        elif head.version < self.head.version:
            return
        try:
            self._take(self._checked(head))
        except (FencedError, TurnFinishedError) as reason:
            self._at_home(partial(self._hear_of_loss, reason))

    def _hear_of_loss(self, reason: Exception) -> None:
        # A commit under way may be what HEAD shows; it will be refused if the turn is lost.
        if not self._is_writing() and not is_over(self.head, self.params):
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
            if self.token is not None and head.token == self.token:
                # The claim stands, even if its answer was lost, or the keeper made it.
                self.claimed = True
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
        """Claim the turn of a silent agent, renew its lease, and look at HEAD, during the block.

        `is_writing` returns True while the agent's events wait for their commit. `on_blocked` is as
        for `Keeper.over`.
        """
        self._is_writing = is_writing
        if self.head.cancel is not None:  # it came after the delivery was read
            self.canceling.set()
        looking = partial(self.looks.over, self)
        async with self.keeper.over(self._hold, looking, on_blocked=on_blocked):
            yield

    async def _hold(self, stop: asyncio.Event) -> None:
        """Claim the turn and renew its lease until `stop`, or until it is not the attempt's."""
        try:
            if await self._claimed(stop):
                await self._leased(stop)
        except (FencedError, TurnFinishedError):
            pass  # the turn learns it from a look

    async def _claimed(self, stop: asyncio.Event) -> bool:
        """Claim the turn unless its writer does; return False if stopped before it is claimed."""
        wait_s, was_writing = CLAIM_AFTER_S, False
        while not await _stopped(self.clock, wait_s, stop):
            if self._is_writing() and self.must_claim and not was_writing:
                was_writing = True  # its first commit claims, unless the agent blocks the loop
                continue
            await self._tried("claim", self.commit())
            if self.claimed:
                return True
            wait_s = AGAIN_S
        return False

    async def _leased(self, stop: asyncio.Event) -> None:
        """Renew the lease, so that the sweeper sends no copy of a turn that is worked on."""
        timing, token = self.log.timing, self.token or ""
        wait_s = renewed_after_s = timing.lease_s - timing.renew_before_s
        while not await _stopped(self.clock, wait_s, stop):
            due_at = lease_end(self.clock.now_ms(), timing)
            renewing = self.log.renew(self.head, token=token, due_at=due_at)
            is_ours = await self._tried("renewal", renewing)
            if is_ours is False:
                return
            if is_ours:
                metrics.count("LeasesRenewed")
            wait_s = renewed_after_s if is_ours else min(AGAIN_S, renewed_after_s)

    async def _tried(self, what: str, request: Awaitable[T]) -> T | None:
        """Return the answer of a request; None if it has failed and can be tried again."""
        try:
            return await request
        except (FencedError, TurnFinishedError):
            raise
        except Exception as error:  # noqa: BLE001 - the thread's edge: tried again, and logged
            extra = {"action": f"{what}_failed", "task_id": self.params.task_id}
            logger.warning("The turn's %s has failed: %r", what, error, extra=extra)
            return None

    # -- the delivery ----------------------------------------------------------------------------

    @asynccontextmanager
    async def keeping_delivery(self) -> AsyncIterator[None]:
        """Renew the delivery during the block; after it there are no more renewals.

        Without a renewal in time the delivery is lost, and the turn is stopped.

        Raises:
            ConcurrencyError: the delivery has expired already.
            UnavailableError: no thread could be started.
        """
        if self.handle is None:
            yield
            return
        asked_at, seconds = self.clock.monotonic(), self._seconds()
        await self.handle.extend(seconds)
        self._counts_until = self._end_of(asked_at, seconds)
        async with self.keeper.over(partial(self._beat, self.handle)):
            yield

    async def _beat(self, handle: Handle[Operation], stop: asyncio.Event) -> None:
        try:
            await self._renewed(handle, stop)
        finally:
            if not stop.is_set():  # lost, or ended unasked, for instance with its loop
                self.is_lost = True
                extra = {"action": "delivery_lost", **self.ids()}
                logger.error("Delivery lost", extra=extra)
                call_in(self._home, self.stop, FencedError("The delivery is lost."))

    async def _renewed(self, handle: Handle[Operation], stop: asyncio.Event) -> None:
        """Renew the delivery until `stop`, or until it is lost."""
        pause_s = self.visibility_s * RENEW_AFTER
        while True:
            is_last = self.until is not None and self._counts_until >= self.until
            pause_s = self._left_s() if is_last else min(pause_s, self._left_s())
            if await _stopped(self.clock, max(0, pause_s), stop):
                return
            if self._left_s() <= 0:
                return
            is_renewed = await self._renew(handle, stop)
            if self.is_lost:
                return
            pause_s = self.visibility_s * (RENEW_AFTER if is_renewed else RETRY_AFTER)

    async def _renew(self, handle: Handle[Operation], stop: asyncio.Event) -> bool:
        """Extend the delivery once; return False if that failed or had no answer in time."""
        asked_at, seconds = self.clock.monotonic(), self._seconds()
        extending = asyncio.ensure_future(handle.extend(seconds))
        await first_of(self.clock.sleep(self._left_s()), stop.wait(), tasks=[extending])
        if not extending.done():
            if stop.is_set():
                # A request that is under way would undo a later nack, or freeze with the Lambda.
                await asyncio.wait({extending}, timeout=GRACE_S)
            extending.cancel()
            await asyncio.gather(extending, return_exceptions=True)
            return False
        error = extending.exception()
        if error is None:
            self._counts_until = self._end_of(asked_at, seconds)
            return True
        self.is_lost = isinstance(error, ConcurrencyError)
        extra = {"action": "renewal_failed", **self.ids()}
        logger.warning("Visibility not renewed: %s", error, extra=extra)
        return False

    def _left_s(self) -> float:
        """Return the seconds until the delivery counts as lost."""
        return self._counts_until - self.clock.monotonic()

    def _seconds(self) -> float:
        """Return the seconds for which to keep the delivery from now; fewer just before `until`."""
        left_s = math.inf if self.until is None else self.until - self.clock.monotonic()
        return min(self.visibility_s, max(MIN_S, left_s))

    def _end_of(self, asked_at: float, seconds: float) -> float:
        """Return when a delivery renewed at `asked_at` counts as lost without another renewal."""
        if self.until is not None and asked_at + seconds >= self.until:
            return self.until  # not renewed any more: nothing is done with the delivery after it
        return asked_at + LOST_AFTER * seconds

    def ids(self) -> dict[str, object]:
        """Return the fields that name the turn, for a line of the log."""
        return {"task_id": self.params.task_id, "turn": self.params.turn}


def _unless(met: Refused, head: Head | None) -> Head:
    """Return HEAD for another try, or raise the error for the refusal that was `met`."""
    if head is None or met is Refused.OVER:
        raise TurnFinishedError(_OVER)
    if met is Refused.FENCED:
        raise FencedError(current_version=head.version)
    return head


async def _stopped(clock: Clock, seconds: float, stop: asyncio.Event) -> bool:
    """Wait for `seconds`, or until `stop`; return True if it is set."""
    await first_of(clock.sleep(seconds), stop.wait())
    return stop.is_set()


def _going_on(**fields: object) -> AbstractContextManager[None]:
    """Log an exception and go on: one failed look must not end the others."""
    return going_on(
        logger, logging.WARNING, "Turns not watched", action="watch_failed", fields=fields
    )
