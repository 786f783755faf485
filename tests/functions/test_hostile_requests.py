"""Hundreds of requests that no client sends by mistake, to both functions' handlers.

Each is answered: with what was asked for, or with one refusal that is logged once, counted once,
and says in a sentence what to do. None of them is an exception out of a handler, or an internal
error. What a client writes into headers and ids gets nowhere but into data: no control character
into a log line or the words of an error, nothing into a header of the answer, or an expression for
DynamoDB.
"""

import asyncio
import base64
import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from pydantic import SecretStr

from a2a_serverless import aws
from a2a_serverless.http.app import create_app
from a2a_serverless.http.function import lambda_handler, observed
from a2a_serverless.http.operations import OPERATIONS
from a2a_serverless.observability import metrics
from a2a_serverless.observability.json_lines import json_handler
from a2a_serverless.settings import Settings
from a2a_serverless.storage.listing import ListTasksQuery, _Listing
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.wiring import Backends, aws_backends, memory_backends
from a2a_serverless_tools.cli.plain_lines import PlainLines
from tests.support.a2a_calls import JSONRPC, REST, message, target
from tests.support.gateway import WebAdapter, rest_event
from tests.support.messages import storyteller
from tests.support.observed import root_logger
from tests.support.simulation.simulated_aws import simulated_aws

KEY = "a-key-of-more-than-twenty-characters"
MARK = "m4rk"
CARD_PATH = "/.well-known/agent-card.json"
SETTINGS = Settings(
    auth="api-key",
    api_keys=SecretStr(f"alice={KEY}"),
    older_dialects=True,
    blocking_limit_s=0.01,
    stream_limit_s=0.01,
    cancel_timeout_s=0.01,
    push_queue="push",
    push_allowed_hosts="127.0.0.1",
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
        verb = self.verb or ("GET" if self.body is None else "POST")
        event = rest_event(verb, self.path, self.body, sent)
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
    listing = '{"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}'
    for header, good in GOOD.items():
        wrong = 400, f"The header {header.title()} is malformed: send "
        for name, value in GARBAGE.items():
            told = (200, "") if name in good else wrong
            yield Request(f"{header}: {name}", CARD_PATH, None, {header: value}, *told)
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
    for name, headers in HEADERS.items():
        yield Request(f"GET with {name}", headers=headers)
        yield Request(f"POST with {name}", "/message:send", json.dumps(SENT), headers)
        yield Request(f"a stream with {name}", "/message:stream", json.dumps(SENT), headers)


SENT = {"message": message(), "configuration": {"returnImmediately": True}}


def about_methods() -> Iterator[Request]:
    """Each method of JSON-RPC in each version: none of its errors is left to the SDK."""
    named = [name for one in OPERATIONS for name in (one.name, one.name_0_3) if name]
    params: list[Any] = [{}, [], {"id": "nobody"}, {"id": 5}, {"taskId": "nobody", "id": "c"}]
    cases = [*product(params, [1]), ({}, "\ud800")]
    every = product([*named, "tasks/submit"], ("", "1.0", "0.3.x"), cases)
    for method, version, (given, call_id) in every:
        body = {"jsonrpc": "2.0", "id": call_id, "method": method, "params": given}
        yield Request(f"{method} {given}", "/", json.dumps(body), {"a2a-version": version})


VALUES = {
    "a line of its own": f"{MARK}\r\nSet-Cookie: a=b\r\n\r\n{{'level': 'ERROR'}}",
    "colours": f"\x1b[2J\x1b[31m{MARK}\x1b[0m\x07",
    "colours of eight bits": f"\x9b31m{MARK}\x85",
    "NUL": f"{MARK}\x00{MARK}",
    "right to left": f"\u202e{MARK}\u2028\u2066",
    "a lot of Unicode": f"{MARK}{'👩‍👩‍👧‍👦' * 200}",
    "formats": f"%s%n%(levelname)s{{0}}{{self.__class__}}${{jndi:ldap://x}}{MARK}",
    "expressions": f"{MARK} = :x OR attribute_exists(PK) #state",
    "key parts": f"TASK#{MARK}#HEAD",
    "quotes": f"\"'`{MARK}</script>",
}

# `host` is left out: API Gateway finds its API by it, so another value never arrives.
READ_HEADERS = [
    *("x-api-key", "authorization", "a2a-version", "a2a-extensions", "x-a2a-extensions", "accept"),
    *("content-type", "content-length", "cookie", "if-none-match", "idempotency-key"),
    *("last-event-id", "traceparent", "tracestate", "user-agent", "x-amzn-lambda-context"),
    *("x-amzn-request-context", "x-amzn-trace-id", "x-forwarded-for", "x-forwarded-proto"),
]

LATER = {"returnImmediately": True}
CONFIG = {"taskId": "t", "id": "c"}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("GetTask", {"id": "<value>"}),
    ("GetTask", {"id": "t", "tenant": "<value>"}),
    ("CancelTask", {"id": "<value>"}),
    ("SubscribeToTask", {"id": "<value>"}),
    ("ListTasks", {"contextId": "<value>"}),
    ("ListTasks", {"pageToken": "<value>"}),
    ("ListTasks", {"status": "<value>"}),
    ("ListTasks", {"statusTimestampAfter": "<value>"}),
    ("ListTasks", {"pageSize": "<value>"}),
    ("ListTasks", {"<value>": "x"}),
    ("SendMessage", {"message": message(taskId="<value>"), "configuration": LATER}),
    ("SendMessage", {"message": message(contextId="<value>"), "configuration": LATER}),
    ("SendMessage", {"message": message(messageId="<value>"), "configuration": LATER}),
    ("SendMessage", {"message": message(role="<value>"), "configuration": LATER}),
    ("SendMessage", {"message": message(parts=[{"text": "x", "mediaType": "<value>"}])}),
    ("SendMessage", {"message": message(parts=[{"raw": "<value>"}])}),
    ("SendMessage", {"message": message(extensions=["<value>"]), "configuration": LATER}),
    ("SendMessage", {"message": message(metadata={"<value>": 1}), "configuration": LATER}),
    ("SendMessage", {"message": message(), "configuration": {"historyLength": "<value>"}}),
    ("SendMessage", {"message": "<value>"}),
    ("CreateTaskPushNotificationConfig", {"taskId": "<value>", "url": "https://127.0.0.1/"}),
    ("CreateTaskPushNotificationConfig", {**CONFIG, "id": "<value>", "url": "https://127.0.0.1/"}),
    ("CreateTaskPushNotificationConfig", {**CONFIG, "url": "<value>"}),
    ("CreateTaskPushNotificationConfig", {**CONFIG, "url": "https://x/", "token": "<value>"}),
    ("GetTaskPushNotificationConfig", {**CONFIG, "id": "<value>"}),
    ("ListTaskPushNotificationConfigs", {"taskId": "t", "pageToken": "<value>"}),
    ("DeleteTaskPushNotificationConfig", {**CONFIG, "taskId": "<value>"}),
]
OLDER: list[tuple[str, Any]] = [
    ("tasks/get", {"id": {"<value>": 1}}),
    ("tasks/get", {"historyLength": "<value>"}),
    ("message/send", {"message": "<value>"}),
    ("tasks/send", {"id": "<value>"}),
    ("tasks/status", {"taskId": "<value>"}),
]
WRONG: list[dict[str, Any]] = [
    {"id": "<value>", "params": {"id": "nobody"}},
    *({name: "<value>"} for name in ("id", "method", "jsonrpc", "params")),
    {"id": "<value>", "method": "tasks/get", "params": {"id": "<value>"}},
    *({"method": method, "params": params} for method, params in OLDER),
]
ENVELOPES = [{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}, **it} for it in WRONG]
"""JSON-RPC's own fields, and the methods of older dialects."""


def filled(template: Any, value: str) -> Any:
    """`template` with `<value>` replaced, in names too."""
    quoted = json.dumps(value)[1:-1]
    return json.loads(json.dumps(template).replace("<value>", quoted))


def about_value(value: str) -> Iterator[Request]:
    """The value in every header that is read, in every field and envelope, and in paths."""
    for name in READ_HEADERS:
        yield Request(f"a send with {name}", "/message:send", json.dumps(SENT), {name: value})
        yield Request(f"the card with {name}", CARD_PATH, headers={name: value})
        denied = {name: value, "x-api-key": "wrong"}
        yield Request(f"a stranger with {name}", "/tasks/nobody", headers=denied)
    for binding, (method, params) in product((JSONRPC, REST), CALLS):
        verb, path, body = target(binding, method, filled(params, value))
        content = None if body is None else json.dumps(body)
        yield Request(f"{binding} {method} {params}", path, content, verb=verb)
    for envelope, version in product(ENVELOPES, ("1.0", "")):
        content = json.dumps(filled(envelope, value))
        yield Request(f"{envelope}", "/", content, {"a2a-version": version})
    for path, verb in product(("/tasks/{}", "/{}/tasks", "/{}", "/v1/tasks/{}"), VERBS[:4]):
        content = "{}" if verb == "POST" else None
        yield Request(f"{verb} {path}", path.format(value).replace("?", ""), content, verb=verb)


REQUESTS: dict[str, list[Request]] = {
    "hosts": [*about_hosts()],
    "lists": [*about_lists()],
    "bodies": [*about_bodies()],
    "paths": [*about_paths()],
    "headers": [*about_headers()],
    "methods": [*about_methods()],
    **{name: [*about_value(value)] for name, value in VALUES.items()},
}

Ask = Callable[[dict[str, Any]], tuple[int, Mapping[str, str], str]]
"""Asks a function by an event; status, headers and body of its answer."""


@contextmanager
def running(backends: Backends) -> Iterator[dict[str, Ask]]:
    streamed = observed(create_app(SETTINGS, backends, CARD, entrypoint="stream"))
    adapter = WebAdapter(streamed, timeout_s=30)
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        handler = lambda_handler(create_app(SETTINGS, backends, CARD, entrypoint="api"))

        def api(event: dict[str, Any]) -> tuple[int, Mapping[str, str], str]:
            answer = handler(event, None)
            # The adapter keeps the last of repeated headers; a REST API has no binary types.
            assert (answer["multiValueHeaders"], answer["isBase64Encoded"]) == ({}, False)
            return answer["statusCode"], answer["headers"], answer["body"]

        def stream(event: dict[str, Any]) -> tuple[int, Mapping[str, str], str]:
            sent: list[Any] = []

            async def receive() -> Any:
                await asyncio.Event().wait()

            async def send(message: Any) -> None:
                sent.append(message)

            runner.run(adapter.invoke(event, receive, send))
            body = b"".join(message.get("body", b"") for message in sent[1:])
            headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
            return sent[0]["status"], headers, body.decode()

        yield {"ApiFunction": api, "StreamFunction": stream}
    asyncio.set_event_loop(None)


@pytest.fixture(scope="module")
def functions() -> Iterator[dict[str, Ask]]:
    with running(memory_backends(SETTINGS)) as functions:
        yield functions


class Logs:
    """The log of one request, as CloudWatch and as a terminal would show it, and its count."""

    def __init__(self, root: logging.Logger) -> None:
        self.counted: list[tuple[str, str]] = []
        self.known = set[str]()
        """The ids of the requests before."""
        self._as_json, self._plain = io.StringIO(), io.StringIO()
        printing = logging.StreamHandler(self._plain)
        printing.setFormatter(PlainLines("%(levelname)s %(name)s: %(message)s"))
        root.setLevel(logging.INFO)
        root.handlers += [json_handler(self._as_json, "test", shows_texts=True), printing]

    def count(self, name: str, *_: Any, reason: str = "", **__: Any) -> None:
        if name in {"RequestsRefused", "RequestErrors"}:
            self.counted.append((name, reason))

    def take(self) -> tuple[list[str], list[str]]:
        """Return the lines since the last call, in JSON and plain."""
        found = self._as_json.getvalue().splitlines(), self._plain.getvalue().splitlines()
        for log in (self._as_json, self._plain):
            log.seek(0)
            log.truncate()
        return found


@pytest.mark.long(but=10)
@pytest.mark.parametrize("about", REQUESTS)
@pytest.mark.parametrize("function", ["ApiFunction", "StreamFunction"])
def test_each_is_answered(
    functions: dict[str, Ask], function: str, about: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No exception, no internal error; a refusal is logged and counted once, and has a sentence.

    What prints, and nothing that a terminal or a reader of lines acts on, is in the logs, the
    headers and the words of errors; and no header is of the client's making.
    """
    with root_logger() as root:
        logs, ask = Logs(root), functions[function]
        monkeypatch.setattr(metrics, "count", logs.count)
        found = {request.name: broken(ask, request, logs) for request in REQUESTS[about]}
    assert {name: rules for name, rules in found.items() if rules} == {}


def broken(function: Ask, request: Request, logs: Logs) -> list[str]:
    """What does not hold of a request's answer, and of what is logged and counted for it."""
    logs.counted.clear()
    status, headers, body = function(request.event())
    as_json, plain = logs.take()
    lines = [json.loads(line) for line in as_json]
    ids = {line["correlation_id"] for line in lines}
    reasons = [line["reason"] for line in lines if line.get("action") == "refused"]
    sentence = sentence_of(body)
    is_refused = status >= 400 or sentence != ""
    shown = (*as_json, *plain, *headers.values(), sentence)
    rules = {
        f"{status} is no internal error": status < 500 and "Correlation id" not in body,
        "no exception is logged": not any("exception" in line for line in lines),
        f"{reasons} are counted": logs.counted == [("RequestsRefused", each) for each in reasons],
        f"{reasons} are logged once": len(reasons) == is_refused,
        f"{sentence!r} is a sentence": not is_refused
        or request.verb == "HEAD"
        or len(sentence) > 5,
        f"{body[:200]} says": request.status in (None, status) and request.says in body,
        "all that is shown prints": all(text.isprintable() for text in shown),
        "its lines have an id of their own": len(ids) <= 1 and not ids & logs.known,
        "no line is of its making": not any(line.startswith("Set-Cookie") for line in plain),
        "no header is of its making": not any(MARK in value for value in headers.values()),
    }
    logs.known |= ids
    return [name for name, holds in rules.items() if not holds]


def sentence_of(body: str) -> str:
    """The words of an error, on one line; empty for an answer that is none."""
    text = body.removeprefix("data: ").strip()
    try:
        answer = json.loads(text)
    except ValueError:
        return ""
    error = answer.get("error") if isinstance(answer, dict) else None
    return " ".join(texts(error)).replace("\n", " ") if isinstance(error, dict) else ""


def texts(value: Any) -> Iterator[str]:
    """All texts inside of a JSON value, names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from texts(inner)


def test_expressions() -> None:
    """No client's value is part of an expression for DynamoDB."""
    expressions: list[str] = []

    def note(params: Mapping[str, Any], **_: Any) -> None:
        actions = [action for item in params.get("TransactItems", ()) for action in item.values()]
        for request in (params, *actions):
            expressions.extend(v for k, v in request.items() if k.endswith("Expression"))
            expressions.extend(map(str, request.get("ExpressionAttributeNames", {}).items()))

    with simulated_aws() as provisioned:
        names = provisioned.environment().items()
        update = {name.removeprefix("A2A_").lower(): value for name, value in names}
        settings = SETTINGS.model_copy(update=update)
        aws.client("dynamodb").meta.events.register("provide-client-params.dynamodb", note)
        with running(aws_backends(settings)) as functions:
            for (method, params), value in product(CALLS, (MARK, VALUES["expressions"])):
                verb, path, body = target(JSONRPC, method, filled(params, value))
                event = Request(method, path, json.dumps(body), verb=verb).event()
                assert functions["ApiFunction"](event)[0] == 200
    assert len(set(expressions)) > 5
    assert not [text for text in expressions if MARK in text]
