"""`a2a-serverless demo`, `dev` and `console`: what runs on this machine for its user alone."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from argparse import SUPPRESS, Namespace
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from a2a_serverless_tools.cli.arguments import (
    Adders,
    Parser,
    agent_spec,
    card_path,
    has_own_agent,
)
from a2a_serverless_tools.cli.text import say
from a2a_serverless_tools.scaffold.source import AGENT, CARD, source

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from a2a_serverless_tools.console.app import Console
    from a2a_serverless_tools.local.stack import Options, Running, Stack
    from a2a_serverless_tools.operate.logs import KeptLines

_HERE = "127.0.0.1,::1,localhost,example.com"
"""Hosts of webhooks that are allowed in `dev`: this machine's own, and example.com, with which
people try clients even without a name server.
"""

_LOADS = {
    "once": "the agent is loaded once: start again after a change",
    "changed": "a change of a module in {folder}, of .env or of the card counts from now on",
    "turn": "the agent is loaded anew for every turn",
}


def _add_dev(dev: Parser) -> None:
    dev.does(
        _dev,
        "Serves the agent at --port: what api, worker, sweep and push do, on one file, "
        "which keeps all tasks for the next start. Webhooks on this machine are called. The agent "
        "gets the variables of .env in the current folder or the project around it, also after a "
        "change. Without A2A_AUTH every program on this machine may call, and no page in a browser "
        "but its own console.",
    )
    dev.add_agent()
    dev.add_card()
    dev.add_port()
    dev.add_argument(
        "--file",
        metavar="FILE",
        type=Path,
        help="keeps all tasks; one dev at a time (default: .a2a/dev.db of the project around the "
        "current folder, else of the folder)",
    )
    dev.add_argument("--fresh", action="store_true", help="empty the file first")
    loading = dev.add_mutually_exclusive_group()
    loading.add_argument(
        "--no-reload",
        action="store_true",
        help="load the agent once; else a change of its files applies from the next turn on",
    )
    loading.add_argument(
        "--agent-per-turn",
        action="store_true",
        help="load the agent anew for every turn, as a Lambda that has scaled would, and name what "
        "a turn leaves in memory",
    )
    dev.add_argument(
        "--keep-agent",
        action="store_true",
        help="after an edit that cannot be loaded, run the agent before it; else messages fail "
        "with the reason until it is repaired",
    )
    dev.add_argument("--restarted", action="store_true", help=SUPPRESS)
    dev.add_argument("--no-push", action="store_true", help="offer no push notifications")
    dev.add_argument("--no-console", action="store_true", help="serve no console at /")


def _dev(options: Namespace) -> int:
    from a2a_serverless import observability
    from a2a_serverless.observability import spans
    from a2a_serverless.settings import load_settings
    from a2a_serverless.worker.agents import take_environment
    from a2a_serverless_tools.cli.author_lines import for_authors
    from a2a_serverless_tools.cli.serving import until_signal
    from a2a_serverless_tools.local.dotenv import Dotenv
    from a2a_serverless_tools.local.own_file import log_of, own_file
    from a2a_serverless_tools.local.stack import Stack
    from a2a_serverless_tools.operate.logs import kept_lines

    settings = load_settings()
    update = {
        "auth": settings.auth or "none",
        "push_allowed_hosts": settings.push_allowed_hosts or _HERE,
    }
    settings = settings.model_copy(update=update)
    variables = Dotenv(Path.cwd())
    file = options.file or own_file(Path.cwd())
    how = replace(_asked_for(options, file), variables=variables)
    read = variables.read()
    take_environment(settings)
    consoles: list[Console] = []
    with ExitStack() as running:
        watch = running.enter_context(for_authors(verbose=options.verbose))
        # Nothing but what is exported: `dev` has lines of its own.
        observability.start({k: v for k, v in os.environ.items() if k.startswith("OTEL_")})
        running.callback(spans.close)  # here, as a start anew has no end of the process
        lines = running.enter_context(kept_lines(log_of(file)))
        if not options.no_console:
            how = replace(how, beside=partial(_beside, consoles, lines))
        ended = running.enter_context(until_signal())
        anew = threading.Event()

        def start_anew() -> None:
            anew.set()
            ended.set()

        how = replace(how, watch=watch, start_anew=start_anew)
        stack = running.enter_context(Stack(settings, how))
        _say_what_runs(stack, how, read)
        for console in consoles:
            say(f"console, once: {console.open_url()}")
        say("Ctrl-C ends it")
        ended.wait()
    if anew.is_set():
        sys.stderr.flush()
        given = [one for one in options.given if one not in ("--fresh", "--restarted")]
        port = stack.url.rpartition(":")[2]
        given += ["--restarted", "--port", port]
        program = [sys.executable, "-m", "a2a_serverless_tools.cli", *given]
        os.execv(sys.executable, program)  # noqa: S606 - this program, as it was started
    return 0


def _asked_for(options: Namespace, file: Path) -> Options:
    from a2a_serverless_tools.local.stack import Options

    agent = agent_spec(options.agent)
    return Options(
        agent=agent,
        card=card_path(options.card, agent),
        file=file,
        empties=options.fresh,
        port=options.port,
        push=not options.no_push,
        loads="turn" if options.agent_per_turn else "once" if options.no_reload else "changed",
        keeps_agent=options.keep_agent,
        may_be_broken=options.restarted,
    )


def _say_what_runs(stack: Stack, how: Options, variables: Path | None) -> None:
    """Print agent, card, loading, files and address; `variables` is the .env that was read."""
    from a2a_serverless_tools.local.cards import named

    say(f"agent {how.agent}, its card {named(how.card)}")
    say(_LOADS[how.loads].format(folder=Path(how.agent.rpartition(":")[0]).resolve().parent))
    if variables:
        say(f"environment of {variables}")
    say(f"tasks are kept in {how.file}; --fresh begins without any")
    say(f"A2A at {stack.url}, its card at {stack.url}/.well-known/agent-card.json")


def _beside(consoles: list[Console], lines: KeptLines, running: Running) -> ASGIApp:
    """Return the agent's application with a console at `/`; add the console to `consoles`.

    `lines` are what this process logs about tasks.
    """
    from a2a_serverless_tools.console.app import Console, with_console
    from a2a_serverless_tools.local.http_server import OwnAddress
    from a2a_serverless_tools.operate.inspector import Inspector

    inspector = Inspector(
        running.backends.storage,
        running.settings,
        place="dev",
        backends=running.backends,
        logs=lines,
    )
    console = Console(inspector, url=running.url, endpoint=running.url, card=running.card)
    consoles.append(console)
    port = int(running.url.rsplit(":", 1)[1])
    return with_console(running.app, console, OwnAddress(console.app, port=port))


def _add_demo(command: Parser) -> None:
    command.does(
        _demo,
        "Starts the stack on a free port and a file that it removes again, runs tasks "
        "through the official a2a-sdk client, and prints what the client sees. They are two tasks "
        "of a trip planner or, in the folder of your project, the examples of its card. Needs no "
        "AWS account and no network.",
    )


def _demo(options: Namespace) -> int:
    from a2a_serverless_tools.local.demo import DemoError, show
    from a2a_serverless_tools.local.dotenv import Dotenv

    if not options.verbose:
        logging.disable(logging.CRITICAL)  # only the transcript is wanted
    planner, card = source() / AGENT, source() / CARD
    spec = agent_spec(None) if has_own_agent() else f"{planner}:agent"
    own = Path(spec.rpartition(":")[0]).resolve() != planner.resolve()
    if own:
        Dotenv(Path.cwd()).read()
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
    from a2a_serverless_tools.console.app import Console
    from a2a_serverless_tools.local.http_server import HttpServer, OwnAddress, bind

    with named_aws_errors():
        inspector = asyncio.run(inspector_of(options, may_lack_queue=True))
    bound = bind(options.port)
    port: int = bound.getsockname()[1]
    endpoint = inspector.settings.public_url.rstrip("/")
    console = Console(inspector, url=f"http://127.0.0.1:{port}", endpoint=endpoint)
    with until_signal() as ended, HttpServer(OwnAddress(console.app, port=port), bound):
        say(f"{inspector.place}, once: {console.open_url()}")
        say(f"to look without acting, once: {console.open_url(may_act=False)}")
        say("Ctrl-C ends it")
        ended.wait()
    return 0


ADDERS: Final[Adders] = {"demo": _add_demo, "dev": _add_dev, "console": _add_console}
