"""The token by which a receiver can check a notification; it is signed with a published key.

The key is made from a secret: the process's own, or one in Secrets Manager.

This module imports `cryptography` and `jwt`, which takes a tenth of a second: only the function
that signs imports it.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import logging
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, TypeAlias

import jwt
from a2a.types import TaskPushNotificationConfig
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from jwt.algorithms import ECAlgorithm

from a2a_serverless import aws
from a2a_serverless.cached import Cached
from a2a_serverless.clock import Clock, SystemClock, now_s
from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.storage.keys import SETTLED_S, KeyStore, PublishedKey
from a2a_serverless.values import dataclass

logger = logging.getLogger(__name__)

_ALGORITHM: Final = "ES256"

_TOKEN_LIFETIME_S: Final = 300
"""Seconds that a token is valid after it was signed."""

_LOOK_AGAIN_S: Final = 60.0
"""Seconds after which the key to sign with is chosen anew."""

_MIN_SECRET_LENGTH: Final = 32
"""The fewest characters of a secret that is no PEM key."""

_SECRET_MAX_AGE_S: Final = 300.0
"""Seconds after which the secret is read again, so that a rotation is noticed."""

_SECRET_PAUSE_S: Final = 15.0
"""Seconds between two attempts to read the secret while Secrets Manager does not answer."""

_CURRENT: Final = "AWSCURRENT"
_PREVIOUS: Final = "AWSPREVIOUS"
_MISSING: Final = "ResourceNotFoundException"

_PEM: Final = "-----BEGIN "
_PURPOSE: Final = b"a2a-serverless push signing key"
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of P-256 (SEC 2, section 2.4.2): private keys are 1 to `_ORDER` - 1."""
_OF_THIS_PROCESS: Final = secrets.token_urlsafe(48)

Secrets: TypeAlias = Callable[[], Awaitable[tuple[str, ...]]]
"""Returns the current value of a secret, then the one before it if there is one.

Raises:
    UnavailableError: they cannot be read.
"""


async def process_secret() -> tuple[str, ...]:
    """Return a random secret, the same for everything in this process: for local use."""
    return (_OF_THIS_PROCESS,)


class SecretsManagerSecret:
    """A text in AWS Secrets Manager, whose versions `AWSCURRENT` and `AWSPREVIOUS` are both known.

    Args:
        secret: name or ARN.
        client: a boto3 client of Secrets Manager, by default the process's own.
        clock: by default the system's.
    """

    def __init__(self, secret: str, *, client: Any = None, clock: Clock | None = None) -> None:
        self._secret = secret
        self._client = client
        self._clock = clock or SystemClock()
        self.values: Secrets = Cached(
            "The signing secret",
            self._read,
            clock=self._clock,
            max_age_s=_SECRET_MAX_AGE_S,
            pause_s=_SECRET_PAUSE_S,
        ).get

    async def _read(self) -> tuple[str, ...]:
        current, previous = await self._version(_CURRENT), await self._version(_PREVIOUS)
        if current is None:
            raise UnavailableError(f"The secret {self._secret} does not exist.")
        return (current,) if previous in (None, current) else (current, previous)

    async def _version(self, stage: str) -> str | None:
        """Return a version's text, None if there is no such version.

        Raises:
            UnavailableError: it cannot be read, or the permission is missing. The caller goes on
                signing with the values that were read before.
        """
        client = self._client or aws.client("secretsmanager")
        try:
            answer = await aws.repeat(
                client.get_secret_value,
                clock=self._clock,
                SecretId=self._secret,
                VersionStage=stage,
            )
        except aws.ERRORS as error:
            code = aws.error_code(error)
            if code == _MISSING:
                return None
            raise UnavailableError(f"The secret {self._secret} cannot be read: {code}.") from error
        text = answer.get("SecretString")
        if not isinstance(text, str):
            raise UnavailableError(f"The secret {self._secret} has no text.")
        return text


@dataclass(frozen=True, slots=True)
class _SigningKey:
    private: ec.EllipticCurvePrivateKey = field(repr=False)
    jwk: Mapping[str, str]

    @property
    def kid(self) -> str:
        return self.jwk["kid"]


@functools.lru_cache(maxsize=4)
def _signing_key(secret: str) -> _SigningKey:
    """Return the P-256 key of a secret: every process makes the same one.

    A PEM private key is used as it is. Any other text is stretched by HKDF (RFC 5869) to 384 bits,
    which are reduced to a private key (FIPS 186-5, A.2.1: 128 bits more than the order has).

    Raises:
        ConfigurationError: the secret is too short, or a PEM text without a P-256 private key.
    """
    private = _parsed(secret) if secret.lstrip().startswith(_PEM) else _derived(secret)
    public: dict[str, str] = ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
    jwk = {name: public[name] for name in ("crv", "kty", "x", "y")}
    return _SigningKey(private, jwk | {"kid": _thumbprint(jwk), "use": "sig", "alg": _ALGORITHM})


def _thumbprint(required: Mapping[str, str]) -> str:
    """Return the RFC 7638 digest of a key's required members, in order and without spaces."""
    canonical = json.dumps(required, separators=(",", ":"), sort_keys=True)
    return urlsafe_b64encode(hashlib.sha256(canonical.encode()).digest()).decode().rstrip("=")


def _config_hmac(config: TaskPushNotificationConfig) -> str:
    """Return the HMAC-SHA-256 of a configuration's id under its token, in hexadecimal.

    It proves that the signer knows the token without showing the token, and binds the token to the
    configuration.
    """
    return hmac.digest(config.token.encode(), config.id.encode(), hashlib.sha256).hex()


def _choose(
    keys: Sequence[_SigningKey], published: Iterable[PublishedKey], now_ms: int
) -> _SigningKey:
    """Return the key to sign with: the first one of `keys` that every receiver can know by now.

    If none has been published for long enough, return the one that was published first. At least
    one of `keys` has to be published.
    """
    since = {key.kid: key.published_at for key in published}
    known = [key for key in keys if key.kid in since]
    settled_at = now_ms - SETTLED_S * 1000
    settled = (key for key in known if since[key.kid] <= settled_at)
    return next(settled, None) or min(known, key=lambda key: since[key.kid])


class Signer:
    """Signs notifications, and publishes the keys that it signs with.

    Args:
        secret: the source of the keys.
        store: publishes the public keys.
        issuer: the agent's name for receivers.
        clock: by default the system's.
    """

    def __init__(
        self, secret: Secrets, store: KeyStore, *, issuer: str, clock: Clock | None = None
    ) -> None:
        self._secret = secret
        self._store = store
        self._issuer = issuer
        self._clock = clock or SystemClock()
        self._chosen: _SigningKey | None = None
        self._chosen_at = 0

    async def sign(
        self, body: bytes, *, audience: str, config: TaskPushNotificationConfig, event_id: str
    ) -> str:
        """Return a token (RFC 7519) for one attempt to deliver `body`; no two have the same `jti`.

        Args:
            body: the request's body; the token has its SHA-256, in hexadecimal.
            audience: the origin of the receiver's URL.
            config: the configuration that is served; its task is the subject.
            event_id: the same for all attempts at one event.

        Raises:
            UnavailableError: the secret cannot be read, and there is no earlier key.
            ConfigurationError: the secret is no key.
        """
        key = await self._key()
        issued_at = now_s(self._clock)
        claims: dict[str, Any] = {
            "iss": self._issuer,
            "aud": audience,
            "sub": config.task_id,
            "iat": issued_at,
            "exp": issued_at + _TOKEN_LIFETIME_S,
            "jti": secrets.token_urlsafe(16),
            "event_id": event_id,
            "body_sha256": hashlib.sha256(body).hexdigest(),
            "config_id": config.id,
        }
        if config.token:
            claims["config_hmac"] = _config_hmac(config)
        return jwt.encode(claims, key.private, algorithm=_ALGORITHM, headers={"kid": key.kid})

    async def _key(self) -> _SigningKey:
        """Return the key to sign with; the last one chosen while secret or store do not answer."""
        now_ms = self._clock.now_ms()
        if self._chosen is not None and now_ms - self._chosen_at < _LOOK_AGAIN_S * 1000:
            return self._chosen
        try:
            self._chosen, self._chosen_at = await self._choice(), now_ms
        except UnavailableError:
            if self._chosen is None:
                raise
        return self._chosen

    async def _choice(self) -> _SigningKey:
        keys = self._usable(await self._secret())
        published = {key.kid: key for key in await self._store.keys()}
        # Published before it signs: receivers keep the set of keys that they have read for a while.
        await self._publish(keys[0], published)
        chosen = _choose(keys, published.values(), self._clock.now_ms())
        await self._publish(chosen, published)
        return chosen

    async def _publish(self, key: _SigningKey, published: dict[str, PublishedKey]) -> None:
        """Publish a key, unless it was renewed lately, so that it outlives the tokens it signs."""
        held = published.get(key.kid)
        if held is None or not held.is_fresh(self._clock.now_ms()):
            published[key.kid] = await self._store.publish(key.jwk)

    def _usable(self, secrets: Iterable[str]) -> list[_SigningKey]:
        """Return the keys of the valid secrets: after a rotation to an invalid one, the former's.

        Raises:
            ConfigurationError: none of them is valid.
        """
        keys: list[_SigningKey] = []
        refused: ConfigurationError | None = None
        for secret in secrets:
            try:
                keys.append(_signing_key(secret))
            except ConfigurationError as error:
                refused = error
                extra = {"action": "signing_key_refused"}
                logger.error("%s", error, extra=extra)  # noqa: TRY400 - says all
        if refused is not None and not keys:
            raise refused
        return keys


def _parsed(secret: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(secret.strip().encode(), password=None)
    except (ValueError, TypeError) as error:
        msg = "The signing secret is no PEM private key without a password."
        raise ConfigurationError(msg) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        msg = "The signing secret is a private key, but not one of the curve P-256."
        raise ConfigurationError(msg)
    return key


def _derived(secret: str) -> ec.EllipticCurvePrivateKey:
    if len(secret) < _MIN_SECRET_LENGTH:
        msg = f"The signing secret has less than {_MIN_SECRET_LENGTH} characters."
        raise ConfigurationError(msg)
    stretched = HKDF(hashes.SHA256(), length=48, salt=None, info=_PURPOSE).derive(secret.encode())
    number = int.from_bytes(stretched, "big") % (_ORDER - 1) + 1
    return ec.derive_private_key(number, ec.SECP256R1())
