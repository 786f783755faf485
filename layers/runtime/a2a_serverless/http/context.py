"""The context of a call: its caller, tenant, headers and address, and the errors that leave it."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import field
from email.utils import unquote
from typing import Any, Final

from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.types import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    VersionNotSupportedError,
)
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.message import Message as AnyMessage
from starlette.requests import Request

from a2a_serverless.errors import A2AServerlessError, InvalidArgumentError
from a2a_serverless.http.errors import (
    RequestRefusedError,
    count_error,
    internal_error,
    invalid_params,
    quoted,
    translated,
)
from a2a_serverless.observability import spans
from a2a_serverless.propagated import PropagatedVariables
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.fold import Cursor
from a2a_serverless.tasks.identity import Dialect, Scope, digest
from a2a_serverless.values import dataclass

EXTENSION_HEADERS = (HTTP_EXTENSION_HEADER, "X-A2A-Extensions")
"""The header's name, and that until 0.3."""
INVOCATION_HEADER = "x-amzn-lambda-context"
"""The header in which the Lambda Web Adapter passes Lambda's context of an invocation on."""
BASE_URL = "a2a_serverless.base_url"
"""The field of an ASGI scope for the address that the gateway names."""
MAX_TENANT = 256
"""Characters of a tenant's name."""
_VERSIONS = (PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0)


_PREFERENCE = re.compile(r'(?:[^,"]|"(?:\\.|[^"\\])*"?)+')
"""One entry of a list between commas: those of a quoted text are part of it."""

_AFTER_UNDERSCORE = re.compile(r"_([a-z0-9])")
_LATEST_MS = 10**15


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    `user_name` is its identity, for the scope and the agent: an API key's name, also of a token
    that is named beside the keys, or a token's digest. `tenant` is the only tenant that it may act
    in; None when it may name any.
    """

    user_name: str
    tenant: str | None = None


_ANYONE = Principal("")


@dataclass(slots=True)
class CallContext:
    """The context of one call.

    Attributes:
        request: the request that the call came with.
        tenant: the tenant that the request names; empty if it names none.
        chosen_id: the id that the client has given to its task, which is created if it does not
            exist; None, as in most calls, when the server chooses.
        creation_key: the idempotency key of a created task with a client's own id, if the request
            has none.
        dialect: the version of A2A that the client speaks.
        user_name: the caller's identity; empty where callers are not known.
        scope: that of the principal in its tenant (A2A 1.0.1, section 13.1). A principal that has a
            tenant of its own acts in it, even if the call does not name it. In any other tenant it
            finds nothing, as if that tenant did not exist.
        extensions: those that the caller declares.
        idempotency_key: the key by which a repeated message is recognised; None if it has none.
    """

    request: Request
    tenant: str = ""
    chosen_id: str | None = None
    creation_key: str | None = None
    dialect: Dialect = "1.0"
    user_name: str = field(init=False)
    scope: Scope = field(init=False)
    extensions: frozenset[str] = field(init=False)
    idempotency_key: str | None = field(init=False)
    _acts_in: str = field(init=False)
    """The tenant that the call acts in."""
    _is_foreign: bool = field(init=False)
    """True if its principal may not act in the tenant that it names."""

    def __post_init__(self) -> None:
        """Read what is asked for more than once.

        Raises:
            InvalidArgumentError: the tenant's name is too long.
        """
        if len(self.tenant) > MAX_TENANT:
            msg = f"A tenant's name may have at most {MAX_TENANT} characters."
            raise InvalidArgumentError(msg, "tenant")
        principal: Principal = self.request.scope.get("user") or _ANYONE
        self.user_name, own = principal.user_name, principal.tenant
        self.extensions = requested_extensions(self.request)
        self.idempotency_key = self.request.headers.get("idempotency-key") or None
        self._acts_in = self.tenant or own or ""
        self._is_foreign = own is not None and self._acts_in != own
        if self._is_foreign:
            self.scope = Scope(digest("foreign-tenant", self.tenant, self.user_name))
        else:
            self.scope = Scope.of(self._acts_in, self.user_name)

    def check_may_open(self) -> None:
        """Refuse a new task in another tenant than the caller's: the agent would act in its name.

        Raises:
            InvalidArgumentError: in the same words for a tenant that exists and one that does not.
        """
        if self._is_foreign:
            raise InvalidArgumentError("The agent knows no such tenant.", "tenant")

    def caller(self, propagated: PropagatedVariables | None) -> Caller:
        """Return the message's sender and context variables, as the agent will see them.

        Raises:
            ConfigurationError: a variable has a value that cannot be propagated.
        """
        return Caller(
            user=self.user_name,
            tenant=self._acts_in,
            extensions=tuple(sorted(self.extensions)),
            variables="" if propagated is None else propagated.capture(),
        )

    @property
    def last_event_id(self) -> Cursor | None:
        """Return the cursor of a resumed subscription; None for a new one.

        Raises:
            InvalidArgumentError: the header's value is not the id of an event.
        """
        text = self.request.headers.get("last-event-id")
        if not text:
            return None
        cursor = Cursor.parse(text)
        if cursor is None:
            raise InvalidArgumentError("Last-Event-ID is not the id of an event of this server.")
        return cursor

    @property
    def ends_with_turn(self) -> bool:
        """Return True if a subscription ends with the turn, by `Prefer: until=turn` (RFC 7240).

        A value may be quoted and have parameters; of a preference that comes twice the first
        counts.
        """
        preferences: dict[str, str] = {}
        for preference in _PREFERENCE.findall(self.request.headers.get("prefer", "")):
            name, _, value = preference.partition(";")[0].partition("=")
            preferences.setdefault(name.strip().lower(), unquote(value.strip()).lower())
        return preferences.get("until") == "turn"

    @property
    def function_deadline_ms(self) -> int | None:
        """Return when the function ends, in milliseconds since the epoch; None if unknown.

        The Lambda Web Adapter gives it in a header. Elsewhere a client may send that header, and
        can only shorten its own call by it.
        """
        try:
            deadline_ms = int(from_header(self.request.headers, INVOCATION_HEADER)["deadline"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return deadline_ms if abs(deadline_ms) < _LATEST_MS else None


def requested_extensions(request: Request) -> frozenset[str]:
    """Return the extensions that the caller declares, under the header's new or former name."""
    values = [value for name in EXTENSION_HEADERS for value in request.headers.getlist(name)]
    return frozenset(get_requested_extensions(values))


def names_1_0(request: Request) -> bool:
    """Return True if the request says that it is of 1.0, or of a version that is not served."""
    try:
        return _version(request) == PROTOCOL_VERSION_1_0
    except VersionNotSupportedError:
        return True


def check_version(request: Request, spoken: str) -> None:
    """Refuse a request that is of another version than its operation (section 3.6.2).

    A request that names no version is of 0.3.

    Raises:
        VersionNotSupportedError: says which version the operation is of, and what is missing.
    """
    named = _version(request)
    if (named or PROTOCOL_VERSION_0_3) == spoken:
        return
    said = f"the request says {named}" if named else f"without {VERSION_HEADER} a request is of 0.3"
    raise VersionNotSupportedError(
        message=f"The operation is one of A2A {spoken}; {said}: send {VERSION_HEADER}: {spoken}."
    )


def _version(request: Request) -> str:
    """Return the protocol version of the header, or else of the query (section 3.6.1).

    The patch number, which does not count (section 3.6), is left out; empty: none is named.
    """
    query = request.query_params.items()
    asked = request.headers.getlist(VERSION_HEADER)
    asked += [value for name, value in query if name.lower() == VERSION_HEADER.lower()]
    for version in map(str.strip, asked):
        minor = ".".join(version.split(".")[:2])
        if version and minor not in _VERSIONS:
            raise VersionNotSupportedError(
                message=f"A2A version {quoted(version, 20)} is not one of {', '.join(_VERSIONS)}."
            )
        if version:
            return minor
    return ""


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


# -- operations ------------------------------------------------------------------------------


@contextmanager
def protocol_errors(action: str, task_id: str = "") -> Iterator[None]:
    """Let only the protocol's errors out of an operation.

    An unforeseen error is logged with its traceback; the client gets a fixed sentence and the
    correlation id by which to find it in the log. The error that the client gets is counted.
    """
    try:
        try:
            yield
        except (A2AError, RequestRefusedError):
            raise
        except A2AServerlessError as error:
            raise translated(error) or internal_error(error, action, task_id) from error
        except Exception as error:
            raise internal_error(error, action, task_id) from error
    except A2AError as error:
        count_error(error)
        raise


def operation(action: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a handler's method an operation, called `action` in the log.

    The required fields of its params are checked first, and it raises only the protocol's errors.
    """

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(method):

            @functools.wraps(method)
            async def stream(handler: Any, params: Any, context: Any) -> AsyncIterator[Any]:
                with _operation(action, params, context):
                    async with aclosing(method(handler, params, context)) as events:
                        async for event in events:
                            yield event

            return stream

        @functools.wraps(method)
        async def call(handler: Any, params: Any, context: Any) -> Any:
            with _operation(action, params, context):
                return await method(handler, params, context)

        return call

    return wrap


@contextmanager
def _operation(action: str, params: Any, context: CallContext) -> Iterator[None]:
    """Name the request's span after the operation, and check its params; see `operation`."""
    named = params.message if isinstance(params, SendMessageRequest) else params
    task_id: str = getattr(named, "task_id", getattr(named, "id", ""))
    with protocol_errors(action, task_id):
        name = action.title().replace("_", "")
        spans.current().set({"rpc.method": name, "a2a.task.id": task_id or None}, name=name)
        check_required(params, context.dialect)
        yield


def check_required(params: Any, dialect: Dialect = "1.0") -> None:
    """Refuse params that lack what the protocol requires (section 5.7), by the names in JSON.

    Raises:
        InvalidParamsError: names every such field.
    """
    shape = params
    if isinstance(params, SendMessageRequest):
        # Without the author's data, of which nothing is required: the SDK's check looks at every
        # value, which takes longer than all else that is done for a send.
        shape = SendMessageRequest()
        shape.CopyFrom(params)
        shape.ClearField("metadata")
        if shape.HasField("message"):  # to clear a field of it would make it present
            shape.message.ClearField("metadata")
        for part in shape.message.parts:
            part.ClearField("metadata")
            part.ClearField("data")
    try:
        validate_proto_required_fields(shape)
    except InvalidParamsError as error:
        missing = [_in_json(one["field"]) for one in (error.data or {}).get("errors", [])]
        fields = [in_dialect(field, type(params), dialect) for field in missing]
        missing_fields = ((field, "Missing or empty.") for field in fields)
        message = f"Required and missing or empty: {', '.join(fields)}."
        raise invalid_params(message, *missing_fields) from error


def in_dialect(field: str, of: type[AnyMessage], dialect: Dialect) -> str:
    """Return the name of a field of the params `of`, given as 1.0 has it, for a client's eyes."""
    if dialect == PROTOCOL_VERSION_1_0:
        return field
    field = re.sub(r"\bauthentication\.scheme$", "authentication.schemes", field)
    inline = "pushNotification" if dialect == "0.1" else "configuration.pushNotificationConfig"
    if of is TaskPushNotificationConfig:
        return field if field == "taskId" else f"pushNotificationConfig.{field}"
    if of in _ABOUT_A_CONFIG:
        return {"taskId": "id", "id": "pushNotificationConfigId"}.get(field, field)
    return field.replace("configuration.taskPushNotificationConfig", inline)


_ABOUT_A_CONFIG: Final = (
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    DeleteTaskPushNotificationConfigRequest,
)


def _in_json(path: str) -> str:
    """Return the path of a protobuf field as JSON has it: `message.message_id` is `messageId`."""
    return _AFTER_UNDERSCORE.sub(lambda found: found[1].upper(), path)
