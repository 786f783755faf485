"""Streams as they are on the wire, with the ids that the official client keeps to itself."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.a2a_calls import JSONRPC, target


@dataclass(frozen=True)
class Received:
    """One event: its id, what it shows, and all of it."""

    id: str
    kind: str
    content: dict[str, Any]

    @property
    def state(self) -> str:
        return str(self.content.get("status", {}).get("state"))


async def events(
    http: httpx.AsyncClient,
    binding: str,
    method: str,
    params: Mapping[str, Any],
    headers: Mapping[str, str],
) -> AsyncGenerator[Received]:
    """What comes, as it comes; leaving early closes the connection."""
    verb, path, body = target(binding, method, params)
    sent = {"A2A-Version": "1.0", "Content-Type": "application/json", **headers}
    async with http.stream(verb, path, json=body, headers=sent) as response:
        assert response.status_code == 200, await response.aread()
        event_id = ""
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                event_id = value
            elif name == "data":
                data = json.loads(value)
                ((kind, content),) = (data["result"] if binding == JSONRPC else data).items()
                yield Received(event_id, kind, content)
