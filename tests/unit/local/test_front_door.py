from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from a2a_serverless.local import front_door
from a2a_serverless.local.environments import Environments, Handler
from a2a_serverless.local.front_door import FrontDoor

Open = Callable[[Handler], httpx.AsyncClient]


@pytest.fixture
def open_door() -> Iterator[Open]:
    """Makes a client of a front door whose function is the given handler."""
    with ExitStack() as closing:

        def open_(handler: Handler) -> httpx.AsyncClient:
            function = Environments("api", lambda _: handler, limit=4, timeout_s=30)
            closing.callback(function.close)
            transport = httpx.ASGITransport(FrontDoor(function), client=("198.51.100.7", 1))
            return httpx.AsyncClient(transport=transport, base_url="http://door.test:8000")

        yield open_


def echo(event: dict[str, Any], _: Any) -> dict[str, Any]:
    """Answer with the event itself."""
    return {"statusCode": 200, "body": json.dumps(event)}


async def test_repeated_names_are_joined_and_cookies_set_apart(open_door: Open) -> None:
    """Payload 2.0 joins repeated headers and parameters by commas and lists cookies."""
    async with open_door(echo) as client:
        answer = await client.get(
            "/tasks?status=a&status=b%20c",
            headers=[("Accept", "x/1"), ("Accept", "x/2"), ("Cookie", "one=1; two=2")],
        )
    event = answer.json()

    assert event["rawQueryString"] == "status=a&status=b%20c"
    assert event["queryStringParameters"] == {"status": "a,b c"}
    assert event["headers"]["accept"].endswith("x/1,x/2")
    assert event["cookies"] == ["one=1", "two=2"]
    assert "cookie" not in event["headers"]


async def test_json_goes_through_as_text(open_door: Open) -> None:
    """A body that API Gateway knows as text is not encoded; one without text is."""
    async with open_door(echo) as client:
        text = (await client.post("/", json={"ü": 1})).json()
        binary = (
            await client.post("/", content=b"\xff", headers={"content-type": "application/json"})
        ).json()

    assert (text["isBase64Encoded"], json.loads(text["body"])) == (False, {"ü": 1})
    assert (binary["isBase64Encoded"], base64.b64decode(binary["body"])) == (True, b"\xff")


async def test_answer_is_unpacked(open_door: Open) -> None:
    """Status, headers, cookies and a base64 body come out as an HTTP response."""

    def handler(_: dict[str, Any], __: Any) -> dict[str, Any]:
        return {
            "statusCode": 418,
            "headers": {"X-Kind": "tea", "content-length": "999"},
            "cookies": ["a=1", "b=2"],
            "body": base64.b64encode(b"\x00\x01").decode(),
            "isBase64Encoded": True,
        }

    async with open_door(handler) as client:
        response = await client.get("/")

    assert (response.status_code, response.content) == (418, b"\x00\x01")
    assert response.headers["x-kind"] == "tea"
    assert response.headers["content-length"] == "2"
    assert response.headers.get_list("set-cookie") == ["a=1", "b=2"]


@pytest.mark.parametrize("answer", [None, {}, {"statusCode": 200, "body": "x" * 6_300_000}])
async def test_unusable_answer_is_the_gateways_error(open_door: Open, answer: object) -> None:
    """An answer without a status or beyond Lambda's 6 MB is an internal error of the gateway."""
    async with open_door(lambda *_: answer) as client:
        response = await client.get("/")

    assert (response.status_code, response.json()) == (500, {"message": "Internal Server Error"})


async def test_failing_function_shows_no_details(open_door: Open) -> None:
    """What a handler raises stays in the log."""

    def handler(*_: Any) -> None:
        raise LookupError("secret")

    async with open_door(handler) as client:
        response = await client.get("/")

    assert (response.status_code, response.json()) == (500, {"message": "Internal Server Error"})


async def test_long_body_is_refused(open_door: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """API Gateway takes 10 MB at most; the function is not asked."""
    monkeypatch.setattr(front_door, "BODY_LIMIT", 10)

    async with open_door(echo) as client:
        response = await client.post("/", content=b"x" * 11)

    assert response.status_code == 413


async def test_slow_function_is_cut_off(open_door: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """API Gateway gives up on a function after its time limit."""
    monkeypatch.setattr(front_door, "INTEGRATION_TIMEOUT_S", 0.05)
    go_on = threading.Event()

    async with open_door(lambda *_: go_on.wait(10)) as client:
        response = await client.get("/")
    go_on.set()

    assert (response.status_code, response.json()) == (503, {"message": "Service Unavailable"})
