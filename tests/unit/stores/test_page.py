"""The page about the stores: its program runs, and its table is the one of `create_table`."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import BasePushNotificationSender

from a2a_serverless.storage.dynamodb import definition_of
from a2a_serverless.stores import DynamoDBTaskEventStream, DynamoDBTaskStore
from a2a_serverless.stores.layout import OWN_INDEXES
from examples.stock_server.counter import Counter, card_at
from tests.support import pages
from tests.support.blocks import blocks

BLOCKS = {block.language: block.source for block in blocks(pages.path("stores"))}


def test_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes a request handler with all three stores."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    names: dict[str, Any] = {"agent": Counter(), "card": card_at("http://127.0.0.1")}
    exec(BLOCKS["python"], names)  # noqa: S102 - our own page
    handler = names["handler"]
    assert isinstance(handler, DefaultRequestHandler)
    assert isinstance(handler.task_store, DynamoDBTaskStore)
    assert isinstance(handler._event_stream, DynamoDBTaskEventStream)
    assert isinstance(handler._push_sender, BasePushNotificationSender)  # else none is sent


def test_the_table() -> None:
    """What CloudFormation makes is what `create_table` makes, with its expiry."""
    resource = yaml.safe_load(BLOCKS["yaml"])["TaskTable"]
    properties = resource["Properties"]
    assert properties["TimeToLiveSpecification"] == {"AttributeName": "expires_at", "Enabled": True}
    made = definition_of(OWN_INDEXES)
    assert {name: properties[name] for name in made} == made
