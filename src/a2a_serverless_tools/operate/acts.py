"""Acts on tasks: one kernel for what commands and console do with one task, or with many.

An act on a task is noted in the journal before and after. What does not fit the task any more is
refused, so that an act that is repeated, or was cut off, is harmless.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from a2a.types import TaskState

from a2a_serverless.errors import (
    A2AServerlessError,
    ConcurrencyError,
    ConfigurationError,
    InvalidArgumentError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnavailableError,
    UnreadableTaskError,
    UnsupportedOperationError,
)
from a2a_serverless.http.intake import Intake, Wait, cancel
from a2a_serverless.storage.deletion import delete_remains, delete_task, has_remains
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import TurnOpened
from a2a_serverless.tasks.head import Head, plain_state
from a2a_serverless.tasks.identity import Scope, TaskKey
from a2a_serverless.tasks.push import Push, pushed
from a2a_serverless.wiring import Backends
from a2a_serverless_tools.operate.acting import (
    Act,
    opening_of,
    refused,
    retried,
    retry_id,
    retry_key,
    undelivered,
)
from a2a_serverless_tools.operate.filters import TaskFilter
from a2a_serverless_tools.operate.inspector import Inspector, in_line_of
from a2a_serverless_tools.operate.journal import Journal, newest, person
from a2a_serverless_tools.operate.lists import PAGE, TaskRow, listed
from a2a_serverless_tools.operate.tables import Table

MOST: Final = 1_000
"""Tasks that one run acts on at most."""
MOST_PAGES: Final = 200
"""Pages of a list in which one run looks for its tasks."""
AT_ONCE: Final = 8
"""Tasks that a run acts on at the same time."""
_MOVES: Final = 8
"""Tries to put back a cursor that deliveries move at the same time."""
NEED_QUEUE: Final[Collection[Act]] = ("cancel", "retry")
"""The acts that send to the queue of turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is going to do: an act, and the tasks that allowed it when they were looked at."""

    act: Act
    which: TaskFilter
    rows: tuple[TaskRow, ...]
    looked: int
    """Tasks that were looked at."""
    after: str
    """The place behind which the next run goes on; empty: there are no more tasks."""

    def table(self, most: int) -> Table:
        """Return the first tasks."""
        return listed("", self.rows[:most], ("task", "state", "changed", "owner"), 0)


@dataclass(slots=True)
class Done:
    """What a run has done so far."""

    done: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Why tasks were left as they are, since they have changed: sentences with their numbers."""
    failed: Counter[str] = field(default_factory=Counter)
    """What has kept it from acting on tasks, with their numbers."""


class Acts:
    """Does with tasks what an operator may do.

    Args:
        inspector: what looks at the tasks, with the queue for cancels and retries.
        by: the person; None: it is found out before the first act.

    Every method raises:
        ConfigurationError: one sentence says what cannot be reached, and what to do.
        UnavailableError: no answer within the retry budget.
    """

    def __init__(self, inspector: Inspector, *, by: str | None = None) -> None:
        self._inspector = inspector
        self._by = by
        self._storage = inspector.storage
        self._doing: Mapping[Act, Callable[[DurableStorage, Head], Awaitable[str]]] = {
            "cancel": self._cancel,
            "resend": self._resend,
            "retry": self._retry,
            "delete": self._delete,
        }

    async def journal(self) -> Journal:
        """Return the journal of the person who acts."""
        if self._by is None:
            self._by = await person(self._storage)
        return Journal(self._storage, self._by)

    async def preview(self, act: Act, task_id: str, scope: str, *, config_id: str = "") -> str:
        """Return whether an act fits a task, as a sentence; change nothing.

        With `config_id` it is about that webhook alone.

        Raises:
            TaskNotFoundError: there is no such task.
        """
        storage = self._storage.for_scope(Scope(scope))
        head = await storage.head(task_id)
        if head is None:
            if act != "delete" or not await has_remains(storage, task_id):
                raise TaskNotFoundError
            return "What is left of it can be deleted."
        return await self._why_not(act, storage, head, None, config_id) or "It can be done."

    async def on_one(
        self,
        act: Act,
        task_id: str,
        scope: str,
        *,
        which: TaskFilter | None = None,
        config_id: str = "",
    ) -> str:
        """Do something with one task; return what was done, as a sentence.

        Of a task whose HEAD is gone `delete` deletes the rest. With `which` the task has to be one
        of those still. With `config_id` that webhook alone is redelivered to.

        Raises:
            TaskNotFoundError: there is no such task.
            UnsupportedOperationError: it cannot be done with the task as it is; says why.
            ConcurrencyError: others have changed the task all the time.
        """
        storage = self._storage.for_scope(Scope(scope))
        head = await storage.head(task_id)
        if head is None and act != "delete":
            raise TaskNotFoundError
        if act in NEED_QUEUE:
            self._backends(act)
        if head and (why := await self._why_not(act, storage, head, which, config_id)):
            raise UnsupportedOperationError(why)
        chosen = f"webhook {config_id}" if config_id else ""
        journal = await self.journal()
        entry = await journal.begin(
            act, scope=scope, task_id=task_id, which=which.sentence() if which else chosen
        )
        try:
            if head is None:
                outcome = await _finish(storage, task_id)
            elif act == "redeliver":
                outcome = await self._redeliver(storage, head, config_id)
            else:
                outcome = await self._doing[act](storage, head)
        except TaskNotFoundError:
            await journal.forget(entry)
            raise
        except A2AServerlessError as error:
            await journal.end(entry, f"not done: {error}")
            raise
        await journal.end(entry, outcome)
        return outcome

    async def _why_not(
        self,
        act: Act,
        storage: DurableStorage,
        head: Head,
        which: TaskFilter | None = None,
        config_id: str = "",
    ) -> str:
        """Return why an act does not fit a task; empty: it does."""
        now_ms = storage.clock.now_ms()
        if which is not None and not await self._inspector.lists.has(which.at(now_ms), head):
            return f"It is {plain_state(head.state)}, and none of those that were chosen."
        waits = await in_line_of(storage, head) if act == "resend" else None
        if why := refused(act, head, now_ms=now_ms, waits=waits):
            return why
        if act == "retry" and (new_id := await retried_as(storage, head)):
            return f"It was tried again before: as {new_id}."
        hooks = await storage.webhooks.all(head.task_id) if act == "redeliver" else []
        if act == "redeliver" and not undelivered(hooks, config_id):
            return _NOTHING_GIVEN_UP
        return ""

    def _backends(self, act: Act) -> Backends:
        """Return the backends with the queue.

        Raises:
            ConfigurationError: it is not named.
        """
        if self._inspector.backends is None:
            raise ConfigurationError(
                f"{act} needs the queue of {self._inspector.place}: set A2A_QUEUE, or name the"
                " stack."
            )
        return self._inspector.backends

    # -- the acts ----------------------------------------------------------------------------

    async def _cancel(self, storage: DurableStorage, head: Head) -> str:
        by = f"operator {self._by}"
        tail = await cancel(
            self._backends("cancel"),
            storage.scope,
            head.task_id,
            wait=Wait(None, by),
            timeout_s=self._inspector.settings.cancel_timeout_s,
            by=by,
        )
        return f"The task is {plain_state(tail.head.state)}."

    async def _resend(self, storage: DurableStorage, head: Head) -> str:
        if not await storage.postpone(head, due_at=storage.clock.now_ms(), sends=head.sends):
            raise UnsupportedOperationError("It has moved on meanwhile: look at it again.")
        return "Its turn is due: the sweeper's next run sends it."

    async def _retry(self, storage: DurableStorage, head: Head) -> str:
        log = await storage.read(head.task_id, incarnation=head.incarnation)
        if log is None:
            raise TaskNotFoundError
        opening = opening_of(log.records)
        if opening is None:
            raise UnsupportedOperationError("Its first message cannot be read.")
        try:
            opened = await Intake(self._backends("retry"), None).create(
                storage,
                retried(head, opening),
                head.context_id,
                caller=opening.caller,
                idempotency_key=retry_key(head),
                ttl_s=(head.expires_at - head.created_at) / 1000,
            )
        except InvalidArgumentError as error:
            if storage.table.blobs is None:  # else the sentence is about a file that is gone
                raise InvalidArgumentError(_FILES_ELSEWHERE.format(error)) from error
            raise
        pushes = len(await storage.webhooks.all(head.task_id))
        are = "webhook is" if pushes == 1 else f"{pushes} webhooks are"
        hooks = f"; its {are} not told of it" if pushes else ""
        turns = sum(isinstance(e, TurnOpened) for r in log.records for e in r.entries)
        first = f", with the first of its {turns} messages" if turns > 1 else ""
        return f"It is tried again as {opened.head.task_id}{first}{hooks}."

    async def _redeliver(self, storage: DurableStorage, head: Head, config_id: str) -> str:
        log = await storage.read(head.task_id, incarnation=head.incarnation)
        if log is None:
            raise TaskNotFoundError
        which = self._inspector.settings.push_events
        events = [place for place, _ in pushed("", "", log.records, which)]
        told = 0
        for push in undelivered(await storage.webhooks.all(head.task_id), config_id):
            told += await self._put_back(storage, push, events)
        if not told:
            raise UnsupportedOperationError(_NOTHING_GIVEN_UP)  # others were faster
        hooks = "Its webhook is" if told == 1 else f"{told} of its webhooks are"
        return f"{hooks} told again, from what was given up on: the sweeper's next run sends it."

    async def _put_back(
        self, storage: DurableStorage, push: Push, events: Sequence[tuple[int, int]]
    ) -> bool:
        """Put a cursor back, and forget the refusals of its URL; False: the webhook is gone."""
        hooks, task_id = storage.webhooks, push.config.task_id
        for _ in range(_MOVES):
            held = {one.config.id: one for one in await hooks.all(task_id)}
            now = held.get(push.config.id)
            if now is None or not now.may_redeliver:
                return False
            if now.is_given_up:  # the URL is not called while its configurations have ten refusals
                for one in held.values():
                    if one.config.url == now.config.url and one.config.id != now.config.id:
                        is_owed = any(event > one.cursor for event in events)
                        await hooks.move(one, one.without_refusals(), wakes=is_owed)
            after = now.redelivered(events)
            if await hooks.move(now, after, wakes=True):
                return True
        raise ConcurrencyError("Its webhook is being delivered to: try again.")

    async def _delete(self, storage: DurableStorage, head: Head) -> str:
        if not await delete_task(storage, head.task_id, incarnation=head.incarnation):
            raise TaskNotFoundError
        return "The task is deleted."

    # -- on many -----------------------------------------------------------------------------

    async def plan(self, act: Act, which: TaskFilter, *, most: int = MOST, after: str = "") -> Plan:
        """Return what an act would do with up to `most` of the tasks of a filter; change nothing.

        Looks at `MOST_PAGES` pages of their list; `after` is the place where a plan has ended.
        """
        if act in NEED_QUEUE:
            self._backends(act)
        found: dict[TaskKey, TaskRow] = {}
        looked = 0
        which = which.at(self._storage.clock.now_ms())
        listed = replace(which, text="")  # `_fits` looks for it, without an end
        for _ in range(MOST_PAGES):
            limit = min(PAGE, most - len(found))
            page = await self._inspector.lists.page(listed, after=after, limit=limit)
            looked += len(page.rows)
            fits = await asyncio.gather(*(self._fits(act, row, which) for row in page.rows))
            fitting = (row for row, fit in zip(page.rows, fits, strict=True) if fit)
            found |= {row.key: row for row in fitting}
            after = page.after
            if not after or len(found) >= most:
                break
        return Plan(act=act, which=which, rows=tuple(found.values()), looked=looked, after=after)

    async def _fits(self, act: Act, row: TaskRow, which: TaskFilter) -> bool:
        storage = self._storage.for_scope(Scope(row.head.scope))
        head = await storage.head(row.head.task_id)
        return head is not None and not await self._why_not(act, storage, head, which)

    async def run(self, plan: Plan, rows: Sequence[TaskRow], done: Done) -> None:
        """Act on some of the tasks of a plan, and add to `done` what came of it.

        A task that has changed since, so that it is none of them any more, is skipped. The errors
        of the class end the run.
        """
        journal = await self.journal()  # once, and not in each of what follows
        if plan.act == "delete" and done == Done():
            await self._finish(journal)
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            await asyncio.gather(*(self._run_one(plan, row, done) for row in some))

    async def _finish(self, journal: Journal) -> None:
        """Finish the deletions that were cut off, which no list finds any more."""
        for entry in await newest(self._storage, limit=MOST):
            if entry.act == "delete" and not entry.outcome and entry.task_id:
                storage = self._storage.for_scope(Scope(entry.scope))
                if await storage.head(entry.task_id) is None:
                    await delete_remains(storage, entry.task_id)
                    await journal.end(entry, "It was cut off, and finished later.")

    async def _run_one(self, plan: Plan, row: TaskRow, done: Done) -> None:
        try:
            scope, task_id = row.key
            head = await self._storage.for_scope(Scope(scope)).head(task_id)
            if head is None or head.incarnation != row.head.incarnation:
                done.skipped["It has gone meanwhile."] += 1
                return
            await self.on_one(plan.act, task_id, scope, which=plan.which)
            done.done += 1
        except TaskNotFoundError:
            done.skipped["It has gone meanwhile."] += 1
        except (TaskNotCancelableError, UnsupportedOperationError) as error:
            done.skipped[str(error)] += 1
        except (ConfigurationError, UnavailableError):
            raise  # the next task meets it, too
        except A2AServerlessError as error:
            done.failed[str(error)] += 1


async def _finish(storage: DurableStorage, task_id: str) -> str:
    """Delete what is left of a task that no reader finds."""
    if not await delete_remains(storage, task_id):
        raise TaskNotFoundError
    return "What was left of it is deleted."


async def retried_as(storage: DurableStorage, head: Head) -> str:
    """Return the task in which a failed one was tried again, also a damaged one; empty: none."""
    if head.state != TaskState.TASK_STATE_FAILED:
        return ""
    new_id = retry_id(head)
    with suppress(UnreadableTaskError):
        return new_id if await storage.head(new_id) is not None else ""
    return new_id


_NOTHING_GIVEN_UP: Final = "No notification of it was given up: there is nothing to redeliver."
_FILES_ELSEWHERE: Final = (
    "Its message cannot be sent again from here: {} If its files are stored beside the table, set"
    " A2A_BLOBS as its workers have it, or name the stack."
)
