"""The official Python client does every operation that it has: URL BINDING RECEIVER.

Prints one JSON line for each. Runs in the tests' own environment, whose SDK is the server's.
"""

from __future__ import annotations

import asyncio
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)

from tests.foreign.tried import Talk, outcome, tried


def message(text: str) -> Message:
    return Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=[Part(text=text)])


def name(state: TaskState) -> str:
    return TaskState.Name(state).removeprefix("TASK_STATE_").lower().replace("_", "-")


def told(task: Task) -> str:
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    return outcome(name(task.status.state), *(p.text for p in parts or task.status.message.parts))


class PythonTalk(Talk):
    told = staticmethod(told)

    def __init__(self, http: httpx.AsyncClient, url: str, binding: str, receiver: str) -> None:
        self.http, self.url, self.binding, self.receiver = http, url, binding, receiver
        self.task, self.asked, self.running = Task(), Task(), Task()

    async def client(self, *, streaming: bool) -> Client:
        config = ClientConfig(
            streaming=streaming,
            httpx_client=self.http,
            supported_protocol_bindings=[self.binding],
            use_client_preference=True,
        )
        return await ClientFactory(config).create_from_url(self.url)

    async def all(self) -> None:
        self.whole = await self.client(streaming=False)
        self.streaming = await self.client(streaming=True)
        await super().all()

    async def card(self) -> str:
        return (await A2ACardResolver(self.http, self.url).get_agent_card()).name

    async def sent(self, text: str, task: Task | None = None, *, at_once: bool = False) -> Task:
        said = message(text)
        if task is not None:
            said.task_id, said.context_id = task.id, task.context_id
        configuration = SendMessageConfiguration(return_immediately=at_once)
        request = SendMessageRequest(message=said, configuration=configuration)
        [event] = [event async for event in self.whole.send_message(request)]
        return event.task

    async def stream(self) -> str:
        state, texts = "", []
        async for event in self.streaming.send_message(SendMessageRequest(message=message("go"))):
            if event.HasField("status_update"):
                state = name(event.status_update.status.state)
            elif event.HasField("artifact_update"):
                texts += [part.text for part in event.artifact_update.artifact.parts]
        return outcome(state, *texts)

    async def get(self) -> str:
        return told(await self.whole.get_task(GetTaskRequest(id=self.task.id)))

    async def list(self) -> str:
        listed = await self.whole.list_tasks(ListTasksRequest(context_id=self.task.context_id))
        return ",".join(str(task.id == self.task.id).lower() for task in listed.tasks)

    async def start(self) -> str:
        self.running = await self.sent("obey", at_once=True)
        return str(name(self.running.status.state) in ("submitted", "working")).lower()

    async def set_push(self) -> str:
        config = TaskPushNotificationConfig(
            id="mine", task_id=self.running.id, url=self.receiver, token="secret"
        )
        made = await self.whole.create_task_push_notification_config(config)
        return str(made.url == self.receiver).lower()

    async def get_push(self) -> str:
        request = GetTaskPushNotificationConfigRequest(task_id=self.running.id, id="mine")
        found = await self.whole.get_task_push_notification_config(request)
        return str(found.url == self.receiver).lower()

    async def list_push(self) -> str:
        request = ListTaskPushNotificationConfigsRequest(task_id=self.running.id)
        return str(len((await self.whole.list_task_push_notification_configs(request)).configs))

    async def delete_push(self) -> str:
        request = DeleteTaskPushNotificationConfigRequest(task_id=self.running.id, id="mine")
        await self.whole.delete_task_push_notification_config(request)
        return await self.list_push()

    async def subscribe(self) -> str:
        state = ""
        async for event in self.streaming.subscribe(SubscribeToTaskRequest(id=self.running.id)):
            if event.HasField("task"):
                await tried("cancel", self.cancel)
            elif event.HasField("status_update"):
                state = name(event.status_update.status.state)
        return state

    async def cancel(self) -> str:
        return told(await self.whole.cancel_task(CancelTaskRequest(id=self.running.id)))

    async def unknown_task(self) -> None:
        await self.whole.get_task(GetTaskRequest(id="unknown"))


async def main(url: str, binding: str, receiver: str) -> None:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        await PythonTalk(http, url, binding, receiver).all()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
