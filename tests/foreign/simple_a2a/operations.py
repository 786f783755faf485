"""simple_a2a's client (Ruby), by its source: URL BINDING RECEIVER, over JSON-RPC alone.

Prints one JSON line for each operation. Runs in the tests' own environment.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx

from tests.conformance.older_clients import SimpleA2A
from tests.foreign.tried import Talk, outcome, tried


class Client(Talk):
    def __init__(self, simple: SimpleA2A, receiver: str) -> None:
        self.simple, self.receiver = simple, receiver
        self.task: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}
        self.running = ""

    async def card(self) -> str:
        return str((await self.simple.card())["name"])

    async def send(self) -> str:
        self.task = await self.simple.send_task("go")
        return told(self.task)

    async def stream(self) -> str:
        events = await self.simple.send_subscribe("go")
        artifacts = [event["artifact"] for event in events if "artifact" in event]
        return outcome(events[-1]["status"]["state"], *map(words, artifacts))

    async def get(self) -> str:
        return told(await self.simple.rpc_call("tasks/get", id=self.task["id"]))

    async def list(self) -> str:
        listed = await self.simple.list_tasks()
        return str(self.task["id"] in [task["id"] for task in listed]).lower()

    async def question(self) -> str:
        self.asked = await self.simple.send_task("ask")
        return told(self.asked)

    async def answer(self) -> str:
        return told(await self.simple.send_task("go", task_id=self.asked["id"]))

    async def start(self) -> str:
        """Leave the stream of a task that goes on; 0.1 has no other way to start one."""
        self.running = await self.simple.begin("obey")
        return str(bool(self.running)).lower()

    async def set_push(self) -> str:
        config = {"webhookUrl": self.receiver}
        made = await self.simple.rpc_call(
            "tasks/pushNotification/set", id=self.running, pushNotificationConfig=config
        )
        return str(made["pushNotificationConfig"]["webhookUrl"] == self.receiver).lower()

    async def get_push(self) -> str:
        found = await self.simple.rpc_call("tasks/pushNotification/get", id=self.running)
        return str(found["pushNotificationConfig"]["webhookUrl"] == self.receiver).lower()

    async def list_push(self) -> str:
        return str(len(await self.simple.rpc_call("tasks/pushNotification/list")))

    async def delete_push(self) -> str:
        await self.simple.rpc_call("tasks/pushNotification/delete", id=self.running)
        return await self.list_push()

    async def subscribe(self) -> str:
        """Follow the task in one call and cancel it in another, as two threads would."""
        following = asyncio.create_task(self.simple.resubscribe(self.running))
        await asyncio.sleep(0.5)
        await tried("cancel", self.cancel)
        return str((await following)[-1]["status"]["state"])

    async def cancel(self) -> str:
        return told(await self.simple.rpc_call("tasks/cancel", id=self.running))

    async def unknown_task(self) -> None:
        await self.simple.rpc_call("tasks/get", id="unknown")


def words(artifact: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in artifact["parts"])


def told(task: dict[str, Any]) -> str:
    artifacts = task.get("artifacts") or [task["status"].get("message", {"parts": []})]
    return outcome(task["status"]["state"], *map(words, artifacts))


async def main(url: str, receiver: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        await Client(SimpleA2A(http), receiver).all()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[3]))
