"""API keys: every operation needs one, the card and the health check do not."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterable

from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http.context import Principal
from a2a_serverless.http.errors import http_error
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.identity import digest

HEALTH_PATH = "/healthz"
OLDER_CARD_PATH = "/.well-known/agent.json"
"""Where the card was until 0.2; served with the older dialects."""
PUBLIC_PATHS = frozenset({AGENT_CARD_WELL_KNOWN_PATH, OLDER_CARD_PATH, HEALTH_PATH})

_log = logging.getLogger(__name__)


class ApiKeyAuth:
    """Lets a request through that carries the key, as the principal that the key stands for.

    The key comes in `X-API-Key` or as a bearer token.
    """

    def __init__(self, app: ASGIApp, *, key: str) -> None:
        self._app = app
        self._key = key.encode()
        self._principal = Principal(digest("principal", "api-key", key))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS:
            await self._app(scope, receive, send)
        elif any(self._is_right(key) for key in _keys(Headers(scope=scope))):
            await self._app({**scope, "user": self._principal}, receive, send)
        else:
            _log.info("refused", extra={"action": "unauthenticated", "path": scope["path"]})
            response = http_error(401, "UNAUTHENTICATED", "A valid API key is required.")
            response.headers["WWW-Authenticate"] = 'Bearer realm="a2a"'
            await response(scope, receive, send)

    def _is_right(self, key: str) -> bool:
        return hmac.compare_digest(key.encode(), self._key)


def api_key_of(settings: Settings) -> str | None:
    """The key that callers have to send; None when anybody may call.

    Raises:
        ConfigurationError: nobody has decided, or the key is missing.
    """
    if settings.auth == "none":
        return None
    if not settings.auth:
        msg = 'A2A_AUTH is not set: "api-key", or "none" for an endpoint that is open to anybody.'
        raise ConfigurationError(msg)
    key = settings.api_key.get_secret_value()
    if not key:
        msg = 'A2A_API_KEY is not set: A2A_AUTH "api-key" needs it.'
        raise ConfigurationError(msg)
    return key


def _keys(headers: Headers) -> Iterable[str]:
    yield from headers.getlist("x-api-key")
    for value in headers.getlist("authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            yield token.strip()
