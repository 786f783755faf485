"""The process that serves an agent: by itself, or as a child of `dev`.

A spare of `dev` imports this module, and with it what serving needs; and nothing of the agent.
"""

from __future__ import annotations

import os
import signal
import threading
from argparse import Namespace
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from socket import socket
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from a2a_serverless import observability
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.observability import spans
from a2a_serverless.settings import Settings, load_settings
from a2a_serverless.worker.agents import take_environment
from a2a_serverless_tools.cli.arguments import EXIT_UNUSABLE, agent_spec, card_path
from a2a_serverless_tools.cli.author_lines import for_authors
from a2a_serverless_tools.cli.serving import until_signal
from a2a_serverless_tools.cli.text import say
from a2a_serverless_tools.console.app import Console, Sessions, with_console
from a2a_serverless_tools.local import dotenv
from a2a_serverless_tools.local.cards import file_of, named
from a2a_serverless_tools.local.http_server import OwnAddress
from a2a_serverless_tools.local.own_code import OwnCode, Succession
from a2a_serverless_tools.local.own_file import log_of, own_file
from a2a_serverless_tools.local.replacing import END_S, Start, Told
from a2a_serverless_tools.local.sockets import of_descriptor
from a2a_serverless_tools.local.stack import Options, Stack
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.logs import KeptLines, kept_lines

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_HERE: Final = "127.0.0.1,::1,localhost,example.com"
"""Hosts of webhooks that are allowed in `dev`: this machine's own, and example.com, with which
people try clients even without a name server."""

_LOOK_S: Final = 0.25
"""Seconds between two looks at the files, beside those before each turn."""


def serve(options: Namespace, bound: socket) -> int:
    """Serve on a socket until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: settings, agent, card or file cannot be used.
    """
    with until_signal() as ended, TemporaryDirectory(prefix="a2a-") as sessions:
        _serve(options, load_settings(), bound, ended, Start(sessions=sessions, is_first=True))
    return 0


def serve_as_child(options: Namespace) -> int:
    """Serve from when the parent says so, until SIGTERM or until a successor serves.

    Raises:
        EOFError, OSError: the parent is gone.
    """
    os.set_inheritable(options.child, False)  # noqa: FBT003 - positional only
    link = Connection(options.child)
    try:
        start: Start = link.recv()
        bound = of_descriptor(recv_handle(link))
    except EOFError:
        return 0
    with until_signal([signal.SIGTERM]) as ended:
        try:
            settings = load_settings()
            update = {
                "auth": settings.auth or "none",
                "push_allowed_hosts": settings.push_allowed_hosts or _HERE,
            }
            _serve(options, settings.model_copy(update=update), bound, ended, start, link)
        except ConfigurationError as error:
            link.send(Told("refused", str(error)))
            return EXIT_UNUSABLE
        finally:
            # No thread that the agent has left behind keeps the process.
            end = threading.Timer(END_S, os._exit, (0,))
            end.daemon = True
            end.start()
    return 0


def _serve(
    options: Namespace,
    settings: Settings,
    bound: socket,
    ended: threading.Event,
    start: Start,
    link: Connection | None = None,
) -> None:
    """Serve until `ended`, or until a successor does, for which `link` asks."""
    agent = agent_spec(options.agent)
    card = card_path(options.card, agent)
    file = options.file or own_file(Path.cwd())
    succession = _succession(agent, card, settings, link) if link else None
    variables = dotenv.read(Path.cwd())
    take_environment(settings)
    sessions = Sessions(Path(start.sessions))
    consoles: list[Console] = []
    with ExitStack() as running:
        watch = running.enter_context(for_authors(verbose=options.verbose))
        # Nothing but what is exported: the terminal has lines of its own.
        observability.start({k: v for k, v in os.environ.items() if k.startswith("OTEL_")})
        running.callback(spans.close)
        lines = running.enter_context(kept_lines(log_of(file)))
        how = Options(
            agent=agent,
            card=card,
            file=file,
            bound=bound,
            frees=start.frees,
            turns=0 if succession else options.concurrency,
            push=not options.no_push,
            watch=watch,
            succession=succession,
            beside=None if options.no_console else partial(beside, consoles, lines, sessions),
        )
        stack = running.enter_context(Stack(settings, how))
        if start.is_first:
            _say_what_runs(stack, variables, consoles)
        _wait(stack, ended, succession)


def _succession(agent: str, card: Path, settings: Settings, link: Connection) -> Succession:
    """Return what looks at the agent's files, at its card and at `.env`, before they are read."""
    extended = [Path(settings.extended_card)] if settings.extended_card else []
    code = OwnCode(agent, [*dotenv.paths(Path.cwd()), file_of(card), *extended])
    code.install()
    return Succession(code, link)


def _wait(stack: Stack, ended: threading.Event, succession: Succession | None) -> None:
    """Return at a signal, or when all but answers and streams has been left to a successor."""
    if succession is None:
        ended.wait()
        return
    succession.serve()
    while not (succession.over.is_set() or ended.wait(_LOOK_S)):
        succession.look()
    if succession.over.is_set():
        ended.set()  # a signal ends this process at once
        stack.leave()


def _say_what_runs(stack: Stack, variables: Path | None, consoles: list[Console]) -> None:
    """Print agent, card, loading, files and address; `variables` is the .env that was read."""
    how = stack.options
    say(f"agent {how.agent}, its card {named(how.card)}")
    folder = Path(how.agent.rpartition(":")[0]).resolve().parent
    changed = f"a change of a module in {folder}, of .env or of the card counts from now on"
    say(changed if how.succession else "the agent is loaded once: start again after a change")
    if variables:
        say(f"environment of {variables}")
    say(f"tasks are kept in {how.file}; --fresh begins without any")
    say(f"A2A at {stack.url}, its card at {stack.url}/.well-known/agent-card.json")
    for console in consoles:
        say(f"chat and console (this link works once): {console.open_url()}")
    say("Ctrl-C ends it")


def beside(
    consoles: list[Console], lines: KeptLines, sessions: Sessions, stack: Stack, app: ASGIApp
) -> ASGIApp:
    """Return the agent's application with a console at `/`; add the console to `consoles`.

    `lines` are what this process logs about tasks, and `sessions` who may use the console.
    """
    backends, url = stack.backends, stack.url
    inspector = Inspector(
        backends.storage, stack.settings, place="dev", backends=backends, logs=lines
    )
    console = Console(
        inspector, url=url, endpoint=url, card=stack.card, sessions=sessions, home="chat"
    )
    consoles.append(console)
    port = int(url.rsplit(":", 1)[1])
    return with_console(app, console, OwnAddress(console.app, port=port))
