"""Clients of other languages, versions and frameworks at `dev` and at `api`, which have one port.

Python 1.3 is the client of the other tests: at `dev` in test_dev.py, at `api` in faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import deployed, environment
from tests.e2e.conftest import ARGUMENTS, Served
from tests.foreign import answers
from tests.support.foreign_clients import install_javascript, python_client, told
from tests.support.required import python_of

CLIENTS = [
    ("JavaScript 1.3", "JSONRPC", "dev"),
    ("JavaScript 1.3", "HTTP+JSON", "dev"),
    ("JavaScript 0.3", "JSONRPC", "dev"),
    ("JavaScript 0.3", "HTTP+JSON", "dev"),
    pytest.param("JavaScript 1.3", "JSONRPC", "api", marks=pytest.mark.emulators),
    pytest.param("Python 0.3", "JSONRPC", "dev", marks=pytest.mark.foreign),
    pytest.param("Python 0.3", "HTTP+JSON", "dev", marks=pytest.mark.foreign),
]
"""A client, how it speaks, and the command that serves it."""
COMPLETED = (3, "completed")
"""The state as the clients of 1.0 and of 0.3 call it."""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_javascript(tmp_path_factory.mktemp("javascript"))


@pytest.fixture(scope="module")
def api(own_queues: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("api")
    env = environment(**own_queues, A2A_AUTH="none", PROBE_FOLDER=str(folder))
    commands = {name: ARGUMENTS[name] for name in ("api", "worker")}
    with deployed(env, folder, commands) as started:
        yield Served(url=started.url, folder=folder)


@pytest.mark.long
@pytest.mark.parametrize(("client", "binding", "command"), CLIENTS)
async def test_a_stream_is_followed_left_and_joined_again(
    client: str, binding: str, command: str, request: pytest.FixtureRequest
) -> None:
    """Events come as they happen, from the card on; another process follows the task to its end.

    The agent goes on only after the client has told of its status.
    """
    served: Served = request.getfixturevalue(command)
    url = f"{served.url}/"
    if client == "Python 0.3":
        program = python_client("python_0_3")
    else:
        script = "stream.mjs" if client.endswith("1.3") else "stream-0.3.mjs"
        program = ["node", str(request.getfixturevalue("scripts") / script)]
    sending = told(program, url, binding, "send", "hold")
    first: list[dict[str, Any]] = []
    async for event in sending:
        first.append(event)
        if event.get("says") == "holding":
            break
    await sending.aclose()
    assert first[0]["kind"] == "task"
    seen: list[dict[str, Any]] = []
    async for event in told(program, url, binding, "subscribe", first[0]["task"]):
        seen.append(event)
        served.release(first[0]["task"])
    assert (seen[0]["kind"], seen[0]["task"]) == ("task", first[0]["task"])
    assert "".join(event.get("chunk", "") for event in seen) == "You said: hold"
    assert seen[-1]["state"] in COMPLETED
    assert seen[-1]["says"] == "Done."


@pytest.mark.long
@pytest.mark.foreign
async def test_an_agent_of_googles_adk_streams_from_it(dev: Served) -> None:
    """Its RemoteA2aAgent takes the card, and tells of each event when it happens."""
    seen: list[dict[str, Any]] = []
    async for event in told(python_client("google_adk"), f"{dev.url}/", "", "send", "hold"):
        seen.append(event)
        if event["says"] == "holding":
            dev.release(event["task"])
    assert not [event["error"] for event in seen if event["error"]]
    assert "".join(event["says"] for event in seen) == "holdingYou said: holdDone."


@pytest.mark.long
@pytest.mark.foreign
@pytest.mark.parametrize(
    ("client", "streams", "given"),
    [
        ("google_adk", True, {"AgentTool": "`lo world`", "AgentTool, streaming=False": "✓"}),
        ("strands_client", False, {"invoke_async": "✓", "stream_async": "✓"}),
    ],
)
def test_models_are_given_what_pages_say(
    client: str, *, streams: bool, given: dict[str, str]
) -> None:
    """Of the chunks of an artifact, of which the first ends within a word, by way of calling."""
    python_of(client)
    with answers.answering(streams=streams) as url:
        told = answers.read(client, url, ["chunks"])
    assert {way: answers.cell(told[f"{way}|chunks"], "chunks") for way in given} == given
    page = answers.PAGE.read_text(encoding="utf-8")
    if streams:
        listed = [row.split(" | ")[5] for row in answers.rows_of(client, page)]
        assert {*given.values()} <= {*listed}
    else:
        assert re.search(r'"streaming": false` makes [^.]*Strands[^.]* the whole answer', page)
