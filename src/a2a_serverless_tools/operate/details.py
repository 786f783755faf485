"""A task as it is stored, for a person who looks at it."""

from __future__ import annotations

from dataclasses import dataclass

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.push import Push


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetails:
    """HEAD, the commits up to its version, and the push configurations of a task."""

    head: Head
    records: tuple[Record, ...]
    pushes: tuple[Push, ...] = ()


async def task_details(
    storage: DurableStorage, task_id: str, known: TaskDetails | None = None
) -> TaskDetails | None:
    """Return a task; None when it does not exist or has expired.

    `known` are earlier details: if the task is still the same, only what was committed since is
    read.

    Raises:
        UnreadableTaskError: HEAD, a commit or a push configuration is damaged.
    """
    log = await storage.read(
        task_id,
        after=known.head.version if known else 0,
        incarnation=known.head.incarnation if known else None,
    )
    if log is None:
        return await task_details(storage, task_id) if known else None
    pushes = await storage.webhooks.of_task(log.head)
    records = (*(known.records if known else ()), *log.records)
    return TaskDetails(head=log.head, records=records, pushes=tuple(pushes))
