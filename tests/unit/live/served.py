"""The live agent on the local stack, in a process of its own, until its input ends.

Turns and webhooks outlast the check that has caused them. Here they reach no other test.
"""

from __future__ import annotations

import sys
from pathlib import Path

from a2a_serverless.settings import Settings
from a2a_serverless_tools.local.stack import Options, Stack
from tests.live import agent

AGENT = Path(agent.__file__)


def serve() -> None:
    """Print the stack's URL once it answers."""
    settings = Settings(auth="none", push_allowed_hosts="127.0.0.1,example.com", retry_base_s=0.01)
    options = Options(
        agent=f"{AGENT}:agent",
        card=AGENT.with_name("agent_card.json"),
        push=True,
        concurrency=8,
        stage="a2a",
    )
    with Stack(settings, options) as stack:
        print(stack.url, flush=True)  # noqa: T201 - for the process that has started this one
        sys.stdin.read()


if __name__ == "__main__":
    serve()
