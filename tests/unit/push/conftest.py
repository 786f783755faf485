"""A world of push, receivers of its notifications, and a store of keys."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from tests.unit.push.receivers import Receiver, certificate
from tests.unit.push.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that answers with 200 until a test sets its `script`."""
    with Receiver() as made:
        yield made


Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.fixture(scope="session")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """TLS of a server at `victim.example` and `other.example`, and of a client that trusts it."""
    return certificate(tmp_path_factory.mktemp("tls"), "victim.example", "other.example")


@pytest.fixture
def victim(contexts: Contexts) -> Iterator[Receiver]:
    """A receiver at public addresses, `victim.example` and `other.example`, that answers 200."""
    with Receiver(tls=contexts[0]) as made:
        yield made


@pytest.fixture
def public(contexts: Contexts) -> World:
    """A world that pushes ends, whose receivers are public: none is listed by the operator."""
    world = World(push_events="ends")
    world.reach(contexts[1])
    return world
