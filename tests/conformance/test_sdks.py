"""What the official servers do, beside ours: the table of docs/understand/official-servers.md.

One agent runs behind the official servers, of Python in memory and as a cluster, of JavaScript, and
behind ours; each is asked the same over JSON-RPC. It needs `make foreign`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
)
from a2a.types import Artifact, Part, TaskArtifactUpdateEvent, TaskState
from google.protobuf.json_format import ParseDict
from starlette.applications import Starlette

from a2a_serverless.settings import Settings
from a2a_serverless_tools.local.cards import card_of
from a2a_serverless_tools.local.stack import Options, Stack
from tests.conformance.sample_executors import Sample
from tests.support.a2a_calls import JSONRPC, Agent, message, target
from tests.support.foreign_clients import install_javascript
from tests.support.stores import on_sql, sql_engines
from tests.unit.push.receivers import Receiver

PAGE: Final = Path(__file__).parents[2] / "docs" / "understand" / "official-servers.md"
DATA: Final = {"n": 3, "big": 9007199254740993}
"""A whole number, and the first one that a double cannot hold."""
ENDED: Final = ("COMPLETED", "FAILED")
ENDS_S: Final = 30
CARD: Final = Path(__file__).parents[1] / "foreign" / "card.json"
TOKEN: Final = "token"
PUSH: Final = "taskPushNotificationConfig"
CREDENTIALS: Final = {"scheme": "Bearer", "credentials": "secret"}


class Behaving(Sample):
    """Does what the text of the message says; server.mjs has the same for JavaScript."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await self.open(context, event_queue)
        asked = context.get_user_input()
        match asked:
            case "append":
                await updater.add_artifact([Part(text="a")], artifact_id="a", append=True)
            case "data":
                part = ParseDict({"data": DATA}, Part())
                await updater.add_artifact([part], artifact_id="a")
            case "fail":
                raise RuntimeError("boom")
            case "says":
                for said in ("one", "two", "three"):
                    message = updater.new_agent_message([Part(text=said)])
                    await updater.update_status(TaskState.TASK_STATE_WORKING, message)
        await updater.complete()
        if asked == "late":
            late = Artifact(artifact_id="a", parts=[Part(text="late")])
            event = TaskArtifactUpdateEvent(
                task_id=context.task_id, context_id=context.context_id, artifact=late
            )
            await event_queue.enqueue_event(event)


class Asking(Agent):
    """Asks a server over JSON-RPC."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        super().__init__(http, JSONRPC)

    async def posted(self, method: str, params: Any, version: str = "1.0") -> httpx.Response:
        verb, path, body = target(JSONRPC, method, params)
        headers = {"A2A-Version": version} if version else {}
        return await self.client.request(verb, path, json=body, headers=headers)

    async def said(self, text: str, *, version: str = "1.0", config: Any = None, **ids: str) -> Any:
        """The answer's body; with `config` the task notifies a webhook."""
        message_id = f"{text}-{version}-{len(ids)}-{config is None}"
        params: dict[str, Any] = {"message": message(text, messageId=message_id, **ids)}
        params |= {} if config is None else {"configuration": {PUSH: config}}
        return (await self.posted("SendMessage", params, version)).json()

    async def stream(self, text: str) -> list[Any]:
        """Return the frames of a stream: results, or errors."""
        answer = await self.posted("SendStreamingMessage", {"message": message(text)})
        lines = [line for line in answer.text.splitlines() if line.startswith("data:")]
        return [json.loads(line.removeprefix("data:")) for line in lines]

    async def get(self, task_id: str, **more: int) -> Any:
        return (await self.call("GetTask", {"id": task_id, **more})).result


def state(task: Any) -> str:
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


def artifacts(frames: list[Any]) -> int:
    return sum("artifactUpdate" in frame.get("result", {}) for frame in frames)


async def stored(server: Asking, frames: list[Any]) -> Any:
    """Return the task of a stream, once it has ended and has each artifact that was streamed."""
    task_id = frames[0]["result"]["task"]["id"]
    async with asyncio.timeout(ENDS_S):
        while True:
            task = await server.get(task_id)
            if state(task) in ENDED and len(task.get("artifacts", [])) >= artifacts(frames):
                return task
            await asyncio.sleep(0.02)


async def versions(server: Asking) -> str:
    shown = []
    for version in ("1.0", "1.0.3", "1.1", "2.0", ""):
        answer = await server.said("says", version=version)
        code = answer.get("error", {}).get("code", "a result")
        shown.append(f"{version or 'none'}: {code}")
    return "; ".join(shown)


async def appended(server: Asking) -> str:
    frames = await server.stream("append")
    task = await stored(server, frames)
    errors = [frame["error"]["code"] for frame in frames if "error" in frame]
    ends = f"the stream ends with {errors[-1]}, " if errors else ""
    return f"{ends}{state(task)}, artifacts: {len(task.get('artifacts', []))}"


async def late(server: Asking) -> str:
    frames = await server.stream("late")
    task = await stored(server, frames)
    return f"streamed: {artifacts(frames)}; stored: {len(task.get('artifacts', []))}"


async def failed(server: Asking) -> str:
    frames = await server.stream("fail")
    task = await stored(server, frames)
    kind = "an error" if "error" in frames[-1] else next(iter(frames[-1]["result"]))
    told = "with" if "boom" in json.dumps([*frames, task]) else "without"
    return f"the stream ends with {kind}; {state(task)}; {told} the exception's text"


async def history(server: Asking) -> str:
    sent = (await server.said("says"))["result"]["task"]
    shown = []
    for length in (None, 0, 2):
        task = await server.get(sent["id"], **({} if length is None else {"historyLength": length}))
        number = len(task["history"]) if "history" in task else "no key"
        shown.append(f"{'absent' if length is None else length}: {number}")
    return "; ".join(shown)


async def numbers(server: Asking) -> str:
    task = (await server.said("data"))["result"]["task"]
    answer = await server.posted("GetTask", {"id": task["id"]})
    part = json.loads(answer.text, parse_float=str, parse_int=str)["result"]["artifacts"][0]
    data = part["parts"][0]["data"]
    return f"{data['n']}; {data['big']}"


async def after_the_end(server: Asking) -> str:
    task = (await server.said("says"))["result"]["task"]
    answer = await server.said("says", taskId=task["id"], contextId=task["contextId"])
    return str(answer.get("error", {}).get("code", "a result"))


async def webhook(server: Asking) -> str:
    with Receiver() as receiver:
        config = {"url": receiver.url(), "token": TOKEN, "authentication": CREDENTIALS}
        assert "result" in await server.said("says", config=config)
        async with asyncio.timeout(ENDS_S):
            while True:
                sent = list(receiver.requests)
                if sent and b"COMPLETED" in sent[-1].body:
                    break
                await asyncio.sleep(0.02)
    kinds, told = [next(iter(json.loads(each.body))) for each in sent], sent[-1].headers
    has_token = told.get("x-a2a-notification-token") == TOKEN
    has_credentials = told.get("authorization") == "Bearer secret"
    names = [("token", has_token), ("Authorization", has_credentials)]
    has = [name for name, holds in names if holds] or ["neither"]
    versions = told.get("a2a-version", "none")
    return (
        f"{len(kinds)}: {', '.join(dict.fromkeys(kinds))}; {' and '.join(has)};"
        f" {told['content-type']}; A2A-Version: {versions}"
    )


ROWS: Final[Mapping[str, tuple[str, Callable[[Asking], Awaitable[str]], str]]] = {
    "`A2A-Version`": ("3.6.2", versions, "Major.Minor decides, a patch does not count"),
    "a first chunk with `append`": ("4.2.2", appended, "the artifact begins with it"),
    "an artifact after COMPLETED": ("3.1.2", late, "a task that has ended stays as it is"),
    "an agent that raises": (
        "-",
        failed,
        "it is tried again, and no client reads an exception's text",
    ),
    "`historyLength` of the user's and three messages": ("3.2.4", history, "-"),
    "3 and 9007199254740993 in data": (
        "ProtoJSON",
        numbers,
        "whole numbers have no `.0`; both are doubles on their way",
    ),
    "a message to a task that has ended": ("3.1.1", after_the_end, "-"),
    "what a webhook with token and credentials gets": (
        "4.3.3",
        webhook,
        "ends alone by default (`PushEvents`); the version tells how to read the body",
    ),
}
"""What is asked: the specification's section, the question, and the reason where ours differs."""


class InTurn(httpx.AsyncBaseTransport):
    """Gives each request to the next one of several processes, as a load balancer does."""

    def __init__(self, *apps: Starlette) -> None:
        self._next = cycle([httpx.ASGITransport(app) for app in apps])

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await next(self._next).handle_async_request(request)


@asynccontextmanager
async def handled(tasks: Any, configs: Any, **more: Any) -> AsyncIterator[Starlette]:
    """The official handler of Python on these stores."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        handler = DefaultRequestHandler(
            Behaving(),
            tasks,
            card_of(CARD),
            push_config_store=configs,
            push_sender=BasePushNotificationSender(http, configs),
            **more,
        )
        try:
            yield Starlette(routes=create_jsonrpc_routes(handler, "/"))
        finally:
            await handler.aclose()


@asynccontextmanager
async def python() -> AsyncIterator[Asking]:
    """The official server of Python, in memory."""
    tasks, configs = InMemoryTaskStore(), InMemoryPushNotificationConfigStore()
    async with handled(tasks, configs) as app, asked(transport=InTurn(app)) as server:
        yield server


@asynccontextmanager
async def cluster() -> AsyncIterator[Asking]:
    """Two of them on one database, with the versioned store and the event stream."""
    with tempfile.TemporaryDirectory() as folder, sql_engines() as engine_of:
        async with AsyncExitStack() as stack:
            apps = []
            for _ in range(2):
                engine = engine_of(Path(folder, "tasks"))
                stack.push_async_callback(engine.dispose)
                own = await on_sql(engine)
                app = handled(own.tasks, own.configs, event_stream=own.stream)
                apps.append(await stack.enter_async_context(app))
            yield await stack.enter_async_context(asked(transport=InTurn(*apps)))


@asynccontextmanager
async def asked(url: str = "http://test", **more: Any) -> AsyncIterator[Asking]:
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, **more) as http:
        yield Asking(http)


@asynccontextmanager
async def javascript() -> AsyncIterator[Asking]:
    with tempfile.TemporaryDirectory() as folder:
        scripts = install_javascript(Path(folder))
        process = await asyncio.create_subprocess_exec(
            "node", scripts / "server.mjs", stdout=PIPE, stderr=DEVNULL
        )
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        try:
            async with asked(url) as server:
                yield server
        finally:
            process.kill()
            await process.wait()


def rows() -> list[str]:
    """Ask each server each question; the rows of the table."""
    settings = Settings(auth="none", retry_base_s=0.01, push_allowed_hosts="127.0.0.1")
    options = Options(agent=f"{__file__}:Behaving", card=CARD, push=True)
    with Stack(settings, options) as stack:
        return asyncio.run(_rows(stack.url))


async def _rows(url: str) -> list[str]:
    async with python() as one, cluster() as two, javascript() as node, asked(url) as ours:
        found = []
        for name, (section, question, reason) in ROWS.items():
            first, second, *others = [await question(it) for it in (one, two, node, ours)]
            second = "as Python" if second == first else second
            found.append(f"| {' | '.join([name, section, first, second, *others, reason])} |")
        return found


@pytest.mark.long
def test_the_table_is_as_the_page_has_it() -> None:
    """What the page `official-servers` says of the SDKs' servers and of ours."""
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert [row for row in rows() if row not in page] == []
