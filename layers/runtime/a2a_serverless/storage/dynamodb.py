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
from a2a_serverless.errors import (
    ConditionFailedError,
    TaskNotFoundError,
    UnavailableError,
    UnreadableTaskError,
)
from a2a_serverless.storage import dynamodb_layout as layout
from a2a_serverless.storage.attributes import seconds
from a2a_serverless.storage.durable import context_conflict, damaged_context
from a2a_serverless.storage.dynamodb_cancels import CancelItems
from a2a_serverless.storage.dynamodb_commits import Commits, event_items
from a2a_serverless.storage.dynamodb_deletion import DeletedItems
from a2a_serverless.storage.dynamodb_heads import head_item, incarnation_of, released_values
from a2a_serverless.storage.dynamodb_listing import IndexedTasks
from a2a_serverless.storage.dynamodb_push import PushItems, counted
from a2a_serverless.storage.dynamodb_push_items import push_inline
from a2a_serverless.storage.dynamodb_survey import survey_of
from a2a_serverless.storage.log import Log, Look, Survey, TaskKey
from a2a_serverless.storage.table import (
    NEW,
    Added,
    Check,
    Item,
    Key,
    Put,
    Range,
    Update,
    When,
    Write,
    are,
    key_of,
)
from a2a_serverless.tasks.head import AttemptEnd, Head
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


class DynamoStorage(CancelItems, PushItems, DeletedItems, IndexedTasks):
    """Tasks in a DynamoDB table, laid out as template.yaml has it: HEAD, commits and contexts."""

    # -- reading a task ------------------------------------------------------------------------

    async def look(self, tasks: Collection[TaskKey]) -> dict[TaskKey, Look]:
        asked = {layout.task_partition(*task): task for task in tasks if is_task_id(task[1])}
        if not asked:
            return {}
        keys = {
            task: (Key(partition, layout.HEAD), Key(partition, layout.CANCEL))
            for partition, task in asked.items()
        }
        wanted = [key for pair in keys.values() for key in pair]
        found = await self.table.load(wanted, consistent=False, once=True)
        return {
            task: Look(head=self._readable(found[head]), flagged=incarnation_of(found[flag]))
            for task, (head, flag) in keys.items()
            if head in found and flag in found
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
        is_head = bool(found) and found[-1]["SK"] == layout.HEAD
        head = self._live(found[-1] if is_head else None)
        if head is None:
            return None, commits
        if commits is None or commits.incarnation != head.incarnation:
            commits = Commits(head.incarnation, 0)
        commits.add(found)
        return head, commits

    async def _items_from(self, start: str, task_id: str) -> list[Item]:
        """Return the items of a task from the sort key `start` on, HEAD last: flag and EVENTs."""
        wanted = Range(partition=self._partition(task_id), first=start, last=layout.HEAD)
        return await self._all(wanted)

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
        writes: list[Write] = [Put(item=head_item(head), when=[self._missing_or_expired()])]
        writes += [Put(item=item) for item in event_items(step, body)]
        if push is not None:
            writes.append(push_inline(push, head))
        for _ in range(INSERTS):
            try:
                await self.table.write(*writes)
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
        more: list[Write] = [Put(item=item) for item in event_items(step, body)]
        if push is not None:
            update = await self._with_push(update, push)
            more.append(push_inline(push, head))
        if step.context_write is not None:
            more.append(self._context_update(head.context_id, step.context_write))
        try:
            await self.table.write(update, *more)
        except ConditionFailedError as failed:
            await self._settle(step, failed.items)

    async def _with_push(self, update: Update, push: Push) -> Update:
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
        stored = await self.table.get(Key(self._partition(head.task_id), event))
        stored_id = stored.get("commit_id") if stored else None
        if is_applied(stored_id, step.commit_id):
            return
        raise conflict(self._live(failed[0]) or await self.head(head.task_id), head)

    # -- due turns -----------------------------------------------------------------------------

    async def postpone(self, head: Head, *, due_at: int, sends: int) -> bool:
        """Do as the contract says.

        Where the first answer was lost, a success may be reported as False. That is the safe
        side: the turn is due again later, and the caller has sent nothing.
        """
        has_sends = [Check("sends", "=", head.sends)]
        if head.sends == 0:  # a HEAD that was stored in part may lack it, and is read with 0
            has_sends.append(Check("sends", "absent"))
        is_same = are(incarnation=head.incarnation, version=head.version, due_at=head.due_at)
        return await self.table.did(
            Update(
                key=self._head_key(head.task_id),
                values={"due_at": due_at, "sends": sends},
                when=[*is_same, has_sends, self._unexpired()],
            )
        )

    async def renew(self, head: Head, *, token: str, due_at: int) -> bool:
        return await self._note(head, token, {"due_at": due_at})

    async def release(
        self,
        head: Head,
        end: AttemptEnd,
        *,
        due_at: int | None = None,
        attempts: int | None = None,
    ) -> bool:
        also = {"due_at": due_at, "attempts": attempts}
        changed = released_values(end) | {n: v for n, v in also.items() if v is not None}
        return await self._note(head, end.token, changed)

    async def _note(self, head: Head, token: str, values: Mapping[str, Any]) -> bool:
        """Change attributes of HEAD if the attempt with `token` owns the turn."""
        is_owner = are(incarnation=head.incarnation, token=token)
        return await self.table.did(
            Update(
                key=self._head_key(head.task_id), values=values, when=[*is_owner, self._unexpired()]
            )
        )

    def _unexpired(self) -> Check:
        return Check("expires_at", ">", self._now_s())

    def _missing_or_expired(self) -> list[Check]:
        return [NEW, Check("expires_at", "<=", self._now_s())]

    # -- contexts ------------------------------------------------------------------------------

    async def _load_context_item(self, context_id: str) -> tuple[str, int] | None:
        item = await self.table.get(self._context_key(context_id))
        if item is None or not self._is_live(item):
            return None
        value, version = item.get("value"), item.get("version")
        if not isinstance(value, str) or not isinstance(version, int):
            raise damaged_context(context_id)
        return value, version

    async def put_context(self, context_id: str, write: ContextWrite) -> None:
        try:
            await self.table.write(self._context_update(context_id, write), exactly=True)
        except ConditionFailedError as failed:
            raise context_conflict(_context_version(failed.items[0])) from failed

    def _context_update(self, context_id: str, write: ContextWrite) -> Update:
        """Return the update of a context's state, which lives a task's time to live from now."""
        when: When = ()
        if write.expected_version == 0:
            # A state that has expired and is still stored counts for nothing, as does its version.
            when = [self._missing_or_expired()]
        elif write.expected_version is not None:
            when = are(version=write.expected_version)
        values = {
            "value": write.value,
            "expires_at": seconds(expiry(self.clock.now_ms(), self.timing.ttl_s)),
            "version": 1 if write.expected_version == 0 else Added(1),
            **layout.context_owner(self.scope.digest, context_id),
        }
        return Update(key=self._context_key(context_id), values=values, when=when)


def _flagged_in(found: list[Item]) -> str | None:
    """Return the incarnation that the flag among a task's items is for; None without a flag."""
    is_flag = bool(found) and found[0]["SK"] == layout.CANCEL
    return incarnation_of(found[0]) if is_flag else None


def head_update(before: Head, after: Head) -> Update:
    """Return the update of HEAD from one version to the next: only what changes is sent.

    The state is part of the condition, so that no transition leaves a terminal state, even if HEAD
    was written without counting its version up. A request to cancel is part of it too, because it
    does not move the version (as in `is_still`). The generation is sent even if it is the same:
    `before` may have been counted from the log, and what is stored is then of an older version.
    """
    old, new = head_item(before), head_item(after)
    changed = {
        name: value
        for name, value in new.items()
        if name not in old or name in _ALWAYS or old[name] != value
    }
    when: list[Check] = are(**{name: old[name] for name in ("incarnation", "version", "state")})
    if before.cancel is None:
        when.append(Check("cancel_for", "<>", before.incarnation))
    gone = [name for name in old if name not in new]
    return Update(key=key_of(old), values=changed, remove=gone, when=when)


_ALWAYS: Final = frozenset({"generation"})
"""Attributes that `head_update` always sends, because the stored value may not be `before`'s."""


def _context_version(item: Item | None) -> int:
    version = item.get("version") if item else 0
    return version if isinstance(version, int) else 0
