"""What a refused Query of an index says."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import created_in, find_tasks
from a2a_serverless.storage.table import RefusedError
from tests.support.clocks import ManualClock
from tests.support.databases import dynamo_storage


class Refusing:
    """A client that refuses every Query with one ValidationException."""

    def __init__(self, message: str) -> None:
        self._message = message

    def query(self, **_: Any) -> None:
        raise ClientError(
            {"Error": {"Code": "ValidationException", "Message": self._message}}, "Query"
        )


def storage(message: str) -> DurableStorage:
    return dynamo_storage("tasks", client=Refusing(message), clock=ManualClock())


@pytest.mark.parametrize(
    "message",
    [
        "The table does not have the specified index: by-id",
        "Cannot read from backfilling global secondary index: by-id",
    ],
)
async def test_a_search_without_the_index_says_what_to_deploy(message: str) -> None:
    """The table has no index by id, or it is not filled yet: one sentence with the way out."""
    for search in (find_tasks(storage(message), "task"), created_in(storage(message), 0)):
        with pytest.raises(
            ConfigurationError, match=r"^The table has no index by-id yet: [^.]*\.$"
        ):
            await search


async def test_a_search_that_is_refused_for_another_reason_says_that_reason() -> None:
    """If DynamoDB refuses a search for another reason, the error quotes it."""
    message = "Query condition missed key schema element: id_key"
    with pytest.raises(RefusedError, match=message):
        await find_tasks(storage(message), "task")
