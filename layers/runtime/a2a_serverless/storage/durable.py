"""The storage of tasks, on one table.

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

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from a2a.types import SendMessageRequest, TaskPushNotificationConfig

from a2a_serverless.clock import pause_s
from a2a_serverless.errors import (
    CommitTooLargeError,
    ConcurrencyError,
    ConditionFailedError,
    InvalidArgumentError,
    StateTooLargeError,
    TaskNotFoundError,
    UnavailableError,
    UnreadableTaskError,
)
from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import (
    event_items,
    head_item,
    released_values,
    seconds,
    spared_values,
)
from a2a_serverless.storage.deletion import DeletedItems
from a2a_serverless.storage.head_updates import (
    canceled,
    committed,
    noted,
    postponed,
    unless_canceled,
)
from a2a_serverless.storage.log import Log, Opened, Survey
from a2a_serverless.storage.push_items import push_inline
from a2a_serverless.storage.pushes import PushItems, counted
from a2a_serverless.storage.reading import IndexedTasks
from a2a_serverless.storage.survey import survey_of
from a2a_serverless.storage.table import (
    NEW,
    Added,
    Check,
    Item,
    Key,
    Put,
    Update,
    When,
    Write,
    are,
    holds,
)
from a2a_serverless.tasks.entries import (
    Caller,
    advice_on_size,
    check_readable,
    encode_entries,
)
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import AttemptEnd, Head, Spared
from a2a_serverless.tasks.identity import (
    check_context_id,
    check_task_id,
    is_task_id,
    keyed_task_id,
    new_incarnation,
    new_task_id,
    new_token,
)
from a2a_serverless.tasks.push import Push, check_room, checked, inline_push
from a2a_serverless.tasks.rules import (
    Commit,
    ContextWrite,
    NewTask,
    Step,
    advance,
    expiry,
    marked,
    open_task,
)
from a2a_serverless.tasks.storing import check_open, conflict, is_applied

MAX_COMMIT_BYTES = 4_000_000
"""Below the 4 MB of a DynamoDB transaction, with room for keys and HEAD."""

SURVEYS: Final = 4
"""How often a task is surveyed before what cannot be read counts as damage."""

INSERTS: Final = 5
"""How often a creation is tried while its id changes between taken and free."""

REBASES: Final = 5
"""How often a request to cancel is tried while other tasks take its task's id."""


class DurableStorage(PushItems, DeletedItems, IndexedTasks):
    """Tasks and push configurations of one scope, laid out as docs/format.md says.

    Push configurations are deleted with their task, and expire with it. A configuration of an
    earlier incarnation is not found. Reads are consistent. An inline configuration is stored with
    the commit that opens its turn (`open_task`, `Commit.push`), so that there is no moment at which
    the task runs without it. Its cursor stands before that commit. If it has no id, it gets the one
    that follows from its URL (`tasks.push.inline_id`).
    """

    async def survey(self, task_id: str) -> Survey | None:
        """Return the task as far as it can be read; None when it does not exist or has expired.

        Unlike for `read`, damage is no error.
        """
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
            await self.clock.sleep(pause_s(attempt))
            attempt += 1

    # -- commits -----------------------------------------------------------------------------

    async def open_task(
        self,
        context_id: str,
        request: SendMessageRequest,
        *,
        caller: Caller = Caller(),  # noqa: B008 - frozen
        task_id: str | None = None,
        idempotency_key: str | None = None,
        ttl_s: float | None = None,
        push: TaskPushNotificationConfig | None = None,
    ) -> Opened:
        """Create a task with its first turn open, in one request.

        The id is `task_id`, or one that follows from (context, key), or a random one. `push` is
        the configuration that came with the message; it is ignored if the creation is a repeated
        one.

        Raises:
            InvalidArgumentError: an id or the configuration cannot be stored.
        """
        check_context_id(context_id)
        if task_id is None:
            keyed = idempotency_key is not None
            key = idempotency_key or ""
            task_id = keyed_task_id(self.scope, context_id, key) if keyed else new_task_id()
        new = NewTask(
            scope=self.scope.digest,
            task_id=check_task_id(task_id),
            context_id=context_id,
            incarnation=new_incarnation(),
            request=request,
            caller=caller,
            idempotency_key=idempotency_key,
            ttl_s=ttl_s,
            push=push,
        )
        now_ms = self.clock.now_ms()
        trace = self.observer.trace()
        step = open_task(new, now_ms=now_ms, timing=self.timing, trace=trace)
        body = body_of(step)
        step = _sized(step, len(body))
        taker = await self._insert(step, body, _pushed(step))
        if taker is not None:
            return Opened(head=taker, created=False)
        log = Log(head=step.head, records=(Record.of(step),))
        return Opened(head=step.head, created=True, log=log)

    async def commit(self, head: Head, commit: Commit) -> Head:
        """Write `commit` onto `head` as one atomic step; return the new HEAD.

        It is written exactly once: a write whose answer was lost is recognised as applied.

        Raises:
            TaskNotFoundError: the task is gone, or another incarnation took its id.
            ConcurrencyError: another writer has committed since `head`.
            FencedError, TurnFinishedError, TaskTerminalStateError,
            TaskNotAcceptingMessagesError: the rules refuse it.
            CommitTooLargeError: more than 4 MB; nothing was written.
            UnavailableError: no answer within the retry budget; the outcome is unknown.
        """
        now_ms = self.clock.now_ms()
        trace = self.observer.trace()
        step = advance(head, commit, now_ms=now_ms, timing=self.timing, trace=trace)
        body, push = body_of(step), _pushed(step)
        if head.has_expired(self.clock.now_ms()):
            raise TaskNotFoundError
        step = _sized(step, len(body))
        await self._apply(head, step, body, push)
        if step.head.is_terminal and not head.is_terminal:
            # Every end of a task passes here, in the process that commits it.
            self.observer.ended(step.head, self.clock.now_ms() - head.created_at)
        return step.head

    async def put_push(self, config: TaskPushNotificationConfig) -> Push:
        """Store a configuration of the task `config.task_id`; the id is made here when it is empty.

        Its cursor stands at the task's version, so that exactly what is committed from now on is
        delivered. If it replaces a configuration with the same id, it takes over that one's cursor.

        Raises:
            TaskNotFoundError: the task does not exist.
            NewerReleaseError: only a newer release may write the task.
            InvalidArgumentError: the task has `MAX_CONFIGS` others, or a text does not fit.
            UnavailableError: others put configurations to the task all the time; try again.
        """
        own = checked(config)
        own.id = own.id or new_token()
        return await self._put_push(own)

    async def _insert(self, step: Step, body: bytes, push: Push | None) -> Head | None:
        """Store a new task; None when stored, else HEAD of the task that has its id already.

        `body` is the step's entries, encoded; `push` is stored with it. A task that has expired
        leaves its id free.
        """
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
        """Store a commit if HEAD is still `before`: same incarnation, same version.

        Raises:
            ConcurrencyError, TaskNotFoundError: HEAD is another one, or gone.
            InvalidArgumentError: the task has no room for the push configuration.
        """
        head = step.head
        update = committed(before, head)
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

    # -- cancels -------------------------------------------------------------------------------

    async def request_cancel(self, task_id: str, *, by: str = "") -> Head:
        """Mark HEAD, and return it: from now on only writers that know of the request can commit.

        The task is due at its deadline, `Timing.cancel_s` from now: the process that was asked ends
        it by then, and if that process died, the sweeper does. Repeating the request changes
        nothing: mark and deadline stay. `by` names the user who asks.

        Raises:
            TaskNotFoundError: there is no such task.
            TaskTerminalStateError: the task has ended.
            NewerReleaseError: only a newer release may change the task.
            UnavailableError: no answer within the retry budget; the mark may have been made.
        """
        now_ms = self.clock.now_ms()
        found = await self.head(task_id)
        for _ in range(REBASES):
            head = check_open(found)
            if head.cancel is not None:
                return head
            asked = marked(head, by=by, now_ms=now_ms, timing=self.timing)
            try:
                await self.table.write(canceled(asked))
            except ConditionFailedError as failed:
                found = self._live(failed.items[0])
                if found is not None and found.cancel == asked.cancel:
                    return found  # made by an earlier request, whose answer was lost
            else:
                return asked
        msg = "The task was replaced again and again while its cancel was requested."
        raise UnavailableError(msg)

    # -- due turns -----------------------------------------------------------------------------

    async def postpone(self, head: Head, *, due_at: int, sends: int) -> bool:
        """Move HEAD's due time without a commit; False when HEAD has changed since, or expired.

        False also if a cancel was requested: its deadline stays. Where the first answer was lost, a
        success may be reported as False. That is the safe side: the turn is due again later, and
        the caller has sent nothing.
        """
        return await self.table.did(self._living(postponed(head, due_at=due_at, sends=sends)))

    async def renew(self, head: Head, *, token: str, due_at: int) -> bool:
        """Move the due time of a turn that the attempt with `token` still owns, without a commit.

        The deadline of a cancel stays. False when that attempt does not own the turn: it is over,
        another attempt has claimed it, or the task is gone. Commits made since `head` was read do
        not matter.

        Raises:
            UnavailableError: no answer within the retry budget; the outcome is unknown.
        """
        return await self._note(head, token, {}, due_at)

    async def release(
        self,
        head: Head,
        end: AttemptEnd,
        *,
        due_at: int | None = None,
        attempts: int | None = None,
        spared: Spared | None = None,
    ) -> bool:
        """Note that the attempt `end.token` has given its turn back, without a commit.

        `due_at` also moves the due time, unless a cancel has set it; `attempts` sets how many
        attempts of the turn count, and `spared` how many starts do not.
        False when that attempt does not own the turn: it never claimed it, the turn is over,
        another attempt has claimed it, or the task is gone. Commits made since `head` was read do
        not matter.

        Raises:
            UnavailableError: no answer within the retry budget; the outcome is unknown.
        """
        values = released_values(end)
        if attempts is not None:
            values["attempts"] = attempts
        if spared is not None:
            values |= spared_values(head, spared)
        return await self._note(head, end.token, values, due_at)

    async def _note(
        self, head: Head, token: str, values: Mapping[str, Any], due_at: int | None
    ) -> bool:
        """Change attributes of HEAD if the attempt with `token` owns the turn.

        So too the due time, unless it is the deadline of a cancel.
        """
        if due_at is not None:
            moving = self._living(noted(head, token, {**values, "due_at": due_at}))
            try:
                await self.table.write(unless_canceled(moving))
            except ConditionFailedError as failed:
                is_canceled_only = holds(failed.items[0], moving.when)
                if not values or not is_canceled_only:
                    return is_canceled_only
            else:
                return True
        return await self.table.did(self._living(noted(head, token, values)))

    def _living(self, update: Update) -> Update:
        """Return an update that is refused on a HEAD that has expired."""
        return replace(update, when=[*update.when, Check("expires_at", ">", self._now_s())])

    def _missing_or_expired(self) -> list[Check]:
        return [NEW, Check("expires_at", "<=", self._now_s())]

    # -- contexts ------------------------------------------------------------------------------

    async def _load_context_item(self, context_id: str) -> tuple[str, int] | None:
        """Return JSON and version of a context's state."""
        item = await self.table.get(self._context_key(context_id))
        if item is None or not self._is_live(item):
            return None
        value, version = item.get("value"), item.get("version")
        if not isinstance(value, str) or not isinstance(version, int):
            raise damaged_context(context_id)
        return value, version

    async def put_context(self, context_id: str, write: ContextWrite) -> None:
        """Store a context's state without a commit.

        Raises:
            ConcurrencyError: `expected_version` is not met.
        """
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

    async def load_context_version(self, context_id: str) -> tuple[Any | None, int]:
        """Return a context's state and its version; (None, 0) when there is none.

        Raises:
            UnreadableTaskError: it is damaged.
        """
        item = await self._load_context_item(check_context_id(context_id))
        if item is None:
            return None, 0
        value, version = item
        try:
            return json.loads(value), version
        except ValueError as error:
            raise damaged_context(context_id) from error


def context_write(value: Any, expected_version: int | None = None) -> ContextWrite:
    """Return a write of `value`, any JSON value, to a context's state."""
    try:
        encoded = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"A context's state must be a JSON value: {error}.") from error
    if len(encoded) > StateTooLargeError.LIMIT:
        raise StateTooLargeError(len(encoded))
    return ContextWrite(value=encoded, expected_version=expected_version)


def context_conflict(version: int) -> ConcurrencyError:
    """Return the error for a context's state that is at `version` and not at the expected one."""
    msg = "The context's state has changed since it was read; the task may be unchanged."
    return ConcurrencyError(msg, current_version=version)


def damaged_context(context_id: str) -> UnreadableTaskError:
    """Return the error for a context's state that was stored only in part."""
    msg = f"The state of context {context_id} is damaged: restore its item, or delete it."
    return UnreadableTaskError(msg)


def _sized(step: Step, size: int) -> Step:
    """Return a step whose HEAD counts the bytes of its entries."""
    return replace(step, head=replace(step.head, size=step.head.size + size))


def _pushed(step: Step) -> Push | None:
    """Return the inline configuration that is stored with a commit; None without one."""
    return None if step.push is None else inline_push(step.push, step.head)


def body_of(step: Step) -> bytes:
    """Return the entries of a commit as they are stored.

    Raises:
        InvalidArgumentError: an entry could be stored, but never be shown.
        CommitTooLargeError: more than `MAX_COMMIT_BYTES` at once.
    """
    check_readable(step.entries)
    body = encode_entries(step.entries)
    size = len(body) + (len(step.context_write.value) if step.context_write else 0)
    if size > MAX_COMMIT_BYTES:
        raise CommitTooLargeError(size, MAX_COMMIT_BYTES, advice_on_size(step.entries))
    return body


def _context_version(item: Item | None) -> int:
    version = item.get("version") if item else 0
    return version if isinstance(version, int) else 0
