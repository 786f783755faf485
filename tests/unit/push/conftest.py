"""A world of push, a receiver of its notifications, and what signs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from a2a_serverless.storage.keys import KeyStore
from tests.support.clocks import ManualClock
from tests.support.emulators import CREDENTIALS, REGION
from tests.support.memory import memory_keys
from tests.unit.push.receivers import Authority, Receiver
from tests.unit.push.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that answers with 200 until a test sets its `script`."""
    with Receiver() as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> KeyStore:
    """A store of public keys, in dictionaries."""
    return memory_keys(clock)


@pytest.fixture
def manager() -> Iterator[Any]:
    """A client of Secrets Manager."""
    with mock_aws():
        yield boto3.client(
            "secretsmanager",
            region_name=REGION,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority.new()


@pytest.fixture
def victim(authority: Authority, tmp_path: Path) -> Iterator[Receiver]:
    """A receiver at public addresses, `victim.example` and `other.example`, that answers 200."""
    with Receiver(tls=authority.server(tmp_path, ["victim.example", "other.example"])) as made:
        yield made


@pytest.fixture
def public(authority: Authority) -> World:
    """A world that pushes ends, whose receivers are public: none is listed by the operator."""
    world = World(push_events="ends")
    world.reach(authority)
    return world
