"""Keys and tokens together, for a move from one to the other; what a token's caller is called."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.datastructures import Headers

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http import auth
from a2a_serverless.http.auth import MAX_AGE_S, KeyRing, _ApiKeys, _Either, authenticator_of
from a2a_serverless.http.errors import RequestRefusedError
from a2a_serverless.http.tokens import Tokens
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.identity import Scope, oidc_principal
from tests.support.a2a_calls import LATER, Serve, message
from tests.support.clocks import ManualClock
from tests.support.issuers import AUDIENCE, Issuer
from tests.support.present import present

ALICE = "a-key-of-more-than-twenty-characters"
BOB = "another-key-of-twenty-or-more-characters"
DOTTED = "a-key.which-has-the-form.of-a-token"
KEY = {"X-API-Key": ALICE}


def named(issuer: Issuer, subject: str = "user|1") -> str:
    """What stands for a token's caller among the keys."""
    return f"oidc:{issuer.url}|{subject}"


@pytest.fixture
def settings(issuer: Issuer) -> Settings:
    keys = json.dumps({"alice": [ALICE, named(issuer)], "bob": BOB, "carol": DOTTED})
    both: dict[str, Any] = {"auth": "api-key+oidc", "api_keys": SecretStr(keys)}
    return Settings(**both, oidc_issuer=issuer.url, oidc_audience=AUDIENCE)


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


def token(issuer: Issuer, subject: str = "user|1", **claims: object) -> dict[str, str]:
    return bearer(issuer.token({"sub": subject, **claims}))


@pytest.mark.parametrize("auth", ["api-key+oidc", "oidc"])
async def test_a_named_token_is_its_caller(settings: Settings, issuer: Issuer, auth: str) -> None:
    """A token has the name beside which the keys have its caller, else its digest as ever."""
    of = present(authenticator_of(settings.model_copy(update={"auth": auth}), ManualClock()))
    known = await of.authenticate(Headers(token(issuer)))
    other = await of.authenticate(Headers(token(issuer, "user|2")))
    assert known.user_name == "alice"
    assert other.user_name == oidc_principal(issuer.url, "user|2")


@pytest.mark.parametrize("subject", ["a b", "|", "a|b", "ü", "oidc:https://i|x", "line\nbreak"])
def test_the_name_of_a_token_is_no_key(subject: str) -> None:
    """It stands for a subject, all that follows the first bar, at one issuer, and opens nothing."""
    name = f"oidc:https://i.example/|{subject}"
    ring = KeyRing.parse(json.dumps({"alice": name}))
    assert ring.named(oidc_principal("https://i.example/", subject)) == "alice"
    for elsewhere in (oidc_principal("https://i.example", subject), oidc_principal("x", subject)):
        assert ring.named(elsewhere) == elsewhere
    assert ring.name_of(name) is None


NO_NAMES = ["https://i.example/", "https://i.example/|", "i.example|x", "https://i.example|\ud800"]
TWICE = {name: ["oidc:https://i.example|x"] for name in ("alice", "bob")}


@pytest.mark.parametrize("keys", [*({"alice": f"oidc:{it}"} for it in NO_NAMES), TWICE])
def test_what_names_no_token(keys: dict[str, Any]) -> None:
    """It is refused and never taken for a key, as is a token's caller that has two names."""
    twice = "entry 2 has tokens of an earlier entry's name"
    complaint = twice if keys == TWICE else "entry 1 is not 20 or more"
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        KeyRing.parse(json.dumps(keys))
    assert "i.example" not in repr(caught.value)


async def test_a_tokens_tenant_stays_its_own(issuer: Issuer, serve: Serve) -> None:
    """With a tenant claim a named token finds what the key did in that tenant, and no more."""
    agent, mine = serve(oidc_tenant_claim="org"), token(issuer, org="acme")
    found = []
    for tenant in ({"tenant": "acme"}, {}, {"tenant": "other"}):
        params = {"message": message(), "configuration": LATER, **tenant}
        sent = await agent.call("SendMessage", params, KEY)
        found.append((await agent.call("GetTask", {"id": sent.task["id"]}, mine)).reason)
    assert found == ["", "TASK_NOT_FOUND", "TASK_NOT_FOUND"]


SHOWN: dict[str, tuple[Callable[[Issuer], Any], str]] = {
    "a key": (lambda _: KEY, "alice"),
    "a key as a bearer token": (lambda _: bearer(BOB), "bob"),
    "a key in three parts": (lambda _: bearer(DOTTED), "carol"),
    "a key twice": (lambda _: {**KEY, **bearer(ALICE)}, "alice"),
    "a token": (token, "alice"),
    "an empty key beside a token": (lambda i: {"X-API-Key": "", **token(i)}, "alice"),
    "nothing": (lambda _: {}, "NoCredentials"),
    "another scheme": (lambda _: {"Authorization": f"Basic {ALICE}"}, "NoCredentials"),
    "an unknown key": (lambda _: {"X-API-Key": "unknown"}, "UnknownKey"),
    "an unknown bearer token": (lambda _: bearer("unknown"), "UnknownKey"),
    "a token where keys are": (lambda i: {"X-API-Key": i.token()}, "UnknownKey"),
    "no token in three parts": (lambda _: bearer("a.b.c"), "MalformedToken"),
    "an expired token": (lambda i: token(i, exp=1), "Expired"),
    "a token for others": (lambda i: token(i, aud="x"), "WrongAudience"),
    "both": (lambda i: {**KEY, **token(i)}, "AmbiguousCredentials"),
    "a key and a bad token": (lambda i: {**KEY, **token(i, exp=1)}, "AmbiguousCredentials"),
    "a token and a bad key": (lambda i: {"X-API-Key": "x", **token(i)}, "AmbiguousCredentials"),
    "both as bearer tokens": (
        lambda i: [("authorization", f"Bearer {it}") for it in (ALICE, i.token())],
        "AmbiguousCredentials",
    ),
    "two keys": (lambda _: {**KEY, **bearer(BOB)}, "AmbiguousCredentials"),
}


@pytest.mark.parametrize("name", SHOWN)
async def test_one_credential_is_taken(
    client: httpx.AsyncClient, issuer: Issuer, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Either is let in; none, a bad one, and both are 401, with a challenge that holds for both.

    One line of the log has kind and scope, or a fixed reason, and neither credential nor name.
    """
    shown, is_ = SHOWN[name]
    headers = shown(issuer)
    with caplog.at_level(logging.INFO, "a2a_serverless"):
        response = await client.get("/tasks?a2a-version=1.0", headers=headers)
    lines = [vars(record) for record in caplog.records if record.name.startswith("a2a_serverless")]
    values = dict(headers).values()
    credentials = {value.removeprefix("Bearer ") for value in values} - {"", "x", "unknown"}
    assert not any(text in str(lines) for text in (*credentials, "alice", "user|1"))
    if response.is_success:
        (line,) = (it for it in lines if it.get("action") == "admitted")
        is_token = name.endswith("token") and is_ == "alice"
        shown_as = Scope.of("", is_).digest, "token" if is_token else "key"
        assert (line["scope"], line["credential"]) == shown_as
        return
    assert [it["reason"] for it in lines if it.get("action") == "refused"] == [is_]
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith('Bearer realm="a2a"')
    told = {"A valid API key or bearer token is required.", "The bearer token is not valid."}
    assert response.json()["error"]["message"] in told


async def test_without_a_credential_no_keys_are_read(settings: Settings, issuer: Issuer) -> None:
    """A flood of strangers makes no call, and one of unknown tokens one in five minutes."""
    clock, reads = ManualClock(), 0
    text = settings.api_keys.get_secret_value()

    async def read() -> str:
        nonlocal reads
        reads += 1
        return text

    keys = _ApiKeys(text, clock=clock, read=read, required=auth._EITHER)
    either = _Either(keys, Tokens(settings, clock))
    clock.advance(MAX_AGE_S)
    for headers, most in (({}, 0), ({"Authorization": "Basic x"}, 0), (bearer("a.b.c"), 1)):
        for _ in range(5):
            with pytest.raises(RequestRefusedError):
                await either.authenticate(Headers(headers))
        assert reads == most
    assert (await either.authenticate(Headers(token(issuer)))).user_name == "alice"


async def test_the_card_declares_alternatives(settings: Settings, serve: Serve) -> None:
    """One of the requirements is enough: a key in either header, or a token; also in 0.3."""
    client = serve(oidc_scope="a2a:call").client
    shown = (await client.get("/.well-known/agent-card.json")).json()
    assert set(shown["securitySchemes"]) == {"apiKey", "bearer", "oidc"}
    scopes = {"apiKey": [], "bearer": [], "oidc": ["a2a:call"]}
    assert shown["security"] == [{name: needs} for name, needs in scopes.items()]
    wanted = [item for each in shown["securityRequirements"] for item in each["schemes"].items()]
    assert {name: needs.get("list", []) for name, needs in wanted} == scopes
    url = f"{settings.oidc_issuer}/.well-known/openid-configuration"
    scheme = shown["securitySchemes"]["oidc"]
    assert scheme["openIdConnectSecurityScheme"]["openIdConnectUrl"] == url
    assert (scheme["type"], scheme["openIdConnectUrl"]) == ("openIdConnect", url)


async def test_a_client_keeps_its_tasks_while_it_moves(issuer: Issuer, serve: Serve) -> None:
    """From keys over both to tokens: what was made with either is there for both."""
    to = {name: serve(auth=name) for name in ("api-key", "api-key+oidc", "oidc")}
    tasks: list[str] = []

    async def sent(auth: str, headers: dict[str, str]) -> None:
        answer = await to[auth].send("go", headers=headers, configuration=LATER)
        tasks.append(answer.task["id"])

    async def found(auth: str, headers: dict[str, str]) -> int:
        reasons = [(await to[auth].call("GetTask", {"id": it}, headers)).reason for it in tasks]
        listed = await to[auth].call("ListTasks", {}, headers)
        assert listed.result["totalSize"] == reasons.count("")
        return reasons.count("")

    await sent("api-key", KEY)
    for headers in (KEY, token(issuer)):
        assert await found("api-key+oidc", headers) == 1
    await sent("api-key+oidc", KEY)
    await sent("api-key+oidc", token(issuer))
    await sent("oidc", token(issuer))
    for taking in ("api-key", "api-key+oidc"):
        assert await found(taking, KEY) == 4
    for taking in ("api-key+oidc", "oidc"):
        assert await found(taking, token(issuer)) == 4
    assert await found("api-key+oidc", token(issuer, "user|2")) == 0
    assert await found("api-key+oidc", {"X-API-Key": BOB}) == 0
    assert (await to["oidc"].call("ListTasks", {}, KEY)).response.status_code == 401
    assert (await to["api-key"].call("ListTasks", {}, token(issuer))).response.status_code == 401


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        ({"api_keys": SecretStr("")}, 'A2A_AUTH "api-key.oidc" needs one'),
        ({"api_keys_secret": "s"}, "are both set"),
        ({"oidc_issuer": ""}, 'A2A_OIDC_ISSUER is not set: A2A_AUTH "api-key.oidc"'),
        ({"oidc_audience": ""}, "A2A_OIDC_AUDIENCE is not set"),
        ({"auth": "oidc", "api_keys": SecretStr("{")}, "not valid JSON"),
    ],
)
def test_what_both_need(settings: Settings, missing: dict[str, object], complaint: str) -> None:
    """Both need what each of them needs; malformed names do not start tokens alone either."""
    with pytest.raises(ConfigurationError, match=complaint):
        authenticator_of(settings.model_copy(update=missing), ManualClock())
