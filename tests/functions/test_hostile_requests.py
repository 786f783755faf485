"""Hundreds of requests that no client sends by mistake, to both functions' handlers.

Each is answered: with what was asked for, or with one refusal that is logged once, counted once,
and says in a sentence what to do. None of them is an exception out of a handler, or an internal
error.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import SecretStr

from a2a_serverless.http.app import create_app
from a2a_serverless.http.function import lambda_handler, observed
from a2a_serverless.observability import metrics
from a2a_serverless.settings import Settings
from a2a_serverless.storage.listing import ListTasksQuery, _Listing
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.wiring import memory_backends
from tests.support.a2a_calls import message
from tests.support.gateway import rest_event
from tests.support.messages import storyteller
from tests.support.simulation.web_adapter import WebAdapter

KEY = "a-key-of-more-than-twenty-characters"
SETTINGS = Settings(
    auth="api-key",
    api_keys=SecretStr(f"alice={KEY}"),
    older_dialects=True,
    blocking_limit_s=0.01,
    stream_limit_s=0.01,
    cancel_timeout_s=0.01,
    push_queue="push",
)
CARD = storyteller(pushes=True)


@dataclass(frozen=True)
class Request:
    """A request as API Gateway hands it over; `status` and `says` where they are certain."""

    name: str
    path: str = "/tasks"
    body: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int | None = None
    says: str = ""
    verb: str = ""

    def event(self) -> dict[str, Any]:
        typed = {} if self.body is None else {"content-type": "application/json"}
        sent = {"a2a-version": "1.0", "x-api-key": KEY, **typed, **self.headers}
        event = rest_event(
            self.verb or ("GET" if self.body is None else "POST"), self.path, self.body, sent
        )
        # A second Host would be joined with the first one.
        named = {name.lower() for name in self.headers}
        for kind in ("headers", "multiValueHeaders"):
            event[kind] = {
                name: value
                for name, value in event[kind].items()
                if name in self.headers or name.lower() not in named
            }
        return event


GARBAGE = {
    "letters": "abc",
    "two colons": "a:b:c",
    "a port of letters": "a:b",
    "a port that is none": "a:65536",
    "a negative port": "a:-1",
    "half of a bracket": "[::1",
    "brackets of letters": "[zz]",
    "spaces": "a b",
    "a path": "a/../b",
    "an at": "a@b",
    "a line": "a\r\nb: c",
    "NUL": "a\x00b",
    "Unicode": "ä.example",
    "full-width digits": "a:４４３",  # noqa: RUF001 - that is the point
    "emoji": "🦊",
    "long": "a" * 3000,
    "many": ",".join("a" * 500),
    "empty": "",
    "a comma": ",",
    "a format": "%s${x}{0}",
}
GOOD = {
    "host": {"letters"},
    "x-forwarded-host": {"letters", "many"},
    "x-forwarded-port": set[str](),
    "x-forwarded-proto": set[str](),
    "x-forwarded-for": {"letters", "two colons", "a port of letters", "a negative port", "many"}
    | {"a port that is none", "half of a bracket", "brackets of letters"},
}
"""Garbage that each header may hold: of X-Forwarded-For only the characters are checked."""


def about_hosts() -> Iterator[Request]:
    card = "/.well-known/agent-card.json"
    listing = '{"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}'
    for header, good in GOOD.items():
        wrong = 400, f"The header {header.title()} is malformed: send "
        for name, value in GARBAGE.items():
            told = (200, "") if name in good else wrong
            yield Request(f"{header}: {name}", card, None, {header: value}, *told)
        told = 400, "or leave it out"
        yield Request(f"{header} of JSON-RPC", "/", listing, {header: "\x7f"}, *told)


def token(*place: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


PLACE = "000001700000000#task"
OWN = _Listing.of(ListTasksQuery(), Scope.of("", "alice")).fingerprint
"""What the page tokens of this caller's lists have, so that their totals alone are wrong."""
TOTALS: list[Any] = [2**31, 10**4000, -1, True, None, "1", 1.5, [[]]]
QUERIES = {
    **{f"includeArtifacts={it}": "includeArtifacts must be true or" for it in ("abc", "", 1)},
    "includeArtifacts=true&includeArtifacts=abc": "comes more than once",
    "pageSize=0": "pageSize must be from 1 to 100.",
    **{f"pageSize={it}": "" for it in ("1e9", "9" * 20, "%00")},
    **{f"historyLength={it}": "" for it in ("-1", "abc")},
    "status=NONE": "status has an unknown value: it is one of ",
    **{f"statusTimestampAfter={it}": "" for it in ("yesterday", "9999-99-99T00:00:00Z")},
    "pageToken=x": "ask for its first page",
    **{f"pageToken={token(PLACE, total, OWN)}": "ask for its first page" for total in TOTALS},
    f"pageToken={token(PLACE, 1, 'x')}": "ask for its first page",
    f"pageToken={token('x' * 5000, 1, 'x')}": "ask for its first page",
    f"pageToken={base64.urlsafe_b64encode(b'[' * 5000).decode()}": "ask for its first page",
    "contextId=" + "x" * 600: "",
    "tenant=a&tenant=b": "comes more than once",
}


def about_lists() -> Iterator[Request]:
    for query, says in QUERIES.items():
        yield Request(query[:60], f"/tasks?{query}", status=400, says=says)
    # The last total that an answer holds.
    last = token(PLACE, 2**31 - 1, OWN)
    yield Request("a token that is good", f"/tasks?pageToken={last}", status=200)


NESTED = "[" * 12_000 + "]" * 12_000
BODIES = {
    "nothing": "",
    "a brace": "{",
    "null": "null",
    "a list": "[]",
    "a number": "1e999",
    "NaN": "NaN",
    "a text": '"text"',
    "deep": NESTED,
    "deep inside": f'{{"message": {NESTED}}}',
    "a lone surrogate": '{"message": {"messageId": "\\ud800"}}',
    "49,000 values": json.dumps({"message": {"parts": [{"data": list(range(49_000))}]}}),
    "49,000 parts": json.dumps({"message": {"parts": [{}] * 49_000}}),
    "49,000 names": json.dumps({"message": {"metadata": {str(n): n for n in range(49_000)}}}),
    "a number of 5,000 digits": '{"message": ' + "9" * 5000 + "}",
    "bytes": "\x00\x01\x02",
    "Unicode that is none": "{\udc80}",
    "no base64": json.dumps({"message": message(parts=[{"raw": "%%%"}])}),
    "an agent's role": json.dumps({"message": message(role="ROLE_AGENT")}),
    "two contents": json.dumps({"message": message(parts=[{"text": "a", "url": "b"}])}),
    "configuration of letters": '{"configuration": "x"}',
}


def about_bodies() -> Iterator[Request]:
    for name, body in BODIES.items():
        for path in ("/message:send", "/message:stream", "/", "/v1/message:send", "/api/a2a/tasks"):
            yield Request(f"{path}: {name}", path, body)
        params = f'{{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {body or 0}}}'
        yield Request(f"params: {name}", "/", params)


PATHS = [
    *("//", "//message:stream", "/%", "/\udcff", "/" + "a/" * 500, "/.well-known/"),
    *("/.well-known/agent-card.json/", "/openapi.json?a=\x00"),
    *("/tasks?%=%&&&=", "/tasks?" + "a=b&" * 900),
    "/tasks/a/pushNotificationConfigs/" + "%F0" * 20,
    *(f"/tasks/{it}" for it in ("%00" * 10, "../../etc/passwd", "%2e%2e%2f", "🦊", "x" * 3000)),
    *("/tasks/a:cancel:cancel", "/tasks/:cancel"),
]
VERBS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "PATCH"]


def about_paths() -> Iterator[Request]:
    asked = [(verb, path) for path in PATHS for verb in VERBS[:4]]
    asked += [(verb, path) for path in ("/tasks", "/message:send") for verb in VERBS]
    for verb, path in asked:
        yield Request(f"{verb} {path[:40]!a}", path, verb=verb)


HEADERS = {
    "no key": {"x-api-key": ""},
    "a key of Unicode": {"x-api-key": "🦊"},
    "a lone surrogate": {"x-any": "\udc80"},
    "a long name": {"x" * 5000: "y"},
    "a version of the future": {"a2a-version": "9" * 3000},
    "a type of letters": {"content-type": ";;;"},
    "an id of letters": {"last-event-id": "a.b.c"},
    "a length of letters": {"content-length": "abc"},
    "a negative length": {"content-length": "-5"},
    "the adapter's context": {"x-amzn-request-context": NESTED[:4000]},
    "the invocation's context": {"x-amzn-lambda-context": '{"deadline": 1e999}'},
    "extensions": {"a2a-extensions": "," * 3000},
    "a trace": {"x-amzn-trace-id": "Root=;;;=", "traceparent": "0-0-0-0"},
    "accept": {"accept": "*/*;q=abc"},
}


def about_headers() -> Iterator[Request]:
    body = json.dumps({"message": message(), "configuration": {"returnImmediately": True}})
    for name, headers in HEADERS.items():
        yield Request(f"GET with {name}", headers=headers)
        yield Request(f"POST with {name}", "/message:send", body, headers)


REQUESTS = [*about_hosts(), *about_lists(), *about_bodies(), *about_paths(), *about_headers()]

Ask = Callable[[dict[str, Any]], tuple[int, str]]
"""Asks a function by an event; status and body of its answer."""


@pytest.fixture(scope="module")
def functions() -> Iterator[dict[str, Ask]]:
    """Both functions, each in an environment of its own."""
    backends = memory_backends(SETTINGS)
    streamed = observed(create_app(SETTINGS, backends, CARD, entrypoint="stream"))
    adapter = WebAdapter(streamed, timeout_s=30)
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        handler = lambda_handler(create_app(SETTINGS, backends, CARD, entrypoint="api"))

        def api(event: dict[str, Any]) -> tuple[int, str]:
            answer = handler(event, None)
            return answer["statusCode"], answer["body"]

        def stream(event: dict[str, Any]) -> tuple[int, str]:
            sent: list[Any] = []

            async def receive() -> Any:
                await asyncio.Event().wait()

            async def send(message: Any) -> None:
                sent.append(message)

            runner.run(adapter.invoke(event, receive, send))
            body = b"".join(message.get("body", b"") for message in sent[1:])
            return sent[0]["status"], body.decode()

        yield {"ApiFunction": api, "StreamFunction": stream}
    asyncio.set_event_loop(None)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("function", ["ApiFunction", "StreamFunction"])
def test_each_is_answered(
    functions: dict[str, Ask],
    function: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No exception, no internal error; a refusal is logged and counted once, and has a sentence."""
    counted: list[tuple[str, str]] = []

    def count(name: str, *_: Any, reason: str = "", **__: Any) -> None:
        if name in {"RequestsRefused", "RequestErrors"}:
            counted.append((name, reason))

    monkeypatch.setattr(metrics, "count", count)
    caplog.set_level(logging.INFO, "a2a_serverless")
    wrong = []
    assert len(REQUESTS) >= 300
    for request in REQUESTS:
        counted.clear()
        caplog.clear()
        status, body = functions[function](request.event())
        said = [vars(line) for line in caplog.records if vars(line).get("action") == "refused"]
        reasons = [line["reason"] for line in said]
        is_refused = status >= 400 or sentence_of(body) != ""
        holds = (
            status < 500,
            not [line for line in caplog.records if line.exc_info],
            counted == [("RequestsRefused", reason) for reason in reasons],
            len(reasons) == is_refused,
            not is_refused or request.verb == "HEAD" or len(sentence_of(body)) > 5,
            request.status in (None, status) and request.says in body,
        )
        if not all(holds):
            wrong.append((request.name, status, body[:200], reasons, holds))
    assert wrong == []


def sentence_of(body: str) -> str:
    """The words of an error; empty for an answer that is none."""
    text = body.removeprefix("data: ").strip()
    try:
        answer = json.loads(text)
    except ValueError:
        return ""
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error["message"]) if isinstance(error, dict) else ""
