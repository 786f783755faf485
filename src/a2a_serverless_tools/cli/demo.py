"""`a2a-serverless demo`: tasks through the official client, printed as they happen."""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from pathlib import Path

from a2a_serverless_tools.cli.arguments import (
    Commands,
    add_command,
    agent_spec,
    card_path,
    has_own_agent,
)
from a2a_serverless_tools.scaffold.source import AGENT, CARD, source


def add(commands: Commands) -> None:
    """Describe the command."""
    add_command(
        commands,
        "demo",
        run,
        summary="one streamed and one resumed task on this machine, shown with the official client",
        description="Starts the stack on a free port and a file that it removes again, runs tasks "
        "through the official a2a-sdk client, and prints what the client sees: two tasks of "
        "a trip planner or, in the folder of a project of yours, the examples of its card. Needs "
        "no AWS account and no network.",
    )


def run(options: Namespace) -> int:
    """Show tasks; return 1 if the client gets anything unexpected."""
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
