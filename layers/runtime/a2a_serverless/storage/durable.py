"""The storage of tasks in terms of HEAD, log and rules: what all backends share."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import replace
from typing import Any

from a2a.types import SendMessageRequest, TaskPushNotificationConfig

from a2a_serverless.errors import (
    CommitTooLargeError,
    ConcurrencyError,
    InvalidArgumentError,
    StateTooLargeError,
    TaskNotFoundError,
    UnreadableTaskError,
)
from a2a_serverless.observability import metrics, tracing
from a2a_serverless.storage.deletion import DeletableTasks
from a2a_serverless.storage.log import Due, Log, Opened, OverdueCancel
from a2a_serverless.storage.reading import ReadableTasks
from a2a_serverless.tasks.entries import (
    Caller,
    advice_on_size,
    check_readable,
    encode_entries,
)
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head, plain_state
from a2a_serverless.tasks.identity import (
    check_context_id,
    check_task_id,
    keyed_task_id,
    new_incarnation,
    new_task_id,
    new_token,
)
from a2a_serverless.tasks.push import Push, checked, inline_push
from a2a_serverless.tasks.rules import Commit, ContextWrite, NewTask, Step, advance, open_task

MAX_COMMIT_BYTES = 4_000_000
"""Below the 4 MB of a DynamoDB transaction, with room for keys and HEAD."""

MAX_CONTEXT_BYTES = 340_000
"""The longest state of a context, in bytes of JSON: it is one item."""


class DurableStorage(ReadableTasks, DeletableTasks):
    """Tasks, cancel flags and push configurations over a backend's few atomic steps.

    A cancel flag has a deadline, `Timing.cancel_s` after the request: the process that was asked
    ends the task by then, and if that process died, the sweeper does. A flag of an earlier task
    with the same id does not count.

    Push configurations are deleted with their task, and expire with it. A configuration of an
    earlier incarnation is not found. Reads are consistent. An inline configuration is stored with
    the commit that opens its turn (`open_task`, `Commit.push`), so that there is no moment at which
    the task runs without it. Its cursor stands before that commit. If it has no id, it gets the one
    that follows from its URL (`tasks.push.inline_id`).
    """

    @abstractmethod
    async def put_context(self, context_id: str, write: ContextWrite) -> None:
        """Store a context's state without a commit.

        Raises:
            ConcurrencyError: `expected_version` is not met.
        """

    # -- cancel flags ------------------------------------------------------------------------

    @abstractmethod
    async def request_cancel(self, task_id: str, *, by: str = "") -> None:
        """Raise the flag, and mark HEAD: from now on only writers that know of it can commit.

        Repeating the request changes nothing: deadline and mark stay. `by` names the user who asks.

        Raises:
            TaskNotFoundError: there is no such task.
            TaskTerminalStateError: the task has ended; no flag is left behind.
            NewerReleaseError: only a newer release may change the task.
            UnavailableError: no answer within the retry budget; the flag may have been raised.
        """

    @abstractmethod
    async def is_cancelled(self, task_id: str) -> bool:
        """Return True if the flag is raised for the task as it is now."""

    @abstractmethod
    async def clear_cancel(self, task_id: str, *, incarnation: str | None = None) -> None:
        """Remove the flag of an ended task. Idempotent.

        With `incarnation` the flag of a later task with the same id stays. To be called after every
        commit of a terminal state.
        """

    @abstractmethod
    async def overdue_cancels(
        self, now_ms: int, *, limit: int = 100, after: Due | None = None
    ) -> list[OverdueCancel]:
        """Return the flags of all scopes whose deadline has passed; arguments as of `due`."""

    # -- the backend's part ------------------------------------------------------------------

    @abstractmethod
    async def _insert(self, step: Step, body: bytes, push: Push | None) -> Head | None:
        """Store a new task; None when stored, else HEAD of the task that has its id already.

        `body` is the step's entries, encoded; `push` is stored with it. A task that has expired
        leaves its id free.
        """

    @abstractmethod
    async def _apply(self, before: Head, step: Step, body: bytes, push: Push | None) -> None:
        """Store a commit if HEAD is still `before`: same incarnation, same version.

        Raises:
            ConcurrencyError, TaskNotFoundError: HEAD is another one, or gone.
            InvalidArgumentError: the task has no room for the push configuration.
        """

    @abstractmethod
    async def _context_heads(self, context_id: str) -> list[Head]:
        """Return HEADs of the live tasks of a context."""

    @abstractmethod
    async def _load_context_item(self, context_id: str) -> tuple[str, int] | None:
        """Return JSON and version of a context's state."""

    @abstractmethod
    async def _put_push(self, config: TaskPushNotificationConfig) -> Push:
        """Do `put_push` for a checked and complete configuration that the storage may keep."""

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
        step = open_task(new, now_ms=now_ms, timing=self.timing, trace=tracing.header())
        body = body_of(step)
        step = _sized(step, len(body))
        taker = await self._insert(step, body, _pushed(step))
        if taker is not None:
            return Opened(head=taker, created=False)
        log = Log(head=step.head, records=(Record.of(step),))
        return Opened(head=step.head, created=True, log=log)

    async def commit(self, head: Head, commit: Commit) -> Head:
        now_ms = self.clock.now_ms()
        step = advance(head, commit, now_ms=now_ms, timing=self.timing, trace=tracing.header())
        body, push = body_of(step), _pushed(step)
        if head.has_expired(self.clock.now_ms()):
            raise TaskNotFoundError
        step = _sized(step, len(body))
        await self._apply(head, step, body, push)
        if step.head.is_terminal and not head.is_terminal:
            # Every end of a task passes here, in the process that commits it.
            metrics.count("TasksEnded", state=plain_state(step.head.state))
            metrics.time("TimeToEnd", self.clock.now_ms() - head.created_at)
        return step.head

    # -- push configurations -----------------------------------------------------------------

    @abstractmethod
    async def pushes(self, task_id: str) -> list[Push]:
        """Return the configurations of the task as it is now, by id; none if there is no task.

        A damaged configuration is left out, and a line of the log names it.
        """

    @abstractmethod
    async def move_push(self, before: Push, after: Push) -> bool:
        """Store the cursor and the failures of `after` if the stored ones are still `before`'s.

        False when the configuration is gone or was moved by another caller. The configuration
        itself is not written. A move that was stored although its answer was lost counts as done.
        """

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

    async def push(self, task_id: str, config_id: str) -> Push | None:
        """Return one configuration of the task as it is now.

        Raises:
            UnreadablePushError: it is damaged.
        """
        pushes = await self.pushes(task_id)
        return next((push for push in pushes if push.config.id == config_id), None)

    @abstractmethod
    async def delete_push(self, task_id: str, config_id: str) -> None:
        """Forget a configuration, also a damaged one. Idempotent.

        A request to the webhook that has begun may still end. A configuration can also be deleted
        from a task that only a newer release may write, because neither HEAD nor the log changes:
        so the client can always stop its webhook.
        """

    # -- contexts ----------------------------------------------------------------------------

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
    if len(encoded) > MAX_CONTEXT_BYTES:
        raise StateTooLargeError(len(encoded), MAX_CONTEXT_BYTES)
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
