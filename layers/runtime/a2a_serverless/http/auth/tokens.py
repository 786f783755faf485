"""Bearer tokens of an OpenID Connect issuer: signed JWTs (RFC 7519, RFC 8725, RFC 9068).

Imported only where A2A_AUTH is `oidc`: PyJWT and cryptography take a while to load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jwt
from starlette.datastructures import Headers

from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.http.auth.issuer import ALLOWED, PAUSE_S, Issuer
from a2a_serverless.http.context import Principal
from a2a_serverless.http.errors import RefusedError
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.identity import digest, is_unicode

_LEEWAY_S = 60
"""Seconds by which the issuer's clock may differ from ours."""
MAX_TOKEN = 16_384
"""The longest token that is looked at, in characters."""

_TYPES = frozenset({"", "jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""`typ` of access tokens; logout tokens and proofs have others."""
_UNSUPPORTED = frozenset({"crit", "b64", "enc", "zip", "cty"})
"""Header fields that change what the token means: critical extensions, encryption, nesting."""
_SEGMENTS = 3

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
                msg = f'A2A_{name.upper()} is not set: A2A_AUTH "oidc" needs it.'
                raise ConfigurationError(msg)
        self._issuer = Issuer(settings.oidc_issuer, clock=clock, jwks_url=settings.oidc_jwks_url)
        self._iss, self._aud = settings.oidc_issuer, settings.oidc_audience
        self._scopes = frozenset(settings.oidc_scope.split())
        self._tenant_claim = settings.oidc_tenant_claim

    async def authenticate(self, headers: Headers) -> Principal:
        """Return the subject of the request's token.

        Raises:
            RefusedError: 401 for an invalid token, 403 for one without the scope, 503 when the
                issuer's keys cannot be read.
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
        return Principal(
            digest("principal", "oidc", claims["iss"], claims["sub"]), tenant=self._tenant(claims)
        )

    async def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        try:
            key = await self._issuer.key(header.get("kid"), header["alg"])
        except UnavailableError as error:
            raise RefusedError(
                "IssuerUnavailable",
                503,
                "Tokens cannot be checked at the moment; try again later.",
                {"Retry-After": f"{PAUSE_S:g}"},
            ) from error
        if key is None:
            raise _invalid("UnknownKid")
        return key

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        """Return the claims of a token with a valid signature, issuer, audience and times."""
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

    def _forbidden(self) -> RefusedError:
        scopes = " ".join(sorted(self._scopes))
        challenge = f'Bearer realm="a2a", error="insufficient_scope", scope="{scopes}"'
        message = f"The token lacks the scope {scopes}."
        return RefusedError("MissingScope", 403, message, {"WWW-Authenticate": challenge})


def _presented(headers: Headers) -> str:
    """Return the request's only bearer token."""
    values = headers.getlist("authorization")
    if not values:
        raise RefusedError(
            "NoCredentials", 401, "A bearer token is required.", _challenge('realm="a2a"')
        )
    scheme, _, token = values[0].partition(" ")
    if len(values) > 1:
        raise _invalid("AmbiguousCredentials")
    if scheme.lower() != "bearer" or len(token) > MAX_TOKEN:
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
    if not isinstance(algorithm, str) or algorithm not in ALLOWED:
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


def _invalid(reason: str) -> RefusedError:
    """Return the refusal of an invalid token (RFC 6750, section 3.1)."""
    challenge = _challenge('realm="a2a", error="invalid_token"')
    return RefusedError(reason, 401, "The bearer token is not valid.", challenge)


def _challenge(parameters: str) -> dict[str, str]:
    return {"WWW-Authenticate": f"Bearer {parameters}"}
