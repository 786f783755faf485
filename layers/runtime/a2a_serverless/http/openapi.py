"""The OpenAPI description of the routes, where the SDK's own leaves gaps.

It describes bodies, but neither what is in paths and queries, nor that `/v1` speaks 0.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from a2a.types import (
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
)
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, VERSION_HEADER
from fastapi import FastAPI
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from a2a_serverless.http import V0_3_PREFIX

_IN_PATH = re.compile(r"\{(\w+)\}")
_QUERIES: Mapping[str, type[Message]] = {
    "/tasks": ListTasksRequest,
    "/tasks/{id}": GetTaskRequest,
    "/tasks/{id}/pushNotificationConfigs": ListTaskPushNotificationConfigsRequest,
}
_ELSEWHERE = frozenset({"id", "task_id", "tenant"})
"""Fields that come in the path."""
_TYPES: Mapping[int, dict[str, str]] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_MESSAGE: {"type": "string", "format": "date-time"},
}


def describe(app: FastAPI) -> None:
    """Let `app.openapi()` describe what the SDK's routes read."""
    described_so_far = app.openapi

    def openapi() -> dict[str, Any]:
        schema = described_so_far()
        for path, operations in schema["paths"].items():
            for verb, operation in operations.items():
                _complete(path, verb, operation)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI documents


def _complete(path: str, verb: str, operation: dict[str, Any]) -> None:
    parameters = {p["name"]: p for p in operation.get("parameters", [])}
    for parameter in (*_in_path(path), *(_in_query(path) if verb == "get" else ())):
        parameters.setdefault(parameter["name"], parameter)
    if VERSION_HEADER in parameters:
        parameters[VERSION_HEADER] = _version(path)
    if path.startswith(V0_3_PREFIX) and "requestBody" in operation:
        body = {"schema": {"type": "object"}}
        operation["requestBody"]["content"] = {"application/json": body}
        operation["requestBody"]["description"] = f"As A2A {PROTOCOL_VERSION_0_3} defines it"
    if parameters:
        operation["parameters"] = list(parameters.values())


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
