"""Which connections a URL of another machine may lead to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from a2a_serverless.client.origins import AgentOrigins, RefusedUrlError

URL = httpx.URL("https://store.example/a/1")


@pytest.mark.parametrize(
    ("asked", "ours", "theirs", "is_refused"),
    [
        ("store.example", "10.0.0.2", "93.184.216.34", False),
        ("store.example", "127.0.0.1", "127.0.0.1", True),
        ("store.example", "10.0.0.2", "10.0.0.2", True),
        ("proxy.example", "127.0.0.1", "127.0.0.1", False),
    ],
)
async def test_a_name_may_lead_elsewhere(
    asked: str, ours: str, theirs: str, *, is_refused: bool
) -> None:
    """A connection to this machine is closed before anything is sent; a proxy may be on it."""
    ends = {"client_addr": (ours, 1), "server_addr": (theirs, 443)}
    stream = SimpleNamespace(get_extra_info=ends.get, aclose=AsyncMock())
    trace: Any = AgentOrigins("https://agent.example").guard(URL)["trace"]

    async def connect() -> None:
        await trace("connection.connect_tcp.started", {"host": asked})
        await trace("connection.connect_tcp.complete", {"return_value": stream})

    if is_refused:
        with pytest.raises(RefusedUrlError, match=r"https://store\.example, an address of this"):
            await connect()
    else:
        await connect()
    assert stream.aclose.await_count == is_refused
