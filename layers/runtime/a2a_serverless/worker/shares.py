"""Shares of the workers for every caller while more turns wait than there are places.

The queue is the fast path. A delivery that comes late is the sign of a backlog: its turn and those
behind it are left, so that they stand in the table in a line, caller by caller. From then on each
turn that starts out of this line wakes the next one: the oldest of the waiting caller with the
fewest turns at work. So there are about two woken turns on the queue at any time, which take the
place that becomes free first. Where places are idle it takes one at once, and wakes the next.

No counter, slot or dispatcher has to be right: what a process has read may be old, and costs a turn
too many or too few on the queue. If all processes die, the sweeper wakes turns again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

from a2a_serverless.clock import Clock
from a2a_serverless.observability import metrics
from a2a_serverless.queues.fifo import MOST_AT_ONCE, FifoQueue, Handle
from a2a_serverless.storage import layout, shares
from a2a_serverless.storage.durable import DurableStorage, readable_head
from a2a_serverless.storage.table import Item, Key
from a2a_serverless.tasks.attempts import Delivered, comes_late, may_be_left, on_delivery
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope, digest
from a2a_serverless.worker.failures import going_on

IDLE_S: Final = 0.3
"""Seconds on the queue within which a woken turn has found a place that was idle."""
FRESH_S: Final = 2.0
"""Seconds for which a woken turn may be on the queue until another one is woken in its place."""
SPARES: Final = 2
"""Woken turns that are to be on the queue: a worker may die with one before it wakes the next."""
GROWS: Final = 0.25
"""How often a turn that has found an idle place wakes one more: one chain of wakes may be slower
than the places become free."""
SORTING_S: Final = 10.0
"""Seconds for which a worker sorts a backlog, at most."""
VISIBLE_S: Final = 0.2
"""Seconds until an index shows what was written, nearly always."""
CALLERS: Final = 4
"""Waiting callers among whom the next turn is chosen, at random if there are more."""

NOT_SORTED: Final = "A delivery behind a late one was not sorted"

logger = logging.getLogger(__name__)


class Shares:
    """Sorts a backlog into the line, and wakes turns of it.

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

    # -- deliveries ----------------------------------------------------------------------------

    async def admits(self, handle: Handle[Operation]) -> bool:
        """Return True if the turn of a late delivery may start; if not, it is left.

        The caller acknowledges one that is left. What stands behind it on the queue is left too: by
        `beside` if it starts.
        """
        waiting = await self._waiting()
        if not waiting:
            return True
        head = await self._left(handle)
        if head is None:
            return True  # what has become of the turn is the worker's decision
        if await self._is_next(head, waiting):
            return await self._storage.for_scope(Scope(head.scope)).wake(head) is not None
        if await self._sort():
            await self._clock.sleep(VISIBLE_S)
        await self.refill(1)
        return False

    async def _is_next(self, head: Head, waiting: Mapping[str, list[Item]]) -> bool:
        """Return True if a turn would be woken before those that wait."""
        own = Scope(head.scope).person
        people = {*waiting, own}
        at_work = await self._at_work(people)
        place = layout.line_place(own, head.left_at, head.task_id)
        is_oldest = own not in waiting or place <= waiting[own][0]["line_at"]
        return is_oldest and at_work[own] <= min(at_work[each] for each in people)

    async def _sort(self, stop: asyncio.Event | None = None) -> bool:
        """Leave the turns of the late deliveries on the queue; return True if there were any."""
        until = self._clock.monotonic() + SORTING_S
        found = False
        while self._clock.monotonic() < until and not (stop and stop.is_set()):
            handles = await self._operations.pull(MOST_AT_ONCE, 0)
            are_left = await asyncio.gather(*map(self._sorted, handles))
            found = found or any(are_left)
            if not handles or not all(are_left):
                break
        return found

    async def _sorted(self, handle: Handle[Operation]) -> bool:
        """Leave the turn of a delivery that is late; give any other delivery back.

        One that fails comes again when its visibility ends.
        """
        is_moved = False
        fields = {"task_id": handle.message.task_id}
        with going_on(logger, logging.WARNING, NOT_SORTED, action="sort_failed", fields=fields):
            waited_ms = handle.waited_ms(self._clock.now_ms(), since=self._since)
            if comes_late(handle.message, receives=handle.attempt, waited_ms=waited_ms):
                is_moved = await self._left(handle) is not None
            if not is_moved and self._quarantine is not None:
                is_moved = await self._quarantined(handle, self._quarantine)
            await (handle.ack() if is_moved else handle.nack())
        return is_moved

    async def _quarantined(
        self, handle: Handle[Operation], quarantine: FifoQueue[Operation]
    ) -> bool:
        """Send an operation to the quarantine if its turn must run alone: it costs no receive."""
        params = handle.message.params
        head = await self._storage.for_scope(Scope(params.scope)).head(params.task_id)
        receives = handle.attempt
        wanted = on_delivery(head, handle.message, receives=receives, has_neighbours=True)
        if wanted is not Delivered.QUARANTINE:
            return False
        await quarantine.send(handle.message)
        return True

    async def _left(self, handle: Handle[Operation]) -> Head | None:
        params = handle.message.params
        storage = self._storage.for_scope(Scope(params.scope))
        head = await storage.head(params.task_id)
        if head is None or not may_be_left(head, params):
            return None
        left = await storage.leave(head, "share", at=handle.sent_at)
        if left is not None:
            metrics.count("TurnsLeft")
        return left

    # -- turns of the line ---------------------------------------------------------------------

    async def beside(
        self, handle: Handle[Operation], stop: asyncio.Event, *, is_late: bool
    ) -> None:
        """Do what the start of a turn asks for, while its agent runs: sort, or wake the next turn.

        `stop` ends the sorting early: the next place that is free goes on with it. If a woken turn
        has waited for long while others are on the queue too, there are enough of them; if it has
        found an idle place, one more may do.
        """
        waited_s = handle.waited_ms(self._clock.now_ms()) / 1000
        if is_late and await self._sort(stop):
            await self._clock.sleep(VISIBLE_S)
        params = handle.message.params
        own = layout.task_partition(params.scope, params.task_id)
        others = await shares.woken(self._storage, but=own)
        count = 1
        if len(others) >= SPARES and (is_late or waited_s > IDLE_S):
            count = 0
        elif not others and waited_s < IDLE_S and self._chance() < GROWS:
            count = 2
        await self._wake(count, others)

    async def refill(self, count: int, *, patience_s: float = FRESH_S) -> None:
        """Wake up to `count` turns unless `SPARES`, woken within `patience_s`, are on the queue.

        One that was woken earlier waits for a place, or its worker has died with the message.
        """
        others = await shares.woken(self._storage)
        now_ms = self._clock.now_ms()
        fresh = [head for head in others if now_ms - head.left_at <= patience_s * 1000]
        if len(fresh) < SPARES:
            await self._wake(count, others)

    async def _wake(self, count: int, woken: list[Head]) -> None:
        """Wake `count` turns; `woken` are those that are on the queue."""
        if count <= 0:
            return
        waiting = await self._waiting()
        at_work = await self._at_work(waiting, woken)
        for _ in range(count):
            done = False
            while waiting and not done:
                person = min(waiting, key=lambda p: (at_work[p], waiting[p][0]["line_at"][16:]))
                done = await self._wake_one(waiting[person])
                at_work[person] += done
                if not waiting[person]:
                    del waiting[person]

    async def _waiting(self) -> dict[str, list[Item]]:
        start = digest("line", str(self._chance()))
        return await shares.waiting(self._storage, start, CALLERS)

    async def _at_work(
        self, people: Collection[str], woken: list[Head] | None = None
    ) -> Counter[str]:
        """Return how many turns of each caller have a share; of one alone that does not matter."""
        if len(people) <= 1:
            return Counter()
        on_queue = await shares.woken(self._storage) if woken is None else woken
        found = Counter(Scope(head.scope).person for head in on_queue)
        taken = await asyncio.gather(*(shares.taken(self._storage, each) for each in people))
        found.update(dict(zip(people, taken, strict=True)))
        return found

    async def _wake_one(self, entries: list[Item]) -> bool:
        """Wake the first turn of a caller that another process has not woken, and send its copy.

        Entries that are of no use any more are removed from `entries`.
        """
        keys = [Key(entry["PK"], layout.HEAD) for entry in entries]
        heads = await self._storage.table.load(keys)
        for key in keys:
            entries.pop(0)
            head = readable_head(heads[key], self._clock.now_ms())
            if head is None or head.left != "share":
                continue
            woken = await self._storage.for_scope(Scope(head.scope)).wake(head)
            if woken is not None:
                params = OperationParams.of(woken, woken.turn, woken.sends)
                # If this fails, the sweeper sends the copy.
                await self._operations.send(Operation.to_run(params))
                return True
        return False
