"""What push needs of a backend: configurations beside their task, with their cursors."""

from __future__ import annotations

from abc import ABC, abstractmethod

from a2a.types import TaskPushNotificationConfig

from a2a_serverless.tasks.push import Push


class PushConfigs(ABC):
    """The push configurations of tasks, seen through one scope.

    They go with their task: whatever deletes or expires it, deletes or expires them. A
    configuration of an earlier incarnation is not found. Reads are consistent.

    An inline configuration comes with the commit that opens its turn (`TaskLog.open_task`,
    `Commit.push`), so that there is no moment at which the task runs without it. Its cursor stands
    before that commit. Without an id it is the one of its URL (`tasks.push.inline_id`).
    """

    @abstractmethod
    async def put_push(self, config: TaskPushNotificationConfig) -> Push:
        """Store a configuration of the task `config.task_id`; the id is made here when it is empty.

        Its cursor stands at the task's version, so that exactly what is committed from now on is
        delivered. One with the same id is replaced and hands its cursor on.

        Raises:
            TaskNotFoundError: the task does not exist.
            InvalidArgumentError: the task has `MAX_CONFIGS` others, or a text does not fit.
            UnavailableError: others put configurations to the task all the time; try again.
        """

    @abstractmethod
    async def push(self, task_id: str, config_id: str) -> Push | None:
        """Return one configuration of the task as it is now."""

    @abstractmethod
    async def pushes(self, task_id: str) -> list[Push]:
        """Return the configurations of the task as it is now, by id; none without a task."""

    @abstractmethod
    async def delete_push(self, task_id: str, config_id: str) -> None:
        """Forget a configuration; harmless twice. A request that has begun may still end."""

    @abstractmethod
    async def move_push(self, before: Push, after: Push) -> bool:
        """Store the cursor and the failures of `after` if the stored ones are still `before`'s.

        False when the configuration is gone or was moved by another caller. The configuration
        itself is not written. A move whose first answer was lost is known as the caller's own.
        """
