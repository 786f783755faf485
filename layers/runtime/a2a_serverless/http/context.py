"""The context of a call: its caller, tenant, headers and address."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import unquote
from typing import Any

from a2a.auth.user import UnauthenticatedUser, User
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.types import AgentCard
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.errors import ExtensionSupportRequiredError, VersionNotSupportedError
from starlette.requests import Request

from a2a_serverless.carried import CarriedVariables
from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.http.errors import quoted
from a2a_serverless.observability import tracing
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.events import Cursor
from a2a_serverless.tasks.identity import Scope, digest

EXTENSION_HEADERS = (HTTP_EXTENSION_HEADER, "X-A2A-Extensions")
"""The header's name, and that until 0.3."""
INVOCATION_HEADER = "x-amzn-lambda-context"
"""The header in which the Lambda Web Adapter passes Lambda's context of an invocation on."""
BASE_URL = "a2a_serverless.base_url"
"""The field of an ASGI scope for the address that the gateway names."""
_SECRET_HEADERS = frozenset({"authorization", "cookie", "x-api-key"})
_CHOSEN_ID = "a2a_serverless.chosen_id"
_OWN_TENANT = "a2a_serverless.own_tenant"
_REQUEST = "a2a_serverless.request"

MAX_TENANT = 256
"""Characters of a tenant's name."""
_VERSIONS = (PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0)


class Principal(User):
    """An authenticated caller.

    Args:
        name: its identity, for the scope and the agent: an API key's name, or a token's digest.
        tenant: the only tenant that the caller may act in; None when it may name any.
    """

    def __init__(self, name: str, *, tenant: str | None = None) -> None:
        self._name = name
        self.tenant = tenant

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


def call_context(request: Request, tenant: str) -> ServerCallContext:
    """Return the context of a request's call in the tenant that it names.

    Raises:
        VersionNotSupportedError: the request asks for a version that is not served (section
            3.6.2); patch numbers do not count.
    """
    headers = {
        name: value for name, value in request.headers.items() if name not in _SECRET_HEADERS
    }
    headers[VERSION_HEADER.lower()] = _minor(_version(request))
    caller = request.scope.get("user")
    state = {
        "headers": headers,
        _OWN_TENANT: getattr(caller, "tenant", None),
        _REQUEST: request,
    }
    return ServerCallContext(
        user=caller or UnauthenticatedUser(),
        state=state,
        tenant=tenant,
        requested_extensions=requested_extensions(request),
    )


def check_extensions(request: Request, card: AgentCard) -> None:
    """Refuse a caller that does not declare an extension that the card requires (section 3.3.4).

    Raises:
        ExtensionSupportRequiredError: names the missing extensions.
    """
    required = {e.uri for e in card.capabilities.extensions if e.required}
    missing = required - requested_extensions(request)
    if missing:
        raise ExtensionSupportRequiredError(
            message=f"The agent requires the extension {', '.join(sorted(missing))}."
        )


def requested_extensions(request: Request) -> set[str]:
    """Return the extensions that the caller declares, under the header's new or former name."""
    values = (value for name in EXTENSION_HEADERS for value in request.headers.getlist(name))
    return get_requested_extensions([*values])


def names_version(request: Request) -> bool:
    """Return True if the request names any version of the protocol."""
    names = {name.lower() for name in (*request.headers, *request.query_params)}
    return VERSION_HEADER.lower() in names


def names_1_0(request: Request) -> bool:
    """Return True if the request says that it is of 1.0, or of a version that is not served."""
    try:
        return _minor(_version(request)) == PROTOCOL_VERSION_1_0
    except VersionNotSupportedError:
        return True


def check_version(request: Request, spoken: str) -> None:
    """Refuse a request that is of another version than its operation (section 3.6.2).

    A request that names no version is of 0.3.

    Raises:
        VersionNotSupportedError: says which version the operation is of, and what is missing.
    """
    named = _minor(_version(request))
    if (named or PROTOCOL_VERSION_0_3) == spoken:
        return
    said = f"the request says {named}" if named else f"without {VERSION_HEADER} a request is of 0.3"
    raise VersionNotSupportedError(
        message=f"The operation is one of A2A {spoken}; {said}: send {VERSION_HEADER}: {spoken}."
    )


def _version(request: Request) -> str:
    """Return the protocol version of the header, or else of the query (section 3.6.1)."""
    asked: Sequence[str] = [
        *request.headers.getlist(VERSION_HEADER),
        *(v for k, v in request.query_params.items() if k.lower() == VERSION_HEADER.lower()),
    ]
    version = next((v.strip() for v in asked if v.strip()), "")
    if version and _minor(version) not in _VERSIONS:
        raise VersionNotSupportedError(
            message=f"A2A version {quoted(version, 20)} is not one of {', '.join(_VERSIONS)}."
        )
    return version


def _minor(version: str) -> str:
    """Return a version without its patch number, which does not count (section 3.6)."""
    return ".".join(version.split(".")[:2])


def scope_of(context: ServerCallContext) -> Scope:
    """Return the scope of the call: its principal in its tenant (A2A 1.0.1, section 13.1).

    A principal that has a tenant of its own acts in it, even if the call does not name it. In any
    other tenant it finds nothing, as if that tenant did not exist.

    Raises:
        InvalidArgumentError: the tenant's name is too long.
    """
    if len(context.tenant) > MAX_TENANT:
        raise InvalidArgumentError(f"A tenant's name may have at most {MAX_TENANT} characters.")
    if _is_foreign(context):
        return Scope(digest("foreign-tenant", context.tenant, context.user.user_name))
    return Scope.of(_tenant(context), context.user.user_name)


def check_may_open(context: ServerCallContext) -> None:
    """Refuse a new task in another tenant than the caller's: the agent would act in its name.

    Raises:
        InvalidArgumentError: in the same words for a tenant that exists and one that does not.
    """
    if _is_foreign(context):
        raise InvalidArgumentError("The agent knows no such tenant.")


def _is_foreign(context: ServerCallContext) -> bool:
    own = context.state.get(_OWN_TENANT)
    return own is not None and context.tenant not in ("", own)


def _tenant(context: ServerCallContext) -> str:
    return context.tenant or context.state.get(_OWN_TENANT) or ""


def request_of(context: ServerCallContext) -> Request:
    """Return the request that the call came with."""
    request: Request = context.state[_REQUEST]
    return request


def caller_of(context: ServerCallContext, carried: CarriedVariables | None) -> Caller:
    """Return the message's sender and context variables, as the agent will see them.

    Raises:
        ConfigurationError: a variable has a value that cannot be carried.
    """
    return Caller(
        user=context.user.user_name,
        tenant=_tenant(context),
        extensions=tuple(sorted(context.requested_extensions)),
        variables="" if carried is None else carried.capture(),
    )


def idempotency_key(context: ServerCallContext) -> str | None:
    """Return the key by which a repeated message is recognised; None when the caller gave none."""
    return _headers(context).get("idempotency-key") or None


def last_event_id(context: ServerCallContext) -> Cursor | None:
    """Return the cursor of a resumed subscription; None for a new one.

    Raises:
        InvalidArgumentError: the header's value is not the id of an event.
    """
    text = _headers(context).get("last-event-id")
    if not text:
        return None
    cursor = Cursor.parse(text)
    if cursor is None:
        raise InvalidArgumentError("Last-Event-ID is not the id of an event of this server.")
    return cursor


_PREFERENCE = re.compile(r'(?:[^,"]|"(?:\\.|[^"\\])*"?)+')
"""One entry of a list between commas: those of a quoted text are part of it."""


def ends_with_turn(context: ServerCallContext) -> bool:
    """Return True if a subscription is to end with the turn, by `Prefer: until=turn` (RFC 7240).

    A value may be quoted and have parameters; of a preference that comes twice the first counts.
    """
    preferences: dict[str, str] = {}
    for preference in _PREFERENCE.findall(_headers(context).get("prefer", "")):
        name, _, value = preference.partition(";")[0].partition("=")
        preferences.setdefault(name.strip().lower(), unquote(value.strip()).lower())
    return preferences.get("until") == "turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChosenId:
    """The id that a client has given to its task; only the legacy dialects allow that."""

    task_id: str
    ttl_s: float | None = None


def choose_id(context: ServerCallContext, task_id: str, *, ttl_s: float | None = None) -> None:
    """Send the call's message to the task `task_id`, which is created if it does not exist.

    `ttl_s` is how long a created task is kept; by default as long as any other.
    """
    context.state[_CHOSEN_ID] = _ChosenId(task_id=task_id, ttl_s=ttl_s)


def chosen_id(context: ServerCallContext) -> _ChosenId | None:
    """Return the id chosen by the client; None, as in most calls, when the server chooses."""
    chosen: _ChosenId | None = context.state.get(_CHOSEN_ID)
    return chosen


def trace_context(context: ServerCallContext) -> dict[str, str]:
    """Return the trace that the call is part of, for the worker to continue."""
    return tracing.incoming(_headers(context))


_LATEST_MS = 10**15


def function_deadline_ms(context: ServerCallContext) -> int | None:
    """Return the time of the function's end, in milliseconds since the epoch; None if unknown.

    The Lambda Web Adapter gives it in a header. Elsewhere a client may send that header, and can
    only shorten its own call by it.
    """
    try:
        deadline_ms = int(from_header(_headers(context), INVOCATION_HEADER)["deadline"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return deadline_ms if abs(deadline_ms) < _LATEST_MS else None


def _headers(context: ServerCallContext) -> Mapping[str, str]:
    headers: Mapping[str, str] = context.state.get("headers", {})
    return headers


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


def base_url(request: Request, settings: Settings) -> str:
    """Return the URL under which a request's client reaches the agent, without a `/` at its end.

    It is the settings' `public_url`, or else what API Gateway says about the request, or else the
    URL of the request itself. Notifications name the same address as their issuer; PushFunction,
    which has no request, gets it from its settings.
    """
    url: str = settings.public_url or request.scope.get(BASE_URL) or str(request.base_url)
    return url.rstrip("/")
