"""Reading tasks as clients see them, and finding them by index.

An index lags behind the table. It names candidates; each task's HEAD, read consistently, says
whether and where it belongs.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from a2a.types import Task, TaskState, TaskStatus
from google.protobuf.message import DecodeError

from a2a_serverless.errors import (
    AnswerTooLargeError,
    ConditionFailedError,
    UnavailableError,
    UnreadableTaskError,
)
from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import FOLDED, PART_BYTES, Commits, due_of
from a2a_serverless.storage.counts import Counted, count_key
from a2a_serverless.storage.listing import (
    Fitting,
    Found,
    Listing,
    ListTasksQuery,
    ListTasksResult,
    affordable,
    needs_log,
)
from a2a_serverless.storage.log import Created, Due, Log, TaskKey, created_place
from a2a_serverless.storage.table import Check, Item, Key, Range
from a2a_serverless.storage.table_storage import TableStorage, stored, tell_left_out
from a2a_serverless.tasks.entries import has_time, is_finite
from a2a_serverless.tasks.fold import check_history_length
from a2a_serverless.tasks.head import Head, state_name
from a2a_serverless.tasks.identity import Scope, is_task_id
from a2a_serverless.tasks.storing import belonging_to

FIRST_COMMITS: Final = 8
"""Commits of a listed task that are read together with those of others.

A longer log is cheaper to read by a query of its own, which does not round up each commit's size.
"""


class IndexedTasks(TableStorage):
    """The part of `DurableStorage` that shows tasks, and reads the indexes."""

    async def load_task(
        self, task_id: str, history_length: int | None = None, *, include_artifacts: bool = True
    ) -> Task | None:
        """Return the task as the caller's own copy; None when it does not exist or has expired.

        `history_length`: None = all, 0 = none, n = the last n messages. With 0 and without
        artifacts the cost does not depend on the task's size.

        Raises:
            InvalidArgumentError: a negative or non-integer `history_length`.
        """
        check_history_length(history_length)
        if history_length == 0 and not include_artifacts:
            head = await self.head(task_id)
            if head is None:
                return None
            if (task := task_of_head(head)) is not None:
                return task
        log = await self.read(task_id)
        if log is None:
            return None
        return log.fold().task(history_length, include_artifacts=include_artifacts)

    async def list_tasks(self, query: ListTasksQuery, *, fitting: Fitting = len) -> ListTasksResult:
        """Return one page of the scope's tasks, newest status first, ties by task id.

        A page ends after `page_size` tasks, before more than `MAX_PAGE_BYTES` are read for it, or
        after those of its tasks that fit into one answer. If a task changes while a client pages,
        the later pages do not show it any more; it is found again with `status_timestamp_after` =
        the time of the first page.

        `total_size` is counted for the first page. It is exact if one page shows all tasks, and for
        a context. Elsewhere it may be a minute old, or a second for each 100 tasks that were looked
        at, if that is longer; newer tasks that the page shows are added to it.

        Raises:
            PageTokenError: the token was not made here for this query.
            AnswerTooLargeError: the page's first task alone does not fit.
        """
        listing = Listing.of(query, self.scope)
        found = await self._newest(listing, query.page_size + 1)
        heads = affordable(found.heads[: query.page_size], query)
        shown = await self._shown(heads, query)
        places = [place for place, task in enumerate(shown) if task is not None]
        tasks = [task for task in shown if task is not None]
        count = fitting(tasks)
        if count < len(tasks):
            if count == 0:
                raise AnswerTooLargeError(tasks[0].id)
            heads = heads[: places[count]]
        is_last = len(heads) == len(found.heads)
        return ListTasksResult(
            tasks=tasks[:count],
            next_page_token="" if is_last else listing.token_after(heads[-1], found.total),
            page_size=query.page_size,
            total_size=found.total,
        )

    async def newest(self, query: ListTasksQuery) -> tuple[list[Head], str]:
        """Return the HEADs of one page, and the token of the next one; empty at the end.

        Like `list_tasks`, but tasks are not counted, so that a page's cost does not depend on how
        many there are. The token is valid only for this method.

        Raises:
            PageTokenError: as `list_tasks`.
        """
        listing = Listing.of(query, self.scope)
        # With a total nothing is counted.
        listing = replace(listing, total_size=listing.total_size or 0)
        found = await self._newest(listing, query.page_size + 1)
        page = found.heads[: query.page_size]
        is_last = len(page) == len(found.heads)
        return page, "" if is_last else listing.token_after(page[-1], 0)

    async def count(self, state: TaskState) -> int:
        """Return how many of the scope's tasks are in a state; as old as `total_size` may be."""
        listing = Listing.of(ListTasksQuery(status=state, page_size=1), self.scope)
        return (await self._newest(listing, 1)).total

    async def _shown(self, heads: Sequence[Head], query: ListTasksQuery) -> list[Task | None]:
        """Return the tasks of listed HEADs, as `_listed` does."""
        logs = await self._short_logs([head for head in heads if needs_log(head, query)])
        return await asyncio.gather(
            *(self._listed(head, logs.get(head.task_id), query) for head in heads)
        )

    async def _listed(self, head: Head, log: Log | None, query: ListTasksQuery) -> Task | None:
        """Return the task of a listed HEAD; None when it is gone, has moved on, or is damaged.

        The task is shown as of HEAD; if its log has to be read, as of that read.
        """
        length, has_artifacts = query.history_length, query.include_artifacts
        if log is not None:
            return log.fold().task(length, include_artifacts=has_artifacts)
        task = None if needs_log(head, query) else task_of_head(head)
        if task is None:
            try:
                task = await self.load_task(head.task_id, length, include_artifacts=has_artifacts)
            except UnreadableTaskError as error:
                tell_left_out(error)
        if task is None or query.status in (None, task.status.state):
            return task
        return None

    async def _newest(self, listing: Listing, limit: int) -> Found:
        """Return the first `limit` live HEADs that the listing asks for, newest status first.

        The total is that of the listing's token. On a first page it is the number of live tasks
        that the filters match, as old as `list_tasks` allows. It takes mostly one query for each
        shard and one batch.
        """
        if listing.context_id is not None:
            return listing.found(await self._context_heads(listing.context_id), limit)
        place = count_key(self.scope.digest, listing)
        heads: dict[str, Head] = {}
        before, counted, is_all = listing.before, None, False
        while len(heads) < limit and not is_all:
            candidates = await self._candidates(listing, before, limit)
            is_all = len(candidates) < limit
            keys = _heads_of(candidates)
            asks = listing.total_size is None and before is None and not is_all
            items = await self.table.load([*keys, place] if asks else keys)
            # The count comes with the HEADs, and costs no request of its own.
            count = items.pop(place, None)
            if count is not None:
                counted = Counted.of(count, self._now_s())
            found = self._readable_heads(stored(items))
            heads |= {head.task_id: head for head in listing.page(found)}
            if candidates:
                before = candidates[-1]["status_key"]
        newest = listing.page(heads.values())[:limit]
        total = listing.total_size
        if total is None:
            is_whole = is_all and len(newest) == len(heads)
            total = len(newest) if is_whole else await self._total(listing, newest, counted)
        return Found(heads=newest, total=total)

    async def _total(self, listing: Listing, newest: list[Head], counted: Counted | None) -> int:
        """Return how many tasks the filters match: from a stored count, or by counting them.

        Counting reads one index entry for each task.
        """
        if counted is not None:
            return max(counted.with_newer(newest, listing.state), len(newest))
        at = self.clock.now_ms()
        counts = [
            self.table.count(self._by_scope(scope_key, listing, None))
            for scope_key in layout.scope_keys(self.scope.digest)
        ]
        totals, looked_at = zip(*await asyncio.gather(*counts), strict=True)
        made = Counted.made(sum(totals), sum(looked_at), at)
        with suppress(ConditionFailedError, UnavailableError):  # it spares others the counting
            await self.table.write(made.update(count_key(self.scope.digest, listing)), once=True)
        return made.total

    async def _short_logs(self, heads: Sequence[Head]) -> Mapping[str, Log]:
        """Read logs of a few small commits by batches of their items.

        The items are written once, together with HEAD, so that it does not matter when they are
        read. If an item cannot be seen yet, its log is left out.
        """
        short = [h for h in heads if h.version <= FIRST_COMMITS and h.size <= PART_BYTES]
        keys = [
            Key(self._partition(head.task_id), layout.event_sort(head.incarnation, version, 0))
            for head in short
            for version in range(1, head.version + 1)
        ]
        items: defaultdict[str, list[Item]] = defaultdict(list)
        for item in stored(await self.table.load(keys, consistent=False, only=FOLDED)):
            items[item["PK"]].append(item)
        logs: dict[str, Log] = {}
        for head in short:
            commits = Commits(head.incarnation, 0)
            found = items[self._partition(head.task_id)]
            commits.add(sorted(found, key=lambda item: str(item["SK"])))
            records = belonging_to(head, commits.records, commits.version)
            if records is not None:
                logs[head.task_id] = Log(head=head, records=records)
        return logs

    async def _context_heads(self, context_id: str) -> list[Head]:
        """Return HEADs of the live tasks of a context, in the order of their creation."""
        wanted = Range(
            partition=layout.context_key(self.scope.digest, context_id),
            index=layout.BY_CONTEXT,
            when=[Check("expires_at", ">", self._now_s())],
        )
        return await self._heads(await self._all(wanted))

    async def due(self, now_ms: int, *, limit: int = 100, after: Due | None = None) -> list[Due]:
        """Return the first `limit` overdue tasks of all scopes, the longest overdue first.

        Their turn waits, or the deadline of their cancel has passed. With `after`, the first ones
        behind it. Tasks that cannot be read are included.
        """
        return [_due_of(entry) for entry in await self._overdue(now_ms, limit, after)]

    async def find(self, task_id: str) -> list[TaskKey]:
        """Return the live tasks with this id, of all scopes, also one whose HEAD is damaged.

        A task that a release without this index has created is not found. The index lags behind by
        milliseconds.

        Raises:
            ConfigurationError: the table has no such index.
        """
        if not is_task_id(task_id):
            return []
        entries = await self._by_id(layout.id_key(task_id))
        heads = stored(await self.table.load(_heads_of(entries)))
        return sorted(layout.owner_of(head["PK"]) for head in heads if self._is_live(head))

    async def created_in(self, hour_ms: int, *, before: str = "", limit: int = 100) -> Created:
        """Return the live ones of `limit` tasks that were created in an hour, the newest first.

        The tasks are those of all scopes. The cost depends on `limit` alone. A HEAD that cannot be
        read is left out. The index lags behind by milliseconds.

        Args:
            hour_ms: any time in the hour (UTC), in milliseconds since the epoch.
            before: the place where the page before ended; empty: from the newest on.
            limit: how many tasks are looked at, including those that have expired.

        Raises:
            ConfigurationError: the table has no such index.
        """
        shards = await asyncio.gather(
            *(self._by_id(id_key, before, limit + 1) for id_key in layout.hour_keys(hour_ms))
        )
        has_more = any(len(shard) > limit for shard in shards)
        floor = max(_incomplete(shard, limit) for shard in shards)
        found = [entry for shard in shards for entry in shard if _created_key(entry) > floor]
        found.sort(key=_place_of, reverse=True)
        entries = found[:limit]
        heads = await self._heads(entries)
        heads.sort(key=Created.place, reverse=True)
        has_more = has_more or len(found) > limit
        return Created(heads=tuple(heads), before=_place_of(entries[-1]) if has_more else "")

    async def _by_id(self, id_key: str, before: str = "", limit: int = 100) -> list[Item]:
        """Return the newest `limit` entries of the index by id, from behind `before`."""
        wanted = Range(
            partition=id_key,
            index=layout.BY_ID,
            last=before.rpartition("#")[0] if before else None,
            newest_first=True,
        )
        return await self._first(
            limit, wanted, lambda entry: not before or _place_of(entry) < before
        )

    async def _candidates(self, listing: Listing, before: str | None, limit: int) -> list[Item]:
        """Return the first `limit` entries of the index by scope over all shards."""
        if before is not None and before <= listing.since:
            return []
        shards = [
            self._first(
                limit,
                replace(self._by_scope(scope_key, listing, before), only=("status_key",)),
                lambda entry: before is None or entry["status_key"] < before,
            )
            for scope_key in layout.scope_keys(self.scope.digest)
        ]
        entries = [entry for shard in await asyncio.gather(*shards) for entry in shard]
        entries.sort(key=lambda entry: str(entry["status_key"]), reverse=True)
        return entries[:limit]

    def _by_scope(self, scope_key: str, listing: Listing, before: str | None) -> Range:
        """Return one shard of the index by scope, newest first."""
        when = [Check("expires_at", ">", self._now_s())]
        if listing.state is not None:
            when.append(Check("state", "=", state_name(listing.state)))
        return Range(
            partition=scope_key,
            index=layout.BY_SCOPE,
            first=listing.since,
            last=before,
            when=when,
            newest_first=True,
        )

    async def _heads(self, entries: Iterable[Item]) -> list[Head]:
        """Return the live HEADs that entries of an index name, each once."""
        return self._readable_heads(stored(await self.table.load(_heads_of(entries))))

    def _readable_heads(self, items: Iterable[Item]) -> list[Head]:
        """Return the live HEADs among `items`; a line in the log names a damaged one."""
        heads = [self._readable(item) for item in items]
        return [head for head in heads if head is not None]


def task_of_head(head: Head) -> Task | None:
    """Return the Task without history and artifacts; None when HEAD alone does not know it.

    None also if HEAD's copy of status or metadata is damaged, or cannot be shown in an answer: the
    log has both.
    """
    if head.status is None or head.metadata is None:
        return None
    task = Task(id=head.task_id, context_id=head.context_id)
    try:
        task.status.CopyFrom(TaskStatus.FromString(head.status))
        if head.metadata:
            task.metadata.ParseFromString(head.metadata)
    except DecodeError:
        return None
    return task if has_time(task.status) and is_finite(task) else None


def _heads_of(entries: Iterable[Item]) -> list[Key]:
    """Return the keys of the HEADs that entries name; an index may name a task twice."""
    return list({entry["PK"]: Key(entry["PK"], layout.HEAD) for entry in entries}.values())


def _incomplete(entries: Sequence[Item], limit: int) -> str:
    """Return the creation key of the last entry if its entries may go on behind `entries`; or "".

    `entries` are a shard's first `limit` and one more. The index orders entries with the same key
    as it likes, so a page that had only some of them would lose the rest. That loss remains where
    more than `limit` entries have one key, which takes as many scopes.
    """
    if len(entries) <= limit or _created_key(entries[0]) == _created_key(entries[-1]):
        return ""
    return _created_key(entries[-1])


def _created_key(entry: Item) -> str:
    return str(entry["created_key"])


def _place_of(entry: Item) -> str:
    """Return the place of an entry of the index by id, as `Created.place`."""
    scope, _ = layout.owner_of(entry["PK"])
    return created_place(_created_key(entry), scope)


def _due_of(entry: Item) -> Due:
    scope, task_id = layout.owner_of(entry["PK"])
    return Due(scope=Scope(scope), task_id=task_id, due_at=due_of(entry))
