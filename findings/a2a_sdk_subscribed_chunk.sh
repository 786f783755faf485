#!/usr/bin/env bash
# a2a-sdk 1.3.0, seen on 2026-11-29.
# SubscribeToTask shows the task as it is and then the events that follow. One expects that the artifacts of the first Task and
# the chunks behind it make the artifact.
# Seen: of a task that is written while clients subscribe, some get one chunk twice: in the first Task and as an event.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check 'a2a-sdk==1.3.0'
seen=$("$folder/venv/bin/python" - 2>"$folder/log" <<'PROGRAM'
import asyncio
from collections import Counter

from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
)

CARD = AgentCard(name="Writer", version="1", capabilities=AgentCapabilities(streaming=True))
CONTEXT = ServerCallContext()


class Writer(AgentExecutor):
    async def execute(self, context, event_queue):
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        await task.start_work()
        for number in range(200):
            chunk = [Part(text=f"{number} ")]
            await task.add_artifact(chunk, artifact_id="text", append=number > 0)
            await asyncio.sleep(0)
        await task.complete()

    async def cancel(self, context, event_queue):
        raise NotImplementedError


def text_of(artifacts):
    return "".join(part.text for artifact in artifacts for part in artifact.parts)


async def subscribed(turns):
    handler = DefaultRequestHandler(Writer(), InMemoryTaskStore(), CARD)
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="write")])
    at_once = SendMessageConfiguration(return_immediately=True)
    sent = SendMessageRequest(message=message, configuration=at_once)
    task = await handler.on_message_send(sent, CONTEXT)
    for _ in range(turns):  # of the loop, in which the agent writes
        await asyncio.sleep(0)
    text = ""
    async for event in handler.on_subscribe_to_task(SubscribeToTaskRequest(id=task.id), CONTEXT):
        if isinstance(event, Task):
            text = text_of(event.artifacts)
        elif isinstance(event, TaskArtifactUpdateEvent):
            text = text * event.append + text_of([event.artifact])
    whole = text_of((await handler.on_get_task(GetTaskRequest(id=task.id), CONTEXT)).artifacts)
    more = Counter(text.split()) - Counter(whole.split())
    return sum(more.values())


async def main():
    repeated = {await subscribed(turns) for turns in range(1, 81, 4)}
    print("chunks that one client or another gets twice:", *sorted(repeated))


asyncio.run(main())
PROGRAM
) || { cat "$folder/log" >&2; echo "a2a-sdk runs no longer as it did." >&2; exit 1; }
expected="chunks that one client or another gets twice: 0 1"
[ "$seen" = "$expected" ] || { echo "a2a-sdk streams to a late subscriber otherwise than it did. It says now: $seen" >&2; exit 1; }
