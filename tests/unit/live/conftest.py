"""The live agent on the local stack, and subjects for the checks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from a2a_serverless.local.stack import Options, Stack
from a2a_serverless.settings import Settings
from tests.live import agent
from tests.live.made import Made
from tests.live.stack import Stack as Deployed
from tests.live.subject import Subject
from tests.unit.live.scripted_aws import ENDPOINT, PHYSICAL, REGION, ScriptedAws
from tests.unit.live.ways import HastyClock

AGENT = Path(agent.__file__)


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The live agent, served by the local stack."""
    settings = Settings(auth="none", push_allowed_hosts="127.0.0.1,example.com", retry_base_s=0.01)
    options = Options(
        agent=f"{AGENT}:agent",
        card=AGENT.with_name("agent_card.json"),
        push=True,
        concurrency=8,
        stage="a2a",
    )
    with Stack(settings, options) as stack:
        yield stack.url


@pytest.fixture
async def subject_at(address: str, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Open subjects: what is called is given their fields."""
    async with AsyncExitStack() as opened:

        async def make(**fields: Any) -> Subject:
            made = Made(tmp_path / "made.txt")
            subject = Subject(**{"endpoint": address, "made": made, "run": "r1", **fields})
            return await opened.enter_async_context(subject)

        yield make


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> ScriptedAws:
    """An account whose answers the test scripts."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "scripted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "scripted")
    return ScriptedAws()


@pytest.fixture
def deployed(aws: ScriptedAws, subject_at: Callable[..., Any]) -> Callable[..., Any]:
    """Open subjects with a stack, given what answers requests and the stack's parameters."""

    async def make(
        handler: Callable[[httpx.Request], httpx.Response] | None = None,
        *,
        consent: Any = None,
        **parameters: str,
    ) -> Subject:
        stack = Deployed(
            name="live",
            region=REGION,
            outputs={"Endpoint": ENDPOINT},
            parameters={
                "Auth": "api-key",
                "MaxAttempts": "3",
                "ThrottleBurst": "200",
                "WorkerTimeout": "60",
                **parameters,
            },
            resources=PHYSICAL,
        )
        fields = {"consent": consent} if consent else {}
        subject: Subject = await subject_at(
            endpoint=ENDPOINT,
            account=aws,
            stack=stack,
            clock=HastyClock(),
            transport=httpx.MockTransport(handler) if handler else None,
            **fields,
        )
        return subject

    return make
