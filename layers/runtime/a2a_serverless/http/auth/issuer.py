"""The keys with which an OpenID Connect issuer signs its tokens, read from its JWK set."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt

from a2a_serverless.cached import Cached
from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConfigurationError, UnavailableError

MAX_AGE_S = 3600.0
"""Seconds that a key may still be accepted after the issuer has withdrawn it."""
PAUSE_S = 15.0
"""The least time between two requests to the issuer, in seconds."""
KEEP_S = 24 * 3600.0
"""Seconds that the keys are accepted while the issuer cannot be reached."""
TIMEOUT_S = 5.0
"""The limit for discovery and keys together, in seconds."""
MAX_BYTES = 512_000
_MAX_KEYS = 100

ALGORITHMS: Mapping[tuple[str, str | None], tuple[str, ...]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""The algorithms by a key's type and curve (RFC 7518, RFC 8037), without symmetric ones."""

ALLOWED = frozenset(name for names in ALGORITHMS.values() for name in names)

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

logger = logging.getLogger(__name__)


class _SigningKeys:
    """The usable keys of a JWK set (RFC 7517), each bound to the algorithms that it may verify."""

    def __init__(self, document: Any) -> None:
        keys = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(keys, list):
            raise UnavailableError("The issuer's JWK set has no list of keys.")
        self._keys = [found for jwk in keys[:_MAX_KEYS] for found in _usable(jwk)]

    def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """Return the key with the id `kid`; without a `kid` the algorithm's only key; or None."""
        fitting = [key for key in self._keys if key.algorithm_name == algorithm]
        if kid is None:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.key_id == kid), None)


class Issuer:
    """An issuer's keys, read again when they are old and when a token names an unknown one.

    Args:
        issuer: as it is in the claim `iss`; its discovery document names the keys' URL.
        jwks_url: the keys' URL, for an issuer without a discovery document.

    Raises:
        ConfigurationError: a URL is not https; http is allowed for this machine only.
    """

    def __init__(self, issuer: str, *, clock: Clock, jwks_url: str = "") -> None:
        for name, url in (("A2A_OIDC_ISSUER", issuer), ("A2A_OIDC_JWKS_URL", jwks_url)):
            if url and not _is_safe(url):
                raise ConfigurationError(f"{name} is not an https URL.")
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._keys = Cached(
            "The issuer's keys",
            self._read,
            clock=clock,
            max_age_s=MAX_AGE_S,
            pause_s=PAUSE_S,
            keep_s=KEEP_S,
        )

    async def key(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """Return the key that a token names; None when the issuer has no such key.

        Raises:
            UnavailableError: the issuer's keys are not known.
        """
        found = (await self._keys.get()).find(kid, algorithm)
        return found or (await self._keys.newer()).find(kid, algorithm)

    async def _read(self) -> _SigningKeys:
        try:
            async with asyncio.timeout(TIMEOUT_S), _client(self._issuer) as client:
                url = self._jwks_url or await self._discovered(client)
                return _SigningKeys(await _json(client, url))
        except TimeoutError as error:
            raise UnavailableError(f"No answer within {TIMEOUT_S:g} s.") from error

    async def _discovered(self, client: httpx.AsyncClient) -> str:
        """Return the keys' URL from the issuer's document (OpenID Connect Discovery 1.0, 4.3)."""
        base = self._issuer.rstrip("/")
        document = await _json(client, f"{base}/.well-known/openid-configuration")
        fields = document if isinstance(document, dict) else {}
        url = fields.get("jwks_uri")
        if fields.get("issuer") != self._issuer or not isinstance(url, str) or not _is_safe(url):
            msg = "The discovery document is of another issuer, or its jwks_uri is no https URL."
            raise UnavailableError(msg)
        return url


def _client(issuer: str) -> httpx.AsyncClient:
    # A proxy named in the environment cannot reach an issuer on this machine.
    is_outside = urlsplit(issuer).hostname not in _LOOPBACK
    return httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=is_outside, verify=_tls())


@cache
def _tls() -> ssl.SSLContext:
    """Return the process's TLS context: loading the certificates is slow."""
    return httpx.create_ssl_context()


async def _json(client: httpx.AsyncClient, url: str) -> Any:
    """Read the JSON at `url`, without redirects and of at most `MAX_BYTES`."""
    body = b""
    try:
        async with client.stream("GET", url) as response:
            if response.status_code != httpx.codes.OK:
                raise UnavailableError(f"The issuer answers with status {response.status_code}.")
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise UnavailableError(f"The issuer's answer is longer than {MAX_BYTES} bytes.")
        return json.loads(body)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        raise UnavailableError(f"The issuer cannot be read: {type(error).__name__}.") from error


def _usable(jwk: Any) -> Iterator[jwt.PyJWK]:
    """Yield a public signature key once for each of its algorithms; nothing for other keys."""
    if not isinstance(jwk, dict) or "d" in jwk or jwk.get("use", "sig") != "sig":
        return
    uses = jwk.get("key_ops", ["verify"])
    if not isinstance(uses, list) or "verify" not in uses:
        return
    curve = None if jwk.get("kty") == "RSA" else str(jwk.get("crv"))
    for algorithm in ALGORITHMS.get((str(jwk.get("kty")), curve), ()):
        if jwk.get("alg", algorithm) != algorithm:
            continue
        try:
            key = jwt.PyJWK(jwk, algorithm)
            if not key.Algorithm.check_key_length(key.key):
                yield key
        except (jwt.PyJWTError, ValueError, TypeError):
            # One unreadable key must not make the others unusable.
            logger.warning("a key of the issuer cannot be read", extra={"action": "jwk_skipped"})


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
    )
