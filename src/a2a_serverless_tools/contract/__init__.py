"""The contracts of a2akit over the engine, on the types of the official SDK; the engine uses none.

`Storage` has tasks, `Broker` delivers operations at least once and one at a time for each task, and
`CancelRegistry` has requests to cancel.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary, WeakSet

from a2a.types import (
    Artifact,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    Task,
    TaskState,
    TaskStatus,
)
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.errors import ConcurrencyError, InvalidArgumentError, TaskNotFoundError
from a2a_serverless.queues.fifo import FifoQueue, Handle
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.deletion import (
    ITEMS_A_STEP,
    TASKS_A_COUNT,
    Amounts,
    count_data,
    delete_context,
    delete_data,
    delete_task,
)
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Entry,
    MessageAppended,
    MetadataMerged,
    StatusChanged,
)
from a2a_serverless.tasks.head import KNOWN, Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope, TaskKey, check_context_id
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.lease import POLL_S, HeadPoller

_BLIND_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class ArtifactWrite:
    """One artifact of a write.

    `append` extends the parts of the artifact with the same id and merges its metadata, or creates
    it; without it the artifact is replaced in place. `last_chunk` ends the artifact: text that was
    appended is one part from then on.
    """

    artifact: Artifact
    append: bool = False
    last_chunk: bool = False


class Storage:
    """The authoritative store of tasks, seen through one scope.

    Every read is consistent with the writes before it, and every object returned is the caller's
    own copy. Tasks outside of the scope are not found.
    """

    BLIND_ATTEMPTS: ClassVar[int] = 16
    """How often a write without `expected_version` is repeated after a lost race."""

    def __init__(self, storage: DurableStorage) -> None:
        self._storage = storage

    def for_scope(self, scope: Scope) -> Self:
        """Return the same store as another owner sees it; cheap."""
        return type(self)(self._storage.for_scope(scope))

    async def create_task(
        self, context_id: str, message: Message, *, idempotency_key: str | None = None
    ) -> Task:
        """Create a task, submitted, at version 1, with `message` as its history.

        With a key the creation is atomic per (context, key): a repetition returns the first task.
        `message` is not mutated.

        Raises:
            InvalidArgumentError: an empty or oversized id or key.
        """
        request = SendMessageRequest(message=message)
        opened = await self._storage.open_task(context_id, request, idempotency_key=idempotency_key)
        log = opened.log or await self._storage.read(opened.head.task_id)
        if log is None:
            raise TaskNotFoundError
        task = log.fold().task()
        await self._storage.show(task)
        return task

    async def load_task(
        self, task_id: str, history_length: int | None = None, *, include_artifacts: bool = True
    ) -> Task | None:
        """Return the task, None when it does not exist; as `DurableStorage.load_task`."""
        return await self._storage.load_task(
            task_id, history_length, include_artifacts=include_artifacts
        )

    async def update_task(
        self,
        task_id: str,
        state: TaskState | None = None,
        *,
        status_message: Message | None = None,
        artifacts: Sequence[ArtifactWrite] | None = None,
        messages: Sequence[Message] | None = None,
        task_metadata: dict[str, Any] | Struct | None = None,
        expected_version: int | None = None,
    ) -> int:
        """Write state, artifacts, messages and metadata as one commit; return the new version.

        `state=None` keeps the state and ignores `status_message`. Metadata is merged, shallowly.
        Without `expected_version` a lost race is repeated a bounded number of times.

        Raises (checked in this order):
            TaskNotFoundError: there is no such task.
            ConcurrencyError: the stored version is not the expected one.
            TaskTerminalStateError: a transition of a task that has ended.
            CommitTooLargeError: more than 4 MB at once; nothing was written.
        """
        commit = Commit(
            entries=_entries(state, status_message, artifacts, messages, task_metadata),
            ends_turn=state == TaskState.TASK_STATE_AUTH_REQUIRED,
        )
        clock = self._storage.clock
        for attempt in range(1, self.BLIND_ATTEMPTS + 1):
            head = await self._storage.head(task_id)
            if head is None:
                raise TaskNotFoundError
            if expected_version not in (None, head.version):
                raise ConcurrencyError(current_version=head.version)
            try:
                return (await self._storage.commit(head, commit)).version
            except ConcurrencyError as lost:
                # A request to cancel moves no version: the write is tried again, aware of it.
                is_expected = expected_version in (None, lost.current_version)
                if not is_expected or attempt == self.BLIND_ATTEMPTS:
                    raise
            await clock.sleep(random.uniform(0, _BLIND_PAUSE_S * attempt))  # noqa: S311 - spreads writers
        raise AssertionError  # the loop returns or raises

    async def list_tasks(self, query: ListTasksQuery) -> ListTasksResponse:
        """Return one page of the scope's tasks, full where more follow, and their exact number.

        So it looks at an index entry for each of them; the runtime's own lists do not.
        """
        return await list_tasks(self._storage, query, most=None)

    async def delete_task(self, task_id: str) -> bool:
        """Delete a task and all that belongs to it; return True if it existed."""
        return await delete_task(self._storage, task_id)

    async def delete_context(self, context_id: str) -> int:
        """Delete a context's tasks and its stored state; return the number of tasks deleted."""
        return await delete_context(self._storage, context_id)

    async def delete_data(
        self, context_id: str | None = None, *, limit: int = ITEMS_A_STEP
    ) -> Amounts:
        """Delete some of the scope's data, or of a context's; as `DurableStorage.delete_data`."""
        return await delete_data(self._storage, context_id, limit=limit)

    async def count_data(
        self, context_id: str | None = None, *, limit: int = TASKS_A_COUNT, after: str = ""
    ) -> Amounts:
        """Count what `delete_data` would delete, in steps; as `DurableStorage.count_data`."""
        return await count_data(self._storage, context_id, limit=limit, after=after)

    async def get_version(self, task_id: str) -> int | None:
        """Return the version of a task, None when it does not exist."""
        head = await self._storage.head(task_id)
        return None if head is None else head.version

    async def load_context(self, context_id: str) -> Any | None:
        """Return the state stored for a context, None when there is none."""
        value, _ = await self._storage.contexts.load(context_id)
        return value

    async def update_context(self, context_id: str, context: Any) -> None:
        """Store a context's state, any JSON value; the last writer wins."""
        await self._storage.contexts.put(check_context_id(context_id), context_write(context))


def _entries(
    state: TaskState | None,
    status_message: Message | None,
    artifacts: Sequence[ArtifactWrite] | None,
    messages: Sequence[Message] | None,
    task_metadata: dict[str, Any] | Struct | None,
) -> tuple[Entry, ...]:
    entries: list[Entry] = [MessageAppended(message) for message in messages or ()]
    for write in artifacts or ():
        if not write.artifact.artifact_id:
            raise InvalidArgumentError("An artifact must have an artifactId.")
        entries.append(ArtifactWritten(write.artifact, write.append, write.last_chunk))
    if task_metadata is not None:
        entries.append(MetadataMerged(_struct(task_metadata)))
    if state is not None:
        if state not in KNOWN:
            raise InvalidArgumentError(f"{state!r} is not a state of a task.")
        entries.append(StatusChanged(TaskStatus(state=state, message=status_message)))
    return tuple(entries)


def _struct(metadata: dict[str, Any] | Struct) -> Struct:
    if isinstance(metadata, Struct):
        return metadata
    struct = Struct()
    struct.update(metadata)
    return struct


class OperationHandle:
    """One delivery of an operation: acknowledge it, or give it back."""

    def __init__(self, delivery: Handle[Operation]) -> None:
        self._delivery = delivery

    @property
    def operation(self) -> Operation:
        """Return the delivered operation."""
        return self._delivery.message

    @property
    def attempt(self) -> int:
        """Return the deliveries of the operation so far, as `Handle.attempt`."""
        return self._delivery.attempt

    async def ack(self) -> None:
        """Remove the operation for good, as `Handle.ack`."""
        await self._delivery.ack()

    async def nack(self, *, delay_seconds: float = 0) -> None:
        """Give the operation back for a later delivery, as `Handle.nack`."""
        await self._delivery.nack(delay_s=delay_seconds)

    async def extend(self, seconds: float) -> None:
        """Keep the operation from others for `seconds` from now, as `Handle.extend`."""
        await self._delivery.extend(seconds)


class Broker:
    """A queue of operations with one group per task.

    At most one operation of a task is processed at a time: another delivery of the task follows
    when it was acknowledged or given back, or when its visibility ran out.

    Args:
        queue: takes the operations, in memory or on SQS.
    """

    def __init__(self, queue: FifoQueue[Operation]) -> None:
        self.queue = queue

    async def check(self) -> None:
        """Check that the queues exist, as `FifoQueue.check`."""
        await self.queue.check()

    async def run_task(
        self,
        params: OperationParams,
        *,
        is_new_task: bool = False,
        request_context: Mapping[str, str] | None = None,
    ) -> None:
        """Enqueue the run of a turn; a repetition of the same send is dropped.

        Raises:
            UnavailableError: the queue did not take it; the sweeper will send the turn again.
            ConfigurationError: there is no such queue, or it refuses this process.
        """
        await self.queue.send(
            Operation.to_run(params, is_new_task=is_new_task, request_context=request_context)
        )

    async def cancel_task(
        self, params: OperationParams, *, request_context: Mapping[str, str] | None = None
    ) -> None:
        """Enqueue the cancel of a task, behind its operations; raise what `run_task` raises."""
        await self.queue.send(Operation.to_cancel(params, request_context=request_context))

    async def keep_undecodable(self, body: str, *, reason: str) -> bool:
        """Copy a message that cannot be read, as `FifoQueue.keep_undecodable`."""
        return await self.queue.keep_undecodable(body, reason=reason)

    async def shutdown(self) -> None:
        """Stop receiving: `receive_task_operations` ends instead of returning another operation."""
        await self.queue.shutdown()

    async def receive_task_operations(self) -> AsyncIterator[OperationHandle]:
        """Return operations as they come, one at a time, until `shutdown`."""
        async with aclosing(self.queue.deliveries()) as deliveries:
            async for delivery in deliveries:
                yield OperationHandle(delivery)

    def decode_record(self, record: Mapping[str, Any]) -> OperationHandle:
        """Return the delivery behind a record of an event, as `FifoQueue.decode_record`."""
        return OperationHandle(self.queue.decode_record(record))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.shutdown()


class CancelScope:
    """Tells one turn that its task is to be canceled.

    It watches until `release`; as an async context manager it releases itself. It belongs to the
    event loop that made it.
    """

    def __init__(self, poller: HeadPoller, key: TaskKey) -> None:
        self.key = key
        self._requested = asyncio.Event()
        self._stop = asyncio.Event()
        self._watching = asyncio.create_task(poller.over(self, self._stop), context=Context())

    async def wait(self) -> None:
        """Return when a cancel is seen."""
        await self._requested.wait()

    def is_set(self) -> bool:
        """Return True once a cancel is seen; never by mistake."""
        return self._requested.is_set()

    async def release(self) -> None:
        """Stop watching; the request stays, and nothing runs on in the background. Idempotent."""
        self._stop.set()
        await self._watching

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.release()

    async def on_head(self, head: Head | None) -> None:
        """Take HEAD of the task."""
        if head is not None and head.is_being_canceled:
            self._requested.set()


@dataclass(slots=True)
class _Shared:
    """The poller of each event loop, which keep its scopes alive; the same for all views."""

    pollers: WeakKeyDictionary[asyncio.AbstractEventLoop, HeadPoller] = field(
        default_factory=WeakKeyDictionary
    )
    scopes: WeakSet[CancelScope] = field(default_factory=WeakSet)


class CancelRegistry:
    """Requests to cancel, seen through one scope, as HEAD keeps them.

    Args:
        storage: the tasks.
        poll_s: seconds from one look at the tasks of all scopes to the next.
    """

    def __init__(
        self, storage: DurableStorage, *, poll_s: float = POLL_S, _shared: _Shared | None = None
    ) -> None:
        self._storage = storage
        self._poll_s = poll_s
        self._shared = _shared or _Shared()

    def for_scope(self, scope: Scope) -> Self:
        """Return the same registry as another owner sees it; cheap."""
        storage = self._storage.for_scope(scope)
        return type(self)(storage, poll_s=self._poll_s, _shared=self._shared)

    async def request_cancel(self, task_id: str) -> None:
        """Request a cancel, as `DurableStorage.request_cancel`."""
        await self._storage.request_cancel(task_id)

    async def is_cancelled(self, task_id: str) -> bool:
        """Return True from the request until the task ends or is deleted."""
        head = await self._storage.head(task_id)
        return head is not None and head.is_being_canceled

    def on_cancel(self, task_id: str) -> CancelScope:
        """Return a scope that is set once a request is seen, also if it was made before.

        A failure of the backend does not set it: then the cancel's deadline ends the task.
        """
        scope = CancelScope(self._poller(), self._key(task_id))
        self._shared.scopes.add(scope)
        return scope

    async def cleanup(self, task_id: str) -> None:
        """Release the scopes of the task. Nothing is written: HEAD's mark ends with the task."""
        for scope in tuple(self._shared.scopes):
            if scope.key == self._key(task_id):
                await scope.release()

    def _poller(self) -> HeadPoller:
        loop = asyncio.get_running_loop()
        poller = HeadPoller(self._storage, self._storage.clock, interval_s=self._poll_s)
        return self._shared.pollers.setdefault(loop, poller)

    def _key(self, task_id: str) -> TaskKey:
        return (self._storage.scope.digest, task_id)
