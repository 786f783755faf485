"""`a2a-serverless worker`: runs the agent on the queue's operations, until a signal."""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import Commands, add_command, agent_spec

if TYPE_CHECKING:
    from a2a_serverless.settings import Settings

DRAIN_S = 10.0
"""Seconds that running turns may go on after a signal; then they are given back."""

VISIBILITY_S = 30.0
"""Seconds until another worker takes over from one that died, unless A2A_VISIBILITY_S is set."""


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    worker = add_command(
        commands,
        "worker",
        run,
        summary="runs the agent on what the queue delivers (pull mode)",
        description="Takes operations from the queue A2A_QUEUE, or from A2A_TABLE=file:PATH, and "
        "runs the agent on them, until "
        "SIGTERM or SIGINT: then it takes no more, lets turns run for --drain seconds, and gives "
        "the rest back to other workers. Several workers share a queue. With "
        "POWERTOOLS_SERVICE_NAME it logs JSON lines, with POWERTOOLS_METRICS_NAMESPACE metrics.",
    )
    worker.add_agent()
    worker.add_concurrency(4, of="turns at the same time")
    worker.add_seconds("--drain", None, of="that turns may run on after a signal (default: 10)")
    worker.add_seconds(
        "--turn-limit", None, of="that one turn may run (default: A2A_TURN_LIMIT_S, else 11.5 h)"
    )
    worker.add_health_port()


def run(options: Namespace) -> int:
    """Work until SIGINT or SIGTERM; turns that still run after the drain go to other workers."""
    # The first process of a container is not ended by a signal that it does not handle itself.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    from a2a_serverless import observability
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import open_backends
    from a2a_serverless.worker.adapter import WorkerAdapter
    from a2a_serverless.worker.agents import pulling_agent
    from a2a_serverless.worker.environment import take_environment
    from a2a_serverless_tools.cli.serving import check, say, serve
    from a2a_serverless_tools.local.dotenv import Dotenv

    observability.start()
    settings = _settings(load_settings(), options)
    spec = agent_spec(options.agent)
    if path := Dotenv(Path.cwd()).read():
        say(f"environment of {path}")
    agent = pulling_agent(spec, prepare=lambda: take_environment(settings))
    backends = open_backends(settings)
    check(backends, settings)
    adapter = WorkerAdapter(backends, agent, settings)
    place = settings.queue or settings.table
    say(f"{spec} works on {place}, {options.concurrency} turns at a time")
    return serve(
        backends,
        adapter.serve(concurrency=options.concurrency),
        drain_s=DRAIN_S if options.drain is None else options.drain,
        health_port=options.health_port,
    )


def _settings(settings: Settings, options: Namespace) -> Settings:
    """Return the settings of a worker in pull mode.

    Raises:
        ConfigurationError: a turn may take longer than SQS keeps its message.
    """
    from a2a_serverless.worker.adapter import PULL_LIMIT_S

    limit_s, named = options.turn_limit, "--turn-limit"
    if limit_s is None:
        limit_s, named = settings.turn_limit_s, "A2A_TURN_LIMIT_S"
    if limit_s > PULL_LIMIT_S:
        msg = f"{named} {limit_s:.0f} is too long: SQS keeps a message from others for 12 hours"
        raise ConfigurationError(f"{msg}, so that a turn may run for {PULL_LIMIT_S:.0f} s.")
    is_chosen = "A2A_VISIBILITY_S" in os.environ
    visibility_s = settings.visibility_s if is_chosen else VISIBILITY_S
    return settings.model_copy(update={"turn_limit_s": limit_s, "visibility_s": visibility_s})
