"""The page `one-send`, a blocking send step by step; and what a cold start loads."""

from __future__ import annotations

import asyncio
import gc
import importlib
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import httpx
import pytest
from a2a.types import AgentCard

import a2a_serverless
from a2a_serverless.http import intake
from a2a_serverless.http.app import create_app
from a2a_serverless.queues.fifo import FifoQueue
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.starting import cold_start
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker import TaskContext, Worker, heartbeat, lease, outbox
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.context import WorkerExecutor
from benchmarks.imports import loaded
from tests.support import pages
from tests.support.observed import root_logger

PACKAGE = Path(a2a_serverless.__file__).parent
PAGE = pages.path("one-send")
LEG = re.compile(r"^## (\w+): [^\n]*\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
STEP = re.compile(r"^\| \d+ \| \[`([^`]*)`\]\(([^)]*)\) `([^`]*)` \|", re.MULTILINE)

MOST_STEPS = 25
SENDS = 5
MOST_SENDS = 50
"""What a process does now and then is not in the shortest of as many sends."""
WAITS = {
    heartbeat: "LOOK_S",
    lease: "CLAIM_AFTER_S",
    outbox: "FLUSH_AFTER_S",
    intake: "_LEASED_AFTER_S",
}
"""Times after which a send does more: on a busy machine it may take as long."""
MOST_FUNCTIONS = 412


class Step(NamedTuple):
    """One step of the walk: a leg (Request, Turn, Answer), a module's path, a function's name."""

    leg: str
    module: str
    link: str
    function: str


def walk() -> list[Step]:
    legs = LEG.findall(PAGE.read_text(encoding="utf-8"))
    return [Step(leg, *found) for leg, text in legs for found in STEP.findall(text)]


class Trace:
    """The package's functions in the order in which they are entered while it runs."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, str]] = []
        self.is_running = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self.is_running:
            return
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            name = frame.f_code.co_qualname.replace(".<locals>", "")
            self.entered.append((path.relative_to(PACKAGE).as_posix(), name))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """See this thread, and those that are started meanwhile."""
        before = sys.getprofile()
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(before)


class Greeter(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.respond("Hello.")


@pytest.fixture(scope="module")
def trace() -> Trace:
    """A send whose process has answered one before: what is made once is made by then."""
    trace = Trace()
    with pytest.MonkeyPatch.context() as patch, trace.installed():
        for module, name in WAITS.items():
            patch.setattr(module, name, 60.0)
        # As on AWS, where operations are not sent with the commits of the table.
        patch.setattr(TableQueue, "reserve", FifoQueue.reserve)
        asyncio.run(_send_twice(trace))
    return trace


async def _send_twice(trace: Trace) -> None:
    settings = Settings(auth="none", blocking_limit_s=20)
    backends = memory_backends(settings)
    card = AgentCard(name="Greeter", version="1", default_input_modes=["text/plain"])
    transport = httpx.ASGITransport(create_app(settings, backends, card))
    adapter = WorkerAdapter(backends, WorkerExecutor(Greeter()), settings)
    serving = asyncio.create_task(adapter.serve(concurrency=1))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await _send(client)
            sends: list[list[tuple[str, str]]] = []
            for number in range(MOST_SENDS):
                trace.entered, trace.is_running = [], True
                await _send(client)
                trace.is_running = False
                sends.append(trace.entered)
                if number + 1 >= SENDS and min(map(_functions, sends)) <= MOST_FUNCTIONS:
                    break
            trace.entered = min(sends, key=_functions)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def _functions(entered: list[tuple[str, str]]) -> int:
    return len(set(entered))


async def _send(client: httpx.AsyncClient) -> None:
    message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": "Hi."}]}
    headers = {"A2A-Version": "1.0"}
    answer = await client.post("/message:send", json={"message": message}, headers=headers)
    assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED", answer.text


def test_the_walk_is_a_send(trace: Trace) -> None:
    """They are entered in the page's order, 25 at most; a send enters as many as the pages say."""
    rest, steps = iter(trace.entered), walk()
    missed = [each for each in steps if not any(it == (each.module, each.function) for it in rest)]
    assert not missed, "entered earlier, or not at all: the first of these"
    assert 0 < len(steps) <= MOST_STEPS
    assert _functions(trace.entered) <= MOST_FUNCTIONS, f"see the end of {PAGE}"
    assert f"A blocking send enters at most {MOST_FUNCTIONS} functions" in pages.text("one-send")
    contributing = (PAGE.parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"the send enters at most {MOST_FUNCTIONS} functions" in contributing


def test_the_walk_leads_to_the_functions() -> None:
    """Each step's link is the file that it names; a room that was left is not entered again."""
    legs = {leg: [*steps] for leg, steps in groupby(walk(), key=lambda step: step.leg)}
    assert [*legs] == ["Request", "Turn", "Answer"]
    for leg, steps in legs.items():
        rooms = [room for room, _ in groupby(step.module.partition("/")[0] for step in steps)]
        assert len(rooms) == len(set(rooms)), (leg, rooms)
        for step in steps:
            assert (PAGE.parent / step.link).resolve() == PACKAGE / step.module, step


WEB = {"fastapi", "mangum", "sse_starlette", "starlette.routing", "uvicorn"}
NOBODY_NEEDS = {"boto3", "moto", "pydantic.v1", "pydantic_settings", "s3transfer"}


def test_a_worker_loads_no_web_framework() -> None:
    """The worker's handler loads neither a web framework nor what is slow and does nothing."""
    assert not loaded("worker") & (
        WEB | NOBODY_NEEDS | {"click", "httpx", "opentelemetry", "starlette"}
    )


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("name", "unused"), [("api", set()), ("stream", {"fastapi", "mangum"})])
def test_the_api_loads_what_it_needs(name: str, unused: set[str]) -> None:
    """The API loads nothing of the worker, and nothing without a use; for streams no FastAPI."""
    modules = loaded(name)
    assert not modules & (NOBODY_NEEDS | unused)
    assert not [name for name in modules if name.startswith("a2a_serverless.worker.")]


@pytest.mark.parametrize("name", ["a2a.types", "no_such_package"])
def test_an_agent_finds_what_the_sdk_leaves(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """They are hidden from the SDK's import alone, also where that fails."""
    monkeypatch.delitem(sys.modules, "click", raising=False)
    with suppress(ModuleNotFoundError), cold_start(name):
        pass
    assert importlib.import_module("click").__name__ == "click"


def test_the_sdks_own_webhooks_find_httpx_when_they_use_it() -> None:
    """Its class is named in an annotation of the SDK without being imported."""
    told = subprocess.check_output([sys.executable, "-c", LATER], text=True)
    assert told.split() == ["False", "True"]


LATER = """
import sys
from a2a_serverless.starting import cold_start
with cold_start("a2a.server.tasks.base_push_notification_sender"):
    sender = sys.modules["a2a.server.tasks.base_push_notification_sender"]
print("httpx" in sys.modules)
print(sender.httpx.AsyncClient.__module__ == "httpx")
"""


def test_an_agents_models_have_pydantics_plugins() -> None:
    """What is installed is searched for plugins for an agent's first model, and not before."""
    told = subprocess.check_output([sys.executable, "-c", PLUGINS], text=True)
    assert told.split() == ["0", "1"]


PLUGINS = """
import importlib.metadata
searches, distributions = [], importlib.metadata.distributions
importlib.metadata.distributions = lambda: searches.append("") or distributions()
from a2a_serverless.starting import cold_start
with cold_start("a2a.server.agent_execution"):
    from a2a_serverless.worker.function import WorkerFunction
    from pydantic import create_model
    print(len(searches))
    create_model("OfAnAgent", text=str)
print(len(searches))
"""


@pytest.mark.parametrize("fails", [False, True])
def test_garbage_is_looked_for_after_the_start_only(*, fails: bool) -> None:
    """The collector rests while a function is imported, and works again whatever came of it."""
    with suppress(ZeroDivisionError), cold_start():
        assert not gc.isenabled()
        assert 1 / (not fails)
    assert gc.isenabled()


def test_only_a_function_keeps_its_start_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only in Lambda the objects of the start are frozen, so that later collections skip them."""
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME", raising=False)
    before = gc.get_freeze_count()
    with cold_start():
        pass
    assert gc.get_freeze_count() == before
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "worker")
    with root_logger(), cold_start():
        pass
    try:
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
