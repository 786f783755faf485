"""Push from end to end: real processes, real webhooks on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from tests.e2e.commands import Deployed, deployed, environment, running
from tests.e2e.conftest import AGENT, CARD
from tests.support.a2a_calls import REST, Agent, Answer
from tests.unit.push.receivers import OK, Receiver, Request

SETTLE_S = 120.0
ENDS = ["INPUT_REQUIRED", "COMPLETED"]


@pytest.fixture(scope="module")
def deployment(
    own_queues: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    """The three processes, with every status pushed and retries after a second or two."""
    folder = tmp_path_factory.mktemp("push")
    env = environment(
        **own_queues,
        A2A_AUTH="none",
        A2A_PUSH_ALLOWED_HOSTS="127.0.0.1",
        A2A_PUSH_EVENTS="statuses",
        A2A_PUSH_RETRY_BASE_S="0.05",
        PROBE_FOLDER=str(folder),
    )
    with deployed(
        env,
        folder,
        api=("--card", CARD, "--port", "0"),
        worker=("--agent", AGENT, "--concurrency", "8"),
        push=("-v",),
    ) as started:
        yield started
        started.end()


@asynccontextmanager
async def agent_at(url: str) -> AsyncIterator[Agent]:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=SETTLE_S) as http:
        yield Agent(http, REST)


def configuration(url: str, **more: Any) -> dict[str, Any]:
    """The configuration of a send that has a webhook told."""
    return {"taskPushNotificationConfig": {"url": url, **more}}


def states(requests: list[Request]) -> list[str]:
    return [request.state for request in requests]


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` is true, and fail with `what` where it does not become so."""
    deadline = time.monotonic() + SETTLE_S
    while not condition():
        assert time.monotonic() < deadline, f"never {what}"
        await asyncio.sleep(0.02)


def task_id_of(request: Request) -> str:
    return str(json.loads(request.body)["statusUpdate"]["taskId"])


@pytest.mark.emulators
async def test_a_slow_webhook_delays_no_task(deployment: Deployed) -> None:
    """The webhook hangs from the first status on; the task and the next one of its client end."""
    go_on = asyncio.Event()

    async def hanging() -> AsyncIterator[bytes]:
        await go_on.wait()
        yield OK

    with Receiver(lambda _: hanging()) as receiver:
        async with agent_at(deployment.url) as agent:
            held = await agent.send(
                "hold",
                messageId=f"hold-{receiver.port}",
                configuration={"returnImmediately": True, **configuration(receiver.url())},
            )
            await until(lambda: bool(receiver.requests), "told of the first status")
            deployment.release(held.task["id"])
            await until_state(agent, held, "COMPLETED")
            other = await agent.send(
                "hello",
                messageId=f"other-{receiver.port}",
                configuration=configuration(receiver.url()),
            )
            assert other.state == "COMPLETED"
            assert states(receiver.requests)[0] == "SUBMITTED"
            assert "COMPLETED" not in states(receiver.requests)

        receiver.call(_set(go_on))
        await until(lambda: states(receiver.requests).count("COMPLETED") == 2, "told of both ends")


async def _set(event: asyncio.Event) -> None:
    event.set()


async def until_state(agent: Agent, sent: Answer, state: str) -> None:
    """Wait until a task is in a state."""
    deadline = time.monotonic() + SETTLE_S
    while (now := await agent.call("GetTask", {"id": sent.task["id"]})).state != state:
        assert time.monotonic() < deadline, f"still {now.state}"
        await asyncio.sleep(0.02)


async def test_dev_tells_a_webhook_on_this_machine(tmp_path: Path) -> None:
    """A webhook of the developer's own machine gets what a deployment sends, and can check it."""
    env = environment(PROBE_FOLDER=str(tmp_path))
    dev = ("dev", "--agent", AGENT, "--card", CARD, "--port", "0")
    with Receiver() as receiver, running(*dev, env=env, output=tmp_path / "log") as stack:
        url = stack.wait_for(r"A2A at (\S+),")
        hook = configuration(
            receiver.url("localhost"),
            token="my-token",
            authentication={"scheme": "Bearer", "credentials": "my-credentials"},
        )
        async with agent_at(url) as agent:
            asked = await agent.send("ask", messageId="ask", configuration=hook)
            await agent.send(
                "this",
                messageId="answer",
                taskId=asked.task["id"],
                contextId=asked.task["contextId"],
            )
        await until(lambda: len(receiver.requests) >= len(ENDS), "told of both ends")

        assert states(receiver.requests) == ENDS
        for request in receiver.requests:
            assert request.headers["x-a2a-notification-token"] == "my-token"
            assert request.headers["authorization"] == "Bearer my-credentials"
            await asyncio.to_thread(check_signature, request, url, receiver.url("localhost"))
        assert stack.end() == 0, stack.said()
    assert "my-" not in stack.said()


def check_signature(request: Request, issuer: str, webhook: str) -> None:
    """Check a notification as a careful receiver does, by the keys that the issuer publishes."""
    token = request.headers["x-a2a-signature"]
    key = jwt.PyJWKClient(f"{issuer}/.well-known/jwks.json").get_signing_key_from_jwt(token)
    claims = jwt.decode(
        token,
        key,
        algorithms=["ES256"],
        audience=webhook.removesuffix("/hook"),
        issuer=issuer,
        options={"require": ["iss", "aud", "iat", "exp", "jti", "sub", "event_id"]},
    )
    own = hmac.new(b"my-token", claims["config_id"].encode(), hashlib.sha256)
    assert claims["config_hmac"] == own.hexdigest()
    assert claims["body_sha256"] == hashlib.sha256(request.body).hexdigest()
    assert claims["sub"] == task_id_of(request)
