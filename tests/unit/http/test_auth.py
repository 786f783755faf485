"""Authentication: the setting, what is public, and the form of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from a2a.types import AgentCard

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings, load_settings
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import REST, Agent, Serve, message, read, rpc, target
from tests.support.issuers import AUDIENCE, Issuer

KEY = "a-key-of-more-than-twenty-characters"
OTHER = "another-key-of-twenty-or-more-characters"
SETTINGS = {"auth": "api-key", "api_keys": f"alice={KEY}, bob={OTHER}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": ""},
        {"X-API-Key": KEY[:-1]},
        {"X-API-Key": "schlüssel".encode()},
        {"X-API-Key": f"alice={KEY}"},
        {"Authorization": KEY},
        {"Authorization": "Bearer "},
        {"X-API-Key": KEY, "Authorization": f"Bearer {OTHER}"},
        {"Cookie": f"X-API-Key={KEY}"},
    ],
)
async def test_without_a_key_nothing_is_answered(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    """401 with a challenge and an error in the path's form, whether the path exists or not."""
    sent = {"A2A-Version": "1.0", **headers}
    refused = await client.post("/", json=rpc("ListTasks", {}), headers=sent)
    assert (refused.json()["jsonrpc"], refused.json()["id"]) == ("2.0", None)  # it is not read
    assert (refused.json()["error"]["code"], read(refused).reason) == (-32000, "UNAUTHENTICATED")
    answers = [refused]
    for method, path in (("GET", "/tasks"), ("GET", "/nothing"), ("GET", "/openapi.json")):
        answers.append(await client.request(method, path, headers=headers))
        assert answers[-1].json()["error"]["status"] == read(answers[-1]).reason
    told = {(it.status_code, it.headers["www-authenticate"]) for it in answers}
    assert told == {(401, 'Bearer realm="a2a"')}


async def test_a_key_is_let_in(agent: Agent) -> None:
    """A right key in either header is accepted, also beside a wrong one."""
    bearer, lower = {"Authorization": f"Bearer {KEY}"}, {"authorization": f"bearer   {KEY}"}
    for headers in ({"X-API-Key": KEY}, bearer, lower, {"X-API-Key": "wrong", **bearer}):
        answer = await agent.call("ListTasks", {}, headers)
        assert answer.result["totalSize"] == 0, headers


async def test_card_and_health_are_public(client: httpx.AsyncClient) -> None:
    """A client has to read the card to learn that there is a key; no path like theirs is public."""
    for path in ("/healthz", "/.well-known/agent-card.json"):
        assert (await client.get(path)).status_code == 200
    others = ("//healthz", "/healthz/", "/.well-known/../tasks", "/%2ewell-known/agent-card.json/x")
    for path in others:
        assert (await client.get(path)).status_code == 401


async def test_no_cache_keeps_an_answer(client: httpx.AsyncClient) -> None:
    """A cache in between knows nothing of X-API-Key: only what is public may be kept."""
    mine = {"X-API-Key": KEY, "A2A-Version": "1.0"}
    for headers in (mine, {}):
        response = await client.get("/tasks", headers=headers)
        assert response.headers["cache-control"] == "no-store"
    card = await client.get("/.well-known/agent-card.json")
    assert card.headers["cache-control"].startswith("public")


ISSUER = {"auth": "oidc", "oidc_issuer": "https://i.example"}
KEYS = {"auth": "api-key", "api_keys": f"a={KEY}"}
MINE = ISSUER | {"oidc_audience": "me"}


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({}, "A2A_AUTH is not set"),
        ({"auth": "api-key"}, "A2A_API_KEYS_SECRET or A2A_API_KEYS is not set"),
        (KEYS | {"api_keys": "  "}, "is not set"),
        (KEYS | {"api_keys_secret": "s"}, "are both set"),
        (MINE | {"oidc_issuer": ""}, "A2A_OIDC_ISSUER is not set"),
        (ISSUER, "A2A_OIDC_AUDIENCE is not set"),
        (MINE | {"oidc_issuer": "http://i.example"}, "A2A_OIDC_ISSUER is not an https URL"),
        (MINE | {"oidc_jwks_url": "file:///etc/passwd"}, "A2A_OIDC_JWKS_URL is not an https URL"),
    ],
)
def test_an_undecided_deployment_does_not_start(
    wrong: dict[str, str], complaint: str, backends: Backends, card: AgentCard
) -> None:
    """With missing or wrong settings of authentication the start fails; one sentence names them."""
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        create_app(Settings.model_validate(wrong), backends, card)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["basic", "None", "off"])
def test_there_is_no_other_word_for_open(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Only `none` opens an endpoint; what means it to somebody else is a mistake."""
    monkeypatch.setenv("A2A_AUTH", value)
    with pytest.raises(ConfigurationError, match="A2A_AUTH"):
        load_settings()


@pytest.mark.parametrize("kind", ["api-key", "oidc"])
async def test_who_is_refused_costs_nothing(
    serve: Serve, backends: Backends, issuer: Issuer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is refused causes no request to table or queue, and one at most to the issuer."""
    client = serve(auth=kind, oidc_issuer=issuer.url, oidc_audience=AUDIENCE).client
    wrong = {"X-API-Key": "x" * 40_000}, {"Authorization": "Basic YWxhZGRpbjpvcGVuc2VzYW1l"}
    credentials = [{}, {"Authorization": f"Bearer {KEY}x"}, *wrong]
    allowed = {"X-API-Key": KEY}
    if kind == "oidc":
        tokens = ["not-a-token", "eyJhbGciOiJub25lIn0.e30.", issuer.token({"exp": 1})]
        tokens += [issuer.token({"aud": "https://other.example"}), issuer.token(number=1)]
        tokens += [issuer.token(kid=f"unknown-{number}") for number in range(20)]
        credentials = [{}, *({"Authorization": f"Bearer {token}"} for token in tokens)]
        allowed = {"Authorization": f"Bearer {issuer.token()}"}
    asked: list[str] = []

    def noted(name: str, does: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            asked.append(name)
            return does(*args, **options)

        return call

    for part in (backends.storage.table, backends.operations):
        for name in type(part).__mro__[1].__abstractmethods__:  # type: ignore[attr-defined]
            monkeypatch.setattr(part, name, noted(name, getattr(part, name)))
    said = {"message": message("x" * 2000)}
    operations: dict[str, Any] = {"SendMessage": said, "SendStreamingMessage": said}
    operations |= {"ListTasks": {}, "GetTask": {"id": "t"}, "SubscribeToTask": {"id": "t"}}
    listed = await client.get("/tasks", headers=allowed | {"A2A-Version": "1.0"})
    assert (listed.status_code, bool(asked)) == (200, True)
    asked.clear()
    issuer.asked.clear()
    for method, params in operations.items():
        verb, path, body = target(REST, method, params)
        for shown in credentials:
            answer = await client.request(verb, path, json=body, headers=shown)
            assert answer.status_code in {401, 431}, answer.text
    assert asked == []
    assert issuer.asked.count("/keys") <= 1
