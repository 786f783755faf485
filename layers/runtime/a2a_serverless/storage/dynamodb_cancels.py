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

from a2a_serverless.aws import ConditionFailedError
from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.dynamodb_attributes import Item, attribute, due_of, seconds
from a2a_serverless.storage.dynamodb_heads import cancel_values, incarnation_of
from a2a_serverless.storage.dynamodb_layout import CANCEL, HEAD, key, owner_of, shard_of
from a2a_serverless.storage.dynamodb_table import Action, TableStorage
from a2a_serverless.storage.log import Due, OverdueCancel
from a2a_serverless.tasks.head import TERMINAL, CancelMark, Head, state_name
from a2a_serverless.tasks.identity import Scope, is_task_id
from a2a_serverless.tasks.storing import check_open, counts_for, deadline_ms, is_overdue, may_remove

REBASES: Final = 5
"""How often a request starts again because another incarnation took the task's id meanwhile."""


class CancelItems(TableStorage):
    """The part of `DynamoStorage` that reads and writes the flags."""

    async def request_cancel(self, task_id: str, *, by: str = "") -> None:
        for _ in range(REBASES):
            head = check_open(await self.head(task_id))
            try:
                await self._table.transact([self._mark(head, by), self._put(head)])
            except ConditionFailedError as failed:
                head_has_changed = 0 in failed.items
                if head_has_changed:
                    continue
                # An earlier request has raised it; its deadline stays.
            return
        msg = "The task was replaced again and again while its cancel was requested."
        raise UnavailableError(msg)

    async def is_cancelled(self, task_id: str) -> bool:
        flag = await self._flag(task_id)
        if flag is None:
            return False
        head = await self._table.get(key(flag["PK"]["S"], HEAD))
        return counts_for(_incarnation(flag), incarnation_of(head))

    async def clear_cancel(self, task_id: str, *, incarnation: str | None = None) -> None:
        # Most tasks have no flag, and a read costs a fifth of a delete that finds nothing.
        flag = await self._flag(task_id)
        if flag is None or not may_remove(_incarnation(flag), incarnation):
            return
        # A failed condition: the flag is gone, or replaced by the flag of a later incarnation.
        await self._table.delete_one(
            Key={"PK": flag["PK"], "SK": flag["SK"]},
            ConditionExpression="incarnation = :incarnation OR attribute_not_exists(incarnation)",
            ExpressionAttributeValues={":incarnation": flag.get("incarnation", attribute(""))},
        )

    async def overdue_cancels(
        self, now_ms: int, *, limit: int = 100, after: Due | None = None
    ) -> list[OverdueCancel]:
        entries = await self._overdue(CANCEL, now_ms, limit, after)
        # The index lags behind, and does not say which incarnation a flag is meant for.
        flags = await self._table.load([key(e["PK"]["S"], CANCEL) for e in entries])
        overdue = [_overdue_of(f) for f in flags if is_overdue(due_of(f), now_ms=now_ms)]
        return sorted(overdue, key=lambda cancel: cancel.place)

    async def _flag(self, task_id: str) -> Item | None:
        if not is_task_id(task_id):
            return None
        return await self._table.get(key(self._partition(task_id), CANCEL))

    def _mark(self, head: Head, by: str) -> Action:
        """Return the write that marks HEAD if it is still the task that was read, and not ended."""
        marks = cancel_values(head, CancelMark(at=self.clock.now_ms(), by=by))
        states = {f":state{number}": state_name(state) for number, state in enumerate(TERMINAL)}
        values = {f":{name}": value for name, value in marks.items()}
        values |= {":incarnation": head.incarnation} | states
        is_same = "incarnation = :incarnation"
        is_open = f"NOT #state IN ({', '.join(states)})"
        return {
            "Update": {
                "Key": key(self._partition(head.task_id), HEAD),
                "UpdateExpression": "SET " + ", ".join(f"{name} = :{name}" for name in marks),
                "ConditionExpression": f"{is_same} AND {is_open}",
                "ExpressionAttributeNames": {"#state": "state"},
                "ExpressionAttributeValues": {n: attribute(v) for n, v in values.items()},
            }
        }

    def _put(self, head: Head) -> Action:
        """Return the write of the flag, which fails where this incarnation has one."""
        values: dict[str, str | int] = {
            "incarnation": head.incarnation,
            "due_key": f"{CANCEL}#{shard_of(head.task_id)}",
            "due_at": deadline_ms(self.clock.now_ms(), self.timing.cancel_s),
            "expires_at": seconds(head.expires_at),
        }
        item = key(self._partition(head.task_id), CANCEL)
        return {
            "Put": {
                "Item": item | {name: attribute(value) for name, value in values.items()},
                "ConditionExpression": "attribute_not_exists(PK) OR incarnation <> :incarnation",
                "ExpressionAttributeValues": {":incarnation": attribute(head.incarnation)},
            }
        }


def _overdue_of(flag: Item) -> OverdueCancel:
    scope, task_id = owner_of(flag["PK"]["S"])
    return OverdueCancel(
        scope=Scope(scope),
        task_id=task_id,
        due_at=due_of(flag),
        incarnation=_incarnation(flag),
    )


def _incarnation(flag: Item) -> str:
    """Return the incarnation that a flag is for; empty, as of no task, if the flag names none."""
    return incarnation_of(flag) or ""
