"""The OpenAPI description of all routes, as the package has it, which fills the gaps of the SDK's.

The SDK describes bodies, but neither paths and queries, nor that `/v1` speaks 0.3, nor the answers.
This module gives each operation a name, a summary, and every status with its media types. `http/`
serves the file with the texts of the card; it neither makes it nor loads the SDK's own server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from a2a.server.routes.fastapi_routes import add_a2a_routes_to_fastapi
from a2a.types import AgentCard
from a2a.utils.constants import (
    A2A_JSON_MEDIA_TYPE,
    AGENT_CARD_WELL_KNOWN_PATH,
    PROTOCOL_VERSION_0_3,
    PROTOCOL_VERSION_1_0,
    VERSION_HEADER,
)
from fastapi import FastAPI
from google.protobuf.descriptor import FieldDescriptor
from starlette.routing import Route

from a2a_serverless.http import (
    JSONRPC_PATHS,
    PUBLIC_PATHS,
    SUBMIT_PATH,
    UPLOADS_PATH,
    V0_3_PREFIX,
)
from a2a_serverless.http.app import create_app
from a2a_serverless.http.bindings import path_in_0_3
from a2a_serverless.http.middleware import is_rest_1_0
from a2a_serverless.http.operations import OPERATIONS
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends

_JSON: Final = "application/json"
_STREAM: Final = "text/event-stream"

_SUMMARIES: Mapping[str, str] = {
    "SendMessage": "Send a message, and get the agent's answer",
    "SendStreamingMessage": "Send a message, and stream its turn",
    "ListTasks": "List the caller's tasks, newest status first",
    "GetTask": "Get a task as it is now",
    "CancelTask": "Cancel a task",
    "SubscribeToTask": "Stream a task to its end",
    "CreateTaskPushNotificationConfig": "Notify a webhook of a task",
    "ListTaskPushNotificationConfigs": "List a task's webhooks",
    "GetTaskPushNotificationConfig": "Get one of its webhooks",
    "DeleteTaskPushNotificationConfig": "Forget a webhook",
    "GetExtendedAgentCard": "The card for authenticated callers",
}
_NAMES: Mapping[tuple[str, str], tuple[str, str]] = {
    ("get", AGENT_CARD_WELL_KNOWN_PATH): ("GetAgentCard", "The agent card"),
    ("get", "/.well-known/agent.json"): ("GetAgentCardOf_0_2", "The agent card, where 0.2 has it"),
    ("get", "/agentCard"): ("GetAgentCardOf_simple_a2a", "The agent card, where simple_a2a has it"),
    ("post", "/"): ("CallJsonRpc", "Any operation, over JSON-RPC"),
    ("post", SUBMIT_PATH): ("CallOlderJsonRpc", "Any operation, over JSON-RPC"),
    ("post", UPLOADS_PATH): ("AskForUpload", "Get a link to put a large file of a message"),
    **{
        (verb.lower(), path): (one.name + suffix, _SUMMARIES[one.name])
        for one in OPERATIONS
        for verb, suffix in zip(one.verbs, ("", "ByGet"), strict=False)
        for path in (one.path, path_in_0_3(one))
    },
}
"""By method and path: the operation's name, and what it does."""

_TOO_LONG: Final = 413  # Python's name for it has changed
_ALWAYS: Final = (400, 414, 431, 500)
_REFUSED: Final = (401, 403, 429, 503)
"""Statuses of every path except the public ones."""
_REASONS: Mapping[int, str] = {
    400: "The request is malformed, or the task's state or the agent's card rules it out",
    401: "Credentials are missing or refused",
    403: "The caller may not do this",
    404: "There is no such task, or nothing is served at this path",
    405: "The path does not serve this HTTP method",
    413: "The body is too long",
    414: "The path and query are too long",
    415: "The body's Content-Type is not JSON",
    429: "The caller has sent too many requests, and may go on after Retry-After",
    431: "The headers are too long",
    500: "The request has failed; the message has a correlation id",
    503: "The service cannot check credentials now",
}
_ERROR_SCHEMA: Final = "#/components/schemas/Error"
_ERROR: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "integer", "description": "HTTP's status; over JSON-RPC its code"},
                "status": {"type": "string", "description": "the name of google.rpc.Code"},
                "message": {"type": "string", "description": "what is wrong, and what to do"},
                "details": {"type": "array", "items": {"type": "object"}},
                "data": {"description": "over JSON-RPC: the details"},
            },
        }
    },
}

_UPLOAD: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["size", "sha256"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "description": "its bytes"},
        "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "mediaType": {"type": "string", "pattern": "^[ -~]*$", "maxLength": 255},
        "filename": {"type": "string", "maxLength": 255},
        "tenant": {"type": "string", "description": "that of the message"},
    },
}

_IN_PATH = re.compile(r"\{(\w+)\}")
_QUERIES = {
    operation.path: operation.request
    for operation in OPERATIONS
    if operation.verbs == ("GET",) and "{push_id}" not in operation.path
}
_ELSEWHERE = frozenset({"id", "task_id", "tenant"})
"""Fields that come in the path."""
_TYPES: Mapping[int, dict[str, str]] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_MESSAGE: {"type": "string", "format": "date-time"},
}


def text() -> str:
    """Return what the file has: the description of every route that any setting serves."""
    settings = Settings(auth="none", older_dialects=True)
    app = create_app(settings, memory_backends(settings), AgentCard(name="any", version="1"))
    described = FastAPI(servers=app.servers)
    routes = [route for route in app.routes if isinstance(route, Route) and route.include_in_schema]
    cards = [
        route for route in routes if route.path in PUBLIC_PATHS and "GET" in (route.methods or ())
    ]
    add_a2a_routes_to_fastapi(
        described,
        agent_card_routes=cards,
        jsonrpc_routes=[route for route in routes if route.path in JSONRPC_PATHS],
        rest_routes=[r for r in routes if r.path not in PUBLIC_PATHS | JSONRPC_PATHS],
    )
    schema = described.openapi()
    del schema["info"]
    schema["components"]["schemas"]["Error"] = dict(_ERROR)
    for path, operations in schema["paths"].items():
        for verb, operation in operations.items():
            _complete(path, verb, operation)
    return json.dumps(schema, indent=1) + "\n"


def _complete(path: str, verb: str, operation: dict[str, Any]) -> None:
    is_0_3 = path.startswith(V0_3_PREFIX)
    name, summary = _NAMES[verb, path]
    operation["operationId"] = f"{name}_0_3" if is_0_3 else name
    operation["summary"] = f"{summary}, as in 0.3" if is_0_3 else summary
    operation["responses"] = _responses(path, verb)
    parameters = {p["name"]: p for p in operation.get("parameters", [])}
    for parameter in (*_in_path(path), *(_in_query(path) if verb == "get" else ())):
        parameters.setdefault(parameter["name"], parameter)
    if path == UPLOADS_PATH:
        del parameters[VERSION_HEADER], operation["parameters"]
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": _UPLOAD}}}
    if VERSION_HEADER in parameters:
        parameters[VERSION_HEADER] = _version(path)
    if "requestBody" in operation:
        described = operation["requestBody"]
        if is_0_3:
            described["content"] = {_JSON: {"schema": {"type": "object"}}}
            described["description"] = f"As A2A {PROTOCOL_VERSION_0_3} defines it"
        body = described["content"][_JSON]
        described["content"] = {_JSON: body, A2A_JSON_MEDIA_TYPE: body}
    if parameters:
        operation["parameters"] = list(parameters.values())


def _responses(path: str, verb: str) -> dict[str, Any]:
    content: dict[str, Any] = {media_type: {"schema": {}} for media_type in _media_types(path)}
    responses: dict[str, Any] = {"200": {"description": "The result", "content": content}}
    if path in PUBLIC_PATHS:
        responses["304"] = {"description": "The card is the one that the caller has"}
    if path in JSONRPC_PATHS:
        responses["204"] = {"description": "The request is a notification: it has no id"}
    types = (_JSON, A2A_JSON_MEDIA_TYPE) if is_rest_1_0(path) else (_JSON,)
    error = {media_type: {"schema": {"$ref": _ERROR_SCHEMA}} for media_type in types}
    for status in sorted(_errors(path, verb)):
        phrase = _REASONS.get(status, HTTPStatus(status).phrase)
        responses[str(status)] = {"description": phrase, "content": error}
    return responses


def _media_types(path: str) -> tuple[str, ...]:
    """Return the media types of results, by the rule of `middleware._Answer`."""
    if path in JSONRPC_PATHS:
        return _JSON, _STREAM
    if path.endswith((":stream", ":subscribe")):
        return (_STREAM,)
    is_a2a = is_rest_1_0(path) and path != UPLOADS_PATH
    return (A2A_JSON_MEDIA_TYPE, _JSON) if is_a2a else (_JSON,)


def _errors(path: str, verb: str) -> Iterator[int]:
    yield from _ALWAYS
    if path in PUBLIC_PATHS:
        return
    yield from _REFUSED
    if verb == "post":
        yield _TOO_LONG
    if path in JSONRPC_PATHS:
        return
    if verb == "post":
        yield HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    if "{" in path or verb == "post":
        yield HTTPStatus.NOT_FOUND
    if "{" in path:
        yield HTTPStatus.METHOD_NOT_ALLOWED


def _in_path(path: str) -> Iterator[dict[str, Any]]:
    for name in _IN_PATH.findall(path):
        schema = {"type": "string", "minLength": 1}
        yield {"in": "path", "name": name, "required": True, "schema": schema}


def _in_query(path: str) -> Iterator[dict[str, Any]]:
    model = _QUERIES.get(path)
    for field in model.DESCRIPTOR.fields if model else ():
        if field.name not in _ELSEWHERE:
            schema: dict[str, Any] = (
                {"type": "string", "enum": [v.name for v in field.enum_type.values]}
                if field.enum_type
                else dict(_TYPES[field.type])
            )
            yield {"in": "query", "name": field.json_name, "required": False, "schema": schema}


def _version(path: str) -> dict[str, Any]:
    is_legacy = path.startswith(V0_3_PREFIX)
    version = PROTOCOL_VERSION_0_3 if is_legacy else PROTOCOL_VERSION_1_0
    return {
        "in": "header",
        "name": VERSION_HEADER,
        "required": True,
        "schema": {"type": "string", "enum": [version]},
        "example": version,
    }
