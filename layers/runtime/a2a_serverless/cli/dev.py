"""`a2a-serverless dev`: the local stack, until a signal."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from a2a_serverless.cli.arguments import Commands, add_command, agent_spec, card_path

HERE = "127.0.0.1,::1,localhost,example.com"
"""Webhooks that may be private in `dev`; and example.com, which clients are tried with, also
without a name server.
"""


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    dev = add_command(
        commands,
        "dev",
        run,
        summary="the whole stack in one process, for working on an agent",
        description="Serves the agent at --port as a deployment does: template.yaml says which "
        "requests are answered while the answer comes, and which through API Gateway events and "
        "Mangum, in one piece. Messages pass through the worker's Lambda handler, and webhooks on "
        "this machine are called. The agent gets the variables of .env in the current folder or "
        "the project around it. Without A2A_AUTH every program on this machine may call, and no "
        "page in a browser.",
    )
    dev.add_agent()
    dev.add_card()
    dev.add_port()
    dev.add_argument(
        "--backend",
        choices=("memory", "moto", "aws"),
        default="memory",
        help="memory: nothing is kept; moto: the AWS calls, simulated; aws: the endpoints, the "
        "table and the queues of the environment (default: %(default)s)",
    )
    dev.add_argument("--no-push", action="store_true", help="offer no push notifications")


def run(options: Namespace) -> int:
    """Keep the stack up until SIGINT or SIGTERM."""
    from a2a_serverless.cli.serving import named_aws_errors, say, until_signal
    from a2a_serverless.local.dotenv import load_dotenv
    from a2a_serverless.local.stack import Options, Stack
    from a2a_serverless.local.template import find_template
    from a2a_serverless.settings import load_settings
    from a2a_serverless.worker.environment import take_environment

    settings = load_settings()
    update = {
        "auth": settings.auth or "none",
        "push_allowed_hosts": settings.push_allowed_hosts or HERE,
    }
    settings = settings.model_copy(update=update)
    agent = agent_spec(options.agent)
    variables = load_dotenv(Path.cwd())
    take_environment(settings)
    how = Options(
        backend=options.backend,
        agent=agent,
        card=card_path(options.card, agent),
        port=options.port,
        push=not options.no_push,
    )
    with named_aws_errors(), until_signal() as ended, Stack(settings, how) as stack:
        say(f"agent {how.agent}, its card {how.card}, on {how.backend}")
        if variables:
            say(f"environment of {variables}")
        say(f"routes, table and queues of {find_template()}")
        say(f"A2A at {stack.url}, its card at {stack.url}/.well-known/agent-card.json")
        say("Ctrl-C ends it")
        ended.wait()
    return 0
