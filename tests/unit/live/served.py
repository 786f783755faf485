"""The live agent behind a simulated gateway, in a process of its own, until its input ends.

Turns and webhooks outlast the check that has caused them. Here they reach no other test.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless.http.files import ServedFiles
from a2a_serverless.settings import Settings
from a2a_serverless.storage.blobs import PATH, Blobs, ServedBlobs
from a2a_serverless_tools.local.http_server import bind, guarded
from a2a_serverless_tools.local.stack import Options, Running, Stack
from tests.live import agent
from tests.support.gateway import STAGE
from tests.support.simulation.front import front

AGENT = Path(agent.__file__)


class Bucket:
    """Serves files beside the gateway, as a bucket does: the gateway would spoil bytes."""

    def __init__(self, gateway: ASGIApp, blobs: Blobs | None) -> None:
        assert isinstance(blobs, ServedBlobs)
        self._gateway, self._files = gateway, ServedFiles(blobs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith(f"/{STAGE}{PATH}"):
            await self._files({**scope, "path": path.removeprefix(f"/{STAGE}")}, receive, send)
        else:
            await self._gateway(scope, receive, send)


def serve() -> None:
    """Print the stack's URL once it answers."""
    with closing(bind(0)) as unused:
        port = unused.getsockname()[1]
    url = f"http://127.0.0.1:{port}/{STAGE}"
    settings = Settings(
        auth="none",
        push_allowed_hosts="127.0.0.1,example.com",
        push_issuer=url,
        retry_base_s=0.01,
    )
    with ExitStack() as running:

        def gateway(stack: Running) -> ASGIApp:
            api = front(stack.settings, stack.backends, stack.card, stage=STAGE)
            whole = guarded(running.enter_context(api), settings, port)
            return Bucket(whole, stack.backends.storage.table.blobs)

        options = Options(
            agent=f"{AGENT}:agent",
            card=AGENT.with_name("agent_card.json"),
            port=port,
            push=True,
            concurrency=8,
            beside=gateway,
        )
        running.enter_context(Stack(settings, options))
        print(url, flush=True)  # noqa: T201 - for the process that has started this one
        sys.stdin.read()


if __name__ == "__main__":
    serve()
