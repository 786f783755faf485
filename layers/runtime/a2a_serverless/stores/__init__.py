"""Stores for the A2A SDK's own server: tasks, their events and webhooks in DynamoDB.

They take the place of the SDK's SQL stores, whose behaviour they have. Each can be used alone, on
the table of `create_table`, on the runtime's own, or on a file or dictionaries for tests. All of
them use one table: its items are the stores' own, and no part of the runtime reads them.
"""

from a2a_serverless.stores.events import DynamoDBTaskEventStream
from a2a_serverless.stores.layout import create_table, file_table, memory_table
from a2a_serverless.stores.push_configs import DynamoDBPushNotificationConfigStore
from a2a_serverless.stores.tasks import DynamoDBTaskStore

__all__ = [
    "DynamoDBPushNotificationConfigStore",
    "DynamoDBTaskEventStream",
    "DynamoDBTaskStore",
    "create_table",
    "file_table",
    "memory_table",
]
