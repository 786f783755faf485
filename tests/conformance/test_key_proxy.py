"""What gives the conformance kit its credentials, and how its findings are counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from tests.conformance.key_proxy import key_proxy
from tests.conformance.kit import merged, summary
from tests.conformance.kit_0_3 import is_ours, reports, table


class Target:
    """Answers with the request that came, the second half of it only when it is let go on."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.loop = asyncio.get_running_loop()
        body = (await receive())["body"]
        told = {
            "line": [scope["method"], scope["raw_path"].decode(), scope["query_string"].decode()],
            "headers": [[name.decode(), value.decode()] for name, value in scope["headers"]],
            "body": body.decode(),
        }
        headers = [(b"x-seen", b"1"), (b"x-seen", b"2"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        text = json.dumps(told).encode()
        await send({"type": "http.response.body", "body": text, "more_body": True})
        await self.may_go_on.wait()
        await send({"type": "http.response.body", "body": b"\n"})

    def go_on(self) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.may_go_on.set)


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
def url(target: Target) -> Iterator[str]:
    """Of the proxy before `target`."""
    with ExitStack() as running:
        behind = running.enter_context(HttpServer(target, bind(0), lifespan=False))
        app = key_proxy(behind.url, {"X-API-Key": "secret"})
        yield running.enter_context(HttpServer(app, bind(0))).url


async def test_a_request_gets_the_key_and_stays_as_it_is(url: str, target: Target) -> None:
    """Path, query, headers and body arrive as sent; status and headers come back as answered.

    What the target has sent is there before its answer is complete.
    """
    headers = {"x-api-key": "other", "X-Mine": "yes"}
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, headers=headers) as http,
        http.stream("POST", "/tasks/a%3Ab%2Fc?x=%20&x=2", content=b"{}") as answer,
    ):
        pieces = answer.aiter_raw()
        told = json.loads(await anext(pieces))
        target.go_on()
        assert [piece async for piece in pieces] == [b"\n"]
    assert told["line"] == ["POST", "/tasks/a%3Ab%2Fc", "x=%20&x=2"]
    assert told["body"] == "{}"
    assert [value for name, value in told["headers"] if name == "x-api-key"] == ["secret"]
    assert ["x-mine", "yes"] in told["headers"]
    assert (answer.status_code, answer.headers.get_list("x-seen")) == (401, ["1", "2"])
    assert answer.headers["www-authenticate"] == "Bearer"


def test_of_several_runs_a_failure_counts_first() -> None:
    """A requirement has failed if it failed in any run; else it has passed if it did in one."""
    first = {
        "A": {"level": "MUST", "status": "PASS"},
        "B": {"level": "MUST", "status": "SKIPPED"},
        "C": {"level": "MAY", "status": "FAIL"},
        "D": {"level": "SHOULD", "status": "NOT TESTED"},
    }
    second = {name: {**one, "status": "NOT TESTED"} for name, one in first.items()}
    second["A"] = {"level": "MUST", "status": "FAIL"}
    second["B"] = {"level": "MUST", "status": "PASS"}
    found = merged(merged({}, first), second)
    assert found == {
        "A": ("MUST", "FAIL"),
        "B": ("MUST", "PASS"),
        "C": ("MAY", "FAIL"),
        "D": ("SHOULD", "NOT TESTED"),
    }
    lines = list(summary([("all", 3, 2, 1)], found))
    assert "| all | 3 | 2 | 1 |" in lines
    assert "| MUST | 2 | 1 | 1 | 0 | 0 |" in lines
    assert "FAIL: A, C" in lines


@pytest.mark.parametrize(
    ("said", "whose"),
    [("but get config failed\nassert False", "the kit's: it asks"), ("Failed to set", "ours: Fa")],
)
def test_each_failure_says_whose_it_is(tmp_path: Path, said: str, whose: str) -> None:
    """One that is known to be the kit's is none of ours, as long as it says the same."""
    test = "test_get_push_notification_config"
    failed = {"nodeid": f"tests/a.py::{test}", "outcome": "failed"}
    content = {
        "summary": {"passed": 2, "failed": 1, "xfailed": 1},
        "tests": [{"outcome": "passed"}, {**failed, "call": {"crash": {"message": said}}}],
    }
    (tmp_path / "mandatory_rest_results.json").write_text(json.dumps(content))
    found = reports(tmp_path)
    _, counts, line = table(found)
    assert counts == "| mandatory_rest | 2 | 1 | 1 |"
    assert line.startswith(f"FAIL mandatory_rest {test}: {whose}")
    assert is_ours(found) == whose.startswith("ours")
