"""One correlation id for a request: on all its lines, and in the error that its client reads."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from a2a.types import AgentCard

from a2a_serverless.http import middleware
from a2a_serverless.http.app import create_app
from a2a_serverless.http.errors import log_refusal
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends, memory_backends
from tests.support.a2a_calls import client_of
from tests.support.observed import Line, logged

ID = re.compile(r"Correlation id: ([0-9a-f]{16})\.")
AT_ONCE = {"returnImmediately": True}
SEND = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}


def app_on(backends: Backends, settings: Settings = Settings(auth="none")) -> Any:  # noqa: B008
    card = AgentCard(name="Echo", version="1", default_input_modes=["text/plain"])
    return create_app(settings, backends, card)


async def call(app: Any, path: str, **body: Any) -> httpx.Response:
    """The answer to a request; 500 if the application has raised."""
    return await client_of(app).post(path, json=body, headers={"A2A-Version": "1.0"})


def ids(lines: list[Line]) -> list[str]:
    return [line["correlation_id"] for line in lines]


@pytest.mark.parametrize("is_inside", [True, False])
async def test_the_client_reads_the_id_of_all_lines(
    monkeypatch: pytest.MonkeyPatch, *, is_inside: bool
) -> None:
    """Wherever the request fails: in an operation, or before it."""
    backends = memory_backends(Settings())

    async def explode(*_: object, **__: object) -> None:
        log_refusal("Before")
        raise RuntimeError("boom")

    owner = type(backends.storage) if is_inside else middleware._Admission
    monkeypatch.setattr(owner, "open_task" if is_inside else "_admitted", explode)
    with logged() as lines:
        answer = await call(app_on(backends), "/message:send", **SEND)
    assert answer.status_code == 500
    assert "boom" not in answer.text
    (read,) = ID.findall(answer.text)
    assert [line["action"] for line in lines[:2]] == ["refused", lines[1]["action"]]
    assert set(ids(lines)) == {read}


async def test_a_cancel_that_the_api_ends_has_one_line() -> None:
    """The line at the turn's end, as a worker writes it, under the id of the cancel's request."""
    settings = Settings(auth="none").model_copy(update={"cancel_timeout_s": 0.05})
    app = app_on(memory_backends(settings), settings)
    task = (await call(app, "/message:send", **SEND, configuration=AT_ONCE)).json()["task"]
    with logged() as lines:
        await call(app, f"/tasks/{task['id']}:cancel")
    actions = ["send_cancel", "turn_ended", "cancel_forced"]
    assert [line["action"] for line in lines] == actions
    _, ended, _ = lines
    assert len({*ids(lines)}) == 1
    known = {"task_id": task["id"], "context_id": task["contextId"], "turn": 1}
    known |= {"state": "canceled", "attempts": 0, "commits": 1}
    assert {name: ended[name] for name in known} == known
    assert ended["total_ms"] >= 50
