"""The clients of `benchmarks.stream`: plain HTTP, over HTTP+JSON."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx

VERSION = {"A2A-Version": "1.0"}


@dataclass(frozen=True, kw_only=True)
class Load:
    """The work of each stream's agent."""

    chunks: int
    gap_s: float
    silence_s: float


@dataclass(frozen=True)
class Chunk:
    """One chunk as it came to the client."""

    number: int
    enqueued_ns: int
    received_ns: int


@dataclass
class Stream:
    """The events that one client has seen."""

    task_id: str = ""
    chunks: list[Chunk] = field(default_factory=list)
    ended_ns: int = 0


Follow = Callable[[httpx.AsyncClient, str], Awaitable[Stream]]
"""Sends a message and follows its task to the end."""


async def follow(http: httpx.AsyncClient, url: str, body: object) -> Stream:
    """Read an event stream to its end."""
    seen = Stream()
    async with http.stream("POST", url, json=body, headers=VERSION) as response:
        assert response.status_code == httpx.codes.OK, await response.aread()
        async for line in response.aiter_lines():
            received_ns = time.monotonic_ns()
            if not line.startswith("data:"):
                continue
            ((kind, event),) = json.loads(line.removeprefix("data:")).items()
            if kind == "task":
                seen.task_id = event["id"]
                for part in (p for a in event.get("artifacts", []) for p in a["parts"]):
                    # Older than the subscription: it did not come as an event, so it has no time.
                    number, enqueued = part["text"].split()
                    seen.chunks.append(Chunk(int(number), int(enqueued), 0))
            elif kind == "artifactUpdate":
                number, enqueued = event["artifact"]["parts"][0]["text"].split()
                seen.chunks.append(Chunk(int(number), int(enqueued), received_ns))
            elif event["status"]["state"] == "TASK_STATE_COMPLETED":
                seen.ended_ns = received_ns
    return seen


def streaming(base: str) -> Follow:
    """Return a client that sends and streams in one request."""

    async def one(http: httpx.AsyncClient, text: str) -> Stream:
        return await follow(http, f"{base}/message:stream", {"message": message(text)})

    return one


def subscribing(sender: str, follower: str) -> Follow:
    """Return a client that sends to one replica and subscribes at another one."""

    async def one(http: httpx.AsyncClient, text: str) -> Stream:
        body = {"message": message(text), "configuration": {"returnImmediately": True}}
        sent = await http.post(f"{sender}/message:send", json=body, headers=VERSION)
        task_id = sent.json()["task"]["id"]
        return await follow(http, f"{follower}/tasks/{task_id}:subscribe", {"id": task_id})

    return one


def message(text: str) -> dict[str, object]:
    """Return a user's message."""
    return {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}


async def run_streams(client: Follow, streams: int, load: Load) -> list[Stream]:
    """Run all streams at once; check that each got every chunk in order."""
    text = json.dumps({"chunks": load.chunks, "gap_s": load.gap_s, "silence_s": load.silence_s})
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(trust_env=False, timeout=120, limits=limits) as http:
        seen = await asyncio.gather(*(client(http, text) for _ in range(streams)))
    for stream in seen:
        assert [c.number for c in stream.chunks] == list(range(load.chunks)), stream
        assert stream.ended_ns, "the stream ended before the task"
    return seen
