"""Pages in browsers: none may call unless the operator names its origin."""

from __future__ import annotations

import httpx
import pytest
from a2a.types import AgentCard

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from a2a_serverless_tools.local.http_server import OwnAddress, guarded
from tests.support.a2a_calls import Serve, client_of

PAGE = "https://shop.example"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": (
        "a2a-version, x-api-key, content-type, last-event-id, idempotency-key, a2a-extensions,"
        " x-a2a-extensions"
    ),
}


SETTINGS = {"auth": "api-key", "api_keys": "ann=0123456789abcdef0123"}


@pytest.fixture(params=[PAGE, f"https://other.example, {PAGE}", "*"])
def opened(serve: Serve, request: pytest.FixtureRequest) -> httpx.AsyncClient:
    """A deployment that names the page's origin, among others, or every origin."""
    return serve(cors_origins=request.param).client


async def test_no_page_may_call_by_default(serve: Serve) -> None:
    """By default no answer has a CORS header, so that browsers show it to no page."""
    closed = serve().client
    asked = await closed.options("/", headers=PREFLIGHT)
    card = await closed.get("/.well-known/agent-card.json", headers={"Origin": PAGE})
    assert not [name for name in (*asked.headers, *card.headers) if name.startswith("access-")]


async def test_a_page_asks_first(opened: httpx.AsyncClient) -> None:
    """Without credentials, which a browser's preflight has not; for every header that A2A has."""
    answer = await opened.options("/", headers=PREFLIGHT)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] in (PAGE, "*")
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("key", ["0123456789abcdef0123", "wrong"])
async def test_a_page_reads_answers_and_refusals(opened: httpx.AsyncClient, key: str) -> None:
    """A refusal that its page cannot read is none that it can act on."""
    headers = {"Origin": PAGE, "X-API-Key": key, "A2A-Version": "1.0"}
    answer = await opened.get("/tasks", headers=headers)
    assert answer.status_code == (401 if key == "wrong" else 200)
    assert answer.headers["access-control-allow-origin"] in (PAGE, "*")
    assert "Retry-After" in answer.headers["access-control-expose-headers"]


async def test_another_page_may_not(serve: Serve) -> None:
    """An origin is compared whole: no suffix, no other port, no other scheme."""
    for origin in ("https://evil-shop.example", f"{PAGE}:8443", "http://shop.example", "null"):
        asked = {**PREFLIGHT, "Origin": origin}
        answer = await serve(cors_origins=PAGE).client.options("/", headers=asked)
        assert answer.status_code == 400
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origins", [f"{PAGE}/", "shop.example", "https://*.example", "null"])
def test_what_is_no_origin_is_refused_at_the_start(serve: Serve, origins: str) -> None:
    """An entry that is no origin stops the start; one sentence has setting, entry and form."""
    with pytest.raises(ConfigurationError) as caught:
        serve(cors_origins=origins)
    told = f"A2A_CORS_ORIGINS: {origins!r} is no origin: write https://HOST, without a path."
    assert str(caught.value) == told


@pytest.mark.parametrize(("origins", "status"), [("", 403), (PAGE, 200), ("*", 200)])
async def test_on_this_machine(card: AgentCard, origins: str, status: int) -> None:
    """Without authentication `dev` refuses foreign pages, but those that its user names."""
    settings = Settings(auth="none", cors_origins=origins, public_url="https://mine.example")
    app = guarded(create_app(settings, memory_backends(settings), card), settings, 8000)
    assert isinstance(app, OwnAddress)
    client = client_of(app, "http://127.0.0.1:8000")
    page = await client.get("/healthz", headers={"Origin": PAGE})
    rebound = await client.get("/healthz", headers={"Host": "evil.example"})
    assert (page.status_code, rebound.status_code) == (status, 403)
