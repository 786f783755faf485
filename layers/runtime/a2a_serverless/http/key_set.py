"""The public keys that push notifications are signed with, for whoever receives them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

from a2a_serverless.cached import Cached
from a2a_serverless.clock import Clock
from a2a_serverless.errors import UnavailableError
from a2a_serverless.http.errors import http_error
from a2a_serverless.push.keys import JWKS_MAX_AGE_S, KeyStore, jwks

_KEPT_S = 60.0
_PAUSE_S = 1.0
"""Anybody may ask, so that the store is not asked each time."""


class KeySet:
    """Serves the JWK set (RFC 7517, section 5), which holds no private key.

    Receivers may keep it for `JWKS_MAX_AGE_S`, and this process keeps it for less; a new key signs
    only when both times are over. The first key of all signs at once: an empty set is kept by
    nobody.
    """

    def __init__(self, keys: KeyStore, clock: Clock) -> None:
        self._document = Cached(
            "The key set",
            lambda: jwks(keys),
            clock=clock,
            max_age_s=_KEPT_S,
            pause_s=_PAUSE_S,
            keep_s=JWKS_MAX_AGE_S,
        )

    async def answer(self, _: Request) -> JSONResponse:
        """The set; 503 when the store has not answered for `JWKS_MAX_AGE_S`."""
        try:
            document = await self._document.get()
            if not document["keys"]:
                document = await self._document.newer()
        except UnavailableError:
            return http_error(503, "UNAVAILABLE", "The keys cannot be read now; try again.")
        cached = f"public, max-age={JWKS_MAX_AGE_S}" if document["keys"] else "no-store"
        return JSONResponse(document, headers={"Cache-Control": cached})
