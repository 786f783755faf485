from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver

from tests.e2e.commands import environment, running
from tests.e2e.conftest import Served
from tests.support.a2a_calls import message


async def test_card_names_the_address_that_was_asked(dev: Served) -> None:
    """One URL for each binding and version: a client stays where it has found the card."""
    async with httpx.AsyncClient(trust_env=False) as http:
        for address in (dev.url, dev.url.replace("127.0.0.1", "localhost")):
            card = await A2ACardResolver(http, address).get_agent_card()
            urls = [interface.url.rstrip("/") for interface in card.supported_interfaces]
            assert urls == [address] * 4


async def test_the_command_follows_beside_a_running_stream(dev: Served) -> None:
    """`task ID --follow` prints what the stream shows, under its cursors, and ends with it."""
    env = environment()
    output = dev.folder / "follow.log"
    body = {"message": message("hold", messageId=uuid.uuid4().hex)}
    streamed: list[tuple[str, Any]] = []
    async with (
        httpx.AsyncClient(base_url=dev.url, trust_env=False, timeout=60) as http,
        http.stream("POST", "/message:stream", json=body, headers={"A2A-Version": "1.0"}) as answer,
    ):
        lines = answer.aiter_lines()
        streamed.append(await next_event(lines))
        task_id = streamed[0][1]["task"]["id"]
        arguments = ("task", task_id, "--follow", "--file", str(dev.file))
        with running(*arguments, env=env, output=output) as following:
            await asyncio.to_thread(following.wait_for, "holding")
            dev.release(task_id)
            while "COMPLETED" not in str(streamed[-1]):
                streamed.append(await next_event(lines))
            assert await asyncio.to_thread(following.process.wait, 30) == 0
            said = [json.loads(line) for line in following.said().splitlines()]
    followed = [(line.pop("id"), line) for line in said]
    assert [line["statusUpdate"]["status"]["state"] for _, line in followed[-1:]] == [
        "TASK_STATE_COMPLETED"
    ]
    assert followed[-len(streamed) + 1 :] == streamed[1:]


async def next_event(lines: AsyncIterator[str]) -> tuple[str, Any]:
    """The next event of a stream: its cursor, and what it says."""
    cursor = ""
    async for line in lines:
        if line.startswith("id:"):
            cursor = line[3:].strip()
        elif line.startswith("data:"):
            return cursor, json.loads(line[5:])
    pytest.fail("The stream has ended.")
