"""The URLs of 0.1.0, an HTTP API's and a Function URL's, until a stack's update has ended them."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
from a2a.types import AgentCard
from fastapi import FastAPI

from a2a_serverless.http.address import CONTEXT_HEADER
from a2a_serverless.http.app import create_app
from a2a_serverless.http.function import lambda_handler, observed
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends

API = "abcdef1234.execute-api.eu-central-1.amazonaws.com"
STREAM = "abcdef1234.lambda-url.eu-central-1.on.aws"
CARD = "/.well-known/agent-card.json"
LIST = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}


def context(domain: str, method: str, path: str) -> dict[str, Any]:
    """The `requestContext` of payload format 2.0."""
    return {
        "domainName": domain,
        "http": {"method": method, "path": path, "sourceIp": "203.0.113.7"},
        "stage": "$default",
    }


def called(app: FastAPI, method: str, path: str, body: bytes = b"") -> Any:
    """The JSON of ApiFunction's answer to an HTTP API."""
    event = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {"host": API, "x-forwarded-proto": "https", "a2a-version": "1.0"},
        "requestContext": context(API, method, path),
        "body": base64.b64encode(body).decode(),
        "isBase64Encoded": True,
    }
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        answer = lambda_handler(app)(event, None)
    asyncio.set_event_loop(None)
    assert answer["statusCode"] == 200, answer
    return json.loads(answer["body"])


def test_the_http_api_is_answered(app: FastAPI) -> None:
    """Calls are answered, and the card still names the URL at which it was asked."""
    assert called(app, "GET", "/tasks")["totalSize"] == 0
    assert called(app, "POST", "/", json.dumps(LIST).encode())["result"]["totalSize"] == 0
    urls = {way["url"].rstrip("/") for way in called(app, "GET", CARD)["supportedInterfaces"]}
    assert urls == {f"https://{API}"}


async def test_the_function_url_is_answered(
    settings: Settings, backends: Backends, card: AgentCard
) -> None:
    """A Function URL behind the adapter is answered, and the card names it as the address."""
    transport = httpx.ASGITransport(observed(create_app(settings, backends, card)))
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{STREAM}") as client:
        headers = {CONTEXT_HEADER: json.dumps(context(STREAM, "GET", CARD))}
        ways = (await client.get(CARD, headers=headers)).json()["supportedInterfaces"]
        headers = {CONTEXT_HEADER: json.dumps(context(STREAM, "POST", "/")), "A2A-Version": "1.0"}
        listed = (await client.post("/", json=LIST, headers=headers)).json()
    assert {way["url"].rstrip("/") for way in ways} == {f"https://{STREAM}"}
    assert listed["result"]["totalSize"] == 0
