"""Signatures, as a receiver with PyJWT's JWKS client checks them, and the secret behind them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator
from datetime import datetime, tzinfo
from itertools import cycle
from types import SimpleNamespace
from typing import Any, Self

import jwt
import pytest
from a2a.types import TaskPushNotificationConfig
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.requests import Request as HttpRequest

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.http.receivers import KeySet
from a2a_serverless.push import signing
from a2a_serverless.storage.keys import _KEY_LIFETIME_S, JWKS_MAX_AGE_S, SETTLED_S, KeyStore
from tests.support.clocks import ManualClock
from tests.support.memory import memory_keys
from tests.unit.push.receivers import Receiver, Request

ISSUER = "https://agent.example"
AUDIENCE = "https://hooks.example"
CLAIMS = [
    *("iss", "aud", "sub", "iat", "exp", "jti"),
    *("event_id", "body_sha256", "config_id", "config_hmac"),
]
CONFIG = TaskPushNotificationConfig(id="hook", task_id="task", token="token-4711")
BODY = b'{"statusUpdate": {}}'


class Values:
    """A secret that a test rotates."""

    def __init__(self, *values: str) -> None:
        self.now = values
        self.fails = False

    async def __call__(self) -> tuple[str, ...]:
        if self.fails:
            raise UnavailableError
        return self.now


class SecretsManager:
    """A client of Secrets Manager, whose reads are counted, and can be made to fail."""

    def __init__(self) -> None:
        self.versions: dict[str, list[dict[str, Any]]] = {}
        self.reads = 0
        self.fails = False

    def put(self, secret: str, **content: Any) -> None:
        """Rotate a secret, or create it."""
        self.versions.setdefault(secret, []).insert(0, content)

    def get_secret_value(self, *, SecretId: str, VersionStage: str) -> dict[str, Any]:  # noqa: N803 - as boto3 has it
        self.reads += 1
        place = ("AWSCURRENT", "AWSPREVIOUS").index(VersionStage)
        found = self.versions.get(SecretId, [])
        if self.fails or place >= len(found):
            code = "AccessDeniedException" if self.fails else "ResourceNotFoundException"
            raise ClientError({"Error": {"Code": code}}, "GetSecretValue")
        return found[place]


@pytest.fixture
def manager() -> SecretsManager:
    return SecretsManager()


class KeyServer:
    """The API's own key set behind a cache on the way, which keeps an answer as long as it says.

    The API has two environments, whose caches run out at different times.
    """

    def __init__(self, store: KeyStore, clock: Clock) -> None:
        self._environments = cycle([KeySet(store, clock) for _ in range(2)])
        self._clock = clock
        self._fresh_until = 0.0
        self._answer = b""

    def __call__(self, _: Request) -> AsyncIterator[bytes]:
        return self._answers()

    async def _answers(self) -> AsyncIterator[bytes]:
        now = self._clock.monotonic()
        if not self._answer or now >= self._fresh_until:
            response = await next(self._environments).answer(HttpRequest({"type": "http"}))
            kept_s = re.search(r"max-age=(\d+)", response.headers["Cache-Control"])
            self._fresh_until = now + int(kept_s[1]) if kept_s else now
            head = "".join(f"{name}: {value}\r\n" for name, value in response.headers.items())
            status = f"HTTP/1.1 {response.status_code} Whatever\r\n"
            self._answer = f"{status}{head}\r\n".encode() + bytes(response.body)
        yield self._answer


def signer_of(values: signing.Secrets, store: KeyStore, clock: Clock) -> signing.Signer:
    return signing.Signer(values, store, issuer=ISSUER, clock=clock)


async def sign(signer: signing.Signer, body: bytes = BODY) -> str:
    return await signer.sign(body, audience=AUDIENCE, config=CONFIG, event_id="event")


def verify(client: jwt.PyJWKClient, token: str, body: bytes) -> dict[str, Any]:
    """What a receiver does with a notification."""
    key = client.get_signing_key_from_jwt(token)
    expected: dict[str, Any] = {"audience": AUDIENCE, "issuer": ISSUER}
    expected |= {"options": {"require": CLAIMS}}
    claims: dict[str, Any] = jwt.decode(token, key, algorithms=["ES256"], **expected)
    if claims["body_sha256"] != hashlib.sha256(body).hexdigest():
        raise jwt.InvalidTokenError
    return claims


async def kid_of(signer: signing.Signer) -> str:
    """The id of the key that a signer signs with."""
    return str(jwt.get_unverified_header(await sign(signer))["kid"])


def secret(number: int = 0) -> str:
    """A text such as Secrets Manager's GenerateSecretString makes."""
    return f"{number:02d}" + "aB3$" * 16


async def test_a_receiver_checks_body_and_signature() -> None:
    """PyJWT's JWKS client finds the key, and every claim is there and right."""
    clock = SystemClock()
    store = memory_keys(clock)
    signer = signer_of(Values(secret()), store, clock)
    with Receiver(KeyServer(store, clock)) as server:
        client = jwt.PyJWKClient(server.url(path="/.well-known/jwks.json"))
        token = await sign(signer)
        claims = await asyncio.to_thread(verify, client, token, BODY)
        assert claims["exp"] - claims["iat"] == signing._TOKEN_LIFETIME_S
        assert (claims["sub"], claims["event_id"]) == ("task", "event")
        header = jwt.get_unverified_header(token)
        assert header == {"alg": "ES256", "typ": "JWT", "kid": signing._signing_key(secret()).kid}
        with pytest.raises(jwt.InvalidTokenError):
            await asyncio.to_thread(verify, client, token, BODY + b" ")
        forged = await sign(signer_of(Values(secret(1)), memory_keys(clock), clock))
        with pytest.raises(jwt.PyJWTError):
            await asyncio.to_thread(verify, client, forged, BODY)


def keep_time_by(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyJWT see the time of a test's clock: its caches, and its checks of `iat` and `exp`."""

    class Now(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(clock.now_ms() / 1000, tz)

    for module in ("jwk_set_cache", "api_jwk"):
        monkeypatch.setattr(f"jwt.{module}.time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr("jwt.api_jwt.datetime", Now)


async def test_a_receiver_survives_a_rotation(
    manager: SecretsManager, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, store: KeyStore
) -> None:
    """Every signature of the hour around a rotation is verified, with all caches at work.

    Those of the secret in each signing process, of the key set in each one of the API, of its
    document on the way, and of the receiver's JWKS client, all on one clock. The receiver also
    looks at the times of a token, and does not take one again after its lifetime.
    """
    keep_time_by(clock, monkeypatch)
    manager.put("signing", SecretString=secret(1))
    signers = []
    used: list[str] = []
    with Receiver(KeyServer(store, clock)) as server:
        client = jwt.PyJWKClient(server.url(), lifespan=JWKS_MAX_AGE_S)
        for second in range(0, 3600, 40):
            if second in {0, 160}:  # two environments, whose caches run out at different times
                source = secret_in(manager, clock)
                signers.append(signer_of(source.values, store, clock))
            if second == 1200:
                manager.put("signing", SecretString=secret(2))
            for signer in signers:
                token = await sign(signer)
                if second < 120:  # from here on no cache runs out together with another one
                    continue
                claims = await asyncio.to_thread(verify, client, token, BODY)
                assert claims["iat"] == clock.now_ms() // 1000
                used.append(jwt.get_unverified_header(token)["kid"])
            clock.advance(40)
        assert len(server.requests) < 20
        clock.advance(signing._TOKEN_LIFETIME_S)
        with pytest.raises(jwt.ExpiredSignatureError):
            await asyncio.to_thread(verify, client, token, BODY)
    old, new = signing._signing_key(secret(1)).kid, signing._signing_key(secret(2)).kid
    assert used[:50] == [old] * 50
    assert used[-50:] == [new] * 50
    assert set(used) == {old, new}


async def test_a_new_key_waits_until_it_is_known(clock: ManualClock, store: KeyStore) -> None:
    """A new key signs once all receivers can know it; until then the previous one signs."""
    values = Values(secret(1))
    signer = signer_of(values, store, clock)
    await sign(signer)
    clock.advance(_KEY_LIFETIME_S / 2)
    await sign(signer)
    clock.advance(3600)
    values.now = (secret(2), secret(1))
    old, new = signing._signing_key(secret(1)).kid, signing._signing_key(secret(2)).kid
    rotated_at = clock.monotonic()
    while clock.monotonic() - rotated_at < SETTLED_S:
        assert await kid_of(signer) == old
        clock.advance(30)
    clock.advance(60)
    assert await kid_of(signer) == new
    assert {key.kid for key in await store.keys()} == {old, new}
    clock.advance(_KEY_LIFETIME_S)
    await sign(signer)
    assert [key.kid for key in await store.keys()] == [new]


async def test_a_key_in_use_never_runs_out(clock: ManualClock, store: KeyStore) -> None:
    """The first key is published, and signs, at once; it is renewed while a function signs."""
    signer = signer_of(Values(secret()), store, clock)
    kid = await kid_of(signer)
    [published] = await store.keys()
    assert kid == published.kid
    assert set(published.jwk) == {"crv", "kty", "x", "y", "kid", "use", "alg"}
    used = set()
    for _ in range(48):
        used.add(jwt.decode(await sign(signer), options={"verify_signature": False})["jti"])
        [key] = await store.keys()
        assert key.expires_at - clock.now_ms() > 22 * 3600 * 1000
        clock.advance(3600)
    assert len(used) == 48  # a receiver can refuse a token that was used before


async def test_two_rotations_in_a_row(clock: ManualClock, store: KeyStore) -> None:
    """Of two new keys the first published one signs, until the second is known everywhere."""
    first, second = signing._signing_key(secret(1)), signing._signing_key(secret(2))
    await store.publish(first.jwk)
    clock.advance(60)
    await store.publish(second.jwk)
    for wait_s, key in ((0, first), (SETTLED_S - 60, first), (60, second)):
        clock.advance(wait_s)
        values = Values(secret(2), secret(1))
        assert await kid_of(signer_of(values, store, clock)) == key.kid


async def test_a_rotation_to_what_is_no_key_stops_nothing(
    caplog: pytest.LogCaptureFixture, clock: ManualClock, store: KeyStore
) -> None:
    """The previous key goes on signing, and an error says what is wrong with the new secret."""
    signer = signer_of(Values("oops", secret()), store, clock)
    assert await sign(signer)
    assert [key.kid for key in await store.keys()] == [signing._signing_key(secret()).kid]
    assert "signing_key_refused" in [getattr(r, "action", "") for r in caplog.records]
    with pytest.raises(ConfigurationError):
        await sign(signer_of(Values("oops"), store, clock))


async def test_a_secret_that_is_gone_does_not_stop_the_signer(clock: ManualClock) -> None:
    """Without its secret a signer uses the key that it has; without a key it is unavailable."""
    values = Values(secret())
    signer = signer_of(values, memory_keys(clock), clock)
    await sign(signer)
    values.fails = True
    clock.advance(3600)
    assert await sign(signer)
    with pytest.raises(UnavailableError):
        await sign(signer_of(values, memory_keys(clock), clock))


def secret_in(manager: SecretsManager, clock: Clock) -> signing.SecretsManagerSecret:
    return signing.SecretsManagerSecret("signing", client=manager, clock=clock)


async def test_a_rotation_is_seen_within_five_minutes(manager: SecretsManager) -> None:
    """`put-secret-value` is a rotation: the value before it is still known; reads are few."""
    clock = ManualClock()
    manager.put("signing", SecretString="first")
    values = secret_in(manager, clock)
    assert await values.values() == ("first",)
    manager.put("signing", SecretString="second")
    assert await values.values() == ("first",)
    clock.advance(signing._SECRET_MAX_AGE_S)
    assert await values.values() == ("second", "first")
    manager.put("signing", SecretString="third")
    clock.advance(signing._SECRET_MAX_AGE_S)
    assert await values.values() == ("third", "second")
    reads = manager.reads
    for _ in range(100):
        await values.values()
    assert manager.reads == reads == 6


async def test_a_secret_stays(manager: SecretsManager, caplog: pytest.LogCaptureFixture) -> None:
    """If the secret cannot be read, the last value stays; the log has the reason, not the value."""
    clock = ManualClock()
    manager.put("signing", SecretString="first-value")
    values = secret_in(manager, clock)
    await values.values()
    manager.fails = True
    clock.advance(signing._SECRET_MAX_AGE_S)
    with caplog.at_level(logging.DEBUG, "a2a_serverless"):
        assert await values.values() == ("first-value",)
    [line] = [vars(r) for r in caplog.records if vars(r).get("action") == "refresh_failed"]
    assert "AccessDeniedException" in line["reason"]
    assert "first-value" not in str(line)


@pytest.mark.parametrize("content", [None, {"SecretBinary": b"x" * 64}])
async def test_without_a_text_there_is_no_key(
    manager: SecretsManager, content: dict[str, bytes] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing secret, or one without a text, signs nothing; the log has the reason."""
    if content is not None:
        manager.put("signing", **content)
    with pytest.raises(UnavailableError):
        await secret_in(manager, ManualClock()).values()
    assert any(vars(r).get("action") == "refresh_failed" for r in caplog.records)


async def test_one_secret_for_a_process() -> None:
    """Without Secrets Manager every signer of the process has the same random secret."""
    [first], [second] = await signing.process_secret(), await signing.process_secret()
    assert first == second
    assert len(first) >= 64


def pem(key: Any, form: Any = serialization.PrivateFormat.PKCS8) -> str:
    plain = serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, plain)).decode()


def test_a_secret_makes_one_key() -> None:
    """Every process makes the same key of it, and another secret makes another one."""
    assert signing._signing_key(secret()).jwk == signing._signing_key(secret()).jwk
    assert len({signing._signing_key(secret(n)).kid for n in range(20)}) == 20
    # Fixed for good: another derivation would rotate the keys of every deployment.
    assert signing._signing_key(secret()).kid == "lc-PI-gaMOd2S_mBv0FrBPx8TcB3y-liXim4DR5oiAk"


def test_a_pem_key_is_used_as_it_is() -> None:
    """An operator may bring his own key, in either of the usual forms."""
    key = ec.generate_private_key(ec.SECP256R1())
    old_form = pem(key, serialization.PrivateFormat.TraditionalOpenSSL)
    for text in (pem(key), old_form, f"\n{pem(key)}\n"):
        assert signing._signing_key(text).private.private_numbers() == key.private_numbers()


@pytest.mark.parametrize(
    "text",
    [
        "x" * 31,
        pem(ec.generate_private_key(ec.SECP384R1())),
        "-----BEGIN PRIVATE KEY-----\nnothing\n-----END PRIVATE KEY-----",
    ],
    ids=["31", "P-384", "broken"],
)
def test_a_secret_that_is_no_key(text: str) -> None:
    """A secret that is no key is refused, and the error does not repeat its text."""
    with pytest.raises(ConfigurationError) as refusal:
        signing._signing_key(text)
    assert not text or text[:20] not in str(refusal.value)
