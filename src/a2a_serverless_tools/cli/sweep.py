"""`a2a-serverless sweep`: repairs overdue tasks, handles the dead letters."""

from __future__ import annotations

import asyncio
from argparse import Namespace

from a2a_serverless_tools.cli.arguments import Commands, add_command

LONG_POLL_S = 1


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    sweep = add_command(
        commands,
        "sweep",
        _run,
        summary="repairs overdue turns, ends overdue cancels and the tasks of dead letters",
        description="What SweeperFunction does once a minute and with every dead letter.",
    )
    sweep.add_argument("--once", action="store_true", help="one round, then exit")


def _run(options: Namespace) -> int:
    """Run one round, whose counts go to stdout, or rounds until SIGINT or SIGTERM."""
    from a2a_serverless import observability
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import open_backends
    from a2a_serverless_tools.cli.serving import check, named_aws_errors, say, serve
    from a2a_serverless_tools.local.sources import SqsSource
    from a2a_serverless_tools.local.sweeping import LetterSource, SweepRounds

    settings = load_settings()
    backends = open_backends(settings)
    check(backends, settings)
    source: LetterSource | None = backends.dead_letters
    if source is None and settings.dead_letter_queue:
        source = SqsSource(settings.dead_letter_queue, wait_s=LONG_POLL_S)
    elif source is None:
        say("A2A_DEAD_LETTER_QUEUE is not set: dead letters stay where they are")
    rounds = SweepRounds(backends, settings, source)
    if options.once:
        with named_aws_errors():
            print(asyncio.run(rounds.once()))
        return 0
    observability.start()
    say("sweeping")
    return serve(backends, rounds.forever(), drain_s=0)
