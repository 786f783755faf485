"""The card for callers who have shown who they are (A2A 1.0.1, sections 3.1.11 and 13.3)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from a2a.types import AgentCard
from google.protobuf.json_format import MessageToDict
from pydantic import SecretStr

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_extended_card
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import JSONRPC, REST, Agent

KEY = "a-key-of-more-than-twenty-characters"
PUBLIC = "/.well-known/agent-card.json"
MINE = {"X-API-Key": KEY}


@pytest.fixture
def settings() -> Settings:
    return Settings(
        auth="api-key",
        api_keys=SecretStr(f"alice={KEY}"),
        extended_card="extended.json",
    )


@pytest.fixture
def extended(card: AgentCard) -> AgentCard:
    """The public card with one skill more, as its author writes it: without URLs."""
    extended = AgentCard()
    extended.CopyFrom(card)
    extended.skills.add(id="secret", name="Secret", description="For friends.", tags=["story"])
    return extended


@pytest.fixture
async def client(
    settings: Settings, backends: Backends, card: AgentCard, extended: AgentCard
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(settings, backends, card, extended_card=extended)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="https://api.example") as client:
        yield client


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_it_is_promised_and_given(agent: Agent) -> None:
    """The public card says that there is one; with a key it comes, with this deployment's URLs."""
    public = (await agent.client.get(PUBLIC)).json()
    assert public["capabilities"]["extendedAgentCard"] is True
    assert [skill["id"] for skill in public["skills"]] == ["tell"]
    answer = await agent.call("GetExtendedAgentCard", {}, MINE)
    assert [skill["id"] for skill in answer.result["skills"]] == ["tell", "secret"]
    assert answer.result["supportedInterfaces"] == public["supportedInterfaces"]
    assert answer.result["securityRequirements"] == public["securityRequirements"]
    assert answer.result["capabilities"]["extendedAgentCard"] is True


async def test_clients_of_0_3_get_it(client: httpx.AsyncClient) -> None:
    """A client of 0.3 gets the card with its skills by REST and by JSON-RPC."""
    plain = await client.get("/v1/card", headers=MINE)
    assert [skill["id"] for skill in plain.json()["skills"]] == ["tell", "secret"]
    body = {"jsonrpc": "2.0", "id": 1, "method": "agent/getAuthenticatedExtendedCard"}
    called = await client.post("/", json=body, headers=MINE)
    assert [skill["id"] for skill in called.json()["result"]["skills"]] == ["tell", "secret"]


def test_an_open_endpoint_has_none(
    backends: Backends, card: AgentCard, extended: AgentCard
) -> None:
    """Without authentication an extended card stops the start: it is for known callers."""
    settings = Settings(auth="none", extended_card="extended.json")
    with pytest.raises(ConfigurationError, match="A2A_EXTENDED_CARD needs callers"):
        create_app(settings, backends, card, extended_card=extended)


class TestFile:
    def test_it_is_found_beside_the_handler(self, tmp_path: Path, extended: AgentCard) -> None:
        """The file is looked for beside the handler; without the setting there is no card."""
        path = tmp_path / "extended.json"
        path.write_text(json.dumps(MessageToDict(extended)), encoding="utf-8")
        settings = Settings(extended_card="extended.json")
        assert load_extended_card(settings, folder=tmp_path) == extended
        assert load_extended_card(Settings(), folder=tmp_path) is None

    def test_a_missing_one_stops_the_start(self, tmp_path: Path) -> None:
        """An extended card that cannot be read stops the start; the error names the file."""
        with pytest.raises(ConfigurationError, match=r"extended\.json cannot be read"):
            load_extended_card(Settings(extended_card="extended.json"), folder=tmp_path)
