"""`a2a-serverless demo`, `dev`, `serve` and `console`: what runs on one machine."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from a2a_serverless_tools.cli.arguments import (
    Adders,
    Parser,
    Run,
    agent_spec,
    card_path,
    has_own_agent,
)
from a2a_serverless_tools.cli.text import say
from a2a_serverless_tools.scaffold.source import AGENT, CARD, source

if TYPE_CHECKING:
    from socket import socket


def _add_dev(dev: Parser) -> None:
    _add_serving(
        dev,
        _dev,
        "After a change of the agent's files, of .env or of the card a new process serves. "
        "Webhooks on this machine are called. Without A2A_AUTH every program on this machine may "
        "call, and no page in a browser but its own console.",
    )


def _add_serve(serve: Parser) -> None:
    _add_serving(
        serve,
        _serve,
        "It is what dev starts, and loads the agent once. A2A_AUTH says who may call, and "
        "A2A_PUSH_ALLOWED_HOSTS which webhooks may be private.",
    )
    serve.add_concurrency(32, of="turns at the same time")
    serve.add_argument("--child", type=int, help=SUPPRESS)


def _add_serving(command: Parser, run: Run, description: str) -> None:
    """Add what a command does that serves an agent, and the options of that."""
    command.does(
        run,
        "Serves the agent at --port: what api, worker, sweep and push do, on one file, which keeps "
        "all tasks for the next start. The agent gets the variables of .env in the current folder "
        f"or the project around it. {description}",
    )
    command.add_agent()
    command.add_card()
    command.add_port()
    command.add_argument(
        "--file",
        metavar="FILE",
        type=Path,
        help="keeps all tasks; one process at a time (default: the project's .a2a/dev.db, else the "
        "current folder's)",
    )
    command.add_argument("--fresh", action="store_true", help="empty the file first")
    command.add_argument("--no-push", action="store_true", help="offer no push notifications")
    command.add_argument("--no-console", action="store_true", help="serve no console at /")


def _dev(options: Namespace) -> int:
    """Hold file and port, and have a process serve that is replaced after an edit."""
    from a2a_serverless_tools.local.replacing import Family

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    given = options.given[options.given.index("dev") + 1 :]
    # -P: no module of the current folder stands in for one of the runtime's.
    command = [sys.executable, "-P", "-m", "a2a_serverless_tools.cli", "serve", *given]
    with ExitStack() as kept:
        family = Family(command, kept.enter_context(TemporaryDirectory(prefix="a2a-")))
        try:
            # While the first process imports the runtime.
            family.run(kept.enter_context(_held(options)))
        except KeyboardInterrupt:
            return 0
        finally:
            family.end()  # before file and port are free for another start


@contextmanager
def _held(options: Namespace) -> Iterator[socket]:
    """Hold the file and the port, whose address others learn; empty the file if that is asked."""
    from a2a_serverless_tools.local.own_file import empty, held, own_file
    from a2a_serverless_tools.local.sockets import HOST, bind

    path = options.file or own_file(Path.cwd())
    with held(path.resolve()) as own:
        if options.fresh:
            empty(own.path)
        with bind(options.port) as bound:
            own.announce(f"http://{HOST}:{bound.getsockname()[1]}")
            yield bound


def _serve(options: Namespace) -> int:
    """Serve until a signal; as a child of `dev` from when it says so, until a successor serves."""
    if options.child is None:
        from a2a_serverless_tools.cli.served import serve

        with _held(options) as bound:
            return serve(options, bound)
    # Ctrl-C is for the parent; handled, as what is ignored would be ignored by an agent's commands.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    from a2a_serverless_tools.cli.served import serve_as_child

    return serve_as_child(options)


def _add_demo(command: Parser) -> None:
    command.does(
        _demo,
        "Starts the stack on a free port and a file that it removes again, runs tasks "
        "through the official a2a-sdk client, and prints what the client sees. They are two tasks "
        "of a trip planner or, in the folder of your project, the examples of its card. Needs no "
        "AWS account and no network.",
    )


def _demo(options: Namespace) -> int:
    from a2a_serverless_tools.local import dotenv
    from a2a_serverless_tools.local.demo import DemoError, show

    if not options.verbose:
        logging.disable(logging.CRITICAL)  # only the transcript is wanted
    planner, card = source() / AGENT, source() / CARD
    spec = agent_spec(None) if has_own_agent() else f"{planner}:agent"
    own = Path(spec.rpartition(":")[0]).resolve() != planner.resolve()
    if own:
        dotenv.read(Path.cwd())
    try:
        show(sys.stdout, agent=spec, card=card_path(None, spec) if own else card, own=own)
    except DemoError as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    return 0


def _add_console(console: Parser) -> None:
    console.does(
        _console,
        "Serves pages on 127.0.0.1 for one person, with your own AWS credentials. "
        "They show the stack --stack or the table A2A_TABLE, else the file of your dev, which "
        "need not run. Nothing is deployed.",
    )
    console.add_port(default=0)
    console.add_place()


def _console(options: Namespace) -> int:
    from a2a_serverless_tools.cli.places import inspector_of
    from a2a_serverless_tools.cli.serving import named_aws_errors, until_signal
    from a2a_serverless_tools.console.app import Console, Sessions
    from a2a_serverless_tools.local.http_server import HttpServer, OwnAddress
    from a2a_serverless_tools.local.sockets import bind

    with named_aws_errors():
        inspector = asyncio.run(inspector_of(options, may_lack_queue=True))
    bound = bind(options.port)
    port: int = bound.getsockname()[1]
    endpoint = inspector.settings.public_url.rstrip("/")
    with until_signal() as ended, TemporaryDirectory(prefix="a2a-") as folder:
        sessions = Sessions(Path(folder))
        url = f"http://127.0.0.1:{port}"
        console = Console(inspector, url=url, endpoint=endpoint, sessions=sessions)
        with HttpServer(OwnAddress(console.app, port=port), bound):
            say(f"{inspector.place} (this link works once): {console.open_url()}")
            say(f"to look without acting (works once): {console.open_url(may_act=False)}")
            say("Ctrl-C ends it")
            ended.wait()
    return 0


ADDERS: Final[Adders] = {
    "demo": _add_demo,
    "dev": _add_dev,
    "serve": _add_serve,
    "console": _add_console,
}
