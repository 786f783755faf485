"""Webhooks of tasks, for the SDK's own sender."""

from __future__ import annotations

from a2a.server.context import ServerCallContext
from a2a.server.tasks.push_notification_config_store import (
    PushNotificationConfigStore,
    normalize_push_notification_config,
)
from a2a.types import TaskPushNotificationConfig

from a2a_serverless.storage.table import Item, Key, Put, beginning, key_of
from a2a_serverless.stores import layout
from a2a_serverless.stores.log import sdk_errors


class DynamoDBPushNotificationConfigStore(layout.OwnedStore, PushNotificationConfigStore):
    """Keeps the webhooks of tasks.

    A webhook belongs to the owner that set it: another owner's with the same id is another one.
    What is stored is encrypted as the table is; for a key of your own give the table a KMS key.

    Args:
        table: the name of a DynamoDB table, or a table.
        owner_resolver: returns the owner of a call, as for the SDK's stores.
        ttl_s: the seconds after which a webhook expires that was not set again; None: never.
        clock: by default the system's.
    """

    async def set_info(
        self,
        task_id: str,
        notification_config: TaskPushNotificationConfig,
        context: ServerCallContext,
    ) -> TaskPushNotificationConfig:
        """Store a webhook, or replace the caller's with the same id; return what is stored.

        Raises:
            InvalidParamsError: an id does not fit.
            InternalError: the table cannot be used.
        """
        config = normalize_push_notification_config(
            layout.check_id(task_id, "task"), notification_config
        )
        sort = layout.config_sort(self._owner(context), layout.check_id(config.id, "webhook"))
        item: Item = {
            **Key(layout.partition_of(task_id), sort)._asdict(),
            "config": config.SerializeToString(),
            "expires_at": self._expires_at(),
        }
        with sdk_errors():
            await self._table.write(Put(item=item))
        return config

    async def get_info(
        self, task_id: str, context: ServerCallContext
    ) -> list[TaskPushNotificationConfig]:
        """Return the caller's webhooks of a task, by their ids.

        Raises:
            InternalError: the table cannot be used.
        """
        return await self._found(task_id, self._owner(context))

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        """Return the webhooks of a task that any owner has set.

        Raises:
            InternalError: the table cannot be used.
        """
        return await self._found(task_id, "")

    async def delete_info(
        self, task_id: str, context: ServerCallContext, config_id: str | None = None
    ) -> None:
        """Delete the caller's webhook with an id, or all that it has for the task.

        Raises:
            InternalError: the table cannot be used.
        """
        owner = self._owner(context)
        with sdk_errors():
            items = await self._items(task_id, owner)
            one = layout.config_sort(owner, config_id or "")
            await self._table.delete(
                [key_of(item) for item in items if config_id is None or one == item["SK"]]
            )

    async def _found(self, task_id: str, owner: str) -> list[TaskPushNotificationConfig]:
        with sdk_errors():
            items = await self._items(task_id, owner)
            return [TaskPushNotificationConfig.FromString(item["config"]) for item in items]

    async def _items(self, task_id: str, owner: str) -> list[Item]:
        if not layout.fits(task_id):
            return []
        sort, live = layout.config_sort(owner), [layout.living(self._clock)]
        return await self._table.all(beginning(layout.partition_of(task_id), sort, when=live))
