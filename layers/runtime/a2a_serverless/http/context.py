"""What an operation knows of its call: who, on whose behalf, with which headers.

Built inside the SDK's dispatchers, so that an error here is answered in the binding's own form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.types import AgentCard
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.errors import ExtensionSupportRequiredError, VersionNotSupportedError
from starlette.authentication import BaseUser
from starlette.requests import Request

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.events import Cursor
from a2a_serverless.tasks.identity import Scope

LEGACY_EXTENSION_HEADER = "X-A2A-Extensions"
"""The name until 0.3."""

_SECRET_HEADERS = frozenset({"authorization", "cookie", "x-api-key"})
_TRACE_HEADERS = ("traceparent", "tracestate", "x-amzn-trace-id")
_CHOSEN_ID = "a2a_serverless.chosen_id"
_VERSIONS = (PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0)


class Principal(BaseUser):
    """An authenticated caller, known by a digest."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def display_name(self) -> str:
        return self._name

    @property
    def identity(self) -> str:
        return self._name


class CallContextBuilder(DefaultServerCallContextBuilder):
    """Builds the call context of a request, and refuses what the card rules out.

    Raises:
        VersionNotSupportedError: the request asks for a version that nobody here speaks (section
            3.6.2); patch numbers do not count.
        ExtensionSupportRequiredError: the caller does not declare an extension that the card
            requires (section 3.3.4).
    """

    def __init__(self, card: AgentCard) -> None:
        extensions = card.capabilities.extensions
        self._required = frozenset(e.uri for e in extensions if e.required)

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        headers = {
            name: value
            for name, value in context.state["headers"].items()
            if name not in _SECRET_HEADERS
        }
        headers[VERSION_HEADER.lower()] = _version(request)
        context.state["headers"] = headers
        missing = self._required - requested_extensions(request)
        if missing:
            raise ExtensionSupportRequiredError(
                message=f"The agent requires the extension {', '.join(sorted(missing))}."
            )
        return context


def requested_extensions(request: Request) -> set[str]:
    """The extensions that the caller declares, under the header's present and former name."""
    values = request.headers.getlist(HTTP_EXTENSION_HEADER)
    return get_requested_extensions([*values, *request.headers.getlist(LEGACY_EXTENSION_HEADER)])


def _version(request: Request) -> str:
    """The protocol version of the header, or of the query (section 3.6.1)."""
    asked: Sequence[str] = [
        request.headers.get(VERSION_HEADER, ""),
        *(v for k, v in request.query_params.items() if k.lower() == VERSION_HEADER.lower()),
    ]
    version = next((v.strip() for v in asked if v.strip()), "")
    if version and ".".join(version.split(".")[:2]) not in _VERSIONS:
        raise VersionNotSupportedError(
            message=f"A2A version {version[:20]!r} is not one of {', '.join(_VERSIONS)}."
        )
    return version


def scope_of(context: ServerCallContext) -> Scope:
    """Whose tasks the call sees."""
    return Scope.of(context.tenant, context.user.user_name)


def caller_of(context: ServerCallContext) -> Caller:
    """Who sends the message, as the agent will see it."""
    return Caller(
        user=context.user.user_name,
        tenant=context.tenant,
        extensions=tuple(sorted(context.requested_extensions)),
    )


def idempotency_key(context: ServerCallContext) -> str | None:
    """What the caller gave to recognise a repetition by; None when it gave nothing."""
    return _headers(context).get("idempotency-key") or None


def last_event_id(context: ServerCallContext) -> Cursor | None:
    """The cursor of a resumed subscription; None when it starts anew.

    Raises:
        InvalidArgumentError: the header's value was never an event's id here.
    """
    text = _headers(context).get("last-event-id")
    if not text:
        return None
    cursor = Cursor.parse(text)
    if cursor is None:
        msg = "Last-Event-ID is not the id of an event of this server."
        raise InvalidArgumentError(msg)
    return cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenId:
    """The id that a client has given to its task, as only the older dialects allow."""

    task_id: str
    ttl_s: float | None = None


def choose_id(context: ServerCallContext, task_id: str, *, ttl_s: float | None = None) -> None:
    """Let the call's message go to the task `task_id`, which is created if there is none.

    `ttl_s` is how long a created task is kept, by default as long as any other.
    """
    context.state[_CHOSEN_ID] = ChosenId(task_id=task_id, ttl_s=ttl_s)


def chosen_id(context: ServerCallContext) -> ChosenId | None:
    """The id chosen by the client; None when the server chooses, which is the rule."""
    chosen: ChosenId | None = context.state.get(_CHOSEN_ID)
    return chosen


def trace_context(context: ServerCallContext) -> dict[str, str]:
    """The trace that the call is part of, to be continued by the worker."""
    headers = _headers(context)
    return {name: headers[name] for name in _TRACE_HEADERS if name in headers}


_LATEST_MS = 10**15


def function_deadline_ms(context: ServerCallContext) -> int | None:
    """When the function will be stopped, in milliseconds since the epoch.

    The Lambda Web Adapter says so in a header. Elsewhere a client could only shorten its own call.
    """
    try:
        deadline = json.loads(_headers(context).get("x-amzn-lambda-context", ""))["deadline"]
        deadline_ms = int(deadline)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    return deadline_ms if abs(deadline_ms) < _LATEST_MS else None


def _headers(context: ServerCallContext) -> Mapping[str, str]:
    headers: Mapping[str, str] = context.state.get("headers", {})
    return headers
