"""The live agent behind a simulated gateway, in a process of its own, until its input ends.

Its files are in a bucket of moto, behind a door that verifies links: both are of this process.
Turns and webhooks outlast the check that has caused them. Here they reach no other test.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from starlette.types import ASGIApp

from a2a_serverless import aws
from a2a_serverless.settings import Settings
from a2a_serverless_tools.local.http_server import HttpServer, guarded
from a2a_serverless_tools.local.sockets import bind
from a2a_serverless_tools.local.stack import Options, Stack
from tests.live import agent
from tests.support.gateway import STAGE, front
from tests.support.signed_links import Door
from tests.support.simulation.simulated_aws import BUCKET, simulated_aws

AGENT = Path(agent.__file__)


def serve() -> None:
    """Print the stack's URL once it answers."""
    bound = bind(0)
    port = bound.getsockname()[1]
    url = f"http://127.0.0.1:{port}/{STAGE}"
    with ExitStack() as running:
        running.enter_context(simulated_aws())
        door = running.enter_context(HttpServer(Door(BUCKET), bind(0), lifespan=False))
        # Links lead to the door. Calls of boto3 to the same address end in moto.
        os.environ["AWS_ENDPOINT_URL_S3"] = os.environ["MOTO_S3_CUSTOM_ENDPOINTS"] = door.url
        os.environ["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "false"
        aws.forget_clients()
        settings = Settings(
            auth="none",
            blobs=BUCKET,
            push_allowed_hosts="127.0.0.1,example.com",
            push_events="all",
            push_issuer=url,
            retry_base_s=0.01,
        )

        def gateway(stack: Stack, _: ASGIApp) -> ASGIApp:
            api = front(stack.settings, stack.backends, stack.card)
            return guarded(running.enter_context(api), settings, port)

        options = Options(
            agent=f"{AGENT}:agent",
            card=AGENT.with_name("agent_card.json"),
            bound=bound,
            push=True,
            concurrency=8,
            beside=gateway,
        )
        running.enter_context(Stack(settings, options))
        print(url, flush=True)  # noqa: T201 - for the process that has started this one
        sys.stdin.read()


if __name__ == "__main__":
    serve()
