"""A client as the protocol wishes it to be: it sends again, unchanged, what had no good answer."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from a2a_serverless.tasks.head import Head
from tests.faults.harness import ARTIFACT, World
from tests.support.a2a_calls import REST, Answer, message, read, target
from tests.support.asgi_streams import LiveResponse, ServerEvent

REPETITIONS = 40
PAUSE_S = 0.1
SERVER_ERROR = 500
HEADERS = {"A2A-Version": "1.0", "Content-Type": "application/json"}
ENDS = {"COMPLETED", "CANCELED", "FAILED", "REJECTED"}


@dataclass
class Stream:
    """What a client has of a task that it streams, over all its connections."""

    task_id: str = ""
    state: str = ""
    chunks: list[str] = field(default_factory=list)
    last_id: str = ""
    connections: int = 0

    def take(self, event: ServerEvent) -> None:
        """Fold one event: a snapshot replaces everything, an artifact its like or its end."""
        self.last_id = event.id or self.last_id
        (kind, content), *_ = event.data.items()
        if kind == "task":
            self.task_id = content["id"]
            self.chunks = [text for one in content.get("artifacts", []) for text in _texts(one)]
        elif kind == "artifactUpdate":
            kept = self.chunks if content.get("append") else []
            self.chunks = [*kept, *_texts(content["artifact"])]
        if "status" in content:
            self.state = content["status"]["state"].removeprefix("TASK_STATE_")


@dataclass
class Patient:
    """Repeats a request with the same ids until it has an answer that is no server error.

    Every request goes to the API that `world` has then. `repeated` counts why it had to.
    """

    world: World
    repeated: Counter[str] = field(default_factory=Counter)

    async def send(
        self, text: str, *, task: Head | None = None, webhook: str = "", blocks: bool = False
    ) -> Answer:
        """Send a message; `blocks`: until its turn is over.

        A follow-up has an idempotency key: its messageId names the open turn alone.
        """
        told = {"taskPushNotificationConfig": {"url": webhook}} if webhook else {}
        params = _message(text, task)
        params["configuration"] = {"returnImmediately": not blocks, **told}
        key = {"Idempotency-Key": params["message"]["messageId"]} if task else {}
        answer = await self.call("SendMessage", params, key)
        assert answer.response.status_code == 200, answer
        return answer

    async def cancel(self, task_id: str) -> None:
        """Cancel a task; the repetition of a cancel that was carried out is refused."""
        answer = await self.call("CancelTask", {"id": task_id})
        assert answer.reason == "TASK_NOT_CANCELABLE" or answer.state == "CANCELED", answer

    async def call(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Answer:
        verb, path, body = target(REST, method, params)
        content = None if body is None else json.dumps(body).encode()
        for _ in range(REPETITIONS):
            try:
                response = await self.world.http.request(
                    verb, path, content=content, headers={**HEADERS, **(headers or {})}
                )
            except httpx.TransportError as error:
                self.repeated[type(error).__name__] += 1
            else:
                # A server that ends answers what it cannot finish with a 500 that is no JSON.
                if response.status_code < SERVER_ERROR:
                    return read(response)
                self.repeated[str(response.status_code)] += 1
            await asyncio.sleep(PAUSE_S)
        raise AssertionError(self.repeated)

    async def follow(self, text: str, stream: Stream) -> None:
        """Send a message and stream its task to the end, resumed where it was cut off."""
        opening = _message(text)
        while stream.state not in ENDS:
            assert stream.connections < REPETITIONS, stream
            stream.connections += 1
            try:
                async for event in self._events(opening, stream):
                    stream.take(event)
            except httpx.TransportError as error:
                self.repeated[type(error).__name__] += 1

    async def _events(
        self, opening: Mapping[str, Any], stream: Stream
    ) -> AsyncIterator[ServerEvent]:
        method, params = "SendStreamingMessage", opening
        headers = dict(HEADERS)
        if stream.last_id:
            method, params = "SubscribeToTask", {"id": stream.task_id}
            headers["Last-Event-ID"] = stream.last_id
        verb, path, body = target(REST, method, params)
        content = None if body is None else json.dumps(body).encode()
        async with self.world.http.stream(verb, path, content=content, headers=headers) as answer:
            if answer.status_code >= SERVER_ERROR:
                self.repeated[str(answer.status_code)] += 1
                await asyncio.sleep(PAUSE_S)
                return
            assert answer.status_code == 200, await answer.aread()
            async for event in _Received(answer).events():
                yield event


class _Received(LiveResponse):
    """The events of an answer that comes over a connection."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self._response = response

    def chunks(self) -> AsyncIterator[bytes]:
        return self._response.aiter_raw()


def _message(text: str, task: Head | None = None) -> dict[str, Any]:
    message_id = uuid.uuid4().hex
    context_id = task.context_id if task else f"context-{message_id}"
    named = {"taskId": task.task_id} if task else {}
    return {"message": message(text, messageId=message_id, contextId=context_id, **named)}


def _texts(artifact: Mapping[str, Any]) -> list[str]:
    is_ours = artifact["artifactId"] == ARTIFACT
    return [part["text"] for part in artifact["parts"]] if is_ours else []
