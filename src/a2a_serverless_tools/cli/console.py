"""`a2a-serverless console`: the tasks of a stack or a table in a browser on this machine."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import TYPE_CHECKING

from a2a_serverless_tools.cli.arguments import Commands, add_command
from a2a_serverless_tools.cli.places import add_place, place_of

if TYPE_CHECKING:
    from a2a_serverless_tools.cli.places import Place


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    console = add_command(
        commands,
        "console",
        run,
        summary="tasks, queues and card in a browser, on this machine",
        description="Serves pages on 127.0.0.1 for one person, with your own AWS credentials: of "
        "the stack --stack, else of the table A2A_TABLE. Nothing is deployed. For your dev it "
        "prints a new link to its console.",
    )
    console.add_port(default=0)
    add_place(console)


def run(options: Namespace) -> int:
    """Serve until SIGINT or SIGTERM; or print the link to the console of `dev`."""
    from a2a_serverless_tools.cli.serving import named_aws_errors
    from a2a_serverless_tools.console.remote import RemoteInspector

    with named_aws_errors():
        place, url = asyncio.run(_place(options))
    if isinstance(place.inspector, RemoteInspector):
        print(url)
        return 0
    return _serve(options, place)


async def _place(options: Namespace) -> tuple[Place, str]:
    """Return the place; for `dev`, also a URL that opens its console."""
    from a2a_serverless_tools.console.remote import RemoteInspector

    place = await place_of(options, changes=True, may_lack_queue=True)
    inspector = place.inspector
    return place, await inspector.open_url() if isinstance(inspector, RemoteInspector) else ""


def _serve(options: Namespace, place: Place) -> int:
    from a2a_serverless_tools.cli.serving import say, until_signal
    from a2a_serverless_tools.console.app import Console
    from a2a_serverless_tools.console.stored import StoredInspector
    from a2a_serverless_tools.local.http_server import HttpServer, bind
    from a2a_serverless_tools.local.own_address import OwnAddress

    inspector = place.inspector
    assert isinstance(inspector, StoredInspector)  # noqa: S101 - the other kind is dev's
    endpoint = place.stack.endpoint if place.stack else place.settings.public_url.rstrip("/")
    bound = bind(options.port)
    port: int = bound.getsockname()[1]
    console = Console(inspector, url=f"http://127.0.0.1:{port}", endpoint=endpoint)
    with until_signal() as ended, HttpServer(OwnAddress(console.app, port=port), bound):
        say(f"{inspector.place}, once: {console.open_url()}")
        say("Ctrl-C ends it")
        ended.wait()
    return 0
