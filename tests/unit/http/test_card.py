"""The agent card: its file, what a deployment adds, and the card for known callers (3.1.11)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from a2a.types import AgentCard
from a2a.utils.signing import create_agent_card_signer, create_signature_verifier
from google.protobuf.json_format import MessageToJson, ParseDict

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http import CARD_PATHS
from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import deployed_card, load_card, load_extended_card
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import JSONRPC, REST, Agent, Serve, client_of

PATH = "/.well-known/agent-card.json"
OWN = "http://host.example"
WHOLE = {
    "name": "n",
    "description": "d",
    "version": "1",
    "capabilities": {},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "s", "name": "s", "description": "s", "tags": ["s"]}],
}
SKILLESS = json.dumps(WHOLE | {"skills": []})
INTERFACE = {"url": "", "protocolBinding": "GRPC", "protocolVersion": "1.0"}
GRPC = json.dumps(WHOLE | {"supportedInterfaces": [INTERFACE]})
PUBLIC = "https://agents.example/mine"
KEY = "the key with which an author signs cards"
MINE = {"X-API-Key": "a-key-of-more-than-twenty-characters"}
SETTINGS = {"auth": "api-key", "api_keys": f"alice={MINE['X-API-Key']}"}


Fetch = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def fetch(backends: Backends, card: AgentCard) -> Fetch:
    """The card that a deployment serves: with these settings, and from that of its author."""

    async def fetching(own: AgentCard = card, entrypoint: Any = "api", **settings: Any) -> Any:
        deployed = Settings(**{"auth": "none", **settings})
        client = client_of(create_app(deployed, backends, own, entrypoint=entrypoint), OWN)
        return (await client.get(PATH)).json()

    return fetching


@pytest.mark.parametrize(
    ("entrypoint", "public_url", "base"),
    [("api", "", OWN), ("stream", PUBLIC, PUBLIC), ("api", f"{PUBLIC}/", PUBLIC)],
)
async def test_interfaces(fetch: Fetch, entrypoint: str, public_url: str, base: str) -> None:
    """Each binding and version has one URL, whichever entrypoint is asked."""
    fetched = await fetch(entrypoint=entrypoint, public_url=public_url)
    shown = [tuple(each.values()) for each in fetched["supportedInterfaces"]]
    offered = ((f"{base}/", "JSONRPC"), (base, "HTTP+JSON"))
    assert shown == [(*one, version) for version in ("1.0", "0.3") for one in offered]
    assert (fetched["url"], fetched["preferredTransport"]) == (f"{base}/", "JSONRPC")


async def test_security_follows_the_deployment(fetch: Fetch) -> None:
    """With keys the card names their headers; without keys it names no security."""
    fetched = await fetch(**SETTINGS)
    assert fetched["securitySchemes"]["apiKey"]["apiKeySecurityScheme"]["name"] == "X-API-Key"
    assert fetched["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"] == "Bearer"
    assert [list(r["schemes"]) for r in fetched["securityRequirements"]] == [["apiKey"], ["bearer"]]
    assert "securitySchemes" not in await fetch()


async def test_a_card_may_name_interfaces(fetch: Fetch, card: AgentCard) -> None:
    """Then these alone are offered, here none of 0.3; 4.4.6: each with its own tenant."""
    offered = [("", ""), *(("/", tenant) for tenant in ("acme", "other", ""))]
    for path, tenant in offered:
        own = {"protocol_binding": "JSONRPC" if path else "HTTP+JSON", "protocol_version": "1.0"}
        card.supported_interfaces.add(**own, tenant=tenant)
    fetched = await fetch()
    shown = [(each["url"], each.get("tenant", "")) for each in fetched["supportedInterfaces"]]
    assert shown == [(OWN + path, tenant) for path, tenant in offered]
    assert "preferredTransport" not in fetched


@pytest.mark.parametrize(
    ("binding", "version", "tenant"),
    [
        ("HTTP+JSON", "1.0", "v1"),
        ("HTTP+JSON", "1.0", "message:send"),
        ("HTTP+JSON", "1.0", "a/b"),
        ("JSONRPC", "1.0", "x" * 257),
        ("JSONRPC", "0.3", "acme"),
    ],
)
def test_a_tenant_that_nobody_can_name(
    tmp_path: Path, card: AgentCard, binding: str, version: str, tenant: str
) -> None:
    """A card that offers calls which no client can make stops the start."""
    card.supported_interfaces.add(protocol_binding=binding, protocol_version=version, tenant=tenant)
    (tmp_path / "card.json").write_text(MessageToJson(card), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="tenant that no client can name"):
        load_card("card.json", folder=tmp_path)


async def test_skills_without_modes(fetch: Fetch, card: AgentCard) -> None:
    """Such a skill has the card's modes; the modes of any other stay."""
    card.skills[0].input_modes.append("audio/wav")
    fetched = await fetch()
    (skill,) = fetched["skills"]
    assert skill["inputModes"] == ["audio/wav"]
    assert skill["outputModes"] == fetched["defaultOutputModes"]
    assert not card.skills[0].output_modes


async def test_a_signature_is_served_while_it_holds(fetch: Fetch, card: AgentCard) -> None:
    """Of a card that the deployment changes it is left out; the author's card keeps it."""
    plain = deployed_card(card, Settings(auth="none"), OWN)
    del plain.skills[0].input_modes[:]
    header: Any = {"kid": "author", "alg": "HS256", "jku": None, "typ": "JOSE"}
    signed = create_agent_card_signer(KEY, header)(plain)
    for changed in (SETTINGS, {"public_url": PUBLIC}, {"push_queue": "pushes.fifo"}):
        fetched = await fetch(signed, **changed)
        assert "signatures" not in fetched
        assert fetched["skills"][0]["inputModes"]
        assert len(signed.signatures) == 1
    served = ParseDict(await fetch(signed), AgentCard(), ignore_unknown_fields=True)
    create_signature_verifier(lambda *_: KEY, ["HS256"])(served)


@pytest.mark.parametrize("path", CARD_PATHS)
async def test_a_look_at_its_headers_alone(serve: Serve, card: AgentCard, path: str) -> None:
    """The card is the same at each of its paths, and HEAD is answered as GET, without it."""
    client = serve(entrypoint="api").client
    got, looked = await client.get(path), await client.head(path)
    known = await client.head(path, headers={"If-None-Match": got.headers["etag"]})
    assert (got.status_code, looked.status_code, known.status_code) == (200, 200, 304)
    assert got.json()["name"] == card.name
    assert looked.headers == got.headers
    assert looked.content == b""


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], AgentCard]:
    """Loads the card of a file with this content."""

    def loading(content: str) -> AgentCard:
        (tmp_path / "card.json").write_bytes(content.encode("utf-8", "surrogatepass"))
        return load_card("card.json", folder=tmp_path)

    return loading


def test_a_card_of_5_mb(load: Callable[[str], AgentCard], card: AgentCard) -> None:
    """It is refused unparsed, with its size and the limit; at the limit it is taken."""
    for size in (5_000_000, 1_000_001):
        with pytest.raises(ConfigurationError, match=f"has {size:,} bytes: write at most 1,000,"):
            load(" " * size)
    assert load(MessageToJson(card).ljust(1_000_000)) == card


@pytest.mark.parametrize(("version", "auth"), [("1.0", "none"), ("0.3", "api-key")])
async def test_a_card_that_a_server_shows_is_taken(
    load: Callable[[str], AgentCard], fetch: Fetch, version: str, auth: str
) -> None:
    """What 0.3 has more says where the agent is elsewhere, and does not count here."""
    shown = await fetch(**SETTINGS | {"auth": auth})
    if version == "0.3":
        del shown["supportedInterfaces"]
        shown["capabilities"]["stateTransitionHistory"] = True
        shown["supportsAuthenticatedExtendedCard"] = False
        shown["skills"][0]["security"] = [{"apiKey": []}]
    assert await fetch(load(json.dumps(shown))) == await fetch()
    shown["nmae"] = "Typo"
    with pytest.raises(ConfigurationError, match='no field named "nmae"'):
        load(json.dumps(shown))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[]", "lacks name"),
        ("{}", "lacks name, .*, defaultInputModes, "),
        ('{\n"nmae": "Typo"}', r"nmae.*\(line 2\)\.$"),
        ('{\n"descripton": "x"}', r"perhaps description is meant \(line 2\)"),
        ('{\n\n"name": 5}', r"is not a card.*\(line 3\)\.$"),
        ('{"skills": [\n{"id": "a",\n"tags": "b"}]}', r"\(line 3\)\.$"),
        ('{"name": "x"\n"version": "1"}', "line 2 column 1"),
        (SKILLESS, r'lacks skills: write at least one skill, \{"id": …, "name": …, "desc.*"tags"'),
        ("\ud800", "is not a card"),
        ('{"url": "https://a", "capabilities": 5}', r"is not a card.*capabilities"),
        (GRPC, "offers GRPC 1.0, which is not served"),
    ],
)
def test_a_wrong_card_is_refused(
    load: Callable[[str], AgentCard], tmp_path: Path, content: str, complaint: str
) -> None:
    """The error names the file and what is wrong with it."""
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        load(content)
    assert str(tmp_path / "card.json") in str(caught.value)


@pytest.fixture
def extended(card: AgentCard) -> AgentCard:
    """The public card with one skill more, as its author writes it: without URLs."""
    extended = AgentCard()
    extended.CopyFrom(card)
    extended.skills.add(id="secret", name="Secret", description="For friends.", tags=["story"])
    return extended


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_an_extended_card_is_promised_and_given(
    settings: Settings, backends: Backends, card: AgentCard, extended: AgentCard, binding: str
) -> None:
    """The public card says that there is one; with a key it comes, with its URLs, also in 0.3."""
    named = settings.model_copy(update={"extended_card": "extended.json"})
    agent = Agent(client_of(create_app(named, backends, card, extended_card=extended)), binding)
    public = (await agent.client.get(PATH)).json()
    assert public["capabilities"]["extendedAgentCard"] is True
    assert [skill["id"] for skill in public["skills"]] == ["tell"]
    answer = await agent.call("GetExtendedAgentCard", {}, MINE)
    assert [skill["id"] for skill in answer.result["skills"]] == ["tell", "secret"]
    assert answer.result["supportedInterfaces"] == public["supportedInterfaces"]
    assert answer.result["securityRequirements"] == public["securityRequirements"]
    assert answer.result["capabilities"]["extendedAgentCard"] is True
    body = {"jsonrpc": "2.0", "id": 1, "method": "agent/getAuthenticatedExtendedCard"}
    over_jsonrpc = (await agent.client.post("/", json=body, headers=MINE)).json()["result"]
    over_rest = (await agent.client.get("/v1/card", headers=MINE)).json()
    for of_0_3 in (over_jsonrpc, over_rest):
        assert [skill["id"] for skill in of_0_3["skills"]] == ["tell", "secret"]
    refused = await agent.client.post("/", json={**body, "params": "it"}, headers=MINE)
    assert refused.json()["error"]["message"] == "The parameters must be an object or a list."


def test_no_extended_card_is_open(backends: Backends, card: AgentCard, extended: AgentCard) -> None:
    """Without authentication an extended card stops the start: it is for known callers."""
    settings = Settings(auth="none", extended_card="extended.json")
    with pytest.raises(ConfigurationError, match="A2A_EXTENDED_CARD needs callers"):
        create_app(settings, backends, card, extended_card=extended)


def test_the_extended_card_is_found_beside_the_handler(tmp_path: Path, extended: AgentCard) -> None:
    """A missing one stops the start by its name; without the setting there is no card."""
    settings = Settings(extended_card="extended.json")
    with pytest.raises(ConfigurationError, match=r"extended\.json cannot be read"):
        load_extended_card(settings, folder=tmp_path)
    (tmp_path / "extended.json").write_text(MessageToJson(extended), encoding="utf-8")
    assert load_extended_card(settings, folder=tmp_path) == extended
    assert load_extended_card(Settings(), folder=tmp_path) is None
