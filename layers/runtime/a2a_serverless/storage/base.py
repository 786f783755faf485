"""The Storage contract of a2akit, on the types of the official SDK."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from a2a.types import Artifact, Message, Task, TaskState
from google.protobuf.struct_pb2 import Struct
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from a2a_serverless.tasks.identity import Scope


@dataclass(frozen=True, slots=True)
class ArtifactWrite:
    """One artifact of a write.

    `append` extends the parts of the artifact with the same id and merges its metadata, or creates
    it; without it the artifact is replaced in place. `last_chunk` is shown to subscribers only.
    """

    artifact: Artifact
    append: bool = False
    last_chunk: bool = False


class ListTasksQuery(BaseModel):
    """What to list; the filters AND together (A2A 1.0.1, section 3.1.4).

    `status_timestamp_after` is an ISO 8601 time and inclusive.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    context_id: str | None = None
    status: SkipValidation[TaskState | None] = None
    page_size: int = Field(default=50, ge=1, le=100, strict=True)
    page_token: str | None = None
    history_length: int | None = Field(default=None, ge=0, strict=True)
    status_timestamp_after: str | None = None
    include_artifacts: bool = False


class ListTasksResult(BaseModel):
    """One page, newest status first. `total_size` counts what matched before paging."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    tasks: list[Task] = Field(default_factory=list)
    next_page_token: str = ""
    page_size: int = 50
    total_size: int = 0


class Storage(ABC):
    """The authoritative store of tasks, seen through one scope.

    Every read is consistent with the writes before it, and every object returned is the caller's
    own copy. Nothing outside of the scope exists.
    """

    @abstractmethod
    def for_scope(self, scope: Scope) -> Self:
        """The same store seen by another owner; cheap."""

    @abstractmethod
    async def load_task(
        self, task_id: str, history_length: int | None = None, *, include_artifacts: bool = True
    ) -> Task | None:
        """The task, or None when it does not exist or has expired.

        `history_length`: None = all, 0 = none, n = the last n messages. With 0 and without
        artifacts the cost does not depend on the task's size.

        Raises:
            InvalidArgumentError: a negative or non-integer `history_length`.
        """

    @abstractmethod
    async def create_task(
        self, context_id: str, message: Message, *, idempotency_key: str | None = None
    ) -> Task:
        """Create a task, submitted, at version 1, with `message` as its history.

        With a key the creation is atomic per (context, key): a repetition returns the first task.
        `message` is not mutated.

        Raises:
            InvalidArgumentError: an empty or oversized id or key.
        """

    @abstractmethod
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

    @abstractmethod
    async def list_tasks(self, query: ListTasksQuery) -> ListTasksResult:
        """One page of the scope's tasks, newest status first, ties by task id.

        A task that changes while a client pages leaves the later pages; it is found again with
        `status_timestamp_after` = the time of the first page.

        Raises:
            PageTokenError: the token was not made here for this query.
        """

    @abstractmethod
    async def delete_task(self, task_id: str) -> bool:
        """Delete a task and all that belongs to it; True if it existed."""

    @abstractmethod
    async def delete_context(self, context_id: str) -> int:
        """Delete a context's tasks and its stored state; the number of tasks deleted.

        Versions of the state begin anew. Who had loaded it before may replace what is stored after.
        """

    @abstractmethod
    async def get_version(self, task_id: str) -> int | None:
        """The version of a task, None when it does not exist."""

    @abstractmethod
    async def load_context(self, context_id: str) -> Any | None:
        """The state stored for a context, None when there is none."""

    @abstractmethod
    async def update_context(self, context_id: str, context: Any) -> None:
        """Store a context's state, any JSON value; the last writer wins."""
