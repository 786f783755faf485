"""`a2a-serverless demo`: two tasks through the official client, printed as they happen."""

from __future__ import annotations

import logging
import sys
from argparse import Namespace

from a2a_serverless.cli.arguments import Commands, add_command, agent_spec, card_path


def add(commands: Commands) -> None:
    """Describe the command."""
    add_command(
        commands,
        "demo",
        run,
        summary="one streamed and one resumed task on a simulated AWS, shown with the official "
        "client",
        description="Starts the stack on free ports with DynamoDB and SQS simulated by moto, runs "
        "two tasks through the official a2a-sdk client, and prints what the client sees. Needs no "
        "AWS account and no network.",
    )


def run(options: Namespace) -> int:
    """Show two tasks; return 1 if the client gets anything unexpected."""
    from a2a_serverless.local.demo import DemoError, show

    if not options.verbose:
        logging.disable(logging.CRITICAL)  # the transcript is the product
    try:
        show(sys.stdout, agent=agent_spec(None), card=card_path(None))
    except DemoError as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    return 0
