"""What each client has sent when it was run (`make clients`) is answered here as it was there."""

from __future__ import annotations

import pytest
from a2a.types import AgentCard

from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from tests.conformance.replays import replay, settings_for
from tests.support.recorded_clients import recorded
from tests.support.scripted_worker import ScriptedWorker

RECORDED = recorded()


@pytest.fixture
def settings() -> Settings:
    return settings_for([])


@pytest.mark.long(one_in=3)
@pytest.mark.parametrize("client", RECORDED)
async def test_a_clients_requests(
    backends: Backends, card: AgentCard, worker: ScriptedWorker, client: str
) -> None:
    """Its whole session, on tasks of this server's: what was done then is done, and no more."""
    await replay(RECORDED[client], backends, card)
