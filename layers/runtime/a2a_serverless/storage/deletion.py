"""Deleting a task, a context, or all that an owner has, in steps of a bounded size."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from dataclasses import dataclass
from typing import Final

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.storage.log import TaskLog
from a2a_serverless.tasks.identity import check_context_id

ITEMS_A_STEP: Final = 1000
"""Items that one step deletes, by default: a few seconds on DynamoDB."""

TASKS_A_COUNT: Final = 100
"""Tasks and contexts that one step counts, by default."""

AT_ONCE: Final = 8
"""Tasks that a step deletes, or counts, at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A step of counting: what the storage holds, as `delete_data` would delete it."""

    tasks: int
    """Tasks that exist."""
    contexts: int
    """Contexts with a state of their own."""
    webhooks: int
    remains: int
    """Tasks and states that are still stored but not found any more: expired, or half deleted."""
    after: str
    """The place behind which the next step goes on; empty: this was the last step."""

    def __add__(self, later: Counted) -> Counted:
        """Return what both steps have counted, and where the later one ended."""
        return Counted(
            tasks=self.tasks + later.tasks,
            contexts=self.contexts + later.contexts,
            webhooks=self.webhooks + later.webhooks,
            remains=self.remains + later.remains,
            after=later.after,
        )

    @property
    def is_nothing(self) -> bool:
        """Return True if nothing was found: no task, context, webhook or remains."""
        return not (self.tasks or self.contexts or self.webhooks or self.remains)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """A step of deleting: what it has removed."""

    tasks: int = 0
    """Tasks that cannot be found since this step; a later one may delete the rest of them."""
    contexts: int = 0
    webhooks: int = 0
    is_done: bool
    """True if nothing was left to delete. Until then the caller repeats the step."""

    def __add__(self, later: Deleted) -> Deleted:
        """Return what both steps have deleted; done if the later one found nothing."""
        return Deleted(
            tasks=self.tasks + later.tasks,
            contexts=self.contexts + later.contexts,
            webhooks=self.webhooks + later.webhooks,
            is_done=later.is_done,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A stored task, or the stored state of a context; the other of the two ids is None."""

    task_id: str | None = None
    context_id: str | None = None
    is_live: bool
    at: str
    """Its place in the order in which it was found, opaque to callers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What a storage has deleted of one task."""

    items: int = 0
    webhooks: int = 0
    was_live: bool = False
    """True if the task existed until now."""
    context_id: str | None = None


def check_limit(limit: int) -> int:
    """Return the bound of a step; refuse one that would do nothing."""
    if limit < 1:
        raise InvalidArgumentError(f"A step takes at least 1 item, not {limit}.")
    return limit


class DeletableTasks(TaskLog):
    """The part of a storage that deletes, over what a backend deletes of one task or context."""

    async def delete_task(self, task_id: str) -> bool:
        """Delete a task and all that belongs to it; return True if it existed.

        A task that is worked on is deleted as well: its attempt cannot commit any more, and ends
        when it looks at its task again.
        """
        head = await self.head(task_id)
        if head is None:
            return False
        return (await self._erase(task_id, incarnation=head.incarnation)).was_live

    async def delete_context(self, context_id: str) -> int:
        """Delete a context's tasks and its stored state; return the number of tasks deleted.

        It takes as many steps as are needed. Versions of the state begin anew: a caller that has
        read the state before the deletion may replace a state that is stored after it.
        """
        deleted = await self.delete_data(context_id)
        while not deleted.is_done:
            deleted += await self.delete_data(context_id)
        return deleted.tasks

    async def delete_data(
        self, context_id: str | None = None, *, limit: int = ITEMS_A_STEP
    ) -> Deleted:
        """Delete a part of this scope's data, or of one of its contexts; call it until it is done.

        Tasks are deleted with their logs, flags and webhooks, also those that run: see
        `delete_task`. A context's state is deleted when no deleted task can write it any more. If
        the whole scope is deleted, the stored counts of its lists are deleted last.

        A step deletes about `limit` items. If it stops halfway, the next call continues it, in any
        process; repeating a finished step is harmless. What is created meanwhile is deleted too:
        stop a caller that goes on sending first.

        Raises:
            InvalidArgumentError: no context id, or a limit below 1.
            UnavailableError: no answer within the retry budget; call it again.
        """
        stored = await self._of_this_step(context_id, limit, "")
        contexts = dict.fromkeys(p.context_id for p in stored if p.context_id is not None)
        items, tasks, webhooks = 0, 0, 0
        ids = [place.task_id for place in stored if place.task_id is not None]
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            share = max(1, (limit - items) // len(some))
            for erased in await asyncio.gather(*(self._erase(i, limit=share) for i in some)):
                items += erased.items
                tasks += erased.was_live
                webhooks += erased.webhooks
                if erased.context_id is not None and context_id in (None, erased.context_id):
                    contexts[erased.context_id] = None
            if items >= limit:
                break
        # After the tasks: none of them can write a state any more.
        states = sum([await self._delete_context_item(context) for context in contexts])
        # An index may still name what is gone: that is nothing to delete.
        is_done = items + states == 0
        if is_done and context_id is None:  # after the tasks: a list stores a new count
            is_done = await self._delete_counts(limit) == 0
        return Deleted(tasks=tasks, contexts=states, webhooks=webhooks, is_done=is_done)

    async def count_data(
        self, context_id: str | None = None, *, limit: int = TASKS_A_COUNT, after: str = ""
    ) -> Counted:
        """Count what `delete_data` would delete: the next `limit` tasks and contexts.

        `after` is the one that the step before returned; empty for the first step. A task that
        changes meanwhile may be counted twice.

        Raises:
            InvalidArgumentError, UnavailableError: as `delete_data`.
        """
        stored = await self._of_this_step(context_id, limit, after)
        webhooks = 0
        ids = [place.task_id for place in stored if place.task_id is not None]
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            webhooks += sum(await asyncio.gather(*map(self._webhooks, some)))
        live = [place for place in stored if place.is_live]
        return Counted(
            tasks=sum(place.task_id is not None for place in live),
            contexts=sum(place.context_id is not None for place in live),
            webhooks=webhooks,
            remains=len(stored) - len(live),
            after=stored[-1].at if len(stored) == limit else "",
        )

    async def _of_this_step(self, context_id: str | None, limit: int, after: str) -> list[Place]:
        if context_id is not None:
            check_context_id(context_id)
        return await self._places(context_id, check_limit(limit), after)

    # -- the backend's part ------------------------------------------------------------------

    @abstractmethod
    async def _places(self, context_id: str | None, limit: int, after: str) -> list[Place]:
        """Return the first tasks and contexts' states of a context, or of the whole scope.

        They come from behind the place `after`, in an order that stays the same. Those that have
        expired or are half deleted are among them.
        """

    async def _delete_counts(self, limit: int) -> int:  # noqa: ARG002 - a backend may store none
        """Delete up to `limit` counts that lists of this scope have stored; return how many."""
        return 0

    @abstractmethod
    async def _erase(
        self, task_id: str, *, incarnation: str | None = None, limit: int | None = None
    ) -> Erased:
        """Delete a task, or its first `limit` items; from the first item on no reader finds it.

        With `incarnation` a later task with this id stays. `_places` finds what is left.
        """

    @abstractmethod
    async def _webhooks(self, task_id: str) -> int:
        """Count the push configurations that are stored for a task."""

    @abstractmethod
    async def _delete_context_item(self, context_id: str) -> bool:
        """Forget a context's state; return True if there was one."""
