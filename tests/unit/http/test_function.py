"""The application as a Lambda handler."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from a2a_serverless.http.function import LambdaHandler, lambda_handler


@pytest.fixture
def handler(app: FastAPI) -> Iterator[LambdaHandler]:
    """The handler in an event loop of its own, as in a Lambda environment."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield lambda_handler(app)
    asyncio.set_event_loop(None)


def event(
    method: str, path: str, *, stage: str = "$default", body: bytes | None = None
) -> dict[str, Any]:
    """An event of API Gateway, payload format 2.0."""
    made: dict[str, Any] = {
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {
            "host": "api.example",
            "a2a-version": "1.0",
            "content-type": "application/json",
            "x-forwarded-proto": "https",
        },
        "requestContext": {
            "stage": stage,
            "http": {"method": method, "path": path, "sourceIp": "203.0.113.1"},
        },
        "isBase64Encoded": body is not None,
    }
    if body is not None:
        made["body"] = base64.b64encode(body).decode()
    return made


@pytest.mark.parametrize(("stage", "prefix"), [("$default", ""), ("prod", "/prod"), ("prod", "")])
def test_any_stage(handler: LambdaHandler, stage: str, prefix: str) -> None:
    """A named stage is part of the path and of the card's URLs; behind a domain it may be gone."""
    answer = handler(event("GET", f"{prefix}/.well-known/agent-card.json", stage=stage), None)
    assert answer["statusCode"] == 200
    urls = {i["url"] for i in json.loads(answer["body"])["supportedInterfaces"]}
    assert urls == {f"https://api.example{prefix}", f"https://api.example{prefix}/"}
    tasks = handler(event("GET", f"{prefix}/tasks", stage=stage), None)
    assert json.loads(tasks["body"])["totalSize"] == 0


@pytest.mark.parametrize("path", ["/prod", "/prod/"])
def test_the_root_of_a_stage(handler: LambdaHandler, path: str) -> None:
    """JSON-RPC is at the stage's root, with a slash at its end or without."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}).encode()
    answer = handler(event("POST", path, stage="prod", body=body), None)
    assert json.loads(answer["body"])["result"]["totalSize"] == 0


def test_a_path_that_only_begins_like_the_stage(handler: LambdaHandler) -> None:
    """/production is not in the stage prod."""
    answer = handler(event("GET", "/production", stage="prod"), None)
    assert answer["statusCode"] == 404


def test_answers_are_text(handler: LambdaHandler) -> None:
    """application/a2a+json and event streams go out as they are, not in base64."""
    listing = event("GET", "/tasks")
    listing["headers"].pop("content-type")
    answer = handler(listing, None)
    assert answer["headers"]["content-type"] == "application/a2a+json"
    assert answer["isBase64Encoded"] is False
