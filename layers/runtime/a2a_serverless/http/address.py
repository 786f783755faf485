"""The address of the agent: the URL under which the client of a request reaches it.

Card and extended card get it here: it is the settings' `public_url`, or else what API Gateway says
about the request, or else the URL of the request itself. Notifications name the same address as
their issuer; PushFunction, which has no request, gets it from its settings.

API Gateway gives the address in the `requestContext` of its events. A client can write no part of
that: the domain is the one by which the gateway has found the API, and the stage stands before the
path. Behind the Lambda Web Adapter the context is a header, which the adapter sets for every
request; only `from_adapter` reads it. Everywhere else it is a client's header like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless.settings import Settings


def _listed(form: str) -> re.Pattern[str]:
    """Return the pattern of a header with one value for each proxy, separated by commas."""
    return re.compile(rf"(?:{form})(?:\s*,\s*(?:{form}))*", re.ASCII | re.IGNORECASE)


CONTEXT_HEADER = "x-amzn-request-context"
"""The header in which the Lambda Web Adapter passes an event's `requestContext` on, in JSON."""

_NAME = r"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])"
_PORT = r"(?:6553[0-5]|655[0-2]\d|65[0-4]\d{2}|6[0-4]\d{3}|[1-5]?\d{1,4})"
_FORMS: Mapping[str, tuple[re.Pattern[str], str]] = {
    "host": (re.compile(f"{_NAME}(?::{_PORT})?", re.ASCII), "the name of a host, and a port"),
    "x-forwarded-host": (_listed(f"{_NAME}(?::{_PORT})?"), "names of hosts"),
    "x-forwarded-port": (_listed(_PORT), "numbers of ports"),
    "x-forwarded-proto": (_listed("https?|wss?"), "http or https"),
    "x-forwarded-for": (_listed(r"[A-Za-z0-9._:\[\]%-]{1,255}"), "addresses"),
}
"""Headers in which servers, proxies and frameworks look for an address."""

_BASE_URL = "a2a_serverless.base_url"
_LOOPBACK = frozenset({"127.0.0.1", "localhost"})


def malformed_header(headers: Iterable[tuple[str, str]]) -> str | None:
    """Return a sentence about the first malformed header of an address; None if there is none.

    No client needs to send such a header, and libraries raise all kinds of errors on it.
    """
    for name, value in headers:
        form, meaning = _FORMS.get(name.lower(), (None, ""))
        if form is not None and form.fullmatch(value.strip()) is None:
            return f"The header {name.title()} is malformed: send {meaning}, or leave it out."
    return None


def base_url(request: Request, settings: Settings) -> str:
    """Return the URL under which a request's client reaches the agent, without a `/` at its end."""
    url: str = settings.public_url or request.scope.get(_BASE_URL) or str(request.base_url)
    return url.rstrip("/")


def from_gateway(scope: Scope, context: Mapping[str, Any]) -> Scope:
    """Return the scope of a request with the address that its `requestContext` names, if it does.

    The path in the context begins with the stage; the scope's path does not. On a custom domain
    that is mapped at its root the two paths are the same.

    The gateway of a deployment speaks https. The only other gateway is the local stack's: a domain
    that is this machine itself has the scheme `http`, and no client reaches a deployment under it.
    """
    domain, path = context.get("domainName"), context.get("path")
    if not isinstance(domain, str) or not isinstance(path, str) or not domain:
        return scope
    scheme = "http" if domain.partition(":")[0] in _LOOPBACK else "https"
    stage = _before(scope["path"], unquote(path))
    return {**scope, _BASE_URL: f"{scheme}://{domain}{stage}"}


def _before(path: str, whole: str) -> str:
    """Return what stands before `path` in `whole`; a `/` at the end of either does not count."""
    path, whole = path.rstrip("/"), whole.rstrip("/")
    return whole.removesuffix(path) if whole.endswith(path) else ""


def from_adapter(app: ASGIApp) -> ASGIApp:
    """Return the application for use behind the Lambda Web Adapter, with the address in its header.

    The application does not see the header, because that tells more about the caller.
    """

    async def addressed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            context = from_header(Headers(scope=scope), CONTEXT_HEADER)
            name = CONTEXT_HEADER.encode()
            headers = [header for header in scope["headers"] if header[0].lower() != name]
            scope = from_gateway({**scope, "headers": headers}, context)
        await app(scope, receive, send)

    return addressed


def from_header(headers: Mapping[str, str], name: str) -> Mapping[str, Any]:
    """Return the JSON object in a header of the Lambda Web Adapter.

    Outside of Lambda the header is the client's, and may hold anything or be missing. If it is not
    a JSON object, an empty one is returned.
    """
    try:
        found = json.loads(headers.get(name, "{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
