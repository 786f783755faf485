"""Push from end to end: real processes, real webhooks on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from tests.e2e.commands import deployed, environment, running
from tests.e2e.conftest import AGENT, CARD
from tests.support.a2a_calls import REST, Agent
from tests.support.secrecy import spoken
from tests.unit.push.receivers import OK, Receiver, Request

SETTLE_S = 120.0
ENDS = ["INPUT_REQUIRED", "COMPLETED"]


@asynccontextmanager
async def agent_at(url: str) -> AsyncIterator[Agent]:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=SETTLE_S) as http:
        yield Agent(http, REST)


def configuration(url: str, **more: Any) -> dict[str, Any]:
    return {"taskPushNotificationConfig": {"url": url, **more}}


async def until(condition: Callable[[], bool], what: str) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + SETTLE_S, f"never {what}"
        await asyncio.sleep(0.02)


@pytest.mark.emulators
async def test_a_slow_webhook_delays_no_task(own_queues: dict[str, str], tmp_path: Path) -> None:
    """The webhook hangs from the first status on; the task and the next one of its client end.

    `api`, `worker` and `push` tell on a terminal what they do, and not what a task is about.
    """
    env = environment(
        **own_queues,
        A2A_AUTH="none",
        A2A_PUSH_ALLOWED_HOSTS="127.0.0.1",
        A2A_PUSH_EVENTS="statuses",
        PROBE_FOLDER=str(tmp_path),
    )
    verbose = {
        "api": ("-v", "--card", CARD, "--port", "0"),
        "worker": ("-v", "--agent", AGENT, "--concurrency", "8"),
        "push": ("-v",),
    }
    go_on = asyncio.Event()

    async def hanging() -> AsyncIterator[bytes]:
        await go_on.wait()
        yield OK

    async def let_go() -> None:
        go_on.set()

    with Receiver(lambda _: hanging()) as receiver, deployed(env, tmp_path, verbose) as started:
        async with agent_at(started.url) as agent:
            hook = configuration(receiver.url(path="/hook-path"), token="hook-token")
            options = {"returnImmediately": True, **hook}
            held = await agent.send("hold", messageId="hold", configuration=options)
            await until(lambda: bool(receiver.requests), "told of the first status")
            started.release(held.task["id"])
            while (await agent.call("GetTask", {"id": held.task["id"]})).state != "COMPLETED":  # noqa: ASYNC110
                await asyncio.sleep(0.02)  # the test has a limit
            other = await agent.send(PROBED[0], messageId="other", configuration=hook)
            assert (other.state, receiver.states[0]) == ("COMPLETED", "SUBMITTED")
            assert "COMPLETED" not in receiver.states
        receiver.call(let_go())
        await until(lambda: receiver.states.count("COMPLETED") == 2, "told of both ends")
        started.commands["push"].wait_for("Receiver told")
        started.end()
    said = {name: command.said() for name, command in started.commands.items()}
    of_turn = f"; task {other.task['id']}; turn 1; "
    assert f"turn sent{of_turn}" in said["api"]
    assert f"Turn ended{of_turn}attempt 1; attempts 1; state completed" in said["worker"]
    assert [spoken(text, PROBED) for text in said.values()] == [[]] * 3


PROBED = ("the patient is Ada", "You said", "hook-")
"""Words of messages, of the probe's answers and of a push configuration."""


async def test_dev_tells_a_webhook_on_this_machine(tmp_path: Path) -> None:
    """A webhook of the developer's own machine gets what a deployment sends, and can check it."""
    env = environment(PROBE_FOLDER=str(tmp_path))
    dev = ("dev", "--agent", AGENT, "--card", CARD, "--port", "0")
    with Receiver() as receiver, running(*dev, env=env, output=tmp_path / "log") as stack:
        url = stack.url
        hook = configuration(
            receiver.url("localhost"),
            token="my-own-token",
            authentication={"scheme": "Bearer", "credentials": "my-own-credentials"},
        )
        async with agent_at(url) as agent:
            asked = await agent.send("ask", messageId="ask", configuration=hook)
            ids = {"taskId": asked.task["id"], "contextId": asked.task["contextId"]}
            await agent.send("this", messageId="answer", **ids)
        await until(lambda: len(receiver.requests) >= len(ENDS), "told of both ends")

        assert receiver.states == ENDS
        for request in receiver.requests:
            assert request.headers["x-a2a-notification-token"] == "my-own-token"
            assert request.headers["authorization"] == "Bearer my-own-credentials"
            await asyncio.to_thread(check_signature, request, url, receiver.url("localhost"))
        assert stack.end() == 0, stack.said()
    assert "my-own-" not in stack.said()


def check_signature(request: Request, issuer: str, webhook: str) -> None:
    """Check a notification as a careful receiver does, by the keys that the issuer publishes."""
    token = request.headers["x-a2a-signature"]
    key = jwt.PyJWKClient(f"{issuer}/.well-known/jwks.json").get_signing_key_from_jwt(token)
    must: Any = {"require": ["iss", "aud", "iat", "exp", "jti", "sub", "event_id"]}
    whom: Any = {"audience": webhook.removesuffix("/hook"), "issuer": issuer}
    claims = jwt.decode(token, key, algorithms=["ES256"], options=must, **whom)
    own = hmac.new(b"my-own-token", claims["config_id"].encode(), hashlib.sha256)
    assert claims["config_hmac"] == own.hexdigest()
    assert claims["body_sha256"] == hashlib.sha256(request.body).hexdigest()
    assert claims["sub"] == json.loads(request.body)["statusUpdate"]["taskId"]
