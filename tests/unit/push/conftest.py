"""A world of push, a receiver of its notifications, and what signs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from a2a_serverless.storage.keys import KeyStore
from tests.support.clocks import ManualClock
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


class SecretsManager:
    """A client of Secrets Manager, whose reads are counted, and can be made to fail."""

    def __init__(self) -> None:
        self.versions: dict[str, list[dict[str, Any]]] = {}
        self.reads = 0
        self.fails = False

    def put(self, secret: str, **content: Any) -> None:
        """Rotate a secret, or create it."""
        self.versions.setdefault(secret, []).insert(0, content)

    def get_secret_value(self, *, SecretId: str, VersionStage: str) -> dict[str, Any]:  # noqa: N803 - as boto3 has it
        self.reads += 1
        place = ("AWSCURRENT", "AWSPREVIOUS").index(VersionStage)
        found = self.versions.get(SecretId, [])
        if self.fails or place >= len(found):
            code = "AccessDeniedException" if self.fails else "ResourceNotFoundException"
            raise ClientError({"Error": {"Code": code}}, "GetSecretValue")
        return found[place]


@pytest.fixture
def manager() -> SecretsManager:
    return SecretsManager()


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
