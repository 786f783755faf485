"""API keys."""

from __future__ import annotations

import httpx
import pytest
from a2a.types import AgentCard
from pydantic import SecretStr

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.identity import Scope, digest
from a2a_serverless.wiring import Backends
from tests.a2a_calls import Agent

KEY = "a-key-of-more-than-twenty-characters"


@pytest.fixture
def settings() -> Settings:
    return Settings(auth="api-key", api_key=SecretStr(KEY))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": ""},
        {"X-API-Key": KEY[:-1]},
        {"X-API-Key": KEY + "x"},
        {"X-API-Key": "schlüssel".encode()},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer "},
    ],
)
async def test_without_the_key_nothing_is_answered(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    """401 with a challenge and a JSON error, whatever the path, whether it exists or not."""
    for method, path in (
        ("GET", "/tasks"),
        ("POST", "/"),
        ("GET", "/nothing"),
        ("GET", "/openapi.json"),
    ):
        response = await client.request(method, path, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert response.json()["error"]["status"] == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    "headers",
    [
        {"X-API-Key": KEY},
        {"Authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer   {KEY}"},
        {"X-API-Key": "wrong", "Authorization": f"Bearer {KEY}"},
    ],
)
async def test_the_key_opens_the_door(agent: Agent, headers: dict[str, str]) -> None:
    """In either header, and one right key is enough."""
    answer = await agent.call("ListTasks", {}, headers)
    assert answer.result["totalSize"] == 0


async def test_tasks_belong_to_the_key(agent: Agent, backends: Backends) -> None:
    """The principal is the key's digest: another key would see nothing of it."""
    sent = await agent.send(
        "go", headers={"X-API-Key": KEY}, configuration={"returnImmediately": True}
    )
    owner = Scope.of("", digest("principal", "api-key", KEY))
    assert await backends.storage.for_scope(owner).head(sent.task["id"]) is not None
    assert await backends.storage.head(sent.task["id"]) is None


@pytest.mark.parametrize("path", ["/healthz", "/.well-known/agent-card.json"])
async def test_card_and_health_are_public(client: httpx.AsyncClient, path: str) -> None:
    """A client has to read the card to learn that there is a key."""
    assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("settings", "named"),
    [(Settings(), "A2A_AUTH"), (Settings(auth="api-key"), "A2A_API_KEY")],
    ids=["undecided", "no key"],
)
def test_an_undecided_deployment_does_not_start(
    settings: Settings, named: str, backends: Backends, card: AgentCard
) -> None:
    """One sentence names the variable: an endpoint is never open by mistake."""
    with pytest.raises(ConfigurationError, match=f"{named} is not set") as caught:
        create_app(settings, backends, card)
    assert "\n" not in str(caught.value)
