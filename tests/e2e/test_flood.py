"""Twenty clients that send refused requests as fast as they can."""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless import aws
from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import aws_backends
from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from tests.e2e.flood_report import PROPERTY
from tests.support.a2a_calls import message
from tests.support.databases import LONG
from tests.support.issuers import AUDIENCE, Issuer, running_issuer
from tests.support.messages import storyteller
from tests.support.simulation.simulated_aws import simulated_aws

CLIENTS = 20
SECONDS = 10 if LONG else 3
CALM_S = 3 if LONG else 1
KEY = "a-key-of-more-than-twenty-characters"
SCRIPT = Path(__file__).parent / "flood_clients.py"

_kind: ContextVar[str] = ContextVar("kind", default="nobody")
"""On whose behalf the application works: an allowed caller's, or that of somebody it refuses."""


class Told:
    """The application, which is told by a header of the tests' what each request is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_allowed = (b"x-test", b"allowed") in scope.get("headers", ())
        _kind.set("allowed" if is_allowed else "refused")
        await self._app(scope, receive, send)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A running application on a simulated AWS; `calls` counts by whom AWS was asked for."""

    url: httpx.URL
    table: str
    credentials: dict[str, str]
    calls: Counter[str] = field(default_factory=Counter)

    def client(self) -> httpx.Client:
        headers = {"A2A-Version": "1.0", "X-Test": "allowed", **self.credentials}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=30)

    def stored(self) -> str:
        """Everything in the table."""
        scanned = aws.client("dynamodb").scan(TableName=self.table)["Items"]
        return json.dumps(scanned, sort_keys=True, default=repr)


CARD = storyteller()


@contextmanager
def running(settings: Settings, credentials: dict[str, str]) -> Iterator[Endpoint]:
    with simulated_aws() as provisioned:
        names = {"table": provisioned.table, "queue": provisioned.queue}
        if settings.auth == "api-key":
            secret = json.dumps({"default": KEY})
            aws.client("secretsmanager").create_secret(Name="keys", SecretString=secret)
        backends = aws_backends(settings.model_copy(update=names))
        app = create_app(settings.model_copy(update=names), backends, CARD, entrypoint="stream")
        with HttpServer(Told(app), bind(0), lifespan=False) as server:
            url = httpx.URL(server.url)
            endpoint = Endpoint(url=url, table=provisioned.table, credentials=credentials)
            for service in ("dynamodb", "sqs", "secretsmanager"):
                events = aws.client(service).meta.events
                events.register(
                    f"provide-client-params.{service}",
                    lambda **_: endpoint.calls.update([_kind.get()]),
                )
            yield endpoint


def request(verb: str, path: str, body: str = "", **headers: str) -> str:
    """The text of a request of HTTP/1.1."""
    lines = [f"{verb} {path} HTTP/1.1", "Host: agent.example", "A2A-Version: 1.0"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", body])


def flooding(task_id: str, credentials: Sequence[dict[str, str]]) -> list[str]:
    """Calls of every kind, each with credentials of every kind that is refused."""
    said = json.dumps({"message": message("x" * 2000), "configuration": {}})
    called = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {}})
    return [
        text
        for shown in credentials
        for text in (
            request("GET", f"/tasks/{task_id}", **shown),
            request("GET", "/tasks", **shown),
            request("POST", "/message:send", said, **shown),
            request("POST", "/message:stream", said, **shown),
            request("POST", "/", called, **shown),
            request("POST", f"/tasks/{task_id}:subscribe", **shown),
            request("GET", "/nothing?" + "x" * 100, **shown),
        )
    ]


@dataclass(frozen=True)
class Flood:
    """Requests that another process sends as fast as they are answered."""

    process: subprocess.Popen[str]

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def answered(self) -> Counter[str]:
        """Return how often which status came, once the flood has ended."""
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        assert self.process.wait(30) == 0
        return Counter(json.loads(said))


@contextmanager
def flooded(endpoint: Endpoint, requests: list[str]) -> Iterator[Flood]:
    """A flood of `SECONDS` or more, in which each request is sent at least once."""
    plan = {
        "host": endpoint.url.host,
        "port": endpoint.url.port,
        "seconds": SECONDS,
        "clients": CLIENTS,
        "requests": requests,
    }
    process = subprocess.Popen(
        [sys.executable, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(plan))
    process.stdin.close()
    with process:
        yield Flood(process)


def latencies(client: httpx.Client, path: str, until: Callable[[], bool]) -> list[float]:
    """Milliseconds of allowed requests one after the other, each of which is answered."""
    measured = []
    while not until():
        began = time.perf_counter()
        assert client.get(path).status_code == 200
        measured.append((time.perf_counter() - began) * 1000)
    return measured


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def shown(name: str, measured: list[float]) -> str:
    quantiles = statistics.quantiles(measured, n=100, method="inclusive")
    return (
        f"{name:<28}{len(measured):>6} allowed requests, {statistics.median(measured):6.1f} ms "
        f"median, {quantiles[94]:6.1f} ms 95 %, {max(measured):6.1f} ms worst"
    )


def check_flood(
    endpoint: Endpoint,
    record: Callable[[str, object], None],
    credentials: Callable[[], Sequence[dict[str, str]]],
) -> Counter[str]:
    """Flood the endpoint with those credentials; what it has answered, after all the checks."""
    with endpoint.client() as client:
        sent = client.post(
            "/message:send",
            json={"message": message("go"), "configuration": {"returnImmediately": True}},
        )
        path = f"/tasks/{sent.json()['task']['id']}"
        calm = latencies(client, path, after(CALM_S))
        before = endpoint.stored()
        endpoint.calls.clear()
        requests = flooding(path.rpartition("/")[2], credentials())
        with flooded(endpoint, requests) as flood:
            busy = latencies(client, path, flood.has_ended)
            refused = flood.answered()
        assert endpoint.stored() == before
        assert endpoint.calls["refused"] == 0
        assert endpoint.calls["allowed"] >= len(busy) > 0
        assert client.get(path).status_code == 200
    assert refused.total() >= len(requests)
    rate = refused.total() / SECONDS
    record(PROPERTY, shown("without a flood", calm))
    record(PROPERTY, shown(f"{CLIENTS} clients, {rate:.0f} refused/s", busy))
    return refused


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A line for each refused request would measure pytest's own log."""
    logger = logging.getLogger("a2a_serverless")
    level = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(level)


@pytest.mark.long
def test_wrong_keys(record_property: Callable[[str, object], None]) -> None:
    """No key, wrong keys, endless keys: nothing is written, AWS is not asked, callers are served.

    The keys are in Secrets Manager, which is not asked either.
    """
    settings = Settings(auth="api-key", api_keys_secret="keys")
    wrong = [
        {},
        {"X_API_Key": f"{KEY[:-1]}x"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": "Basic YWxhZGRpbjpvcGVuc2VzYW1l"},
        {"X_API_Key": "x" * 40_000},
    ]
    with running(settings, {"X-API-Key": KEY}) as endpoint:
        refused = check_flood(endpoint, record_property, lambda: wrong)
    assert refused.keys() <= {"401", "431"}
    assert refused["401"] > 0


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


def test_forged_tokens(issuer: Issuer, record_property: Callable[[str, object], None]) -> None:
    """Unsigned, expired, of another key, of unknown keys: and the issuer is asked once more."""
    settings = Settings(auth="oidc", oidc_issuer=issuer.url, oidc_audience=AUDIENCE)

    def forged() -> Sequence[dict[str, str]]:
        issuer.asked.clear()
        tokens = [
            "not-a-token",
            "eyJhbGciOiJub25lIn0.e30.",
            issuer.token({"exp": 1}),
            issuer.token({"aud": "https://other.example"}),
            issuer.token(number=1),
            *(issuer.token(kid=f"unknown-{number}") for number in range(20)),
        ]
        return [{}, *({"Authorization": f"Bearer {token}"} for token in tokens)]

    mine = {"Authorization": f"Bearer {issuer.token()}"}
    with running(settings, mine) as endpoint:
        refused = check_flood(endpoint, record_property, forged)
    assert refused.keys() == {"401"}
    assert issuer.asked.count("/keys") <= 1
