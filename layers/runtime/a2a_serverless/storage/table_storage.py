"""A table seen through one scope: HEADs and logs, and what the parts of the storage share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from a2a_serverless.clock import Clock, SystemClock, pause_s
from a2a_serverless.errors import UnavailableError, UnreadableTaskError
from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import Commits, due_of, head_of
from a2a_serverless.storage.log import Due, Log, Place, TaskKey
from a2a_serverless.storage.table import Check, Item, Key, Range, Table
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import ANONYMOUS, Scope, is_task_id
from a2a_serverless.tasks.rules import Timing
from a2a_serverless.tasks.storing import belonging_to

logger = logging.getLogger(__name__)

TORN_READS: Final = 10
"""How often a read goes on when HEAD and events do not fit together yet."""


@dataclass(frozen=True, slots=True)
class Observer:
    """What the process adds to its commits, and what it is told of them; by default nothing."""

    trace: Callable[[], str | None] = lambda: None
    """Returns X-Ray's header of the writer, which the commit keeps."""
    ended: Callable[[Head, int], None] = lambda _, __: None
    """Is called by the process that ends a task, with HEAD and the milliseconds since creation."""


class TableStorage:
    """What the parts of `DurableStorage` have in common, one part for each kind of item."""

    def __init__(
        self,
        table: Table,
        *,
        scope: Scope = ANONYMOUS,
        clock: Clock | None = None,
        timing: Timing | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.table = table
        self.scope = scope
        self.clock = clock or SystemClock()
        self.timing = timing or Timing()
        self.observer = observer or Observer()

    def for_scope(self, scope: Scope) -> Self:
        """Return the same storage seen by another owner; cheap."""
        return type(self)(
            self.table, scope=scope, clock=self.clock, timing=self.timing, observer=self.observer
        )

    async def head(self, task_id: str) -> Head | None:
        """Return HEAD as of now, None when the task does not exist or has expired."""
        if not is_task_id(task_id):
            return None
        return self._live(await self.table.get(self._head_key(task_id)))

    async def look(self, tasks: Collection[TaskKey]) -> dict[TaskKey, Head | None]:
        """Look at up to `LOOK_AT_ONCE` tasks of all scopes, in one request that is not repeated.

        What is seen may be out of date: a HEAD may be an earlier one, or missing although its task
        was just created. So a look only gives notice, and a consistent read or a commit's condition
        decides. A task that the table had no capacity for is left out.

        Raises:
            UnavailableError: there was no answer; the next look may succeed.
        """
        asked = {layout.task_partition(*task): task for task in tasks if is_task_id(task[1])}
        if not asked:
            return {}
        keys = [Key(partition, layout.HEAD) for partition in asked]
        found = await self.table.load(keys, consistent=False, once=True)
        return {asked[key.PK]: self._readable(item) for key, item in found.items()}

    async def read(
        self, task_id: str, *, after: int = 0, incarnation: str | None = None
    ) -> Log | None:
        """Return HEAD and every commit after version `after`.

        None when the task does not exist, has expired, or is not of `incarnation`.

        Raises:
            UnreadableTaskError: HEAD or a commit after `after` is damaged or missing.
        """
        if not is_task_id(task_id):
            return None
        if after and incarnation is None:
            head = await self.head(task_id)
            if head is None:
                return None
            incarnation = head.incarnation
        commits = Commits(incarnation, after) if incarnation else None
        start = layout.EVENTS
        if after and incarnation:
            start = layout.event_sort(incarnation, after + 1)
        gaps: set[tuple[str, int]] = set()
        for attempt in range(1, TORN_READS + 1):
            found = await self._items_from(start, task_id)
            head, commits = self._commits_in(found, commits)
            if head is None or commits is None or incarnation not in (None, head.incarnation):
                return None
            records = belonging_to(head, commits.records, commits.version)
            if records is not None:
                return Log(head=head, records=records)
            start = layout.event_sort(commits.incarnation, commits.version + 1)
            gaps.add((commits.incarnation, commits.version + 1))
            await self.clock.sleep(pause_s(attempt))
        if len(gaps) == 1:  # a Query beside a transaction may miss its commit, but not every time
            ((_, version),) = gaps
            msg = f"Version {version} of task {task_id} is not there, or was stored in part."
            raise UnreadableTaskError(msg)
        msg = f"The events of task {task_id} did not reach its version in {TORN_READS} reads."
        raise UnavailableError(msg)

    def _commits_in(
        self, found: list[Item], commits: Commits | None
    ) -> tuple[Head | None, Commits | None]:
        """Return HEAD, and its commits: those of `commits` and what a Query has found behind them.

        HEAD sorts behind the events, so that one Query on the partition has both.
        """
        is_head = bool(found) and found[-1]["SK"] == layout.HEAD
        head = self._live(found[-1] if is_head else None)
        if head is None:
            return None, commits
        if commits is None or commits.incarnation != head.incarnation:
            commits = Commits(head.incarnation, 0)
        commits.add(found)
        return head, commits

    async def _items_from(self, start: str, task_id: str) -> list[Item]:
        """Return the items of a task from the sort key `start` on, HEAD last."""
        wanted = Range(partition=self._partition(task_id), first=start, last=layout.HEAD)
        return await self._all(wanted)

    async def changed(self, task_id: str, version: int, timeout_s: float) -> None:
        """Return when the task may have moved beyond `version`, at the latest after `timeout_s`."""
        with self.table.watch(self._partition(task_id)) as watch:
            if self.table.wakes:
                head = await self.head(task_id)
                if head is None or head.version > version:
                    return
            await watch.wait(timeout_s)

    @property
    def wakes(self) -> bool:
        """True where `changed` returns at every commit and deletion, so that no reader polls."""
        return self.table.wakes

    async def _overdue(self, now_ms: int, limit: int, after: Due | None) -> list[Item]:
        """Return the first entries of the due index behind `after`, the longest overdue first.

        The index lags behind the table. If more than `limit` entries
        of one shard have the same due time, the page behind them may miss some.
        """
        shards = [
            self._first(
                limit,
                Range(
                    partition=layout.due_key(shard),
                    index=layout.BY_DUE,
                    first=after.due_at if after else 0,
                    last=now_ms,
                    # What has expired stays for up to two days; it must not starve the others.
                    when=[Check("expires_at", ">", now_ms // 1000)],
                ),
                lambda entry: after is None or _place_of(entry) > after.place,
            )
            for shard in range(layout.SHARDS)
        ]
        entries = [entry for shard in await asyncio.gather(*shards) for entry in shard]
        return sorted(entries, key=_place_of)[:limit]

    async def _first(
        self, limit: int, wanted: Range, is_wanted: Callable[[Item], bool] = lambda _: True
    ) -> list[Item]:
        """Return the first `limit` items of a range that pass its filter and are wanted."""
        found: list[Item] = []
        # One more: a key range includes its end, which is not wanted.
        async for page in self.table.query(replace(wanted, page=limit + 1)):
            found += filter(is_wanted, page)
            if len(found) >= limit:
                break
        return found[:limit]

    async def _all(self, wanted: Range) -> list[Item]:
        """Return the items of a range."""
        return [item async for page in self.table.query(wanted) for item in page]

    def _partition(self, task_id: str) -> str:
        return layout.task_partition(self.scope.digest, task_id)

    def _head_key(self, task_id: str) -> Key:
        return Key(self._partition(task_id), layout.HEAD)

    def _now_s(self) -> int:
        """Return the present second: an item is live while its `expires_at` is greater."""
        return self.clock.now_ms() // 1000

    def _is_live(self, item: Mapping[str, Any]) -> bool:
        """Return True unless the item says that it has expired; the rest may be damaged."""
        expires_at = item.get("expires_at")
        return not isinstance(expires_at, int) or expires_at > self._now_s()

    def _live(self, item: Mapping[str, Any] | None) -> Head | None:
        head = head_of(item) if item else None
        return None if head is None or head.has_expired(self.clock.now_ms()) else head

    def _readable(self, item: Mapping[str, Any] | None) -> Head | None:
        """Return the item's HEAD if it is live; None, with a line in the log, if it is damaged.

        For reads of many tasks, in which a damaged one must not hide the others.
        """
        try:
            return self._live(item)
        except UnreadableTaskError as error:
            tell_left_out(error)
            return None


def tell_left_out(error: UnreadableTaskError) -> None:
    """Log a damaged task, which does not hide the others where many are read."""
    logger.error("A task is left out: %s", error, extra={"action": "unreadable_task"})


def stored(items: Mapping[Key, Item | None]) -> list[Item]:
    """Return the items that exist, of those that were loaded."""
    return [item for item in items.values() if item is not None]


def _place_of(entry: Item) -> Place:
    """Return the place of an entry of the due index, as `Due.place`."""
    scope, task_id = layout.owner_of(entry["PK"])
    return due_of(entry), task_id, scope
