"""Reading tasks as clients see them: one, or a page of a scope's, over a backend's listing."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from a2a.types import Task, TaskState, TaskStatus
from google.protobuf.message import DecodeError

from a2a_serverless.errors import AnswerTooLargeError, UnreadableTaskError
from a2a_serverless.storage.listing import (
    Fitting,
    Found,
    Listing,
    ListTasksQuery,
    ListTasksResult,
    affordable,
    needs_log,
)
from a2a_serverless.storage.log import Log, TaskLog
from a2a_serverless.tasks.entries import has_time, is_finite
from a2a_serverless.tasks.fold import check_history_length
from a2a_serverless.tasks.head import Head

logger = logging.getLogger(__name__)


class ReadableTasks(TaskLog):
    """The part of a storage that makes Tasks of what is stored."""

    @abstractmethod
    async def _newest(self, listing: Listing, limit: int) -> Found:
        """Return the first `limit` live HEADs that the listing asks for, newest status first.

        The total is that of the listing's token. On a first page it is the number of live tasks
        that the filters match, as old as `list_tasks` allows.
        """

    async def _short_logs(self, heads: Sequence[Head]) -> Mapping[str, Log]:  # noqa: ARG002 - a backend that reads them one by one has nothing to do
        """Return the logs of `heads` by task id, as far as they can be read together.

        Each log leads up to its HEAD. A log that is left out is read on its own.
        """
        return {}

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


def tell_left_out(error: UnreadableTaskError) -> None:
    """Log a damaged task, which does not hide the others where many are read."""
    logger.error("A task is left out: %s", error, extra={"action": "unreadable_task"})


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
