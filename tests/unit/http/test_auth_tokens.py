"""Tokens of an OpenID Connect issuer: what is let in, what is refused, and the issuer's keys."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from starlette.datastructures import Headers

from a2a_serverless.http.auth import Authenticator, authenticator_of
from a2a_serverless.http.errors import RequestRefusedError
from a2a_serverless.http.tokens import _KEEP_S, _MAX_TOKEN, MAX_AGE_S, PAUSE_S
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.identity import Scope, digest
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import LATER, Agent, Serve, message
from tests.support.clocks import ManualClock
from tests.support.issuers import AUDIENCE, Issuer, private_key, public_jwk
from tests.support.present import present

Shown = Callable[[str], Awaitable[str]]

NOW = int(time.time())
HOUR = 3600


@pytest.fixture
def settings(issuer: Issuer) -> Settings:
    return Settings(auth="oidc", oidc_issuer=issuer.url, oidc_audience=AUDIENCE)


@pytest.fixture
def authenticator(settings: Settings, clock: ManualClock) -> Authenticator:
    return present(authenticator_of(settings, clock))


async def who(authenticator: Authenticator, *authorization: str) -> str:
    """The principal of a request with these headers, or why it was refused."""
    headers = [(b"authorization", value.encode("latin-1")) for value in authorization]
    try:
        return (await authenticator.authenticate(Headers(raw=headers))).user_name
    except RequestRefusedError as error:
        return f"{error.status} {error.reason}"


@pytest.fixture
def shown(authenticator: Authenticator) -> Shown:
    """Show a token; the principal, or why it was refused."""
    return lambda token: who(authenticator, f"Bearer {token}")


def alice(issuer: Issuer) -> str:
    return digest("principal", "oidc", issuer.url, "alice")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_asymmetric_algorithms(shown: Shown, issuer: Issuer) -> None:
    """Every one that JWA has for public keys, with a key that says its algorithm or not."""
    algorithms = [f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)]
    algorithms.append("EdDSA")
    said: dict[str, Any] = {"use": "sig", "key_ops": ["verify"]}
    issuer.keys = [public_jwk(one, one) for one in algorithms]
    issuer.keys += [public_jwk(one, f"{one} said", alg=one, **said) for one in algorithms]
    for kid in (key["kid"] for key in issuer.keys):
        token = issuer.token(algorithm=kid.removesuffix(" said"), kid=kid)
        assert await shown(token) == alice(issuer), kid


async def test_without_kid_the_only_key_is_meant(shown: Shown, issuer: Issuer) -> None:
    """RFC 7515, section 4.1.4: `kid` is a hint; with several keys it has to be there."""
    issuer.keys = [public_jwk("ES256", "first"), public_jwk("RS256", "second")]
    assert await shown(issuer.token(kid=None)) == alice(issuer)


def segment(value: Mapping[str, Any] | bytes) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def unsigned(issuer: Issuer, header: Mapping[str, Any], **claims: Any) -> str:
    """Header and claims of a token, which are good but for these."""
    good = {"iss": issuer.url, "aud": AUDIENCE, "sub": "alice", "exp": NOW + HOUR}
    return f"{segment(header)}.{segment(good | claims)}"


def signed(issuer: Issuer, *, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
    """A rightly signed token, also of what PyJWT itself makes none."""
    usual = {"alg": "ES256", "kid": "first", "typ": "JWT"}
    told = unsigned(issuer, {**usual, **(header or {})}, **claims)
    signature = jwt.get_algorithm_by_name("ES256").sign(told.encode(), private_key("ES256"))
    return f"{told}.{segment(signature)}"


def confused(issuer: Issuer, key: bytes) -> str:
    """A token signed with HMAC, the public key being the secret."""
    told = unsigned(issuer, {"alg": "HS256", "kid": "first", "typ": "JWT"})
    return f"{told}.{segment(hmac.digest(key, told.encode(), 'sha256'))}"


CLAIMS: dict[str, tuple[dict[str, Any], str]] = {
    "expired just now": ({"exp": timedelta(seconds=-50)}, ""),
    "in a minute": ({"nbf": timedelta(seconds=50), "iat": timedelta(seconds=50)}, ""),
    "more audiences": ({"aud": ["https://other.example", AUDIENCE]}, ""),
    "no time of issue": ({"iat": None}, ""),
    "another name": ({"name": "root", "email": "a@b.example"}, ""),
    "expired": ({"exp": timedelta(seconds=-70)}, "Expired"),
    "never expires": ({"exp": None}, "MissingClaim"),
    "expires in words": ({"exp": "tomorrow"}, "MalformedToken"),
    "expires at infinity": ({"exp": float("inf")}, "MalformedToken"),
    "not yet": ({"nbf": timedelta(seconds=120)}, "NotYetValid"),
    "issued in the future": ({"iat": timedelta(seconds=120)}, "NotYetValid"),
    "another audience": ({"aud": "https://other.example"}, "WrongAudience"),
    "a longer audience": ({"aud": f"{AUDIENCE}.evil.example"}, "WrongAudience"),
    "no audience": ({"aud": None}, "MissingClaim"),
    "an empty audience": ({"aud": ""}, "MissingClaim"),
    "an audience that is none": ({"aud": {"x": AUDIENCE}}, "WrongAudience"),
    "another issuer": ({"iss": "https://evil.example"}, "WrongIssuer"),
    "no issuer": ({"iss": None}, "MissingClaim"),
    "no subject": ({"sub": None}, "MissingClaim"),
}


@pytest.mark.parametrize(("claims", "reason"), CLAIMS.values(), ids=CLAIMS)
async def test_claims_that_open_nothing(
    shown: Shown, issuer: Issuer, claims: dict[str, Any], reason: str
) -> None:
    """A rightly signed token with a missing, wrong, expired or malformed claim is refused.

    Clocks may differ by 60 s; more audiences, no time of issue and other claims are no mistake.
    """
    assert await shown(issuer.token(claims)) == (f"401 {reason}" if reason else alice(issuer))


async def test_a_subject_is_a_text(shown: Shown, issuer: Issuer) -> None:
    """One that is none, or is empty, is refused; in another case it is another caller."""
    other = digest("principal", "oidc", issuer.url, "Alice")
    assert await shown(issuer.token({"sub": "Alice"})) == other
    for subject in (7, ["alice"], {"a": 1}, "\ud800"):
        assert await shown(signed(issuer, sub=subject)) == "401 MalformedToken"
    assert await shown(signed(issuer, sub="")) == "401 MissingClaim"


async def test_unsigned_tokens(shown: Shown, issuer: Issuer) -> None:
    """`alg: none` in every spelling, with and without a signature, or no `alg` at all."""
    names: list[Any] = ["none", "None", "NONE", "nOnE", "", None, ["ES256"], {"a": 1}, 5]
    for header in ({"kid": "first"}, *({"alg": name, "kid": "first"} for name in names)):
        for signature in (b"", b"x" * 64):
            token = f"{unsigned(issuer, header)}.{segment(signature)}"
            assert await shown(token) == "401 ForbiddenAlgorithm"


async def test_a_public_key_is_no_secret(shown: Shown, issuer: Issuer) -> None:
    """Key confusion: HMAC with the public key, as PEM, as JWK or as the bytes of the set."""
    public = private_key("ES256").public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for key in (pem, pem.strip(), json.dumps(public_jwk("ES256", "first")).encode(), b""):
        assert await shown(confused(issuer, key)) == "401 ForbiddenAlgorithm"


async def test_a_symmetric_key_of_the_issuer_is_not_used(shown: Shown, issuer: Issuer) -> None:
    """An `oct` key in the set verifies nothing, even when it is the only one."""
    issuer.keys = [{"kty": "oct", "k": segment(b"k" * 32), "kid": "first", "alg": "HS256"}]
    assert await shown(confused(issuer, b"k" * 32)) == "401 ForbiddenAlgorithm"
    assert await shown(issuer.token()) == "401 UnknownKid"


async def test_the_algorithm_is_the_keys(shown: Shown, issuer: Issuer) -> None:
    """A key for RS256 verifies nothing else; a curve verifies with its own hash alone."""
    issuer.keys = [
        public_jwk("RS256", "r", alg="RS256"),
        public_jwk("ES256", "e"),
        public_jwk("RS256", "encryption", number=1, use="enc"),
        public_jwk("RS256", "wrapping", number=1, key_ops=["wrapKey"]),
    ]
    assert await shown(issuer.token(algorithm="RS256", kid="r")) == alice(issuer)
    others = [("PS256", "r"), ("RS512", "r"), ("ES384", "e"), ("RS256", "e"), ("ES256", "r")]
    tokens = [issuer.token(algorithm=algorithm, kid=kid) for algorithm, kid in others]
    unfit = ("encryption", "wrapping")
    tokens += [issuer.token(algorithm="RS256", number=1, kid=kid) for kid in unfit]
    assert {await shown(token) for token in tokens} == {"401 UnknownKid"}


async def test_signatures(shown: Shown, issuer: Issuer) -> None:
    """A signature by another key, of other content, cut off, empty or of zeros is refused."""
    good = issuer.token()
    head, body, signature = good.split(".")
    of_bob = unsigned(issuer, {}, sub="bob").partition(".")[2]
    others = (f"{of_bob}.{signature}", f"{body}.", f"{body}.{segment(bytes(64))}")
    for token in (issuer.token(number=1), *(f"{head}.{other}" for other in others)):
        assert await shown(token) == "401 WrongSignature"
    cut = await shown(f"{head}.{body}.{signature[:-4]}")
    assert cut in {"401 WrongSignature", "401 MalformedToken"}
    assert await shown(good) == alice(issuer)


async def test_headers_that_mean_more_than_we_know(shown: Shown, issuer: Issuer) -> None:
    """Critical extensions, encryption, nested tokens, and other types than RFC 9068's or none."""
    for kind in ("JWT", "jwt", "at+jwt", "application/at+jwt", None):
        assert await shown(issuer.token(headers={"typ": kind})) == alice(issuer), kind
    headers: list[dict[str, Any]] = [{"crit": []}, {"crit": ["b64"], "b64": True}, {"cty": "JWT"}]
    headers += [{"enc": "A256GCM"}, {"zip": "DEF"}]
    headers += [{"typ": kind} for kind in ("dpop+jwt", None, ["JWT"], 1e308)]
    for header in headers:
        refused = await shown(signed(issuer, header=header))
        assert refused in {"401 UnsupportedToken", "401 MalformedToken"}, header


@pytest.mark.parametrize("name", ["typ", "kid", "x"])
@pytest.mark.parametrize(("opens", "closes", "depth"), [("[", "]", 5_000), ('{"a":', "}", 1_900)])
async def test_nested_headers_cost_nothing(
    shown: Shown, issuer: Issuer, name: str, opens: str, closes: str, depth: int
) -> None:
    """Nested values in a header are refused within 0.2 s of CPU, however deep they are."""
    nested = opens * depth + "0" + closes * depth
    fields = {"alg": '"ES256"', "kid": '"first"', "typ": '"JWT"'} | {name: nested}
    header = "{" + ",".join(f'"{field}":{value}' for field, value in fields.items()) + "}"
    token = f"{segment(header.encode())}.{issuer.token().partition('.')[2]}"
    assert len(token) < _MAX_TOKEN
    status, reason, spent_s = "", "", [1.0]
    while len(spent_s) < 4 and min(spent_s) >= 0.2:  # the collector of garbage may have run, too
        start = time.process_time()
        status, reason = (await shown(token)).split()
        spent_s.append(time.process_time() - start)
    assert min(spent_s) < 0.2
    assert status == "401"
    assert reason in {"MalformedToken", "UnsupportedToken", "ForbiddenAlgorithm", "WrongSignature"}


async def test_keys_that_a_token_brings_along_are_not_used(shown: Shown, issuer: Issuer) -> None:
    """Keys named in `jku`, `x5u`, `jwk` or `x5c` are not used: the issuer's own keys decide."""
    evil: dict[str, Any] = {"jku": f"{issuer.url}/evil", "x5u": f"{issuer.url}/evil"}
    evil |= {"jwk": public_jwk("ES256", "first", number=1), "x5c": ["MIIB"]}
    assert await shown(issuer.token(number=1, headers=evil)) == "401 WrongSignature"
    assert await shown(issuer.token(number=1, kid="evil", headers=evil)) == "401 UnknownKid"
    assert await shown(issuer.token(headers=evil)) == alice(issuer)
    assert "/evil" not in issuer.asked


async def test_what_is_no_token(shown: Shown, issuer: Issuer) -> None:
    """Garbage of every kind is refused and never an internal error; long garbage is not read."""
    head, signature = segment({"alg": "ES256", "kid": "first"}), segment(b"x" * 64)
    for token in (
        *("", "x", "..", "a.b.c", "a.b.c.d.e", "\x00\x1b[31m.\x00.\x00", "x" * 20_000),
        f"{head}.{segment(b'not json')}.{signature}",
        f"{head}.{segment(b'[]')}.{signature}",
        *(f"{segment(each)}.e30." for each in (b"[]", b"not json", b"[" * 10_000)),
        f"{segment({'alg': 'ES256', 'kid': 5})}.e30.",
        *(f"{head}.!!!.e30", f"{head}.e30.\xff\xfe", f"{head}.{'A' * 20_000}.e30"),
    ):
        assert await shown(token) in {"401 MalformedToken", "401 WrongSignature"}, token[:50]


async def test_other_headers_than_one_bearer(authenticator: Authenticator, issuer: Issuer) -> None:
    """A missing header, another scheme, and two headers are refused; a scheme is in any case."""
    token = issuer.token()
    for headers, said in (
        ([f"bearer  {token}"], alice(issuer)),
        ([], "401 NoCredentials"),
        ([token], "401 MalformedToken"),
        ([f"Basic {token}"], "401 MalformedToken"),
        ([f"Bearer {token}", "Bearer x"], "401 AmbiguousCredentials"),
        ([f"Bearer {token}, Bearer {token}"], "401 MalformedToken"),
    ):
        assert await who(authenticator, *headers) == said


async def test_a_rotation_needs_no_restart(shown: Shown, issuer: Issuer, clock: Any) -> None:
    """A token with an unknown `kid` makes the keys be read again; the old ones go when they go."""
    assert await shown(issuer.token()) == alice(issuer)
    issuer.keys = [public_jwk("ES256", "first"), public_jwk("ES256", "second", number=1)]
    clock.advance(PAUSE_S)
    fresh = issuer.token(number=1, kid="second")
    assert await shown(fresh) == alice(issuer)
    issuer.keys = [public_jwk("ES256", "second", number=1)]
    assert await shown(issuer.token()) == alice(issuer)
    clock.advance(MAX_AGE_S)
    assert await shown(issuer.token()) == "401 UnknownKid"
    assert await shown(fresh) == alice(issuer)


async def test_unknown_ids_ask_the_issuer_once_in_a_while(
    shown: Shown, issuer: Issuer, clock: ManualClock
) -> None:
    """A hundred tokens at once, or one after the other: one request in 15 seconds for all."""
    await shown(issuer.token())
    issuer.asked.clear()
    clock.advance(PAUSE_S)
    unknown = [issuer.token(kid=f"no-{number}", number=1) for number in range(100)]
    outcomes = await asyncio.gather(*(shown(token) for token in unknown))
    assert set(outcomes) == {"401 UnknownKid"}
    for token in unknown:
        clock.advance(PAUSE_S / 101)
        assert await shown(token) == "401 UnknownKid"
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]


@pytest.mark.parametrize(
    ("status", "body"), [(500, None), (200, b"<html>"), (200, b"{}"), (200, b" " * 600_000)]
)
async def test_an_issuer_that_is_down(
    shown: Shown, issuer: Issuer, clock: Any, caplog: Any, status: int, body: bytes | None
) -> None:
    """The issuer's keys stay good for a day, with a warning; after that every token gets 503."""
    assert await shown(issuer.token()) == alice(issuer)
    good_status, issuer.status, issuer.body = issuer.status, status, body
    clock.advance(MAX_AGE_S)
    with caplog.at_level(logging.WARNING, "a2a_serverless"):
        assert await shown(issuer.token()) == alice(issuer)
    assert [vars(record)["action"] for record in caplog.records] == ["refresh_failed"]
    clock.advance(_KEEP_S)
    assert await shown(issuer.token()) == "503 IssuerUnavailable"
    issuer.status, issuer.body = good_status, None
    clock.advance(PAUSE_S)
    assert await shown(issuer.token()) == alice(issuer)


async def test_an_issuer_that_was_never_there(client: httpx.AsyncClient, issuer: Issuer) -> None:
    """503 and when to come again, not 401: the token may be good."""
    issuer.status = 500
    headers = bearer(issuer.token())
    response = await client.get("/tasks", headers=headers)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "15"
    assert response.json()["error"]["details"][0]["reason"] == "UNAVAILABLE"


async def test_other_discoveries(settings: Settings, issuer: Issuer) -> None:
    """Another issuer's document, keys without TLS, or a redirection are as good as no answer."""
    own, keys = issuer.url, f"{issuer.url}/keys"
    wrong: list[tuple[str, Any]] = [("https://evil.example", keys), (f"{own}/", keys)]
    wrong += [(own, uri) for uri in ("http://keys.example/", 5, f"{own}/moved")]
    for name, uri in wrong:
        issuer.discovery = {"issuer": name, "jwks_uri": uri}
        fresh = present(authenticator_of(settings, ManualClock()))
        assert await who(fresh, f"Bearer {issuer.token()}") == "503 IssuerUnavailable"


async def test_keys_without_discovery(issuer: Issuer, settings: Settings) -> None:
    """With A2A_OIDC_JWKS_URL the keys are read from it, without discovery."""
    direct = settings.model_copy(update={"oidc_jwks_url": f"{issuer.url}/keys"})
    authenticator = present(authenticator_of(direct, ManualClock()))
    assert await who(authenticator, f"Bearer {issuer.token()}") == alice(issuer)
    assert issuer.asked == ["/keys"]
    issuer.keys = {"kid": "first"}  # type: ignore[assignment]  # no list
    other = present(authenticator_of(direct, ManualClock()))
    assert await who(other, f"Bearer {issuer.token()}") == "503 IssuerUnavailable"


async def test_one_bad_key_does_not_take_the_others_with_it(shown: Shown, issuer: Issuer) -> None:
    """Odd, private and short keys are left out, and the issuer is not asked more often for them."""
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - that is the point
    short_jwk = jwt.get_algorithm_by_name("RS256").to_jwk(short.public_key(), as_dict=True)
    private = jwt.get_algorithm_by_name("ES256").to_jwk(private_key("ES256", 1), as_dict=True)
    issuer.keys = [
        *(None, "key", 7, {}, {"kty": "EC", "crv": ["P-256"]}, {"kty": ["RSA"], "n": 1}),
        {"kty": "EC", "crv": {"P": 256}, "key_ops": 7},
        {"kty": "RSA", "key_ops": 1},
        {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "a"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "b"},
        {"kty": "EC", "crv": "secp256k1", "kid": "c"},
        {"kty": "OKP", "crv": "X25519", "x": "AA", "kid": "d"},
        {**short_jwk, "kid": "short"},
        {**private, "kid": "private"},
        public_jwk("ES256", "first"),
    ]
    assert await shown(issuer.token()) == alice(issuer)
    issuer.asked.clear()
    assert await shown(issuer.token(number=1, kid="private")) == "401 UnknownKid"
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "alice", "exp": NOW + HOUR}
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        weak = jwt.encode(claims, short, "RS256", headers={"kid": "short"})
    assert await shown(weak) == "401 UnknownKid"
    assert issuer.asked == []


SCOPES: list[tuple[dict[str, Any], bool]] = [
    ({"scope": "a2a:read openid a2a:call"}, True),
    ({"scp": ["a2a:call", "a2a:read"]}, True),
    ({"scp": "a2a:call a2a:read"}, True),
    ({"scope": "a2a:call", "scp": ["a2a:read"]}, True),
    ({}, False),
    ({"scope": "a2a:call"}, False),
    ({"scope": "a2a:callx a2a:read"}, False),
    ({"scope": 5}, False),
    ({"scp": [5]}, False),
]


@pytest.mark.parametrize(("claims", "is_there"), SCOPES)
async def test_a_scope(serve: Serve, issuer: Issuer, claims: Any, *, is_there: bool) -> None:
    """It is in RFC 9068's claim or another's; without it 403 names it (RFC 6750, 3.1)."""
    agent = serve(oidc_scope="a2a:call a2a:read")
    response = (await agent.call("ListTasks", {}, bearer(issuer.token(claims)))).response
    assert response.status_code == (200 if is_there else 403)
    if not is_there:
        assert 'scope="a2a:call a2a:read"' in response.headers["www-authenticate"]
        assert response.json()["error"]["status"] == "PERMISSION_DENIED"


class TestTenant:
    """A2A_OIDC_TENANT_CLAIM: the caller's tenant is what the issuer says."""

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return settings.model_copy(update={"oidc_tenant_claim": "org"})

    @pytest.mark.parametrize("org", [None, "", 5, ["acme"]])
    async def test_a_token_without_one(self, shown: Shown, issuer: Issuer, org: Any) -> None:
        """A token whose tenant is missing, empty or not a text is refused: there is no default."""
        assert await shown(issuer.token({"org": org})) == "401 NoTenant"

    async def test_the_own_tenant(self, agent: Agent, issuer: Issuer, backends: Backends) -> None:
        """A caller may name its tenant or not: the task is the same, and its log has the tenant."""
        mine = bearer(issuer.token({"org": "acme"}))
        task_id = (await agent.send("go", headers=mine, configuration=LATER)).task["id"]
        for tenant in ({}, {"tenant": "acme"}):
            got = await agent.call("GetTask", {"id": task_id, **tenant}, mine)
            assert got.task["id"] == task_id
        storage = backends.storage.for_scope(Scope.of("acme", alice(issuer)))
        _, caller = present(await storage.read(task_id)).fold().opening(1)
        assert caller.tenant == "acme"

    async def test_another_tenant(self, agent: Agent, issuer: Issuer) -> None:
        """A caller that names another tenant, real or not, finds no tasks there and makes none."""
        here = bearer(issuer.token({"org": "acme"}))
        there = bearer(issuer.token({"org": "other"}))
        task_id = (await agent.send("go", headers=here, configuration=LATER)).task["id"]
        for tenant in ("acme", "unheard-of"):
            named = {"tenant": tenant}
            got = await agent.call("GetTask", {"id": task_id, **named}, there)
            listed = await agent.call("ListTasks", named, there)
            assert (got.reason, listed.result["totalSize"]) == ("TASK_NOT_FOUND", 0)
            form = {"size": 1, "sha256": "0" * 64, **named}
            answer = await agent.client.post("/files", json=form, headers=there)
            assert (answer.status_code, "no such tenant" in answer.text) == (400, True)
            new = {"message": message("go"), "configuration": LATER, **named}
            refused = await agent.call("SendMessage", new, there)
            assert refused.reason == "INVALID_PARAMS"
            assert refused.message == "The agent knows no such tenant."
            reply = {"message": message("go", taskId=task_id), **named}
            assert (await agent.call("SendMessage", reply, there)).reason == "TASK_NOT_FOUND"
        assert (await agent.call("ListTasks", {}, here)).result["totalSize"] == 1


async def test_the_answer_of_a_refusal(client: httpx.AsyncClient, issuer: Issuer) -> None:
    """RFC 6750: a challenge without error when nothing was shown, `invalid_token` for the rest."""
    nothing = await client.get("/tasks")
    tokens = (issuer.token({"exp": 1}), issuer.token({"aud": "x"}), "x")
    answers = [await client.get("/tasks", headers=bearer(token)) for token in tokens]
    assert nothing.headers["www-authenticate"] == 'Bearer realm="a2a"'
    challenge = 'Bearer realm="a2a", error="invalid_token"'
    assert {answer.headers["www-authenticate"] for answer in answers} == {challenge}
    assert len({answer.text for answer in answers}) == 1
    assert {answer.status_code for answer in [*answers, nothing]} == {401}
