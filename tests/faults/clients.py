"""A client as the protocol wishes it to be: it sends again, unchanged, what had no good answer."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from a2a.client import ClientConfig
from a2a.types import TaskState

from a2a_serverless.client import create_resuming_client
from a2a_serverless.tasks.head import Head
from tests.faults.harness import SETTLE_S
from tests.support.a2a_calls import REST, Answer, message, read, target
from tests.support.messages import request

PAUSE_S = 0.1
HEADERS = {"A2A-Version": "1.0", "Content-Type": "application/json"}


class _Moving(httpx.AsyncHTTPTransport):
    """Sends each request to the API that a client of the deployment has then; counts them."""

    def __init__(self, of: httpx.AsyncClient) -> None:
        super().__init__()
        self._of = of
        self.requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        request.url = request.url.copy_with(port=self._of.base_url.port)
        request.headers["host"] = request.url.netloc.decode()
        return await super().handle_async_request(request)


@dataclass
class Patient:
    """Repeats a request with the same ids until it has an answer that is no server error.

    Every request goes to the API that `http` leads to then. `repeated` counts why it had to.
    """

    http: httpx.AsyncClient
    repeated: Counter[str] = field(default_factory=Counter)

    async def send(
        self, text: str, *, task: Head | None = None, webhook: str = "", blocks: bool = False
    ) -> Answer:
        """Send a message; `blocks`: until its turn is over.

        A follow-up has an idempotency key: its messageId names the open turn alone.
        """
        told = {"taskPushNotificationConfig": {"url": webhook}} if webhook else {}
        number = uuid.uuid4().hex
        ids = {"taskId": task.task_id} if task else {}
        ids["contextId"] = task.context_id if task else f"context-{number}"
        said = message(text, messageId=number, **ids)
        params = {"message": said, "configuration": {"returnImmediately": not blocks, **told}}
        key = {"Idempotency-Key": number} if task else {}
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
        own, deadline = HEADERS | dict(headers or {}), time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            try:
                response = await self.http.request(verb, path, content=content, headers=own)
            except httpx.TransportError as error:
                self.repeated[type(error).__name__] += 1
            else:
                # A server that ends answers what it cannot finish with a 500 that is no JSON.
                if response.status_code < 500:
                    return read(response)
                self.repeated[str(response.status_code)] += 1
            await asyncio.sleep(PAUSE_S)
        raise AssertionError(self.repeated)

    async def follow(self, text: str, chunks: list[str]) -> int:
        """Send a message by the resuming client, and add its chunks; return how often it asked."""
        moving = _Moving(self.http)
        async with httpx.AsyncClient(transport=moving, timeout=SETTLE_S) as http:
            url, config = str(self.http.base_url), ClientConfig(httpx_client=http)
            client = await create_resuming_client(url, config)
            async for event in client.send_message(request(text)):
                chunks += [part.text for part in event.artifact_update.artifact.parts]
        assert event.status_update.status.state == TaskState.TASK_STATE_COMPLETED, event
        return moving.requests
