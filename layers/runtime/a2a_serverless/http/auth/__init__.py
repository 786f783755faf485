"""Authentication: every path except a few public ones requires credentials."""

from __future__ import annotations

from typing import Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http import PUBLIC_PATHS
from a2a_serverless.http.auth.api_keys import ApiKeys
from a2a_serverless.http.context import Principal
from a2a_serverless.http.errors import RefusedError, response_of
from a2a_serverless.settings import Settings

_CHOICES = '"api-key", "oidc", or "none" for an endpoint that is open to all'


class Authenticator(Protocol):
    """Authenticates a request by its headers."""

    async def authenticate(self, headers: Headers) -> Principal:
        """Return the caller.

        Raises:
            RefusedError: the caller is unknown or may not call.
        """
        ...


class Authentication:
    """Lets only authenticated requests through to paths that are not public.

    The answers have `Cache-Control: no-store`: a cache between us and the clients does not look at
    `X-API-Key`, and would give one caller's answer to another.

    Args:
        authenticator: None lets every request through, without a principal.
    """

    def __init__(self, app: ASGIApp, *, authenticator: Authenticator | None) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS:
            await self._app(scope, receive, send)
            return

        async def send_private(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if self._authenticator is None:
            await self._app(scope, receive, send_private)
            return
        try:
            principal = await self._authenticator.authenticate(Headers(scope=scope))
        except RefusedError as error:
            await response_of(error, scope["path"])(scope, receive, send_private)
            return
        await self._app({**scope, "user": principal}, receive, send_private)


def authenticator_of(settings: Settings, clock: Clock) -> Authenticator | None:
    """Return the authenticator that A2A_AUTH asks for; None when it is `none`.

    Keys of Secrets Manager are read here, at the start, so that no request has to wait for them.

    Raises:
        ConfigurationError: A2A_AUTH is not set, or what it needs is missing or wrong.
    """
    match settings.auth:
        case "none":
            return None
        case "api-key":
            return _api_keys(settings, clock)
        case "oidc":
            from a2a_serverless.http.auth.tokens import Tokens  # noqa: PLC0415 - only where it is used

            return Tokens(settings, clock)
        case _:
            raise ConfigurationError(f"A2A_AUTH is not set: {_CHOICES}.")


def _api_keys(settings: Settings, clock: Clock) -> ApiKeys:
    keys, secret = settings.api_keys.get_secret_value(), settings.api_keys_secret
    if keys and secret:
        msg = "A2A_API_KEYS and A2A_API_KEYS_SECRET are both set; set one of them."
        raise ConfigurationError(msg)
    if secret:
        from a2a_serverless.aws import SecretText  # noqa: PLC0415 - loads boto3

        stored = SecretText(secret)
        return ApiKeys(stored.read_now(), clock=clock, read=stored.read)
    if not keys.strip():
        msg = 'A2A_API_KEYS_SECRET or A2A_API_KEYS is not set: A2A_AUTH "api-key" needs one.'
        raise ConfigurationError(msg)
    return ApiKeys(keys, clock=clock)
