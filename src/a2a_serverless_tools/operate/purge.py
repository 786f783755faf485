"""All that a caller has: counted, and deleted step by step, for commands and pages."""

from __future__ import annotations

import math
from collections.abc import Callable

from a2a_serverless.storage.deletion import Amounts, DeletionJob, Owner, count_data
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless_tools.operate.journal import Entry, Journal
from a2a_serverless_tools.operate.wording import amounts


class Purge:
    """A deletion of all that an owner has, which is noted in the journal.

    Its entry names no caller: what names this one is being deleted.

    Args:
        storage: the storage, in any scope.
        owner: whose data is deleted.
        lag_s: the seconds after which the index shows a write; by default the table's.
    """

    def __init__(
        self, storage: DurableStorage, owner: Owner, *, lag_s: float | None = None
    ) -> None:
        self.deleted = Amounts(after="")
        self._storage = storage
        self._owner = owner
        self._job = DeletionJob(storage, owner, lag_s=lag_s)
        self._entry: Entry | None = None

    async def count(
        self, so_far: Callable[[int], None] = lambda _: None, *, most: float = math.inf
    ) -> tuple[Amounts, int]:
        """Return what the owner has, and in how many tenants; change nothing.

        After `most` steps the amounts have an `after`. `so_far` gets the number of tasks.
        """
        counted, steps, owner = Amounts(), 0, self._owner
        scopes = await owner.scopes(self._storage)
        for own in map(self._storage.for_scope, scopes):
            step = await count_data(own, owner.context_id)
            counted, steps = counted + step, steps + 1
            while step.after and steps < most:
                so_far(counted.tasks)
                step = await count_data(own, owner.context_id, after=step.after)
                counted, steps = counted + step, steps + 1
        return counted, len(scopes)

    @property
    def is_waiting(self) -> bool:
        """Return True if nothing more was found, and what an index may show late is waited for."""
        return self._job.is_empty and not self.deleted.is_done

    def sentence(self) -> str:
        """Return what was deleted so far, without a full stop."""
        end = ": nothing is left" if self.deleted.is_done else " so far"
        return f"Deleted {amounts(self.deleted)}{end}"

    async def step(self, journal: Journal, *, longest_s: float = math.inf) -> None:
        """Delete a part, after a wait of at most `longest_s` if only the index may lag.

        Raises:
            UnavailableError: as `DeletionJob.step`; call it again.
        """
        if self._entry is None:
            self._entry = await journal.begin("purge", which="all that a caller has")
        if self._job.is_empty:
            await self._storage.clock.sleep(min(self._job.pause_s, longest_s))
        self.deleted += await self._job.step()
        if self.deleted.is_done:
            await self.end(journal)

    async def end(self, journal: Journal) -> None:
        """Note that no more steps follow."""
        if self._entry is not None:
            await journal.end(self._entry, f"{self.sentence()}.")
