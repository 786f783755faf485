"""`python -m tests.conformance.sdks`: what the official servers do, beside ours.

Runs one agent behind the official servers, of Python in memory and of JavaScript, and behind ours,
asks each the same over JSON-RPC, prints the rows, and writes them into the table of
docs/understand/official-servers.md. Exit codes: 0 the page was right, 1 a row was not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import Artifact, Part, TaskArtifactUpdateEvent, TaskState
from google.protobuf.json_format import ParseDict

from tests.conformance.sample_executors import Sample
from tests.conformance.sides import Side, durable, stock
from tests.support.foreign_clients import install_javascript

PAGE: Final = Path(__file__).parents[2] / "docs" / "understand" / "official-servers.md"
DATA: Final = {"n": 3, "big": 9007199254740993}
"""A whole number, and the first one that a double cannot hold."""
ENDED: Final = ("COMPLETED", "FAILED")
ENDS_S: Final = 30
RULE: Final = "|---|---|---|---|---|---|"

_DATE: Final = re.compile(r"\(\d{4}-\d\d-\d\d,")


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


class Asking:
    """Asks a server over JSON-RPC."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ask(self, method: str, params: Any, version: str = "1.0") -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"A2A-Version": version} if version else {}
        return await self.http.post("/", json=body, headers=headers)

    async def send(self, text: str, *, version: str = "1.0", **fields: str) -> Any:
        message = {"messageId": f"{text}-{version}-{len(fields)}", "role": "ROLE_USER"}
        message |= {"parts": [{"text": text}], **fields}  # type: ignore[dict-item]
        return (await self.ask("SendMessage", {"message": message}, version)).json()

    async def stream(self, text: str) -> list[Any]:
        """Return the frames of a stream: results, or errors."""
        message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
        answer = await self.ask("SendStreamingMessage", {"message": message})
        lines = [line for line in answer.text.splitlines() if line.startswith("data:")]
        return [json.loads(line.removeprefix("data:")) for line in lines]

    async def get(self, task_id: str, **more: int) -> Any:
        return (await self.ask("GetTask", {"id": task_id, **more})).json()["result"]


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
        answer = await server.send("says", version=version)
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
    sent = (await server.send("says"))["result"]["task"]
    shown = []
    for length in (None, 0, 2):
        task = await server.get(sent["id"], **({} if length is None else {"historyLength": length}))
        number = len(task["history"]) if "history" in task else "no key"
        shown.append(f"{'absent' if length is None else length}: {number}")
    return "; ".join(shown)


async def numbers(server: Asking) -> str:
    task = (await server.send("data"))["result"]["task"]
    answer = await server.ask("GetTask", {"id": task["id"]})
    part = json.loads(answer.text, parse_float=str, parse_int=str)["result"]["artifacts"][0]
    data = part["parts"][0]["data"]
    return f"{data['n']}; {data['big']}"


async def after_the_end(server: Asking) -> str:
    task = (await server.send("says"))["result"]["task"]
    answer = await server.send("says", taskId=task["id"], contextId=task["contextId"])
    return str(answer.get("error", {}).get("code", "a result"))


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
}
"""What is asked: the specification's section, the question, and the reason where ours differs."""


@asynccontextmanager
async def python(side: Side) -> AsyncIterator[Asking]:
    async with (
        side(Behaving()) as app,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test", timeout=60
        ) as http,
    ):
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
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
                yield Asking(http)
        finally:
            process.kill()
            await process.wait()


async def rows() -> list[str]:
    """Ask each server each question; the rows of the table."""
    async with python(stock) as theirs, javascript() as node, python(durable) as ours:
        return [
            f"| {name} | {section} | "
            + " | ".join([await question(server) for server in (theirs, node, ours)])
            + f" | {reason} |"
            for name, (section, question, reason) in ROWS.items()
        ]


def main() -> int:
    logging.disable()  # tracebacks of the agent that raises
    page = PAGE.read_text(encoding="utf-8")
    own = asyncio.run(rows())
    sys.stdout.write("".join(f"{row}\n" for row in own))
    head = page.splitlines()[: page.splitlines().index(RULE) + 1]
    written = _DATE.sub(f"({datetime.now(UTC):%Y-%m-%d},", "\n".join([*head, *own, ""]), count=1)
    PAGE.write_text(written, encoding="utf-8")
    return int(any(row not in page.splitlines() for row in own))


if __name__ == "__main__":
    sys.exit(main())
