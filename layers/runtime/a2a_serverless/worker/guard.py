"""All that a worker writes for a turn: its guard, which keeps delivery and claim, and its writer.

In the loop of the agents the writer gathers what the agent emits, and the guard commits it while
the attempt owns its turn. Whatever has to go on while an agent blocks that loop runs in the
keeper's thread: renewing the delivery and the lease, claiming the turn of a silent agent, looking
at HEAD.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, Self, TypeAlias, TypeVar

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
from a2a_serverless.storage.durable import LOOK_AT_ONCE, MAX_COMMIT_BYTES, DurableStorage
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
from a2a_serverless.tasks.entries import ArtifactWritten, Entry, ModelsUsed, encode_entries
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import AttemptEnd, Head, Operation, OperationParams
from a2a_serverless.tasks.identity import TaskKey, new_token
from a2a_serverless.tasks.pace import Pace, commit_units
from a2a_serverless.tasks.rules import Commit, ContextWrite, renewing
from a2a_serverless.worker.failures import StaleStateError, log_exceptions
from a2a_serverless.worker.loops import Keeper, OnBlocked
from a2a_serverless.worker.meter import Meter

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

FLUSH_AFTER_S: Final = 0.1
"""Seconds that an entry waits for others to share its commit with, unless the last commit began as
long ago."""
PAUSE_ROUNDS: Final = 8
"""Rounds of the event loop without a new entry after which the agent counts as waiting."""
FLUSH_BYTES: Final = 64 * 1024
ROOM_FOR_FRAMES: Final = 64 * 1024
"""Bytes that entries may need beyond the size of their event: frames, and ids that are added."""

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
            with _log_exceptions():
                await self._beside()
        await asyncio.gather(*(self._look(keys[at : at + LOOK_AT_ONCE]) for at in starts))

    async def _look(self, keys: list[TaskKey]) -> None:
        with _log_exceptions(tasks=len(keys)):
            looks = await self._log.look(keys)
            seen = [task for task in self._tasks if task.key in looks]
            await asyncio.gather(*(self._tell(task, looks[task.key]) for task in seen))

    async def _tell(self, task: _LookedAt, head: Head | None) -> None:
        with _log_exceptions(task_id=task.key[1]):
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
            try:
                return await self._commit_on(read.head, Commit())
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
            renews = partial(renewing, token=token, due_at=due_at)
            is_ours = await self._tried("renewal", self._lease_renewed(renews))
            if is_ours is False:
                return
            if is_ours:
                metrics.count("LeasesRenewed")
            wait_s = renewed_after_s if is_ours else min(AGAIN_S, renewed_after_s)

    async def _lease_renewed(self, renews: Callable[[Head], Head | None]) -> bool:
        head = await self.log.change(self.head, renews)
        if head is not None:
            self._take(head)  # the next commit replaces this HEAD, and not the one before it
        return head is not None

    async def _tried(self, what: str, request: Awaitable[T]) -> T | None:
        """Return the answer of a request; None if it has failed and can be tried again."""
        try:
            return await request
        except (FencedError, TurnFinishedError):
            raise
        except Exception as error:  # noqa: BLE001 - the thread's edge: tried again, and logged
            text = "The turn's %s has failed: %r"
            self.logged(logger, logging.WARNING, f"{what}_failed", text, what, error)
            return None

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
        if self.handle is None:
            yield
            return
        asked_at, seconds = self.clock.monotonic(), self._seconds()
        kept_s = (self.handle.hidden_until - self.clock.now_ms()) / 1000
        # Not if it is kept for longer: were this worker to die, its turn would wait for that.
        if LOST_AFTER * seconds < kept_s <= seconds:
            seconds = kept_s
        else:
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
                self.logged(logger, logging.ERROR, "delivery_lost", "Delivery lost")
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
        text = "Visibility not renewed: %s"
        self.logged(logger, logging.WARNING, "renewal_failed", text, error)
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
        extra = {"action": action, **self.ids(), **fields}
        log.log(level, text, *args, extra=extra, exc_info=cause)


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


def _log_exceptions(**fields: object) -> AbstractContextManager[None]:
    """Log an exception and go on: one failed look must not end the others."""
    return log_exceptions(
        logger, logging.WARNING, "Turns not watched", action="watch_failed", fields=fields
    )


# -- commits ---------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Batch:
    """Entries that wait for their commit."""

    opened_at: float
    entries: list[Entry] = field(default_factory=list)
    size: int = 0
    wanted: Commit = field(default_factory=Commit)
    """What the commit says beside its entries."""
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
    on_stored: Callable[[tuple[Entry, ...]], Awaitable[None]] | None = field(
        default=None, init=False
    )
    """Awaited after each commit with its entries; the testing kit can stop the agent there."""
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

    def put(self, *entries: Entry, wanted: Commit | None = None) -> None:
        """Add entries to the batch that waits.

        `wanted` says more of its commit than its entries: the conversation's state to store if they
        end the turn, why the attempt has failed, and that it gives its turn back or leaves it.
        """
        if self.failure is not None:
            return
        batch = self._waiting()
        batch.entries.extend(entries)
        batch.size += len(encode_entries(entries))
        if wanted is not None:
            batch.wanted = _both(batch.wanted, wanted)
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
        if ends_turn:
            batch.wanted = replace(batch.wanted, ends_turn=True)
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
                commit = replace(batch.wanted, entries=tuple(entries))
                await self.guard.commit(commit, merged=self.merged)
            if used:
                await self.meter.stored(used)
            self._tell_first_chunk(batch.entries)
            if self.on_stored is not None:
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


def _both(earlier: Commit, later: Commit) -> Commit:
    """Return what a batch wants of its commit; where both parts say something, the later counts."""
    has_failed = later.failed is not None
    return replace(
        earlier,
        context_write=later.context_write or earlier.context_write,
        failed=later.failed if has_failed else earlier.failed,
        failed_by=later.failed_by if has_failed else earlier.failed_by,
        waits=later.waits or earlier.waits,
        leaves=later.leaves or earlier.leaves,
    )
