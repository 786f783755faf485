"""ApiFunction and StreamFunction, as Lambda starts them; events/ has what drives the handlers."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import load_settings
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.wiring import Backends, aws_backends
from a2a_serverless_tools.local.provision import Names
from tests.support.gateway import HOST
from tests.support.handlers import cold_start
from tests.support.messages import request

ROOT = Path(__file__).parents[2]
EVENTS = sorted((ROOT / "events").glob("api-*.json"))
KEY = "test-key-of-twenty-characters"
CLOSED = {"A2A_AUTH": "api-key", "A2A_API_KEYS": f"default={KEY}"}
ELSEWHERE = {
    **dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), "us-east-1"),
    **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "nobody"),
    "A2A_TABLE": "tasks",
    "A2A_QUEUE": "https://sqs.us-east-1.amazonaws.com/123456789012/operations.fifo",
}
"""An AWS that is named and never called."""


@pytest.fixture
def environment(provisioned: Names, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in {**CLOSED, "A2A_BLOCKING_LIMIT_S": "0.2"}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


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
    storage = backends.storage.for_scope(Scope.of("", "default"))
    return Backends(storage=storage, operations=backends.operations)


TASK = "5f0c6a4e-0d0b-4d3c-9a57-0f3c2a8b7e11"
SUBMITTED = "TASK_STATE_SUBMITTED"
CHECKS: dict[str, Callable[[Any], Any]] = {
    "api-agent-card": lambda card: (
        (card["name"], card["capabilities"]["streaming"], card["supportedInterfaces"][0]["url"])
        == ("Trip planner", True, f"https://{HOST}/a2a/")
    ),
    "api-jsonrpc-send-message": lambda body: (
        (body["id"], body["result"]["task"]["status"]["state"]) == (1, SUBMITTED)
    ),
    "api-malformed-body": lambda body: body["error"]["code"] == -32700,
    "api-rest-get-task": lambda body: body["id"] == TASK,
    "api-rest-list-tasks": lambda body: TASK in [task["id"] for task in body["tasks"]],
    "api-rest-send-message": lambda body: body["task"]["status"]["state"] == SUBMITTED,
    "api-rest-stream-message": lambda body: body["task"]["id"],
}
"""What the answer to each event, or the first event of its stream, has to say."""


def test_every_event(backends: Backends, loop: asyncio.AbstractEventLoop) -> None:
    """Each file in events/ drives one environment to the answer that it is for."""
    loop.run_until_complete(backends.storage.open_task("context", request(), task_id=TASK))
    handler = cold_start("api").handler
    assert [path.stem for path in EVENTS] == sorted(CHECKS)
    for path in EVENTS:
        answer = handler(json.loads(path.read_text()), None)
        assert (answer["statusCode"], answer["isBase64Encoded"]) == (200, False)
        told = answer["body"]
        if path.stem == "api-rest-stream-message":
            assert answer["headers"]["content-type"].startswith("text/event-stream")
            event_id, told = told.split("\n\n")[0].split("\n")
            assert event_id.startswith("id: 1.0.")
        assert CHECKS[path.stem](json.loads(told.removeprefix("data: "))), path


@pytest.fixture
def forgotten_clients() -> Iterator[None]:
    """What the test's environment makes of clients stays with the test."""
    aws.forget_clients()
    yield
    aws.forget_clients()


QUEUES = ["A2A_UNDECODABLE_QUEUE", "A2A_PUSH_QUEUE", "A2A_PUSH_DEAD_LETTER_QUEUE"]
UNSET = r"^{} is not set: it names [^.]+\.$"


@pytest.mark.parametrize(
    ("function", "variable", "value", "complaint"),
    [
        *(("stream", name, None, UNSET) for name in ("A2A_TABLE", "A2A_QUEUE")),
        *(("stream", name, None, "{} is not set") for name in ("A2A_AUTH", "A2A_API_KEYS")),
        ("api", "A2A_CARD", "nowhere.json", "nowhere.json cannot be read"),
        ("api", "A2A_TTL_DAYS", "soon", "{}"),
        ("worker", "A2A_TABLE", None, UNSET),
        *(("sweeper", name, None, UNSET) for name in ("A2A_TABLE", "A2A_QUEUE", QUEUES[0])),
        *(("push", name, None, UNSET) for name in QUEUES[1:]),
    ],
)
@pytest.mark.usefixtures("forgotten_clients")
def test_a_start_with_a_missing_piece_stops(
    monkeypatch: pytest.MonkeyPatch, function: str, variable: str, value: str | None, complaint: str
) -> None:
    """A start with a missing variable or file stops with one sentence that names it."""
    queues = dict.fromkeys(QUEUES, ELSEWHERE["A2A_QUEUE"])
    for name, fine in {**ELSEWHERE, **queues, **CLOSED, variable: value}.items():
        if fine is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, fine)
    with pytest.raises(ConfigurationError, match=complaint.format(variable)):
        cold_start("api" if function == "stream" else function, function)


def test_the_event_files() -> None:
    """Each file in events/ is JSON and named by a test of its function; each function has one."""
    tests = "".join(it.read_text("utf-8") for it in Path(__file__).parent.glob("test_*.py"))
    for path in (ROOT / "events").iterdir():
        assert path.suffix == ".json"
        json.loads(path.read_text(encoding="utf-8"))
        assert f'"{path.stem}' in tests
    for function in (path.name for path in (ROOT / "functions").iterdir() if path.is_dir()):
        assert [*(ROOT / "events").glob(f"{function}-*")], function
