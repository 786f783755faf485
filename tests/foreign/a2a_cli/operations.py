"""a2a-cli, the A2A project's command line, does all that it can: URL BINDING RECEIVER PROGRAM.

Prints one JSON line for each operation. Runs in the tests' own environment; PROGRAM is `a2a`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

from tests.foreign.tried import Talk, outcome, tried

Json = dict[str, Any]


class FailedError(Exception):
    """What the command line said when it failed."""


def documents(text: str) -> list[Json]:
    """The JSON documents of a text, which are only separated by white space."""
    found, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:]
    return found


def name(status: Json) -> str:
    return str(status["state"]).removeprefix("TASK_STATE_").lower().replace("_", "-")


def words(parts: list[Json]) -> str:
    return "".join(part.get("text", "") for part in parts)


def told(task: Json) -> str:
    texts = [words(artifact["parts"]) for artifact in task.get("artifacts", [])]
    return outcome(name(task["status"]), *texts or [words(task["status"]["message"]["parts"])])


class Client(Talk):
    told = staticmethod(told)

    def __init__(self, program: str, url: str, binding: str) -> None:
        self.program, self.url = program, url
        # JSON-RPC is what it takes by itself, from the card.
        self.how = ("--transport", "rest") if binding == "HTTP+JSON" else ()
        self.task: Json = {}
        self.asked: Json = {}
        self.running: Json = {}

    async def started(self, *arguments: str) -> Process:
        options = ("--output", "json", *self.how)
        return await asyncio.create_subprocess_exec(
            self.program, *arguments, *options, stdout=PIPE, stderr=PIPE
        )

    async def a2a(self, *arguments: str) -> list[Json]:
        """Run a command; return the JSON documents that it prints."""
        process = await self.started(*arguments)
        said, complaints = await process.communicate()
        if process.returncode:
            raise FailedError(complaints.decode())
        return documents(said.decode())

    async def sent(self, text: str, task: Json | None = None, *options: str) -> Json:
        answers = ("--task", task["id"]) if task else ()
        [sent] = await self.a2a("send", self.url, text, *answers, *options)
        return sent

    async def card(self) -> str:
        [card] = await self.a2a("discover", self.url)
        return str(card["name"])

    async def stream(self) -> str:
        events = await self.a2a("send", self.url, "go", "--stream")
        updates = [event["statusUpdate"] for event in events if "statusUpdate" in event]
        chunks = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
        texts = [words(chunk["artifact"]["parts"]) for chunk in chunks]
        return outcome(name(updates[-1]["status"]), *texts)

    async def get(self) -> str:
        [task] = await self.a2a("get", "task", self.url, self.task["id"], "--history", "5")
        return told(task)

    async def list(self) -> str:
        filters = ("--context", self.task["contextId"], "--status", "completed", "--limit", "5")
        [page] = await self.a2a("list", "tasks", self.url, *filters, "--with-artifacts")
        return ",".join(str(task["id"] == self.task["id"]).lower() for task in page["tasks"])

    async def start(self) -> str:
        self.running = await self.sent("obey", None, "--immediate")
        return str(name(self.running["status"]) in ("submitted", "working")).lower()

    async def subscribe(self) -> str:
        """Follow the task, and cancel it when the task itself has come."""
        process = await self.started("subscribe", self.url, self.running["id"])
        assert process.stdout is not None
        said = await process.stdout.readline()
        await tried("cancel", self.cancel)
        rest, complaints = await process.communicate()
        if process.returncode:
            raise FailedError(complaints.decode())
        events = documents((said + rest).decode())
        return name(events[-1]["statusUpdate"]["status"])

    async def cancel(self) -> str:
        [task] = await self.a2a("cancel", self.url, self.running["id"])
        return told(task)

    async def unknown_task(self) -> None:
        await self.a2a("get", "task", self.url, "unknown")


async def main(url: str, binding: str, _receiver: str, program: str) -> None:
    await Client(program, url, binding).all()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
