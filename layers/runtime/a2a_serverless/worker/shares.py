"""Shares of the workers for every caller while more turns wait than there are places.

The queue is the fast path. A delivery that comes late is the sign of a backlog: its turn and those
behind it are parked, so that they stand in the table in a line, caller by caller. From then on each
turn that starts out of this line requeues the next one: the oldest of the waiting caller with the
fewest turns at work. So about two requeued turns are on the queue at any time, which take the place
that becomes free first. Where places are idle such a turn takes one at once, and requeues the next.

No counter, slot or dispatcher has to be right: what a process has read may be old, and costs a turn
too many or too few on the queue. If all processes die, the sweeper requeues turns.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Final, NamedTuple

from a2a_serverless.clock import Clock
from a2a_serverless.observability import metrics
from a2a_serverless.queues.fifo import MOST_AT_ONCE, FifoQueue, Handle, send_copies
from a2a_serverless.storage import layout, shares
from a2a_serverless.storage.conversation import conversation_queue, start_next_turn
from a2a_serverless.storage.durable import DurableStorage, readable_head
from a2a_serverless.storage.finding import opened_at
from a2a_serverless.storage.table import Item, Key
from a2a_serverless.tasks.attempts import (
    DeliveryDecision,
    comes_late,
    early_s,
    may_park,
    on_delivery,
)
from a2a_serverless.tasks.conversation import StartDecision, on_start
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope, digest
from a2a_serverless.worker.failures import log_exceptions

IDLE_S: Final = 0.3
"""Seconds on the queue within which a requeued turn has found a place that was idle."""
FRESH_S: Final = 2.0
"""Seconds for which a requeued turn may be on the queue until another one takes its part."""
SPARES: Final = 2
"""Requeued turns that are to be on the queue: a worker may die before it requeues the next."""
GROWS: Final = 0.25
"""How often a turn that has found an idle place requeues one more: one chain of turns may be slower
than places become free."""
SORTING_S: Final = 10.0
"""Seconds for which a worker sorts a backlog, at most."""
MOST_RECEIVES: Final = 3
"""Receives after which a turn whose message has found no place stands in line: its next copy is a
new message."""
LOOK_S: Final = 1.0
"""Seconds of the poll that shows that a queue is empty."""
PROOF: Final = 2
"""Polls in a row that bring fewer deliveries than they may, after which a queue counts as empty."""
VISIBLE_S: Final = 0.2
"""Seconds until an index shows what was written, nearly always."""
CALLERS: Final = 2
"""Waiting callers of each shard among whom the next turn is chosen, at random if there are more."""

NOT_SORTED: Final = "A delivery behind a late one was not sorted"

logger = logging.getLogger(__name__)


class Admission(NamedTuple):
    """What is done with a late delivery, and in its place."""

    head: Head | None = None
    """HEAD of its turn, which starts; None: the turn is parked."""
    instead: Handle[Operation] | None = None
    """The delivery of a requeued turn, which the place may run."""


class _Sorted(Enum):
    """What has become of a delivery."""

    MOVED = "moved"
    """Its turn is parked, or has no use for it: it is acknowledged."""
    STAYS = "stays"
    """It was given back."""
    REQUEUED = "requeued"
    """Its turn was requeued: it is still held."""


class Shares:
    """Sorts a backlog into the line, and requeues turns of it.

    Args:
        storage: the tasks of all scopes.
        operations: the queue of the turns.
        clock: the time.
        quarantine: takes turns that must run alone; None: they stay on the queue.
        since: when the process has started, in milliseconds.
        chance: returns a number from 0 to 1.
    """

    def __init__(
        self,
        storage: DurableStorage,
        operations: FifoQueue[Operation],
        clock: Clock,
        *,
        quarantine: FifoQueue[Operation] | None = None,
        since: int = 0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._storage = storage
        self._operations = operations
        self._clock = clock
        self._quarantine = quarantine
        self._chance = chance
        self._since = since
        self.line_stands = False
        """True if turns were in line when this process looked last."""
        self.idle: Callable[[], int] = lambda: 0
        """Returns how many of this process's places wait for turns beside those that run."""

    # -- deliveries ----------------------------------------------------------------------------

    async def admits(self, handle: Handle[Operation], head: Head) -> Admission:
        """Decide whether the turn of a late delivery may start; if not, it is parked.

        The caller acknowledges one that is parked. So is what stands behind it on the queue: by
        `beside` if it starts.
        """
        waiting = await self._waiting()
        if not waiting:
            return Admission(head)
        storage = self._storage.for_scope(Scope(head.scope))
        parked = await self._parked(storage, handle, head)
        if parked is None:
            return Admission(head)  # it has changed: the commit that claims it finds out
        if await self._is_next(parked, waiting):
            return Admission(await storage.requeue(parked))
        found, instead = await self._sort()
        if instead is None:
            await self._clock.sleep(VISIBLE_S if found else 0)
            await self.refill(1)
        return Admission(instead=instead)

    async def _is_next(self, head: Head, waiting: Mapping[str, list[Item]]) -> bool:
        """Return True if a turn would be requeued before those that wait."""
        own = Scope(head.scope).principal
        people = {*waiting, own}
        at_work = await self._at_work(people)
        place = layout.line_place(own, head.turn.waits_since, head.task_id)
        is_oldest = own not in waiting or place <= waiting[own][0]["line_at"]
        return is_oldest and at_work[own] <= min(at_work[each] for each in people)

    async def _sort(
        self, stop: asyncio.Event | None = None
    ) -> tuple[bool, Handle[Operation] | None]:
        """Park the turns of the deliveries on the queue; return whether there were any.

        A poll may bring fewer than there are, so `PROOF` of them that are not full end the sorting.
        In a backlog, and with time for it, which `stop` ends, the last is a long one unless places
        are idle meanwhile. What cannot be parked ends it too. Without `stop` a place is free: a
        delivery of a requeued turn is returned, which it may run.
        """
        until = self._clock.monotonic() + SORTING_S
        found, short = False, 0
        while short < PROOF and self._clock.monotonic() < until and not (stop and stop.is_set()):
            looks_on = stop and short and self.line_stands and not self.idle()
            handles = await self._operations.pull(MOST_AT_ONCE, LOOK_S if looks_on else 0)
            is_backlog = any(map(self._is_late, handles))
            outcomes = await asyncio.gather(*(self._sorted(h, is_backlog) for h in handles))
            found = found or _Sorted.MOVED in outcomes
            requeued = [
                h for h, sort in zip(handles, outcomes, strict=True) if sort is _Sorted.REQUEUED
            ]
            requeued.sort(key=lambda handle: handle.attempt)
            instead = requeued.pop() if requeued and stop is None else None
            await asyncio.gather(*(self._given_back(each) for each in requeued))
            if instead is not None:
                return found, instead
            short += len(handles) < MOST_AT_ONCE
            if not all(outcome is _Sorted.MOVED for outcome in outcomes):
                break
        return found, None

    def _is_late(self, handle: Handle[Operation]) -> bool:
        if handle.attempt >= MOST_RECEIVES:  # others have sorted too, and have given it back
            return True
        waited_ms = handle.waited_ms(self._clock.now_ms(), since=self._since)
        return comes_late(handle.message, waited_ms=waited_ms, line_stands=self.line_stands)

    async def _sorted(self, handle: Handle[Operation], is_backlog: bool) -> _Sorted:  # noqa: FBT001 - of its batch
        """Park the turn of a delivery in a backlog; give any other back, unless it was requeued.

        One that fails comes again when its visibility ends.
        """
        outcome = _Sorted.STAYS
        fields = {"task_id": handle.message.task_id}
        with log_exceptions(
            logger, logging.WARNING, NOT_SORTED, action="sort_failed", fields=fields
        ):
            outcome = await self._moved(handle) if is_backlog else outcome
            if outcome is _Sorted.MOVED:
                await handle.ack()
            elif outcome is _Sorted.STAYS:
                await handle.nack()
        return outcome

    async def _given_back(self, handle: Handle[Operation]) -> None:
        """Give a requeued turn's message back, or park the turn again if that has used it up."""
        fields = {"task_id": handle.message.task_id}
        with log_exceptions(
            logger, logging.WARNING, NOT_SORTED, action="sort_failed", fields=fields
        ):
            if handle.attempt >= MOST_RECEIVES and await self._parked_again(handle.message.params):
                await handle.ack()
            else:
                await handle.nack()

    async def _parked_again(self, params: OperationParams) -> bool:
        """Park a requeued turn at its old place: its next copy is a new message."""
        storage = self._storage.for_scope(Scope(params.scope))
        head = await storage.head(params.task_id)
        if head is None or not head.turn.has_share or head.turn.is_claimed:
            return False
        at = await opened_at(storage, head)
        return await storage.park(head, "share", at=at) is not None

    async def _moved(self, handle: Handle[Operation]) -> _Sorted:
        """Take a delivery off the queue if that costs its turn nothing; it uses up no receive."""
        operation, params = handle.message, handle.message.params
        storage = self._storage.for_scope(Scope(params.scope))
        head = await storage.head(params.task_id)
        shares = self._quarantine is not None
        wanted = on_delivery(head, operation, receives=handle.attempt, has_neighbours=shares)
        if head is None or wanted is DeliveryDecision.DROP:
            # The process that ended or parked the turn may have died before it passed it on.
            if head is not None and head.serial_from:
                await start_next_turn(storage, head.context_id)
            return _Sorted.MOVED
        if wanted is DeliveryDecision.QUARANTINE and self._quarantine is not None:
            # Sent before it is acknowledged: a crash in between sends it twice, under one
            # deduplication id.
            await self._quarantine.send(operation)
            return _Sorted.MOVED
        if operation.operation != "run" or early_s(head, now_ms=self._clock.now_ms()):
            return _Sorted.STAYS
        if head.turn.has_share and not head.turn.is_claimed:
            return _Sorted.REQUEUED
        if not may_park(head, params):
            return _Sorted.STAYS
        if head.is_serial:
            queue = await conversation_queue(storage, head.context_id)
            if on_start(head, queue.positions) is StartDecision.PARK:
                is_parked = await storage.park(head, "conversation") is not None
                # The turn before it may have ended meanwhile, and found none that was parked.
                await start_next_turn(storage, head.context_id)
                return _Sorted.MOVED if is_parked else _Sorted.STAYS
        is_parked = await self._parked(storage, handle, head) is not None
        return _Sorted.MOVED if is_parked else _Sorted.STAYS

    async def _parked(
        self, storage: DurableStorage, handle: Handle[Operation], head: Head
    ) -> Head | None:
        parked = await storage.park(head, "share", at=handle.sent_at or self._clock.now_ms())
        if parked is not None:
            self.line_stands = True
            metrics.count("TurnsParked")
        return parked

    # -- turns of the line ---------------------------------------------------------------------

    async def beside(
        self, handle: Handle[Operation], stop: asyncio.Event, *, is_late: bool
    ) -> None:
        """Do what the start of a turn asks for, while its agent runs: sort, or requeue the next.

        `stop` ends the sorting early: the next place that is free goes on with it. If a requeued
        turn has waited for long while others are on the queue too, there are enough of them; if it
        has found an idle place, one more may do. Each idle place of this process gets one.
        """
        waited_s = handle.waited_ms(self._clock.now_ms()) / 1000
        if is_late and (await self._sort(stop))[0]:
            await self._clock.sleep(VISIBLE_S)
        params = handle.message.params
        own = layout.task_partition(params.scope, params.task_id)
        # Without its own turn: a first attempt claims with its first commit, which may still come.
        others = await shares.requeued(self._storage, but=own)
        count = 1
        if len(others) >= SPARES and (is_late or waited_s > IDLE_S):
            count = 0
        elif not others and waited_s < IDLE_S and self._chance() < GROWS:
            count = 2
        await self._requeue(max(count, self.idle() - len(others)), others)

    async def refill(self, count: int, *, patience_s: float = FRESH_S) -> None:
        """Requeue up to `count` turns unless `SPARES` of the last `patience_s` are on the queue.

        One that was requeued earlier waits for a place, or its worker has died with the message.
        """
        others = await shares.requeued(self._storage)
        now_ms = self._clock.now_ms()
        fresh = [head for head in others if now_ms - head.turn.waits_since <= patience_s * 1000]
        if len(fresh) < SPARES:
            await self._requeue(count, others)

    async def _requeue(self, count: int, requeued: list[Head]) -> None:
        """Requeue `count` turns; `requeued` are those that are on the queue."""
        if count <= 0:
            return
        waiting = await self._waiting()
        at_work = await self._at_work(waiting, requeued)
        while waiting and count > 0:
            principal = min(waiting, key=lambda p: (at_work[p], waiting[p][0]["line_at"][16:]))
            most = count if len(waiting) == 1 else 1
            done = await self._requeue_first(waiting[principal], most)
            at_work[principal] += done
            count -= done
            if not waiting[principal]:
                del waiting[principal]

    async def _waiting(self) -> dict[str, list[Item]]:
        start = digest("line", str(self._chance()))
        found = await shares.waiting(self._storage, start, CALLERS)
        self.line_stands = bool(found)
        return found

    async def _at_work(
        self, people: Collection[str], requeued: list[Head] | None = None
    ) -> Counter[str]:
        """Return how many turns of each caller have a share; of one alone that does not matter."""
        if len(people) <= 1:
            return Counter()
        on_queue = await shares.requeued(self._storage) if requeued is None else requeued
        found = Counter(Scope(head.scope).principal for head in on_queue)
        taken = await asyncio.gather(*(shares.taken(self._storage, each) for each in people))
        found.update(dict(zip(people, taken, strict=True)))
        return found

    async def _requeue_first(self, entries: list[Item], most: int) -> int:
        """Requeue the first turns of a caller that no other process has, and send their copies.

        Return how many. Entries that are of no use any more are removed from `entries`.
        """
        keys = [Key(entry["PK"], layout.HEAD) for entry in entries]
        heads = await self._storage.table.load(keys)
        tries: list[Head] = []
        for key in keys:
            if len(tries) == most:
                break
            entries.pop(0)
            head = readable_head(heads[key], self._clock.now_ms())
            if head is not None and head.turn.parked == "share":
                tries.append(head)
        tried = (self._storage.for_scope(Scope(head.scope)).requeue(head) for head in tries)
        requeued = [head for head in await asyncio.gather(*tried) if head is not None]
        # If this fails, the sweeper sends the copy.
        copies = [OperationParams.of(head, head.turn.number, head.turn.sends) for head in requeued]
        await send_copies(self._operations, copies)
        return len(requeued)
