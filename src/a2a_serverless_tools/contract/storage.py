"""The Storage contract of a2akit, on the types of the official SDK."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from a2a.types import Artifact, Message, SendMessageRequest, Task, TaskState, TaskStatus
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.errors import ConcurrencyError, InvalidArgumentError, TaskNotFoundError
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.deletion import (
    ITEMS_A_STEP,
    TASKS_A_COUNT,
    Counted,
    Deleted,
    count_data,
    delete_context,
    delete_data,
    delete_task,
)
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.listing import ListTasksQuery, ListTasksResult, list_tasks
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Entry,
    MessageAppended,
    MetadataMerged,
    StatusChanged,
)
from a2a_serverless.tasks.head import KNOWN
from a2a_serverless.tasks.identity import Scope, check_context_id
from a2a_serverless.tasks.rules import Commit

_BLIND_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class ArtifactWrite:
    """One artifact of a write.

    `append` extends the parts of the artifact with the same id and merges its metadata, or creates
    it; without it the artifact is replaced in place. `last_chunk` is shown to subscribers only.
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
        return log.fold().task()

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

    async def list_tasks(self, query: ListTasksQuery) -> ListTasksResult:
        """Return one page of the scope's tasks; as `DurableStorage.list_tasks`."""
        return await list_tasks(self._storage, query)

    async def delete_task(self, task_id: str) -> bool:
        """Delete a task and all that belongs to it; return True if it existed."""
        return await delete_task(self._storage, task_id)

    async def delete_context(self, context_id: str) -> int:
        """Delete a context's tasks and its stored state; return the number of tasks deleted."""
        return await delete_context(self._storage, context_id)

    async def delete_data(
        self, context_id: str | None = None, *, limit: int = ITEMS_A_STEP
    ) -> Deleted:
        """Delete some of the scope's data, or of a context's; as `DurableStorage.delete_data`."""
        return await delete_data(self._storage, context_id, limit=limit)

    async def count_data(
        self, context_id: str | None = None, *, limit: int = TASKS_A_COUNT, after: str = ""
    ) -> Counted:
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
