"""The live agent behind a simulated gateway, in a process of its own, until its input ends.

Turns and webhooks outlast the check that has caused them. Here they reach no other test.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from pathlib import Path

from starlette.types import ASGIApp

from a2a_serverless.settings import Settings
from a2a_serverless_tools.local.http_server import bind, guarded
from a2a_serverless_tools.local.stack import Options, Running, Stack
from tests.live import agent
from tests.support.gateway import STAGE
from tests.support.simulation.front import front

AGENT = Path(agent.__file__)


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
            return guarded(running.enter_context(api), settings, port)

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
