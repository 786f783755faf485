"""Storage on one DynamoDB table.

A commit is one transaction: HEAD moves to the next version if it is still the one that the rules
saw, and the commit's entries are put beside it as EVENT items, which are never rewritten. So a
commit costs the same however long the task is, and to read a task without history and artifacts is
to read one small item.

What a reader may rely on:

- A commit whose answer was lost is recognised by its id in the EVENT at its version, also when
  another writer has committed since. A commit has lost only if its condition on HEAD failed and
  its id is not there.
- A read returns complete commits in unbroken order up to HEAD's version, never half a commit.
- What has expired is not found from the first millisecond on, although DynamoDB removes it later.
- Listings find their candidates in indexes, which lag behind by milliseconds, but show every task
  as its HEAD says it is now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.aws import ConditionFailedError
from a2a_serverless.errors import TaskNotFoundError, UnavailableError, UnreadableTaskError
from a2a_serverless.storage import dynamodb_layout as layout
from a2a_serverless.storage.durable import context_conflict, damaged_context
from a2a_serverless.storage.dynamodb_attributes import Item, attribute, plain, seconds
from a2a_serverless.storage.dynamodb_cancels import CancelItems
from a2a_serverless.storage.dynamodb_commits import Commits, event_items
from a2a_serverless.storage.dynamodb_deletion import DeletedItems
from a2a_serverless.storage.dynamodb_heads import (
    head_item,
    incarnation_of,
    released_values,
    spared_values,
)
from a2a_serverless.storage.dynamodb_layout import key
from a2a_serverless.storage.dynamodb_listing import IndexedTasks
from a2a_serverless.storage.dynamodb_push import PushItems, counted
from a2a_serverless.storage.dynamodb_push_items import push_inline
from a2a_serverless.storage.dynamodb_survey import survey_of
from a2a_serverless.storage.dynamodb_table import Action
from a2a_serverless.storage.log import Log, Look, Survey, TaskKey
from a2a_serverless.tasks.head import AttemptEnd, Head, Spared
from a2a_serverless.tasks.identity import is_task_id
from a2a_serverless.tasks.push import Push, check_room
from a2a_serverless.tasks.rules import ContextWrite, Step, expiry
from a2a_serverless.tasks.storing import belonging_to, conflict, is_applied

TORN_READS: Final = 10
"""How often a read goes on when HEAD and events do not fit together yet."""

SURVEYS: Final = 4
"""How often a task is surveyed before what cannot be read counts as damage."""

INSERTS: Final = 5
"""How often a creation is tried while its id changes between taken and free."""

_MISSING_OR_EXPIRED: Final = "attribute_not_exists(PK) OR expires_at <= :now"


class DynamoStorage(CancelItems, PushItems, DeletedItems, IndexedTasks):
    """Tasks in a DynamoDB table, laid out as template.yaml has it: HEAD, commits and contexts."""

    # -- reading a task ------------------------------------------------------------------------

    async def look(self, tasks: Collection[TaskKey]) -> dict[TaskKey, Look]:
        asked = {layout.task_partition(*task): task for task in tasks if is_task_id(task[1])}
        if not asked:
            return {}
        sorts = (layout.HEAD, layout.CANCEL)
        found, unread = await self._table.look([key(pk, sk) for pk in asked for sk in sorts])
        heads, flags = (
            {item["PK"]["S"]: item for item in found if item["SK"]["S"] == sort} for sort in sorts
        )
        unknown = {item["PK"]["S"] for item in unread}
        return {
            task: Look(
                head=self._readable(heads.get(partition)),
                flagged=incarnation_of(flags.get(partition)),
            )
            for partition, task in asked.items()
            if partition not in unknown
        }

    async def read(
        self, task_id: str, *, after: int = 0, incarnation: str | None = None
    ) -> Log | None:
        if not is_task_id(task_id):
            return None
        if after and incarnation is None:
            head = await self.head(task_id)
            if head is None:
                return None
            incarnation = head.incarnation
        commits = Commits(incarnation, after) if incarnation else None
        start = layout.CANCEL  # before the events: read from the beginning, the flag comes along
        if after and incarnation:
            start = layout.event_sort(incarnation, after + 1)
        flagged: str | None = None
        gaps: set[tuple[str, int]] = set()
        for attempt in range(1, TORN_READS + 1):
            found = await self._items_from(start, task_id)
            flagged = flagged or _flagged_in(found)
            head, commits = self._commits_in(found, commits)
            if head is None or commits is None or incarnation not in (None, head.incarnation):
                return None
            records = belonging_to(head, commits.records, commits.version)
            if records is not None:
                return Log(head=head, records=records, flagged=flagged)
            start = layout.event_sort(commits.incarnation, commits.version + 1)
            gaps.add((commits.incarnation, commits.version + 1))
            await self.clock.sleep(aws.pause_s(attempt))
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
        is_head = bool(found) and found[-1]["SK"]["S"] == layout.HEAD
        head = self._live(found[-1] if is_head else None)
        if head is None:
            return None, commits
        if commits is None or commits.incarnation != head.incarnation:
            commits = Commits(head.incarnation, 0)
        commits.add(found)
        return head, commits

    async def _items_from(self, start: str, task_id: str) -> list[Item]:
        """Return the items of a task from the sort key `start` on, HEAD last: flag and EVENTs."""
        found: list[Item] = []
        async for page in self._table.query(
            ConsistentRead=True,
            KeyConditionExpression="PK = :pk AND SK BETWEEN :start AND :head",
            ExpressionAttributeValues={
                ":pk": attribute(self._partition(task_id)),
                ":start": attribute(start),
                ":head": attribute(layout.HEAD),
            },
        ):
            found += page
        return found

    async def survey(self, task_id: str) -> Survey | None:
        if not is_task_id(task_id):
            return None
        attempt = 1
        while True:
            found = await self._items_from(layout.EVENTS, task_id)
            survey = survey_of(found)
            if survey is None or not self._is_live(found[-1]):
                return None
            if not survey.unreadable or attempt == SURVEYS:
                pushes = await self._surveyed_pushes(survey.head)
                return replace(survey, pushes=tuple(pushes))
            # A Query beside a transaction may see half of it: only what stays wrong is damage.
            await self.clock.sleep(aws.pause_s(attempt))
            attempt += 1

    async def changed(self, task_id: str, version: int, timeout_s: float) -> None:  # noqa: ARG002 - DynamoDB does not tell: the caller polls
        await self.clock.sleep(timeout_s)

    # -- writing a task ------------------------------------------------------------------------

    async def _insert(self, step: Step, body: bytes, push: Push | None) -> Head | None:
        head = step.head
        condition = {
            "ConditionExpression": _MISSING_OR_EXPIRED,
            "ExpressionAttributeValues": {":now": attribute(self._now_s())},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        actions: list[Action] = [{"Put": {"Item": head_item(head), **condition}}]
        actions += [{"Put": {"Item": item}} for item in event_items(step, body)]
        if push is not None:
            actions.append({"Update": push_inline(push, head)})
        for _ in range(INSERTS):
            try:
                await self._table.transact(actions)
            except ConditionFailedError as failed:
                taker = self._live(failed.items[0]) or await self.head(head.task_id)
                if taker is None:
                    continue
                is_own = taker.incarnation == head.incarnation
                return None if is_own else taker
            return None
        msg = f"The id {head.task_id} was taken and free by turns, {INSERTS} times."
        raise UnavailableError(msg)

    async def _apply(self, before: Head, step: Step, body: bytes, push: Push | None) -> None:
        head = step.head
        update = head_update(before, head)
        pushed: list[Action] = []
        if push is not None:
            update = await self._with_push(update, push)
            pushed.append({"Update": push_inline(push, head)})
        actions: list[Action] = [{"Update": update}]
        actions += [{"Put": {"Item": item}} for item in event_items(step, body)]
        actions += pushed
        if step.context_write is not None:
            update = self._context_update(head.context_id, step.context_write)
            actions.append({"Update": update})
        try:
            await self._table.transact(actions)
        except ConditionFailedError as failed:
            await self._settle(step, failed.items)

    async def _with_push(self, update: dict[str, Any], push: Push) -> dict[str, Any]:
        """Return the update of HEAD in a commit with an inline configuration; check its room."""
        held = await self._held(push.config.task_id)
        if held is None or held.head.incarnation != push.incarnation:
            raise TaskNotFoundError
        check_room(held.ids, push.config.id)
        return counted(update, held)

    async def _settle(self, step: Step, failed: Mapping[int, Item | None]) -> None:
        """Return if the refused commit was applied by an earlier, unanswered request; else raise.

        The EVENT at the commit's version says so, and goes on to say so when others have
        committed since; HEAD would not.
        """
        if 0 not in failed:
            raise context_conflict(_context_version(next(iter(failed.values()))))
        head = step.head
        event = layout.event_sort(head.incarnation, head.version, 0)
        stored = await self._table.get(key(self._partition(head.task_id), event))
        stored_id = plain(stored).get("commit_id") if stored else None
        if is_applied(stored_id, step.commit_id):
            return
        raise conflict(self._live(failed[0]) or await self.head(head.task_id), head)

    # -- due turns -----------------------------------------------------------------------------

    async def postpone(self, head: Head, *, due_at: int, sends: int) -> bool:
        """Do as the contract says.

        Where the first answer was lost, a success may be reported as False. That is the safe
        side: the turn is due again later, and the caller has sent nothing.
        """
        has_sends = "sends = :seen"
        if head.sends == 0:  # a HEAD that was stored in part may lack it, and is read with 0
            has_sends = f"({has_sends} OR attribute_not_exists(sends))"
        return await self._table.update(
            Key=key(self._partition(head.task_id), layout.HEAD),
            UpdateExpression="SET due_at = :due_at, sends = :sends",
            ConditionExpression="incarnation = :incarnation AND version = :version"
            f" AND {has_sends} AND due_at = :due_before AND expires_at > :now",
            ExpressionAttributeValues={
                ":due_at": attribute(due_at),
                ":sends": attribute(sends),
                ":incarnation": attribute(head.incarnation),
                ":version": attribute(head.version),
                ":seen": attribute(head.sends),
                ":due_before": attribute(head.due_at),
                ":now": attribute(self._now_s()),
            },
        )

    async def renew(self, head: Head, *, token: str, due_at: int) -> bool:
        return await self._table.update(
            Key=key(self._partition(head.task_id), layout.HEAD),
            UpdateExpression="SET due_at = :due_at",
            ConditionExpression="incarnation = :incarnation AND #token = :token"
            " AND expires_at > :now",
            ExpressionAttributeNames={"#token": "token"},
            ExpressionAttributeValues={
                ":due_at": attribute(due_at),
                ":incarnation": attribute(head.incarnation),
                ":token": attribute(token),
                ":now": attribute(self._now_s()),
            },
        )

    async def release(
        self,
        head: Head,
        end: AttemptEnd,
        *,
        due_at: int | None = None,
        attempts: int | None = None,
        spared: Spared | None = None,
    ) -> bool:
        also = {"due_at": due_at, "attempts": attempts}
        changed = released_values(end) | {n: v for n, v in also.items() if v is not None}
        if spared is not None:
            changed |= spared_values(head, spared)
        values = changed | {"incarnation": head.incarnation, "now": self._now_s()}
        return await self._table.update(
            Key=key(self._partition(head.task_id), layout.HEAD),
            UpdateExpression="SET " + ", ".join(f"{name} = :{name}" for name in changed),
            ConditionExpression="incarnation = :incarnation AND #token = :released"
            " AND expires_at > :now",
            ExpressionAttributeNames={"#token": "token"},
            ExpressionAttributeValues={f":{n}": attribute(v) for n, v in values.items()},
        )

    # -- contexts ------------------------------------------------------------------------------

    async def _load_context_item(self, context_id: str) -> tuple[str, int] | None:
        item = await self._table.get(self._context_key(context_id))
        if item is None or not self._is_live(item):
            return None
        values = plain(item)
        value, version = values.get("value"), values.get("version")
        if not isinstance(value, str) or not isinstance(version, int):
            raise damaged_context(context_id)
        return value, version

    async def put_context(self, context_id: str, write: ContextWrite) -> None:
        try:
            await self._table.transact([{"Update": self._context_update(context_id, write)}])
        except ConditionFailedError as failed:
            raise context_conflict(_context_version(failed.items[0])) from failed

    def _context_update(self, context_id: str, write: ContextWrite) -> dict[str, Any]:
        """Return the update of a context's state, which lives a task's time to live from now."""
        expires_at = expiry(self.clock.now_ms(), self.timing.ttl_s)
        values: dict[str, str | int] = {
            ":value": write.value,
            ":expires_at": seconds(expires_at),
            ":one": 1,
        }
        owner = layout.context_owner(self.scope.digest, context_id)
        values |= {f":{name}": value for name, value in owner.items()}
        condition = {}
        next_version = "if_not_exists(#version, :none) + :one"
        if write.expected_version == 0:
            # A state that has expired and is still stored counts for nothing, as does its version.
            next_version = ":one"
            condition = {"ConditionExpression": _MISSING_OR_EXPIRED}
            values[":now"] = self._now_s()
        elif write.expected_version is not None:
            condition = {"ConditionExpression": "#version = :expected"}
            values[":expected"] = write.expected_version
        if write.expected_version != 0:
            values[":none"] = 0
        return {
            "Key": self._context_key(context_id),
            "UpdateExpression": "SET #value = :value, expires_at = :expires_at,"
            f" #version = {next_version}, " + ", ".join(f"{name} = :{name}" for name in owner),
            "ExpressionAttributeNames": {"#value": "value", "#version": "version"},
            "ExpressionAttributeValues": {n: attribute(v) for n, v in values.items()},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            **condition,
        }


def _flagged_in(found: list[Item]) -> str | None:
    """Return the incarnation that the flag among a task's items is for; None without a flag."""
    is_flag = bool(found) and found[0]["SK"]["S"] == layout.CANCEL
    return incarnation_of(found[0]) if is_flag else None


def head_update(before: Head, after: Head) -> dict[str, Any]:
    """Return the update of HEAD from one version to the next: only what changes is sent.

    The state is part of the condition, so that no transition leaves a terminal state, even if HEAD
    was written without counting its version up. A request to cancel is part of it too, because it
    does not move the version (as in `is_still`). The generation is sent even if it is the same:
    `before` may have been counted from the log, and what is stored is then of an older version.
    """
    old, new = head_item(before), head_item(after)
    changed = {
        name: value for name, value in new.items() if old.get(name) != value or name in _ALWAYS
    }
    gone = [name for name in old if name not in new]
    expression = "SET " + ", ".join(f"#{name} = :{name}" for name in changed)
    if gone:
        expression += " REMOVE " + ", ".join(f"#{name}" for name in gone)
    seen = ("incarnation", "version", "state")
    conditions = [f"#{name} = :seen_{name}" for name in seen]
    if before.cancel is None:
        conditions.append("(attribute_not_exists(cancel_for) OR cancel_for <> :seen_incarnation)")
    return {
        "Key": {name: old[name] for name in ("PK", "SK")},
        "UpdateExpression": expression,
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeNames": {f"#{name}": name for name in {*changed, *gone, *seen}},
        "ExpressionAttributeValues": {f":{name}": value for name, value in changed.items()}
        | {f":seen_{name}": old[name] for name in seen},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


_ALWAYS: Final = frozenset({"generation"})
"""Attributes that `head_update` always sends, because the stored value may not be `before`'s."""


def _context_version(item: Item | None) -> int:
    version = plain(item).get("version") if item else 0
    return version if isinstance(version, int) else 0
