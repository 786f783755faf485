"""The cancel flags of one scope on the table: items beside HEAD.

A flag is the item `CANCEL` of a task: incarnation, deadline (`due_at`) and the task's expiry. It
is put in one transaction with a check of HEAD, so that no flag is raised on a task that has ended.
The process that ends the task removes it; the sweeper finds the flags of processes that died in
the due index.

An id may be used again after its task was deleted. A flag counts only for the incarnation that it
names: readers compare it with HEAD's, which costs a read only where there is a flag, and a request
replaces a flag of another incarnation.
"""

from __future__ import annotations

from typing import Final

from a2a_serverless.errors import ConditionFailedError, UnavailableError
from a2a_serverless.storage.codec import cancel_values, due_of, incarnation_of, seconds
from a2a_serverless.storage.layout import CANCEL, HEAD, owner_of, shard_of
from a2a_serverless.storage.log import Due, OverdueCancel
from a2a_serverless.storage.table import NEW, Check, Delete, Item, Key, Put, Update, are, key_of
from a2a_serverless.storage.table_storage import TableStorage, stored
from a2a_serverless.tasks.head import TERMINAL, CancelMark, Head, state_name
from a2a_serverless.tasks.identity import Scope, is_task_id
from a2a_serverless.tasks.storing import check_open, counts_for, deadline_ms, is_overdue, may_remove

REBASES: Final = 5
"""How often a request starts again because another incarnation took the task's id meanwhile."""


class CancelItems(TableStorage):
    """The part of `DurableStorage` that reads and writes the flags."""

    async def request_cancel(self, task_id: str, *, by: str = "") -> None:
        """Raise the flag, and mark HEAD: from now on only writers that know of it can commit.

        Repeating the request changes nothing: deadline and mark stay. `by` names the user who asks.

        Raises:
            TaskNotFoundError: there is no such task.
            TaskTerminalStateError: the task has ended; no flag is left behind.
            NewerReleaseError: only a newer release may change the task.
            UnavailableError: no answer within the retry budget; the flag may have been raised.
        """
        for _ in range(REBASES):
            head = check_open(await self.head(task_id))
            try:
                await self.table.write(self._mark(head, by), self._put(head))
            except ConditionFailedError as failed:
                head_has_changed = 0 in failed.items
                if head_has_changed:
                    continue
                # An earlier request has raised it; its deadline stays.
            return
        msg = "The task was replaced again and again while its cancel was requested."
        raise UnavailableError(msg)

    async def is_cancelled(self, task_id: str) -> bool:
        """Return True if the flag is raised for the task as it is now."""
        flag = await self._flag(task_id)
        if flag is None:
            return False
        head = await self.table.get(Key(flag["PK"], HEAD))
        return counts_for(_incarnation(flag), incarnation_of(head))

    async def clear_cancel(self, task_id: str, *, incarnation: str | None = None) -> None:
        """Remove the flag of an ended task. Idempotent.

        With `incarnation` the flag of a later task with the same id stays. To be called after every
        commit of a terminal state.
        """
        # Most tasks have no flag, and a read costs a fifth of a delete that finds nothing.
        flag = await self._flag(task_id)
        if flag is None or not may_remove(_incarnation(flag), incarnation):
            return
        # A failed condition: the flag is gone, or replaced by the flag of a later incarnation.
        is_same = Check("incarnation", "=", flag.get("incarnation", ""))
        gone = [is_same, Check("incarnation", "absent")]
        await self.table.did(Delete(key=key_of(flag), when=[gone]))

    async def overdue_cancels(
        self, now_ms: int, *, limit: int = 100, after: Due | None = None
    ) -> list[OverdueCancel]:
        """Return the flags of all scopes whose deadline has passed; arguments as of `due`."""
        entries = await self._overdue(CANCEL, now_ms, limit, after)
        # The index lags behind, and does not say which incarnation a flag is meant for.
        flags = await self.table.load([Key(e["PK"], CANCEL) for e in entries])
        overdue = [_overdue_of(f) for f in stored(flags) if is_overdue(due_of(f), now_ms=now_ms)]
        return sorted(overdue, key=lambda cancel: cancel.place)

    async def _flag(self, task_id: str) -> Item | None:
        if not is_task_id(task_id):
            return None
        return await self.table.get(Key(self._partition(task_id), CANCEL))

    def _mark(self, head: Head, by: str) -> Update:
        """Return the write that marks HEAD if it is still the task that was read, and not ended."""
        is_open = [Check("state", "<>", state_name(state)) for state in TERMINAL]
        return Update(
            key=self._head_key(head.task_id),
            values=cancel_values(head, CancelMark(at=self.clock.now_ms(), by=by)),
            when=[*are(incarnation=head.incarnation), *is_open],
        )

    def _put(self, head: Head) -> Put:
        """Return the write of the flag, which fails where this incarnation has one."""
        values = {
            "incarnation": head.incarnation,
            "due_key": f"{CANCEL}#{shard_of(head.task_id)}",
            "due_at": deadline_ms(self.clock.now_ms(), self.timing.cancel_s),
            "expires_at": seconds(head.expires_at),
        }
        item = Key(self._partition(head.task_id), CANCEL)._asdict() | values
        return Put(item=item, when=[[NEW, Check("incarnation", "<>", head.incarnation)]])


def _overdue_of(flag: Item) -> OverdueCancel:
    scope, task_id = owner_of(flag["PK"])
    return OverdueCancel(
        scope=Scope(scope),
        task_id=task_id,
        due_at=due_of(flag),
        incarnation=_incarnation(flag),
    )


def _incarnation(flag: Item) -> str:
    """Return the incarnation that a flag is for; empty, as of no task, if the flag names none."""
    return incarnation_of(flag) or ""
