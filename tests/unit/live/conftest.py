"""The live agent on the local stack, and subjects for the checks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

import a2a_serverless
from tests.live.made import Made
from tests.live.stack import Stack as Deployed
from tests.live.subject import Subject
from tests.unit.live.scripted_aws import ENDPOINT, PHYSICAL, REGION, ScriptedAws
from tests.unit.live.ways import HastyClock

ROOT = Path(__file__).parents[3]
PACKAGES = Path(a2a_serverless.__file__).parents[1]


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The URL of the live agent on a local stack."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, PACKAGES)))}
    command = [sys.executable, "-m", "tests.unit.live.served"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as served:
        assert served.stdout is not None
        yield served.stdout.readline().strip()
        served.kill()


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
            outputs={"Endpoint": ENDPOINT, "SigningSecret": PHYSICAL["SigningSecret"]},
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
