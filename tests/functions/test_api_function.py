"""ApiFunction and StreamFunction, as Lambda starts them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import pytest
from a2a.types import Message, Part, Role, SendMessageRequest, TaskState

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http.app import create_app
from a2a_serverless.settings import load_settings
from a2a_serverless.storage.deletion import DeletionJob, Owner
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.wiring import Backends, aws_backends
from a2a_serverless_tools.contract import Storage
from tests.support.gateway import HOST, rest_event
from tests.support.handlers import cold_start, event_file
from tests.support.messages import chunk, storyteller
from tests.support.simulation.simulated_aws import simulated_aws, stored_blobs

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "functions" / "api"
EVENTS = sorted((ROOT / "events").glob("api-*.json"))
KEY = "test-key-of-twenty-characters"
CLOSED = {"A2A_AUTH": "api-key", "A2A_API_KEYS": f"default={KEY}"}
ELSEWHERE = {
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "A2A_TABLE": "tasks",
    "A2A_QUEUE": "https://sqs.us-east-1.amazonaws.com/123456789012/operations.fifo",
}
"""An AWS that is named and never called."""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The variables that template.yaml sets, over a simulated AWS."""
    with simulated_aws() as provisioned:
        for name, value in {**provisioned.environment(), **CLOSED}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("A2A_BLOCKING_LIMIT_S", "0.2")
        yield monkeypatch


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop of a Lambda environment."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield runner.get_loop()
    asyncio.set_event_loop(None)


@pytest.fixture
def backends(environment: pytest.MonkeyPatch) -> Backends:
    """The backends that the handler uses, in the scope of the events' key."""
    backends = aws_backends(load_settings())
    scope = Scope.of("", "default")
    return Backends(
        storage=backends.storage.for_scope(scope),
        operations=backends.operations,
    )


async def store_task(backends: Backends, task_id: str) -> None:
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="Hello")])
    request = SendMessageRequest(message=message)
    await backends.storage.open_task("context", request, task_id=task_id)


def check_card(answer: dict[str, Any]) -> None:
    card = json.loads(answer["body"])
    assert answer["statusCode"] == 200
    assert card["name"] == "Trip planner"
    assert card["supportedInterfaces"][0]["url"] == f"https://{HOST}/a2a/"
    assert card["capabilities"]["streaming"] is True


def check_jsonrpc_send(answer: dict[str, Any]) -> None:
    body = json.loads(answer["body"])
    assert answer["statusCode"] == 200
    assert body["id"] == 1
    assert body["result"]["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"


def check_rest_send(answer: dict[str, Any]) -> None:
    assert answer["statusCode"] == 200
    assert answer["headers"]["content-type"] == "application/a2a+json"
    assert not answer["isBase64Encoded"]
    assert json.loads(answer["body"])["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"


def check_stream(answer: dict[str, Any]) -> None:
    assert answer["statusCode"] == 200
    assert answer["headers"]["content-type"].startswith("text/event-stream")
    assert not answer["isBase64Encoded"]
    first = answer["body"].split("\n\n")[0].split("\n")
    assert first[0].startswith("id: 1.0.")
    assert json.loads(first[1].removeprefix("data: "))["task"]["id"]


def check_get(answer: dict[str, Any]) -> None:
    assert answer["statusCode"] == 200
    assert json.loads(answer["body"])["id"] == "5f0c6a4e-0d0b-4d3c-9a57-0f3c2a8b7e11"


def check_list(answer: dict[str, Any]) -> None:
    assert answer["statusCode"] == 200
    listed = [task["id"] for task in json.loads(answer["body"])["tasks"]]
    assert "5f0c6a4e-0d0b-4d3c-9a57-0f3c2a8b7e11" in listed


def check_malformed(answer: dict[str, Any]) -> None:
    body = json.loads(answer["body"])
    assert body["error"]["code"] == -32700
    assert "Traceback" not in answer["body"]


CHECKS = {
    "api-agent-card": check_card,
    "api-jsonrpc-send-message": check_jsonrpc_send,
    "api-malformed-body": check_malformed,
    "api-rest-get-task": check_get,
    "api-rest-list-tasks": check_list,
    "api-rest-send-message": check_rest_send,
    "api-rest-stream-message": check_stream,
}


def test_every_event(backends: Backends, loop: asyncio.AbstractEventLoop) -> None:
    """Each file in events/ drives one environment to the answer that it is for."""
    loop.run_until_complete(store_task(backends, "5f0c6a4e-0d0b-4d3c-9a57-0f3c2a8b7e11"))
    handler = cold_start("api").handler
    assert [path.stem for path in EVENTS] == sorted(CHECKS)
    for path in EVENTS:
        CHECKS[path.stem](handler(json.loads(path.read_text()), None))


@pytest.mark.parametrize("entrypoint", ["api", "stream"])
async def test_a_task_behind_a_fence_is_deleted(
    environment: pytest.MonkeyPatch, entrypoint: Literal["api", "stream"]
) -> None:
    """The API that meets a task which a deletion has not seen deletes it, and takes it anew."""
    settings = load_settings()
    backends = aws_backends(settings)
    app = create_app(settings, backends, storyteller(), entrypoint=entrypoint)
    headers = {"X-API-Key": KEY, "A2A-Version": "1.0", "Idempotency-Key": "once"}
    parts = [{"text": "my secret"}, {"text": "and a long one " * 5000}]
    message = {"messageId": "m", "role": "ROLE_USER", "parts": parts}
    body = {"message": message, "configuration": {"returnImmediately": True}}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:

        async def send() -> httpx.Response:
            return await client.post("/message:send", json=body, headers=headers)

        first = (await send()).json()["task"]["id"]
        job = DeletionJob(backends.storage, Owner(Scope.of("", "default").principal))
        await job._put_up(backends.storage.clock.now_ms())
        app = create_app(settings, backends, storyteller(), entrypoint=entrypoint)
        client._transport = httpx.ASGITransport(app)
        assert (await send()).status_code == 400
        scanned = aws.client("dynamodb").scan(TableName=settings.table)["Items"]
        assert "my secret" not in str(scanned)
        assert stored_blobs() == []
        assert (await send()).json()["task"]["id"] == first  # it follows from the key


@pytest.mark.parametrize("entrypoint", ["api", "stream"])
async def test_a_file_goes_through_the_bucket(
    environment: pytest.MonkeyPatch, entrypoint: Literal["api", "stream"]
) -> None:
    """A message's file is stored there once, shown from there, and a link to it is that file."""
    environment.setenv("A2A_INLINE_BYTES", "40000")
    settings, card = load_settings(), storyteller(inputs=("image/*",))
    app = create_app(settings, aws_backends(settings), card, entrypoint=entrypoint)
    headers = {"X-API-Key": KEY, "A2A-Version": "1.0"}
    content = base64.b64encode(b"x" * 40_000).decode()
    large = base64.b64encode(b"y" * 40_001).decode()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:

        async def sent(*parts: dict[str, Any]) -> list[dict[str, Any]]:
            message = {"messageId": "m", "role": "ROLE_USER", "parts": parts}
            body = {"message": message, "configuration": {"returnImmediately": True}}
            answer = await client.post("/message:send", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            task = (
                await client.get(f"/tasks/{answer.json()['task']['id']}", headers=headers)
            ).json()
            found: list[dict[str, Any]] = task["history"][0]["parts"]
            return found

        small, linked = await sent({"raw": content}, {"raw": large, "mediaType": "image/png"})
        assert small["raw"] == content
        assert "X-Amz-Signature=" in linked["url"]
        assert len(stored_blobs()) == 2
        (again,) = await sent(linked)
        assert urlsplit(again["url"]).path.rpartition("/")[2] in linked["url"]
        assert len(stored_blobs()) == 3


def test_a_stream_is_cut_short_and_goes_on(
    environment: pytest.MonkeyPatch, backends: Backends, loop: asyncio.AbstractEventLoop
) -> None:
    """Through Mangum a stream ends at its limit; Last-Event-ID continues it in another one."""
    environment.setenv("A2A_BLOCKING_LIMIT_S", "0.001")
    handler = cold_start("api").handler
    event = event_file("api-rest-stream-message")
    first = server_events(handler(event, None))
    ((last_id, opening),) = first
    task_id = opening["task"]["id"]
    storage = backends.storage
    loop.run_until_complete(
        Storage(storage).update_task(
            task_id, TaskState.TASK_STATE_COMPLETED, artifacts=[chunk("a", "x")]
        )
    )
    sent = {name: value for name, value in event["headers"].items() if name.lower() != "host"}
    headers = {**sent, "Last-Event-ID": last_id}
    resumed = rest_event("POST", f"/tasks/{task_id}:subscribe", None, headers)
    second = server_events(cold_start("api").handler(resumed, None))
    assert second[0] == (last_id, opening)
    assert [next(iter(data)) for _, data in second] == ["task", "artifactUpdate", "statusUpdate"]
    assert second[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


def server_events(answer: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Id and data of each event of a buffered stream; a block without data is no event."""
    assert answer["statusCode"] == 200
    blocks = [block for block in answer["body"].split("\n\n") if block]
    fields = [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]
    return [(field["id"], json.loads(field["data"])) for field in fields if "data" in field]


def test_without_the_key_nothing_is_answered(
    backends: Backends, loop: asyncio.AbstractEventLoop
) -> None:
    """A fresh endpoint is not open."""
    event = event_file("api-jsonrpc-send-message")
    del event["headers"]["X-API-Key"], event["multiValueHeaders"]["X-API-Key"]
    assert cold_start("api").handler(event, None)["statusCode"] == 401


@pytest.fixture
def forgotten_clients() -> Iterator[None]:
    """What the test's environment makes of clients stays with the test."""
    aws.forget_clients()
    yield
    aws.forget_clients()


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("A2A_TABLE", None, "A2A_TABLE is not set"),
        ("A2A_QUEUE", None, "A2A_QUEUE is not set"),
        ("A2A_AUTH", None, "A2A_AUTH is not set"),
        ("A2A_API_KEYS", None, "A2A_API_KEYS is not set"),
        ("A2A_CARD", "nowhere.json", "nowhere.json cannot be read"),
        ("A2A_TTL_DAYS", "soon", "A2A_TTL_DAYS"),
    ],
)
@pytest.mark.usefixtures("forgotten_clients")
def test_a_start_with_a_missing_piece_stops(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str | None, complaint: str
) -> None:
    """A start with a missing variable or file stops with one sentence that names it."""
    for name, fine in {**ELSEWHERE, **CLOSED, variable: value}.items():
        if fine is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, fine)
    with pytest.raises(ConfigurationError, match=complaint):
        cold_start("api", "api" if value else "stream")
