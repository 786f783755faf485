"""Bearer tokens of an OpenID Connect issuer: signed JWTs (RFC 7519, RFC 8725, RFC 9068).

Imported only where A2A_AUTH takes them: PyJWT and cryptography take a while to load.
"""

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
from starlette.datastructures import Headers

from a2a_serverless.cached import Cached
from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.http.context import Principal
from a2a_serverless.http.errors import RequestRefusedError
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.identity import is_unicode, oidc_principal

_LEEWAY_S = 60
"""Seconds by which the issuer's clock may differ from ours."""
_MAX_TOKEN = 16_384
"""The longest token that is looked at, in characters."""

_TYPES = frozenset({"", "jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""`typ` of access tokens; logout tokens and proofs have others."""
_UNSUPPORTED = frozenset({"crit", "b64", "enc", "zip", "cty"})
"""Header fields that change what the token means: critical extensions, encryption, nesting."""
_SEGMENTS = 3

MAX_AGE_S = 3600.0
"""Seconds that a key may still be accepted after the issuer has withdrawn it."""
PAUSE_S = 15.0
"""The least time between two requests to the issuer, in seconds."""
_KEEP_S = 24 * 3600.0
"""Seconds that the keys are accepted while the issuer cannot be reached."""
_TIMEOUT_S = 5.0
"""The limit for discovery and keys together, in seconds."""
_MAX_BYTES = 512_000
_MAX_KEYS = 100

_ALGORITHMS: Mapping[tuple[str, str | None], tuple[str, ...]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""The algorithms by a key's type and curve (RFC 7518, RFC 8037), without symmetric ones."""

_ALLOWED = frozenset(name for names in _ALGORITHMS.values() for name in names)

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

logger = logging.getLogger(__name__)

_REASONS: Mapping[type[jwt.PyJWTError], str] = {
    jwt.ExpiredSignatureError: "Expired",
    jwt.ImmatureSignatureError: "NotYetValid",
    jwt.InvalidAudienceError: "WrongAudience",
    jwt.InvalidIssuerError: "WrongIssuer",
    jwt.MissingRequiredClaimError: "MissingClaim",
    jwt.InvalidSignatureError: "WrongSignature",
}


class Tokens:
    """Authenticates by a valid token of the issuer for this audience.

    The principal is the token's subject; for the grant `client_credentials` that is the client (RFC
    9068). The keys come only from the issuer; keys that a token itself names (`jwk`, `jku`, `x5c`,
    `x5u`) are ignored.

    Raises:
        ConfigurationError: issuer or audience is missing, or a URL is not https.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        for name in ("oidc_issuer", "oidc_audience"):
            if not getattr(settings, name):
                msg = f'A2A_{name.upper()} is not set: A2A_AUTH "{settings.auth}" needs it.'
                raise ConfigurationError(msg)
        self._issuer = _Issuer(settings.oidc_issuer, clock=clock, jwks_url=settings.oidc_jwks_url)
        self._iss, self._aud = settings.oidc_issuer, settings.oidc_audience
        self._scopes = frozenset(settings.oidc_scope.split())
        self._tenant_claim = settings.oidc_tenant_claim

    async def authenticate(self, headers: Headers) -> Principal:
        """Return the subject of the request's token.

        Raises:
            RequestRefusedError: 401 for an invalid token, 403 for one without the scope, 503 when
                the issuer's keys cannot be read.
        """
        token = _presented(headers)
        header = _header(token)
        claims = self._claims(token, await self._key(header))
        if not claims["sub"]:
            raise _invalid("MissingClaim")
        if not _is_text(claims["sub"]):
            raise _invalid("MalformedToken")
        missing = self._scopes - _scopes(claims)
        if missing:
            raise self._forbidden()
        principal = oidc_principal(claims["iss"], claims["sub"])
        return Principal(principal, tenant=self._tenant(claims))

    async def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        try:
            key = await self._issuer.key(header.get("kid"), header["alg"])
        except UnavailableError as error:
            # Not 401: the token may be valid, and the client would ask for another one in vain.
            raise RequestRefusedError(
                "IssuerUnavailable",
                503,
                "Tokens cannot be checked at the moment; try again later.",
                {"Retry-After": f"{PAUSE_S:g}"},
            ) from error
        if key is None:
            raise _invalid("UnknownKid")
        return key

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=self._iss,
                audience=self._aud,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise _invalid(_REASONS.get(type(error), "MalformedToken")) from error

    def _tenant(self, claims: Mapping[str, Any]) -> str | None:
        if not self._tenant_claim:
            return None
        tenant = claims.get(self._tenant_claim)
        if not tenant or not _is_text(tenant):
            raise _invalid("NoTenant")
        return str(tenant)

    def _forbidden(self) -> RequestRefusedError:
        scopes = " ".join(sorted(self._scopes))
        challenge = f'Bearer realm="a2a", error="insufficient_scope", scope="{scopes}"'
        message = f"The token lacks the scope {scopes}."
        return RequestRefusedError("MissingScope", 403, message, {"WWW-Authenticate": challenge})


def _presented(headers: Headers) -> str:
    values = headers.getlist("authorization")
    if not values:
        raise RequestRefusedError(
            "NoCredentials", 401, "A bearer token is required.", _challenge('realm="a2a"')
        )
    scheme, _, token = values[0].partition(" ")
    if len(values) > 1:
        raise _invalid("AmbiguousCredentials")
    if scheme.lower() != "bearer" or len(token) > _MAX_TOKEN:
        raise _invalid("MalformedToken")
    return token.strip()


def _header(token: str) -> dict[str, Any]:
    """Return the token's header if its form, algorithm and type are allowed."""
    if token.count(".") != _SEGMENTS - 1:
        raise _invalid("MalformedToken")  # an encrypted token has five segments
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, RecursionError) as error:
        raise _invalid("MalformedToken") from error
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in _ALLOWED:
        raise _invalid("ForbiddenAlgorithm")
    kind = header.get("typ", "")
    if not isinstance(kind, str) or kind.lower() not in _TYPES or _UNSUPPORTED & header.keys():
        raise _invalid("UnsupportedToken")
    return header


def _is_text(value: object) -> bool:
    """Return True if a claim is Unicode text; JSON can also express lone surrogates."""
    return isinstance(value, str) and is_unicode(value)


def _scopes(claims: Mapping[str, Any]) -> set[str]:
    """Return the scopes of `scope` (RFC 9068) and `scp`, either a text or a list."""
    found: set[str] = set()
    for value in (claims.get("scope"), claims.get("scp")):
        words = value.split() if isinstance(value, str) else value
        if isinstance(words, list):
            found.update(word for word in words if isinstance(word, str))
    return found


def _invalid(reason: str) -> RequestRefusedError:
    """Return the refusal of an invalid token (RFC 6750, section 3.1)."""
    challenge = _challenge('realm="a2a", error="invalid_token"')
    return RequestRefusedError(reason, 401, "The bearer token is not valid.", challenge)


def _challenge(parameters: str) -> dict[str, str]:
    return {"WWW-Authenticate": f"Bearer {parameters}"}


# -- the issuer ------------------------------------------------------------------------------


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


class _Issuer:
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
            keep_s=_KEEP_S,
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
            async with asyncio.timeout(_TIMEOUT_S), _client(self._issuer) as client:
                url = self._jwks_url or await self._discovered(client)
                return _SigningKeys(await _json(client, url))
        except TimeoutError as error:
            raise UnavailableError(f"No answer within {_TIMEOUT_S:g} s.") from error

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
    return httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=is_outside, verify=_tls())


@cache
def _tls() -> ssl.SSLContext:
    """Return the process's TLS context: loading the certificates is slow."""
    return httpx.create_ssl_context()


async def _json(client: httpx.AsyncClient, url: str) -> Any:
    """Read the JSON at `url`, without redirects and of at most `_MAX_BYTES`."""
    body = b""
    try:
        async with client.stream("GET", url) as response:
            if response.status_code != httpx.codes.OK:
                raise UnavailableError(f"The issuer answers with status {response.status_code}.")
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise UnavailableError(f"The issuer sends more than {_MAX_BYTES} bytes.")
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
    for algorithm in _ALGORITHMS.get((str(jwk.get("kty")), curve), ()):
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
