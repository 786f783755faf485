"""a2a-inspector's own server does all that its page can ask of it: URL BINDING RECEIVER FOLDER.

Prints one JSON line for each operation. FOLDER is the inspector's; this runs in its environment.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import sys
import uuid
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import socketio

from tests.foreign.tried import outcome, tried

Json = dict[str, Any]
START_S = 60
ANSWER_S = 30


class InvalidError(Exception):
    """What the inspector found wrong with the agent's answer, or why it got none."""


class Page:
    """What the page in the browser does."""

    def __init__(self, http: httpx.AsyncClient, events: Any, agent: str) -> None:
        self.http, self.events, self.agent = http, events, agent
        self.context: str | None = None

    async def all(self) -> None:
        await tried("card", self.card)
        await self.connected()
        await tried("stream", self.stream)
        await tried("question", self.ask)

    async def card(self) -> str:
        request = {"url": self.agent, "sid": self.events.sid}
        answer = (await self.http.post("/agent-card", json=request)).json()
        check(answer)
        return str(answer["card"]["name"])

    async def connected(self) -> None:
        await self.events.emit("initialize_client", {"url": self.agent, "customHeaders": {}})
        answer = await self.heard("client_initialized")
        if answer["status"] != "success":
            raise InvalidError(answer)

    async def stream(self) -> str:
        file = {"data": base64.b64encode(b"a file").decode(), "mimeType": "text/plain"}
        return await self.said("go", attachments=[file], metadata={"key": "value"})

    async def ask(self) -> str:
        """The second message of the chat has the first one's context."""
        return await self.said("ask")

    async def said(self, text: str, **more: Any) -> str:
        """Send a message; read the answers until the turn has ended."""
        message = {"message": text, "id": uuid.uuid4().hex, "contextId": self.context, **more}
        await self.events.emit("send_message", message)
        texts: list[str] = []
        while True:
            answer = await self.heard("agent_response")
            check(answer)
            self.context = answer["contextId"]
            texts += [words(answer["artifact"]["parts"])] if "artifact" in answer else []
            state = answer.get("status", {}).get("state")
            if state in ("completed", "failed", "input-required"):
                asked = answer["status"].get("message", {}).get("parts", [])
                return outcome(state, *(texts or [words(asked)]))

    async def heard(self, wanted: str) -> Json:
        while True:
            event, *values = await self.events.receive(timeout=ANSWER_S)
            if event == wanted:
                found: Json = values[0]
                return found


def check(answer: Json) -> None:
    """Raise what the inspector has found wrong."""
    if "error" in answer or answer["validation_errors"]:
        raise InvalidError(answer.get("error") or answer["validation_errors"])


def words(parts: list[Json]) -> str:
    return "".join(part.get("text", "") for part in parts)


@asynccontextmanager
async def inspector(folder: Path) -> AsyncIterator[str]:
    """The URL of the inspector's server, which this starts."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = (sys.executable, "-m", "uvicorn", "app:app", "--port", str(port))
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder / "backend", stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        async with asyncio.timeout(START_S):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def main(url: str, _binding: str, _receiver: str, folder: str) -> None:
    async with (
        inspector(Path(folder)) as own,
        httpx.AsyncClient(base_url=own, timeout=60, trust_env=False) as http,
        socketio.AsyncSimpleClient() as events,
    ):
        await events.connect(own)
        await Page(http, events, url.rstrip("/")).all()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
