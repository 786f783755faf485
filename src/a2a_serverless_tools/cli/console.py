"""`a2a-serverless console`: the tasks of a stack, a table or a file, in a browser here."""

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
        _run,
        summary="tasks, queues and card in a browser, on this machine",
        description="Serves pages on 127.0.0.1 for one person: of the stack --stack or the table "
        "A2A_TABLE, with your own AWS credentials, else of the file of your dev, which need not "
        "run. Nothing is deployed.",
    )
    console.add_port(default=0)
    add_place(console)


def _run(options: Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    from a2a_serverless_tools.cli.serving import named_aws_errors, say, until_signal
    from a2a_serverless_tools.console.app import Console
    from a2a_serverless_tools.local.http_server import HttpServer, bind
    from a2a_serverless_tools.local.own_address import OwnAddress

    with named_aws_errors():
        place = asyncio.run(place_of(options, may_lack_queue=True))
    bound = bind(options.port)
    port: int = bound.getsockname()[1]
    console = Console(place.inspector, url=f"http://127.0.0.1:{port}", endpoint=_endpoint(place))
    with until_signal() as ended, HttpServer(OwnAddress(console.app, port=port), bound):
        say(f"{place.inspector.place}, once: {console.open_url()}")
        say("Ctrl-C ends it")
        ended.wait()
    return 0


def _endpoint(place: Place) -> str:
    """Return the address at which the agent of a place can be tried; empty: there is none."""
    from a2a_serverless_tools.local.own_file import url_of

    if place.stack is not None:
        return place.stack.endpoint
    if place.file is not None:
        return url_of(place.file)
    return place.settings.public_url.rstrip("/")
