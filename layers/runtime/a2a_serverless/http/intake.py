"""What a caller begins: a message opens a task or its next turn, and is waited for; a cancel."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import field
from typing import Any, Final, Literal

from a2a.types import SendMessageRequest, TaskPushNotificationConfig

from a2a_serverless import faults
from a2a_serverless.errors import (
    BeingDeletedError,
    ConcurrencyError,
    ContextMismatchError,
    IdempotencyConflictError,
    RepeatedKeyError,
    SleepersFullError,
    TaskNotAcceptingMessagesError,
    TaskNotCancelableError,
    TaskNotFoundError,
    TaskTerminalStateError,
)
from a2a_serverless.http.context import CallContext
from a2a_serverless.http.errors import log_refusal
from a2a_serverless.observability import metrics, spans
from a2a_serverless.propagated import PropagatedVariables
from a2a_serverless.queues.fifo import FifoQueue, Reservation, send_operation
from a2a_serverless.storage.allowance import Sleepers
from a2a_serverless.storage.changes import Change
from a2a_serverless.storage.deletion import delete_behind_barrier
from a2a_serverless.storage.durable import CreateResult, DeletionBarriers, DurableStorage
from a2a_serverless.storage.endings import cancel_task
from a2a_serverless.storage.leases import Lease, Leases
from a2a_serverless.storage.tail import Tail, TailEvent
from a2a_serverless.tasks.attempts import repeated_turn
from a2a_serverless.tasks.entries import Caller, TurnOpened
from a2a_serverless.tasks.fold import Cursor, incarnation_tag
from a2a_serverless.tasks.head import INTERRUPTED, Head, Operation, OperationParams
from a2a_serverless.tasks.identity import (
    PRINCIPAL_CHARS,
    Dialect,
    Scope,
    digest,
    first_task_id,
    keyed_context_id,
    new_id,
)
from a2a_serverless.tasks.rules import AS_NEW, Commit, content_digest, key_digest, message_digest
from a2a_serverless.values import dataclass
from a2a_serverless.wiring import Backends

REBASES = 8
"""Tries to append a message to a task that others write at the same time."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """A message's turn, the Task as of its acceptance, and a tail that goes on from there.

    For a repeated message, Task and tail are those of the newest commit instead.
    """

    turn: int
    opening: TailEvent
    tail: Tail
    is_repeated: bool = False
    """True if the message was accepted before."""

    def is_answered(self, head: Head) -> bool:
        """Return True if a blocking send returns at `head`: end or interruption (section 3.2.2)."""
        waits_for_client = head.state in INTERRUPTED and head.turn.number == self.turn
        # A turn that was accepted while an attempt held the task inherits that attempt's state.
        return head.is_over(self.turn) or (waits_for_client and head.turn.token is not None)

    def is_over(self, head: Head) -> bool:
        """Return True if the agent's work on the turn has ended."""
        return head.is_over(self.turn)


class Intake:
    """Accepts messages. Once a message is committed, a failure to send its operation is no error.

    If a turn was not sent, the sweeper finds it in the due index, and a client that repeats its
    message sends it again.
    """

    def __init__(
        self,
        backends: Backends,
        propagated: PropagatedVariables | None,
        *,
        most_asleep: int = 0,
    ) -> None:
        self._backends = backends
        self._propagated = propagated
        self._most_asleep = most_asleep
        self._sleepers = Sleepers(backends.storage, most_asleep)
        self._barriers = DeletionBarriers(backends.storage.table, backends.storage.clock)

    async def accept(
        self, request: SendMessageRequest, context: CallContext, length: int | None = None
    ) -> SendResult:
        """Commit `request`, which is not mutated, and send its turn to the workers.

        The opening Task has its last `length` messages (section 3.2.4); None: all.

        Its push configuration is stored with it. A repeated message stores none: that of the first
        message stays in force.

        Raises:
            TaskNotFoundError: the message names a task that does not exist.
            ContextMismatchError: it names another context than its task (section 3.4.3).
            TaskTerminalStateError, TaskNotAcceptingMessagesError: the task takes no message.
            IdempotencyConflictError: the caller's key belongs to another message.
            NewerReleaseError: only a newer release can change the task, or can tell whether the
                message is the one that its key belongs to.
            InvalidArgumentError: the push configuration does not fit, or there is no room for it.
            BeingDeletedError: all that the caller has, or the context, is being deleted.
            SleepersFullError: as many turns of the caller sleep as may.
        """
        storage = self._backends.storage.for_scope(context.scope)
        take = self._follow_up if request.message.task_id else self._open
        accepted = await take(storage, request, context, length)
        head = accepted.tail.head
        ids = {"a2a.task.id": head.task_id, "a2a.context.id": head.context_id}
        spans.current().set({**ids, "a2a.turn": accepted.turn})
        return accepted

    async def _open(
        self,
        storage: DurableStorage,
        request: SendMessageRequest,
        context: CallContext,
        length: int | None,
    ) -> SendResult:
        context.check_may_open()
        message, key = request.message, context.idempotency_key
        chosen = context.chosen_id
        # From the key, if there is one: a repeated message has the same ids, and meets the task
        # that the first has made.
        derived = keyed_context_id(storage.scope, key) if key else new_id()
        context_id = message.context_id or derived
        first = first_task_id(storage.scope, derived) if context_id == derived else None
        opened = await self.create(
            storage,
            request,
            context_id,
            caller=context.caller(self._propagated),
            task_id=chosen or first,
            idempotency_key=_creation_key(request, context),
            dialect=context.dialect,
        )
        head, turn = opened.head, 1
        if opened.created and opened.log is not None:
            tail = Tail(storage, head, opened.log.fold(), [])
            return SendResult(turn=turn, opening=tail.snapshot(length), tail=tail)
        if chosen is None:
            return await self._rejoin(storage, head, turn, request, context, length)
        if _repeats_outcome(head, request):
            return await self._rejoin(storage, head, head.turn.number, request, context, length)
        try:
            return await self._follow_up(storage, _addressed(request, chosen), context, length)
        except (TaskTerminalStateError, TaskNotAcceptingMessagesError) as error:
            # Some of the dialects in which clients name their tasks have no message without an id.
            advice = str(error).replace(AS_NEW, "under another id")
            raise type(error)(advice) from error

    async def create(
        self,
        storage: DurableStorage,
        request: SendMessageRequest,
        context_id: str,
        *,
        caller: Caller,
        task_id: str | None = None,
        idempotency_key: str | None = None,
        ttl_s: float | None = None,
        dialect: Dialect = "1.0",
    ) -> CreateResult:
        """Create a task with its first turn, and send the turn to the workers.

        A task that was found under a repeated key or id is returned as it is.

        Raises:
            BeingDeletedError: all that the caller has, or the context, is being deleted.
            SleepersFullError: as many turns of the caller sleep as may.
            InvalidArgumentError, ConversationFullError: as `DurableStorage.open_task`.
        """
        scope = storage.scope.digest
        # First, so that what is refused is not stored; the look after the write decides.
        await self._barriers.check(scope, context_id, storage.clock.now_ms())
        if (
            scope[:PRINCIPAL_CHARS] in self._barriers.sleepers
            and not await self._sleepers.admits(storage.scope.principal)
            # A message that has made its task is answered, also now.
            and (task_id is None or await storage.head(task_id) is None)
        ):
            raise SleepersFullError(self._most_asleep)
        message, push = _without_push(request)
        with closing(_Sending(self._backends, is_new_task=True)) as sending:
            opened = await storage.joined_by(sending.changes).open_task(
                context_id,
                message,
                caller=caller,
                task_id=task_id,
                idempotency_key=idempotency_key,
                ttl_s=ttl_s,
                push=push,
                push_dialect=dialect,
            )
            head = opened.head
            try:  # again: what a deletion does not see is stored after its barrier
                await self._barriers.check(scope, head.context_id, head.created_at)
            except BeingDeletedError:
                await delete_behind_barrier(storage, head)
                raise
            if opened.created:
                await sending.accepted(head)
        return opened

    async def _follow_up(
        self,
        storage: DurableStorage,
        request: SendMessageRequest,
        context: CallContext,
        length: int | None,
    ) -> SendResult:
        message, key = request.message, _header_key(context.idempotency_key)
        stored, push = _without_push(request)
        turn_opened = TurnOpened(stored, context.caller(self._propagated))
        for _ in range(REBASES):
            head = await storage.head(message.task_id)
            if head is None:
                raise TaskNotFoundError
            if message.context_id not in ("", head.context_id):
                raise ContextMismatchError
            turn = _repeated_turn(head, request, key)
            if turn is not None:
                return await self._rejoin(storage, head, turn, request, context, length)
            # This process may open no tasks, and have read long ago of whom many turns sleep.
            await self._barriers.until(head.scope, head.context_id)
            if head.scope[:PRINCIPAL_CHARS] in self._barriers.sleepers and (
                not await self._sleepers.admits(storage.scope.principal)
            ):
                raise SleepersFullError(self._most_asleep)
            commit = Commit(
                entries=(turn_opened,),
                idempotency_key=key,
                push=push,
                push_dialect=context.dialect,
            )
            with closing(_Sending(self._backends)) as sending:
                try:
                    head = await storage.joined_by(sending.changes).commit(head, commit)
                except ConcurrencyError:
                    continue
                except RepeatedKeyError as repeated:
                    return await self._rejoin(
                        storage, head, repeated.turn, request, context, length
                    )
                await sending.accepted(head)
            accepted_at = Cursor(head.version, 0, incarnation_tag(head.incarnation))
            tail, opening = await Tail.resume(storage, head.task_id, accepted_at, length)
            return SendResult(turn=head.version, opening=opening, tail=tail)
        raise ConcurrencyError

    async def _rejoin(
        self,
        storage: DurableStorage,
        head: Head,
        turn: int,
        request: SendMessageRequest,
        context: CallContext,
        length: int | None,
    ) -> SendResult:
        """Return the turn that an earlier copy of the message has opened."""
        has_key = context.idempotency_key is not None
        tail = await Tail.open(storage, head.task_id, is_whole=has_key)
        if has_key:
            first, _ = tail.fold.opening(turn)
            if content_digest(first.message) != content_digest(request.message):
                raise IdempotencyConflictError
        again = repeated_turn(tail.head, turn)
        # The first may not have been sent. If it was, SQS drops this one by its deduplication id,
        # or a worker by HEAD.
        if again is not None:
            await _sent(self._backends.operations, "turn", Operation.to_run(again), tail.head)
        return SendResult(turn=turn, opening=tail.snapshot(length), tail=tail, is_repeated=True)


@dataclass(slots=True, eq=False)
class _Sending:
    """Sends the operation of a turn that a commit opens.

    Where a worker of this process has a free place, the commit itself sends the operation, and
    receives it for that place; `accepted` begins it there. Elsewhere `accepted` sends it.
    """

    backends: Backends
    is_new_task: bool = False
    _operation: Operation = field(init=False)
    _reservation: Reservation | None = field(default=None, init=False)

    def close(self) -> None:
        """Release the place, if nothing has begun there."""
        if self._reservation is not None:
            self._reservation.release()

    async def changes(self, head: Head) -> list[Change[Any]]:
        """Return what is stored of the operation with the commit that makes `head`."""
        params = OperationParams.of(head, head.version)
        self._operation = Operation.to_run(params, is_new_task=self.is_new_task)
        queue = self.backends.operations
        self._reservation = self._reservation or queue.reserve(self.backends.storage.table)
        if self._reservation is None:
            return []
        with spans.messaging("send", queue.name, queue.system):
            sent = self._operation.within(spans.trace_context())
            return [await self._reservation.sending(sent, is_first=self.is_new_task)]

    async def accepted(self, head: Head) -> None:
        """Count the turn that the commit has opened, and give its operation to a worker."""
        metrics.count("TurnsAccepted")
        # After the commit: if this process dies here, the sweeper finds the turn in the due index.
        # The other way round, a worker could get a turn that does not exist yet.
        faults.point("after-create")
        queue = self.backends.operations
        if await _sent(queue, "turn", self._operation, head, self._reservation):
            faults.point("after-send")


async def _sent(
    queue: FifoQueue[Operation],
    kind: Literal["turn", "cancel"],
    operation: Operation,
    head: Head,
    reservation: Reservation | None = None,
) -> bool:
    """Send an operation on a turn of a task; return False if it could not be sent.

    If a commit has sent it with a reservation, that is delivered instead.

    Log it as `send_turn` or `send_cancel`, or as `send_turn_failed` or `send_cancel_failed`. The
    request does not fail with it, because its commit stands: the due index has the turn, and the
    task of a cancel is due at its deadline.
    """
    action = f"send_{kind}"
    ids = {"task_id": head.task_id, "context_id": head.context_id, "turn": operation.params.turn}
    try:
        if reservation is None or not reservation.deliver():
            await send_operation(queue, operation)
    except Exception:
        metrics.count("SendFailures")
        logger.exception("%s not sent", kind, extra={"action": f"{action}_failed", **ids})
        return False
    logger.info("%s sent", kind, extra={"action": action, **ids})
    return True


def _without_push(
    request: SendMessageRequest,
) -> tuple[SendMessageRequest, TaskPushNotificationConfig | None]:
    """Return a copy for log and agent, and the push configuration, whose secrets it must not have.

    The configuration is for the message's task; None: there is none.
    """
    copy, push = deepcopy(request), None
    if request.configuration.HasField("task_push_notification_config"):
        push = request.configuration.task_push_notification_config
        copy.configuration.ClearField("task_push_notification_config")
    return copy, push


def _creation_key(request: SendMessageRequest, context: CallContext) -> str | None:
    """Return the key of a creation: the caller's, or the message's in a context that it names.

    Some clients use one messageId for many messages, so the message's key includes its content.
    Where the client has chosen the task's id, it is `context.creation_key`.
    """
    message = request.message
    if context.idempotency_key is not None:
        return _header_key(context.idempotency_key)
    if context.chosen_id is not None:
        return context.creation_key
    if message.context_id:
        return digest("message-key", message.message_id, content_digest(message))
    return None


def _header_key(key: str | None) -> str | None:
    """Return a digest of the caller's key, which never equals that of a messageId."""
    return None if key is None else digest("header-key", key)


def _addressed(request: SendMessageRequest, task_id: str) -> SendMessageRequest:
    copy = deepcopy(request)
    copy.message.task_id = task_id
    return copy


def _repeats_outcome(head: Head, request: SendMessageRequest) -> bool:
    """Return True if a message to a task with a client's own id only asks for its outcome again.

    That is a copy of the last message of a task that has ended, or of the first message of a task
    that waits. A later message with the same content is a new answer, such as a second "yes".
    """
    is_same = content_digest(request.message) == head.content_digest
    return is_same and not head.turn.is_open and (head.is_terminal or head.turn.number == 1)


def _repeated_turn(head: Head, request: SendMessageRequest, key: str | None) -> int | None:
    """Return the turn that a copy of this follow-up has opened, as far as HEAD tells; else None.

    With a key the key alone tells: that of an earlier follow-up is found by the commit. Some
    clients use one messageId for many messages: without a key, a copy must also have the same
    content.
    """
    if key is not None:
        return 1 if key_digest(key) == head.key_digest else None
    is_same = (
        message_digest(request.message) == head.message_digest
        and content_digest(request.message) == head.content_digest
    )
    return (head.next_turn or head.turn.number) if head.turn.is_open and is_same else None


# -- waits -----------------------------------------------------------------------------------

_LEASED_AFTER_S: Final = 1.0
"""Seconds that an answer in one piece waits before it takes a lease."""
_GRACE_S: Final = 15.0
"""Seconds of a lease beyond its wait's deadline, in which the answer ends and gives it back."""


@dataclass(slots=True)
class Wait:
    """The wait of one answer: one of those that its caller, and all callers, may have at a time."""

    _leases: Leases | None
    """None: waits are not counted."""
    _caller: str
    """The client's identity; empty where callers are not known."""
    is_refused: bool = False
    """True since a lease was asked for and there was none: the answer goes out as it is."""
    _lease: Lease | None = None

    async def begin(self, for_s: float) -> bool:
        """Take a lease for `for_s` seconds and some grace; False if there is none."""
        if self._leases is None:
            return True
        self._lease = await self._leases.take(self._caller, for_s=for_s + _GRACE_S)
        if self._lease is None:
            log_refusal("TooManyStreams")
            self.is_refused = True
        return not self.is_refused

    async def end(self) -> None:
        """Give the lease back, even if the client has left and the answer is cancelled."""
        if self._leases is not None and self._lease is not None:
            await asyncio.shield(asyncio.ensure_future(self._leases.give_back(self._lease)))
            self._lease = None

    async def settle(self, tail: Tail, *, until: Callable[[Head], bool], deadline: float) -> bool:
        """Follow the tail until HEAD satisfies `until`; False at the deadline, or if refused.

        Take a lease if that takes longer than a second: most answers need none.
        """
        events = tail.events(
            until=until,
            deadline=deadline,
            may_wait=self.begin,
            free_s=_LEASED_AFTER_S,
        )
        try:
            async for _ in events:
                pass
            return until(tail.head)
        finally:
            if self._lease is not None:
                await self.end()


# -- cancels ---------------------------------------------------------------------------------

_MANY = 2**31


async def cancel(
    backends: Backends,
    scope: Scope,
    task_id: str,
    *,
    wait: Wait,
    timeout_s: float,
    by: str = "",
) -> Tail:
    """Cancel a task and return a tail that stands at its end (A2A 1.0.1, section 3.1.5).

    Where `wait` is refused, the tail stands before the end.

    The agent has `timeout_s` seconds to end the task. After that the task is canceled without it,
    and what the agent still writes is refused. A task that has come to another end stays as it is.
    A repeated cancel joins the one that is under way. `by` is the user who asks.

    Raises:
        TaskNotFoundError: there is no such task.
        TaskNotCancelableError: the task has ended, also if it was canceled: 3.1.5 and the
            conformance kit name every terminal state. The cancel is still "idempotent", as 3.3.1
            demands, because nothing changes.
    """
    storage = backends.storage.for_scope(scope)
    try:
        # The mark comes before the message: with it the task ends at its deadline, whatever is
        # lost.
        head = await storage.request_cancel(task_id, by=by)
    except TaskTerminalStateError as error:
        raise TaskNotCancelableError(f"{error} It cannot be canceled.") from error
    faults.point("after-cancel-request")
    # A number of its own: the queue must not drop this operation as a repetition of an earlier
    # one, which a worker may have dropped meanwhile.
    params = OperationParams.of(head, head.turn.number, secrets.randbelow(_MANY))
    await _sent(backends.operations, "cancel", Operation.to_cancel(params), head)
    faults.point("after-cancel-send")
    tail = await Tail.open(storage, task_id)
    if tail.head.incarnation != head.incarnation:
        raise TaskNotFoundError  # deleted meanwhile, and made again: that one was not canceled
    deadline = storage.clock.monotonic() + timeout_s
    has_ended = await wait.settle(tail, until=lambda head: head.is_terminal, deadline=deadline)
    if not has_ended and not wait.is_refused:
        await _end(storage, tail)
    return tail


async def _end(storage: DurableStorage, tail: Tail) -> None:
    """Cancel the task without its agent, and bring the tail to its end."""
    seen = tail.head
    if await cancel_task(storage, seen):
        metrics.count("ForcedCancels")
        ids = {"task_id": seen.task_id, "context_id": seen.context_id, "turn": seen.turn.number}
        extra = {"action": "cancel_forced", "attempts": seen.turn.attempts, **ids}
        logger.warning("canceled without the agent", extra=extra)
    await tail.poll()
