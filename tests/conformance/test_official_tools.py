"""The A2A project's command line and inspector get what they ask of an agent.

Their requests are those of real runs, kept by `make clients`; the page `clients` has the commits.
What they ask of an answer is what their parsers demand, and what the inspector's validators check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from a2a.types import AgentCard, TaskState

from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from tests.conformance.replays import Reply, replay, settings_for
from tests.support.recorded_clients import recorded
from tests.support.scripted_worker import ScriptedWorker

Json = dict[str, Any]

COMMAND_LINE = {"JSONRPC": "a2a-cli-JSONRPC", "HTTP+JSON": "a2a-cli-HTTP-JSON"}
INSPECTOR = "a2a-inspector-JSONRPC"
EVENTS = {"task", "message", "statusUpdate", "artifactUpdate"}
CONTENTS = {"text", "raw", "data", "url"}
INSPECTED_CARD = {
    "name": str,
    "description": str,
    "url": str,
    "version": str,
    "capabilities": dict,
    "defaultInputModes": list,
    "defaultOutputModes": list,
    "skills": list,
}
"""The fields that the inspector requires of a card, by their names in 0.3."""


@pytest.fixture
def settings() -> Settings:
    return settings_for([])


@pytest.fixture(params=COMMAND_LINE)
async def replies(
    request: pytest.FixtureRequest, backends: Backends, card: AgentCard, worker: ScriptedWorker
) -> list[Reply]:
    """The answers to the command line, over either binding."""
    return await replay(recorded()[COMMAND_LINE[request.param]], backends, card)


@pytest.fixture
async def inspected(backends: Backends, card: AgentCard, worker: ScriptedWorker) -> list[Reply]:
    """The answers to the inspector."""
    return await replay(recorded()[INSPECTOR], backends, card)


def results(replies: list[Reply], *methods: str) -> Iterator[Json]:
    """Yield what JSON-RPC methods, or paths of HTTP+JSON, were answered; errors not."""
    for reply in replies:
        request = reply.request
        asked = request.body["method"] if request.path == "/" else request.path.partition("?")[0]
        if not request.is_refused and any(re.fullmatch(method, asked) for method in methods):
            for answer in reply.answers:
                yield answer["result"] if request.path == "/" else answer


def within(value: Any, key: str) -> Iterator[Any]:
    """Yield every value of `key`, at any depth."""
    inner = value if isinstance(value, list) else []
    if isinstance(value, dict):
        inner = list(value.values())
        if key in value:
            yield value[key]
    for one in inner:
        yield from within(one, key)


def check_task(task: Json) -> None:
    """Assert that a task has ids, a known state and a time that Go can parse."""
    assert task["id"]
    assert task["contextId"]
    assert TaskState.Value(task["status"]["state"])
    assert datetime.fromisoformat(task["status"]["timestamp"]).tzinfo is not None


async def test_the_command_line_reads_every_answer(replies: list[Reply]) -> None:
    """Each event has one of four members, each part one content, each task its ids and a time.

    A part without a content would end the whole command. The card names an interface of 1.0, over
    JSON-RPC first, at the address that was asked.
    """
    sends = "SendMessage", "SendStreamingMessage", "SubscribeToTask"
    paths = "/message:send", "/message:stream", "/tasks/[^/]+:subscribe"
    events = list(results(replies, *sends, *paths))
    assert {len(event) for event in events} == {1}
    assert EVENTS - {"message"} == {kind for event in events for kind in event}
    for event in events:
        if "task" in event:
            check_task(event["task"])
    one = list(results(replies, "GetTask", "CancelTask", "/tasks/[^/:]+", "/tasks/[^/]+:cancel"))
    (page,) = results(replies, "ListTasks", "/tasks")
    assert len(one) >= 2
    for task in (*one, *page["tasks"]):
        check_task(task)
    parts = [
        part for reply in replies for parts in within(reply.answers, "parts") for part in parts
    ]
    assert parts
    assert {len(CONTENTS & part.keys()) for part in parts} == {1}
    check_error(replies)
    cards = [reply.answers[0] for reply in replies if reply.request.path.startswith("/.well-known")]
    first = cards[0]["supportedInterfaces"][0]
    assert (first["protocolBinding"], first["protocolVersion"]) == ("JSONRPC", "1.0")
    assert first["url"].rstrip("/") == "http://test"


def check_error(replies: list[Reply]) -> None:
    """Assert that over JSON-RPC an error has status 200; else it is JSON and says its reason."""
    (refused,) = (reply for reply in replies if reply.request.is_refused)
    error = json.loads(refused.text)["error"]
    if refused.request.path == "/":
        assert (refused.status, error["code"]) == (200, -32001)
        details = error["data"]
    else:
        assert (refused.status, refused.media_type) == (404, "application/json")
        details = error["details"]
    assert "TASK_NOT_FOUND" in {detail.get("reason") for detail in details}
    assert {reply.status for reply in replies if reply is not refused} == {200}


async def test_the_inspector_finds_card_and_events_valid(inspected: list[Reply]) -> None:
    """They have each field that the inspector requires of the card, and of each kind of event."""
    cards = [r.answers[0] for r in inspected if r.request.path.startswith("/.well-known")]
    assert len(cards) >= 2  # to show it, and to make a client of it
    for card in cards:
        assert {name: type(card.get(name)) for name in INSPECTED_CARD} == INSPECTED_CARD
        assert card["url"].startswith(("http://", "https://"))
        assert all(isinstance(mode, str) for mode in card["defaultInputModes"])
        assert all(isinstance(mode, str) for mode in card["defaultOutputModes"])
        assert card["skills"]
    seen = []
    for event in results(inspected, "message/stream"):
        seen.append(event["kind"])
        match event["kind"]:
            case "task":
                assert event["id"]
                assert event["status"]["state"]
            case "status-update":
                assert event["status"]["state"]
            case "artifact-update":
                assert event["artifact"]["parts"]
            case "message":
                assert event["parts"]
                assert event["role"] == "agent"
            case kind:
                pytest.fail(f"The inspector knows no {kind}.")
    assert seen.count("task") == 2
    assert {"task", "status-update", "artifact-update"} <= set(seen)
