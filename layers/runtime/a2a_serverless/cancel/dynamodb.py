"""Cancel flags as items beside the task's HEAD.

A flag is the item `CANCEL` of a task: incarnation, deadline (`due_at`) and the task's expiry. It
is put in one transaction with a check of HEAD, so that no flag is raised on a task that has ended.
Whoever ends the task removes it, and what is left of a process that died the sweeper finds in the
due index.

An id may be used again after its task was deleted. A flag counts only for the incarnation that it
names: readers compare it with HEAD's, which costs a read only where there is a flag, and a request
replaces a flag of another incarnation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from a2a_serverless import aws
from a2a_serverless.cancel.base import CancelRegistry, CancelScope, OverdueCancel
from a2a_serverless.cancel.poller import Poller
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.dynamodb_items import (
    BY_DUE,
    CANCEL,
    HEAD,
    Item,
    attribute,
    due_keys,
    head_of,
    key,
    owner_of,
    seconds,
    shard_of,
    task_partition,
)
from a2a_serverless.storage.dynamodb_table import Action, Table
from a2a_serverless.tasks.cancels import (
    check_open,
    counts_for,
    deadline_ms,
    is_overdue,
    may_remove,
)
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import ANONYMOUS, Scope, is_task_id
from a2a_serverless.tasks.states import TERMINAL, state_name

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

REBASES = 5
"""How often a request starts again because another incarnation took the task's id meanwhile."""


class DynamoCancelScope(CancelScope):
    """Set by the poller of its event loop."""

    def __init__(self, flags: _Flags, partition: str) -> None:
        self._poller = flags.poller()
        self._partition = partition
        self._event = asyncio.Event()
        self._poller.add(partition, self._event)

    async def wait(self) -> None:
        await self._event.wait()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def release(self) -> None:
        await self._poller.remove(self._partition, self._event)


@dataclass(slots=True)
class _Flags:
    """What all scoped views share: the table, and a poller for each event loop."""

    table: Table
    clock: Clock
    poll_s: float
    pollers: WeakKeyDictionary[asyncio.AbstractEventLoop, Poller] = field(
        default_factory=WeakKeyDictionary
    )

    def poller(self) -> Poller:
        loop = asyncio.get_running_loop()
        if loop not in self.pollers:
            self.pollers[loop] = Poller(self.raised, clock=self.clock, period_s=self.poll_s)
        return self.pollers[loop]

    async def raised(self, partitions: Iterable[str]) -> set[str]:
        """Those of `partitions` whose task has a flag for its present incarnation."""
        flags = await self.table.load([key(partition, CANCEL) for partition in partitions])
        marks = {flag["PK"]["S"]: flag["incarnation"]["S"] for flag in flags}
        if not marks:
            return set()
        heads = await self.table.load([key(partition, HEAD) for partition in marks])
        owners = {head["PK"]["S"]: head["incarnation"]["S"] for head in heads}
        return {
            partition
            for partition, mark in marks.items()
            if counts_for(mark, owners.get(partition))
        }


class DynamoCancelRegistry(CancelRegistry):
    """Flags in the table of the tasks.

    One poller an event loop reads the flags of all its scopes, every `poll_s`, in one request per
    100 tasks; a worker process has one loop for its turns.

    Args:
        table: the table's name.
        client: by default the process's own.
        scope: the owner.
        clock: by default the system's.
        timeout_s: seconds from a request to its deadline.
        poll_s: seconds from one look at the flags to the next.
    """

    def __init__(
        self,
        table: str,
        *,
        client: DynamoDBClient | None = None,
        scope: Scope = ANONYMOUS,
        clock: Clock | None = None,
        timeout_s: float = 10,
        poll_s: float = 1.0,
        _flags: _Flags | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.scope = scope
        self._name = table
        self._clock = clock or SystemClock()
        self._client: Any = client or aws.client("dynamodb")
        self._flags = _flags or _Flags(Table(table, self._client, self._clock), self._clock, poll_s)
        self._table = self._flags.table

    def for_scope(self, scope: Scope) -> Self:
        return type(self)(
            self._name,
            client=self._client,
            scope=scope,
            clock=self._clock,
            timeout_s=self.timeout_s,
            _flags=self._flags,
        )

    async def request_cancel(self, task_id: str) -> None:
        for _ in range(REBASES):
            head = await self._open_head(task_id)
            try:
                await self._table.transact([self._check(head), self._put(head)])
            except aws.ConditionFailedError as failed:
                head_has_changed = 0 in failed.items
                if head_has_changed:
                    continue
                # An earlier request has raised it; its deadline stays.
            return
        msg = "The task was replaced again and again while its cancel was requested."
        raise UnavailableError(msg)

    async def is_cancelled(self, task_id: str) -> bool:
        return is_task_id(task_id) and bool(await self._flags.raised([self._partition(task_id)]))

    def on_cancel(self, task_id: str) -> CancelScope:
        return DynamoCancelScope(self._flags, self._partition(task_id))

    async def cleanup(self, task_id: str, *, incarnation: str | None = None) -> None:
        partition = self._partition(task_id)
        await self._flags.poller().remove_all(partition)
        # Most tasks have no flag, and a read costs a fifth of a delete that finds nothing.
        flag = await self._table.get(key(partition, CANCEL))
        if flag is not None and may_remove(flag["incarnation"]["S"], incarnation):
            await self._delete(flag)

    async def overdue(self, now_ms: int, *, limit: int = 100) -> list[OverdueCancel]:
        pages = [await self._overdue(due_key, now_ms, limit) for due_key in due_keys(CANCEL)]
        entries = sorted((flag for page in pages for flag in page), key=_deadline)
        # The index lags behind, and does not say which incarnation a flag is meant for.
        flags = await self._table.load([key(e["PK"]["S"], CANCEL) for e in entries[:limit]])
        flags.sort(key=_deadline)
        return [_overdue_of(flag) for flag in flags if is_overdue(_deadline(flag), now_ms=now_ms)]

    async def _open_head(self, task_id: str) -> Head:
        item = None
        if is_task_id(task_id):
            item = await self._table.get(key(self._partition(task_id), HEAD))
        head = head_of(item) if item else None
        is_live = head is not None and not head.has_expired(self._clock.now_ms())
        return check_open(head if is_live else None)

    def _check(self, head: Head) -> Action:
        """The task is the one that was looked at, and has not ended since."""
        states = {f":state{number}": state_name(state) for number, state in enumerate(TERMINAL)}
        values = {":incarnation": head.incarnation} | states
        is_same = "incarnation = :incarnation"
        is_open = f"NOT #state IN ({', '.join(states)})"
        return {
            "ConditionCheck": {
                "Key": key(self._partition(head.task_id), HEAD),
                "ConditionExpression": f"{is_same} AND {is_open}",
                "ExpressionAttributeNames": {"#state": "state"},
                "ExpressionAttributeValues": {n: attribute(v) for n, v in values.items()},
            }
        }

    def _put(self, head: Head) -> Action:
        """The flag, unless this incarnation has one."""
        values: dict[str, str | int] = {
            "incarnation": head.incarnation,
            "due_key": f"{CANCEL}#{shard_of(head.task_id)}",
            "due_at": deadline_ms(self._clock.now_ms(), self.timeout_s),
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

    async def _delete(self, flag: Item) -> None:
        # A failed condition: it is gone already, or replaced by that of a later incarnation.
        with suppress(aws.ConditionFailedError):
            await aws.repeat(
                self._client.delete_item,
                clock=self._clock,
                TableName=self._name,
                Key={"PK": flag["PK"], "SK": flag["SK"]},
                ConditionExpression="incarnation = :incarnation",
                ExpressionAttributeValues={":incarnation": flag["incarnation"]},
            )

    async def _overdue(self, due_key: str, now_ms: int, limit: int) -> list[Item]:
        answer = await aws.repeat(
            self._client.query,
            clock=self._clock,
            TableName=self._name,
            IndexName=BY_DUE,
            KeyConditionExpression="due_key = :key AND due_at <= :now",
            ExpressionAttributeValues={":key": attribute(due_key), ":now": attribute(now_ms)},
            Limit=limit,
        )
        flags: list[Item] = answer["Items"]
        return flags

    def _partition(self, task_id: str) -> str:
        return task_partition(self.scope.digest, task_id)


def _overdue_of(flag: Item) -> OverdueCancel:
    scope, task_id = owner_of(flag["PK"]["S"])
    incarnation = flag["incarnation"]["S"]
    return OverdueCancel(scope=Scope(scope), task_id=task_id, incarnation=incarnation)


def _deadline(flag: Item) -> int:
    return int(flag["due_at"]["N"])
