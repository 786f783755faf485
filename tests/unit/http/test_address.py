"""The address that card and extended card name, behind both functions and without a gateway."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from a2a.types import AgentCard

from a2a_serverless.http.app import create_app
from a2a_serverless.http.function import CONTEXT_HEADER, lambda_handler, observed
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import client_of, rpc
from tests.support.gateway import HOST, adapted, rest_event

KEY = "a-key-of-more-than-twenty-characters"
CARD = "/.well-known/agent-card.json"
OWN = "agents.example.com"
FORGED = json.dumps({"domainName": "evil.example", "path": f"/evil{CARD}", "stage": "evil"})
HEADERS = {"A2A-Version": "1.0", "Content-Type": "application/json", "X-API-Key": KEY}

Answer = Callable[[dict[str, Any]], httpx.Response]
"""Sends an event through a function."""
Ask = Callable[[dict[str, Any]], Any]
"""Sends an event through a function; the JSON of the answer, which is a success."""


SETTINGS = {"auth": "api-key", "api_keys": f"alice={KEY}", "extended_card": "extended.json"}


@pytest.fixture(params=["api", "stream"])
def answer(request: Any, loop: Any, settings: Settings, backends: Any, card: Any) -> Answer:
    """Either function."""
    app = create_app(settings, backends, card, entrypoint=request.param, extended_card=card)
    if request.param == "stream":
        client = client_of(observed(app))
        return lambda event: loop.run_until_complete(client.send(adapted(event)))
    handler = lambda_handler(app)

    def answered(event: dict[str, Any]) -> httpx.Response:
        answer = handler(event, None)
        lines = answer["multiValueHeaders"].items()
        headers = [*answer["headers"].items(), *((k, v) for k, vs in lines for v in vs)]
        return httpx.Response(answer["statusCode"], headers=headers, text=answer["body"])

    return answered


@pytest.fixture
def ask(answer: Answer) -> Ask:
    """Either function, whose answers are successes."""

    def asked(event: dict[str, Any]) -> Any:
        answered = answer(event)
        assert answered.status_code == 200, answered.text
        return answered.json()

    return asked


def named(card: Any) -> list[str]:
    """The URLs of a card, each with what is there."""
    own = card["supportedInterfaces"]
    return [f"{one['protocolBinding']} {one['protocolVersion']} {one['url']}" for one in own]


def at(base: str) -> list[str]:
    """What the card of an agent at `base` names: one URL for each binding and version."""
    versions = ("1.0", "0.3")
    return [it for of in versions for it in (f"JSONRPC {of} {base}/", f"HTTP+JSON {of} {base}")]


LIKE_LOCAL = "127.0.0.1.evil.example"
PLACES = {
    "the API's own domain": ({}, f"https://{HOST}/a2a"),
    "a stage like a path": ({"stage": "tasks"}, f"https://{HOST}/tasks"),
    "a domain of one's own": ({"domain": OWN, "is_mapped": True}, f"https://{OWN}"),
    "the local stack": ({"domain": "localhost:80", "is_mapped": True}, "http://localhost:80"),
    "a port elsewhere": ({"domain": f"{OWN}:8443", "is_mapped": True}, f"https://{OWN}:8443"),
    "a name like this machine's": ({"domain": LIKE_LOCAL}, f"https://{LIKE_LOCAL}/a2a"),
}


@pytest.mark.parametrize(("how", "base"), PLACES.values(), ids=PLACES)
def test_the_card_names_its_place(answer: Answer, ask: Ask, how: dict[str, Any], base: str) -> None:
    """Its domain and stage, for any tenant; where there is TLS, answers ask for it (13.4)."""
    card = ask(rest_event("GET", CARD, None, {}, **how))
    assert named(card) == at(base)
    assert card["url"] == f"{base}/"
    for tenant in ("", "/acme", "/a2a", "/a%3Ab", "/%C3%A9"):
        extended = ask(rest_event("GET", f"{tenant}/extendedAgentCard", None, HEADERS, **how))
        assert named(extended) == at(base), tenant
    call = json.dumps(rpc("GetExtendedAgentCard", {}))
    for path in ("/", ""):
        over_jsonrpc = ask(rest_event("POST", path, call, HEADERS, **how))
        assert named(over_jsonrpc["result"]) == at(base), path
    events = [rest_event("GET", path, None, {}, **how) for path in (CARD, "/tasks", "/nothing")]
    told = [answer(event).headers.get("strict-transport-security") for event in events]
    assert told == 3 * ["max-age=31536000" if base.startswith("https:") else None]


def test_a_client_cannot_name_it(ask: Ask) -> None:
    """Behind either function no header of a client says where the agent is."""
    forged = {"X-Amzn-Request-Context": FORGED, "Forwarded": "host=evil.example;proto=http"}
    forged |= {"X-Forwarded-Proto": "http", "X-Forwarded-Host": "evil.example"}
    assert named(ask(rest_event("GET", CARD, None, forged))) == at(f"https://{HOST}/a2a")
    asked = ask(rest_event("GET", "/extendedAgentCard", None, {**HEADERS, **forged}))
    assert named(asked) == at(f"https://{HOST}/a2a")


def test_the_description_of_the_api_has_it_too(ask: Ask) -> None:
    """The server of OpenAPI's document is where the document was found, below any stage."""
    [server] = ask(rest_event("GET", "/openapi.json", None, HEADERS))["servers"]
    found = httpx.URL(f"https://{HOST}/a2a/openapi.json")
    assert str(found.join(server["url"])) == f"https://{HOST}/a2a/"


async def test_without_a_gateway_it_is_the_requests(
    settings: Settings, backends: Backends, card: AgentCard
) -> None:
    """Behind a server alone the card names the server, and so it does where no gateway has asked.

    Nothing listens to the adapter's header there, and behind the adapter one without a domain says
    nothing.
    """
    app = create_app(settings, backends, card, entrypoint="stream")
    silent = ["", "{", "[]", '{"domainName": 1, "path": "/a2a"}']
    silent.append('{"domainName": "evil.example", "http": {"path": "/a2a"}}')
    for behind, contexts in ((app, [FORGED]), (observed(app), silent)):
        for context in contexts:
            client = client_of(behind, "http://host.example")
            answer = await client.get(CARD, headers={CONTEXT_HEADER: context})
            assert named(answer.json()) == at("http://host.example"), context
            assert "strict-transport-security" not in answer.headers


async def test_the_application_does_not_see_the_context() -> None:
    """The adapter's header, which says more about a caller than an agent has to know, ends here."""
    seen: list[list[str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append([name.decode() for name, _ in scope["headers"]])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    await client_of(observed(app)).send(adapted(rest_event("GET", CARD)))
    ((*names,),) = seen
    assert CONTEXT_HEADER not in names
    assert "x-amzn-lambda-context" in names


async def test_the_start_and_end_of_a_server_go_through() -> None:
    """An application behind the adapter opens and closes what it has by its lifespan."""
    app = AsyncMock()
    await observed(app)({"type": "lifespan"}, AsyncMock(), AsyncMock())
    assert app.await_args is not None
    assert app.await_args.args[0] == {"type": "lifespan"}
