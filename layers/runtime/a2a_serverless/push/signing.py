"""What a receiver can check: a token over each notification, signed with a published key.

Imports `cryptography` and `jwt`, which cost a tenth of a second: only the function that signs
imports this module.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from jwt.algorithms import ECAlgorithm

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.push.keys import JWKS_MAX_AGE_S, KeyStore, PublishedKey
from a2a_serverless.push.secret import SigningSecret

logger = logging.getLogger(__name__)

ALGORITHM: Final = "ES256"

TOKEN_LIFETIME_S: Final = 300
"""How long a token is good after it was signed, in seconds."""

SETTLED_S: Final = 2 * JWKS_MAX_AGE_S + 60
"""How long a new key is published before it signs, while there is another. By then neither the API,
which keeps an old document while the store does not answer, nor a receiver has one without it. The
minute is for clocks that differ."""

LOOK_AGAIN_S: Final = 60.0
"""How long a choice of the key holds."""

MIN_SECRET_LENGTH: Final = 32
"""Characters of a secret that is no PEM key."""

_PEM: Final = "-----BEGIN "
_PURPOSE: Final = b"a2a-serverless push signing key"
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group of P-256 (SEC 2, section 2.4.2): private keys are 1 to `_ORDER` - 1."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key and what is published of it."""

    private: ec.EllipticCurvePrivateKey = field(repr=False)
    jwk: Mapping[str, str]

    @property
    def kid(self) -> str:
        return self.jwk["kid"]


def signing_key(secret: str) -> SigningKey:
    """The P-256 key of a secret: the same one wherever it is made.

    A PEM private key is used as it is. Any other text is stretched by HKDF (RFC 5869) to 384 bits,
    which are reduced to a private key (FIPS 186-5, A.2.1: 128 bits more than the order has).

    Raises:
        ConfigurationError: it is too short, or a PEM text without a P-256 private key.
    """
    private = _parsed(secret) if secret.lstrip().startswith(_PEM) else _derived(secret)
    public: dict[str, str] = ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
    jwk = {name: public[name] for name in ("crv", "kty", "x", "y")}
    return SigningKey(private, jwk | {"kid": thumbprint(jwk), "use": "sig", "alg": ALGORITHM})


def thumbprint(jwk: Mapping[str, str]) -> str:
    """RFC 7638: the digest of a key's required members, in order and without spaces."""
    members = {name: jwk[name] for name in ("crv", "kty", "x", "y")}
    canonical = json.dumps(members, separators=(",", ":"), sort_keys=True)
    return urlsafe_b64encode(hashlib.sha256(canonical.encode()).digest()).decode().rstrip("=")


def choose(
    keys: Sequence[SigningKey], published: Iterable[PublishedKey], now_ms: int
) -> SigningKey:
    """The key to sign with: the first one of `keys` that every receiver can know by now.

    While none has been published for long enough, the one that was published first. One of `keys`
    is published.
    """
    since = {key.kid: key.published_at for key in published}
    known = [key for key in keys if key.kid in since]
    settled_at = now_ms - SETTLED_S * 1000
    settled = (key for key in known if since[key.kid] <= settled_at)
    return next(settled, None) or min(known, key=lambda key: since[key.kid])


class Signer:
    """Signs notifications, and publishes the keys that it signs with.

    Args:
        secret: what the keys are made from.
        store: where the public keys are published.
        issuer: who signs, as receivers know the agent.
        clock: by default the system's.
    """

    def __init__(
        self, secret: SigningSecret, store: KeyStore, *, issuer: str, clock: Clock | None = None
    ) -> None:
        self._secret = secret
        self._store = store
        self._issuer = issuer
        self._clock = clock or SystemClock()
        self._made: dict[str, SigningKey] = {}
        self._chosen: SigningKey | None = None
        self._chosen_at = 0

    async def sign(self, body: bytes, *, audience: str, task_id: str, event_id: str) -> str:
        """A token (RFC 7519) for one attempt to deliver `body`; no two have the same `jti`.

        Args:
            body: the request's body; the token has its SHA-256, in hexadecimal.
            audience: the origin of the receiver's URL.
            task_id: the subject.
            event_id: equal in all attempts at one event.

        Raises:
            UnavailableError: neither the secret nor a key made earlier can be had.
            ConfigurationError: the secret is no key.
        """
        key = await self._key()
        now_s = self._clock.now_ms() // 1000
        claims: dict[str, Any] = {
            "iss": self._issuer,
            "aud": audience,
            "sub": task_id,
            "iat": now_s,
            "exp": now_s + TOKEN_LIFETIME_S,
            "jti": secrets.token_urlsafe(16),
            "event_id": event_id,
            "body_sha256": hashlib.sha256(body).hexdigest(),
        }
        return jwt.encode(claims, key.private, algorithm=ALGORITHM, headers={"kid": key.kid})

    async def _key(self) -> SigningKey:
        """The key to sign with. A choice outlives the secret's and the store's absence."""
        now_ms = self._clock.now_ms()
        if self._chosen is not None and now_ms - self._chosen_at < LOOK_AGAIN_S * 1000:
            return self._chosen
        try:
            self._chosen, self._chosen_at = await self._choice(), now_ms
        except UnavailableError:
            if self._chosen is None:
                raise
        return self._chosen

    async def _choice(self) -> SigningKey:
        keys = self._usable(await self._secret.values())
        published = {key.kid: key for key in await self._store.keys()}
        await self._publish(keys[0], published)
        chosen = choose(keys, published.values(), self._clock.now_ms())
        await self._publish(chosen, published)
        return chosen

    async def _publish(self, key: SigningKey, published: dict[str, PublishedKey]) -> None:
        """Have a key published for as long as what is signed with it from now on is checked."""
        held = published.get(key.kid)
        if held is None or not held.is_fresh(self._clock.now_ms()):
            published[key.kid] = await self._store.publish(key.jwk)

    def _usable(self, secrets: Iterable[str]) -> list[SigningKey]:
        """The keys of those secrets that are one: a rotation to what is none stops nothing.

        Raises:
            ConfigurationError: there is no key at all.
        """
        keys: list[SigningKey] = []
        refused: ConfigurationError | None = None
        for secret in secrets:
            try:
                keys.append(self._make(secret))
            except ConfigurationError as error:
                refused = error
                extra = {"action": "signing_key_refused"}
                logger.error("%s", error, extra=extra)  # noqa: TRY400 - says all
        if refused is not None and not keys:
            raise refused
        return keys

    def _make(self, secret: str) -> SigningKey:
        if secret not in self._made:
            self._made[secret] = signing_key(secret)
        return self._made[secret]


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
    if len(secret) < MIN_SECRET_LENGTH:
        msg = f"The signing secret has less than {MIN_SECRET_LENGTH} characters."
        raise ConfigurationError(msg)
    stretched = HKDF(hashes.SHA256(), length=48, salt=None, info=_PURPOSE).derive(secret.encode())
    number = int.from_bytes(stretched, "big") % (_ORDER - 1) + 1
    return ec.derive_private_key(number, ec.SECP256R1())
