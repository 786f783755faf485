"""What a client writes into headers and ids gets nowhere but into data.

Through ApiFunction, whose events hold what no HTTP library would send. Whatever comes: no
internal error, no control character in a log line or in the words of an error, no header of the
answer, and no part of a DynamoDB expression.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from a2a_serverless import aws
from a2a_serverless.http.app import create_app
from a2a_serverless.http.function import lambda_handler
from a2a_serverless.observability.json_lines import json_handler
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends, aws_backends, memory_backends
from a2a_serverless_tools.cli.plain_lines import PlainLines
from tests.support.a2a_calls import JSONRPC, REST, message, target
from tests.support.gateway import rest_event
from tests.support.messages import storyteller
from tests.support.observed import root_logger
from tests.support.simulation.environments import Environments
from tests.support.simulation.simulated_aws import simulated_aws

KEY = "a-key-of-more-than-twenty-characters"
MARK = "m4rk"

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
HEADERS = [
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


class Lambda:
    """The API function with its log, as a terminal and as CloudWatch would show it."""

    def __init__(self, function: Environments) -> None:
        self._function = function
        self.plain, self.json = io.StringIO(), io.StringIO()

    def answer(
        self, verb: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The answer to a request, after all that it must not do."""
        for log in (self.plain, self.json):
            log.seek(0)
            log.truncate()
        answer: dict[str, Any] = self._function.invoke(event(verb, path, body, headers)).result()
        check_log(self.plain.getvalue())
        for line in self.json.getvalue().splitlines():
            json.loads(line)
            check_log(line)
        check_answer(answer)
        return answer


def event(
    verb: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """An event of API Gateway whose headers have small letters, so that each is there once."""
    sent = {"a2a-version": "1.0", "x-api-key": KEY}
    if body is not None:
        sent["content-type"] = "application/json"
    content = None if body is None else json.dumps(body)
    return rest_event(verb, path, content, {**sent, **(headers or {})})


def check_log(text: str) -> None:
    """Lines of what prints, and of nothing that a terminal or a reader of lines acts on."""
    bad = [c for c in text if not (c.isprintable() or c == "\n")]
    assert not bad, repr(text)
    assert "\nSet-Cookie" not in text


def check_answer(answer: Mapping[str, Any]) -> None:
    """No internal error, no header of the client's making, and no odd character in the words."""
    assert answer["statusCode"] < 500, answer
    assert not answer["multiValueHeaders"]
    headers = answer["headers"]
    assert all(value.isprintable() for value in headers.values())
    assert not [name for name, value in headers.items() if MARK in value]
    if answer["body"] and answer["headers"]["content-type"].endswith("json"):
        body = json.loads(answer["body"])
        error = body.get("error") if isinstance(body, dict) else None
        for text in texts(error):
            assert all(c.isprintable() or c == "\n" for c in text), text
        assert "Correlation id" not in answer["body"], body


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


def filled(template: Any, value: str) -> Any:
    """`template` with `<value>` replaced, in names too."""
    quoted = json.dumps(value)[1:-1]
    return json.loads(json.dumps(template).replace("<value>", quoted))


CARD = storyteller()
SETTINGS = Settings(
    auth="api-key",
    api_keys=SecretStr(f"alice={KEY}"),
    older_dialects=True,
    blocking_limit_s=0.05,
    cancel_timeout_s=0.05,
    push_queue="push",
    push_allowed_hosts="127.0.0.1",
)


@contextmanager
def running(backends: Backends) -> Iterator[Environments]:
    """The API function on `backends`."""
    app = create_app(SETTINGS, backends, CARD)
    function = Environments("api", lambda _: lambda_handler(app), limit=1, timeout_s=30)
    yield function
    function.close()


@pytest.fixture(scope="module")
def function() -> Iterator[Environments]:
    with running(memory_backends(SETTINGS)) as function:
        yield function


@pytest.fixture
def api(function: Environments) -> Iterator[Lambda]:
    api = Lambda(function)
    plain = logging.StreamHandler(api.plain)
    plain.setFormatter(PlainLines("%(levelname)s %(name)s: %(message)s"))
    with root_logger() as root:
        root.setLevel(logging.INFO)
        root.handlers += [plain, json_handler(api.json, "test", shows_texts=True)]
        yield api


@pytest.mark.long(but=4)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_headers(api: Lambda, value: str) -> None:
    """Every header that anything reads, on a call that is allowed and on one that is refused."""
    body = {"message": message("go"), "configuration": LATER}
    for name in HEADERS:
        answer = api.answer("POST", "/message:send", body, {name: value})
        assert (answer["statusCode"] == 401) is (name == "x-api-key"), name
        api.answer("GET", "/.well-known/agent-card.json", None, {name: value})
        api.answer("GET", "/tasks/nobody", None, {name: value, "x-api-key": "wrong"})


@pytest.mark.long(but=8)
@pytest.mark.parametrize("binding", [JSONRPC, REST])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_ids_and_fields(api: Lambda, value: str, binding: str) -> None:
    """A hostile value in any field of a call that a client fills in is answered."""
    for method, params in CALLS:
        verb, path, body = target(binding, method, filled(params, value))
        api.answer(verb, path, body)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_envelopes(api: Lambda, value: str) -> None:
    """Hostile values in JSON-RPC's own fields are answered, in 1.0 and in older versions."""
    for envelope in ENVELOPES:
        for version in ({}, {"a2a-version": ""}):
            api.answer("POST", "/", filled(envelope, value), version)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_paths(api: Lambda, value: str) -> None:
    """Hostile values in paths are answered, passed on as Lambda does."""
    for path in (f"/tasks/{value}", f"/{value}/tasks", f"/{value}", f"/v1/tasks/{value}"):
        for verb in ("GET", "POST", "DELETE"):
            api.answer(verb, path.replace("?", ""), {} if verb == "POST" else None)


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
        settings = SETTINGS.model_copy(
            update={name.removeprefix("A2A_").lower(): value for name, value in names}
        )
        aws.client("dynamodb").meta.events.register("provide-client-params.dynamodb", note)
        with running(aws_backends(settings)) as function:
            api = Lambda(function)
            for method, params in CALLS:
                api.answer(*target(JSONRPC, method, filled(params, MARK)))
                api.answer(*target(JSONRPC, method, filled(params, VALUES["expressions"])))
    assert len(set(expressions)) > 5
    assert not [text for text in expressions if MARK in text]
