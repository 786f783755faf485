"""A storage in memory whose console a browser has opened, and `dev` with its console."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.identity import Scope, new_id
from a2a_serverless_tools.cli import served
from a2a_serverless_tools.console.app import Console, Sessions
from a2a_serverless_tools.local.own_file import log_of
from a2a_serverless_tools.local.stack import Options, Stack
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.logs import kept_lines
from tests.support.a2a_calls import message
from tests.support.clocks import ManualClock
from tests.support.memory import memory_storage

URL = "http://127.0.0.1:8000"
OWN = {"Origin": URL}
ANN = Scope.of("acme", "ann")
ECHO = Path(__file__).parents[3] / "examples/echo_executor"

Person = httpx.AsyncClient
"""A browser that has opened the console."""
Dev = tuple[Stack, Console]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_795_313_640_000)


@pytest.fixture
def storage(clock: ManualClock) -> DurableStorage:
    """The storage of ann."""
    return memory_storage(scope=ANN, clock=clock)


@pytest.fixture
def inspector(storage: DurableStorage) -> Inspector:
    return Inspector(storage, Settings(), place="memory")


@pytest.fixture
async def person(inspector: Inspector) -> AsyncIterator[Person]:
    async with visited(inspector) as one:
        yield one


def live_of(text: str) -> str:
    """The path with which a page asks for its next update."""
    (path,) = re.findall(r'hx-get="([^"]*)"', text)
    return unescape(path)


def linked(text: str, rel: str) -> str:
    """Where a page's link of this kind leads to; empty: it has none."""
    links = {unescape(path) for path in re.findall(rf'href="([^"]*)" rel="{rel}"', text)}
    assert len(links) <= 1
    return links.pop() if links else ""


async def walked(person: Person, path: str, rel: str = "next") -> list[str]:
    """The texts of a page and of those that follow by its links."""
    texts = []
    while path:
        texts.append((await person.get(path)).text)
        path = linked(texts[-1], rel)
    return texts


@asynccontextmanager
async def visited(inspector: Inspector, **options: Any) -> AsyncIterator[Person]:
    """A browser that has opened the console of a place."""
    with TemporaryDirectory() as folder:
        console = Console(inspector, url=URL, sessions=Sessions(Path(folder)), **options)
        transport = httpx.ASGITransport(app=console.app)
        async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
            assert (await client.get(console.open_url())).status_code == 303
            yield client


@contextmanager
def developing(
    file: Path,
    *,
    push: bool = False,
    agent: Path = ECHO / "agent.py",
    card: Path = ECHO / "agent_card.json",
    **settings: Any,
) -> Iterator[Dev]:
    """`dev` on a file, with its console."""
    consoles: list[Console] = []
    with kept_lines(log_of(file)) as lines, TemporaryDirectory() as folder:
        beside = partial(served.beside, consoles, lines, Sessions(Path(folder)))
        options = Options(agent=f"{agent}:agent", card=card, file=file, beside=beside, push=push)
        with Stack(Settings(**({"auth": "none"} | settings)), options) as stack:
            yield stack, consoles[0]


def posted(url: str, text: str, *, key: str = "", context: str = "", **more: Any) -> str:
    """Send a message to an agent; return the id of its task, which has ended."""
    said = message(text, messageId=new_id(), **({"contextId": context} if context else {}))
    headers = {"A2A-Version": "1.0"} | ({"X-API-Key": key} if key else {})
    with httpx.Client(headers=headers, trust_env=False, timeout=60) as client:
        answer = client.post(f"{url}/message:send", json={"message": said, **more})
    return str(answer.json()["task"]["id"])
