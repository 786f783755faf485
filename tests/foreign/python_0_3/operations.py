"""The official Python client of 0.3 does every operation that it has: URL BINDING RECEIVER.

Prints one JSON line for each. Runs in an environment of its own, with what requirements.txt locks.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from typing import Any

import httpx
from a2a import types
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import Message, Part, Task

from tests.foreign.tried import Talk, outcome, tried


def message(text: str, **names: Any) -> Message:
    parts = [Part(root=types.TextPart(text=text))]
    return Message(message_id=uuid.uuid4().hex, role=types.Role.user, parts=parts, **names)


def words(parts: list[Part] | None) -> str:
    return "".join(part.root.text for part in parts or [])


def told(task: Task) -> str:
    texts = [words(artifact.parts) for artifact in task.artifacts or []]
    said = task.status.message
    return outcome(task.status.state.value, *(texts or [words(said and said.parts)]))


class PythonTalk(Talk):
    told = staticmethod(told)

    def __init__(self, http: httpx.AsyncClient, url: str, binding: str, receiver: str) -> None:
        self.http, self.url, self.binding, self.receiver = http, url, binding, receiver

    def client(self, card: Any, *, streaming: bool) -> Client:
        how: Any = {"supported_transports": [self.binding], "use_client_preference": True}
        config = ClientConfig(streaming=streaming, httpx_client=self.http, **how)
        return ClientFactory(config).create(card)

    async def all(self) -> None:
        card = await A2ACardResolver(self.http, self.url).get_agent_card()
        self.whole = self.client(card, streaming=False)
        self.streaming = self.client(card, streaming=True)
        await super().all()

    async def card(self) -> str:
        return str((await self.whole.get_card()).name)

    async def sent(self, text: str, task: Task | None = None, *, blocking: bool = True) -> Task:
        names = {"task_id": task.id, "context_id": task.context_id} if task else {}
        configuration = types.MessageSendConfiguration(blocking=blocking)
        events = self.whole.send_message(message(text, **names), configuration=configuration)
        [(answered, _)] = [event async for event in events]
        return answered

    async def stream(self) -> str:
        state, texts = "", []
        async for _, update in self.streaming.send_message(message("go")):
            if update is None:
                continue
            if update.kind == "status-update":
                state = update.status.state.value
            else:
                texts.append(words(update.artifact.parts))
        return outcome(state, *texts)

    async def get(self) -> str:
        return told(await self.whole.get_task(types.TaskQueryParams(id=self.task.id)))

    async def start(self) -> str:
        self.running = await self.sent("obey", blocking=False)
        return str(self.running.status.state.value in ("submitted", "working")).lower()

    async def set_push(self) -> str:
        config = types.PushNotificationConfig(id="mine", url=self.receiver, token="secret")
        asked = types.TaskPushNotificationConfig(
            task_id=self.running.id, push_notification_config=config
        )
        made = await self.whole.set_task_callback(asked)
        return str(made.push_notification_config.url == self.receiver).lower()

    async def get_push(self) -> str:
        ids = {"id": self.running.id, "push_notification_config_id": "mine"}
        asked = types.GetTaskPushNotificationConfigParams(**ids)
        found = await self.whole.get_task_callback(asked)
        return str(found.push_notification_config.url == self.receiver).lower()

    async def subscribe(self) -> str:
        state = ""
        async for _, update in self.streaming.resubscribe(types.TaskIdParams(id=self.running.id)):
            if update is None:
                await tried("cancel", self.cancel)
            elif update.kind == "status-update":
                state = update.status.state.value
        return state

    async def cancel(self) -> str:
        return told(await self.whole.cancel_task(types.TaskIdParams(id=self.running.id)))

    async def unknown_task(self) -> None:
        await self.whole.get_task(types.TaskQueryParams(id="unknown"))


async def main(url: str, binding: str, receiver: str) -> None:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        await PythonTalk(http, url, binding, receiver).all()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
