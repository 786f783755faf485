"""Streams over either binding, and what their events hold."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.types import ASGIApp

from tests.support.a2a_calls import target
from tests.support.asgi_streams import LiveResponse, ServerEvent, live


def open_stream(
    app: ASGIApp,
    binding: str,
    method: str,
    params: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    *,
    window: int = 0,
) -> AbstractAsyncContextManager[LiveResponse]:
    """A stream that is read as it comes; `window` as in `live`."""
    verb, path, body = target(binding, method, params)
    return live(app, verb, path, body=body, headers=headers, window=window)


def payload(event: ServerEvent) -> dict[str, Any]:
    """The StreamResponse of an event, whatever the binding."""
    data: dict[str, Any] = event.data.get("result", event.data)
    return data


def kinds(events: list[ServerEvent]) -> list[str]:
    return [next(iter(payload(event))) for event in events]


def chunks(events: list[ServerEvent]) -> str:
    """The text of the artifact updates, in their order."""
    updates = [payload(e)["artifactUpdate"] for e in events if "artifactUpdate" in payload(e)]
    return "".join(part["text"] for update in updates for part in update["artifact"]["parts"])


async def all_events(
    app: ASGIApp,
    binding: str,
    method: str,
    params: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> list[ServerEvent]:
    async with open_stream(app, binding, method, params, headers) as response:
        assert response.status == 200
        return [event async for event in response.events()]
