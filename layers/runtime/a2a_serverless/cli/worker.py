"""`a2a-serverless worker`: runs the agent on the queue's operations, until a signal."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from a2a_serverless.cli.arguments import Commands, add_command, agent_spec

DRAIN_S = 10.0
"""Seconds that running turns may go on after a signal; then their leases run out."""


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    worker = add_command(
        commands,
        "worker",
        run,
        summary="runs the agent on what the queue delivers (pull mode)",
        description="Takes operations from the queue A2A_QUEUE and runs the agent on them, until "
        "SIGTERM or SIGINT. Several workers share a queue.",
    )
    worker.add_agent()
    worker.add_concurrency(4, of="turns at the same time")
    worker.add_backend()


def run(options: Namespace) -> int:
    """Work until SIGINT or SIGTERM; turns that still run after `DRAIN_S` go to other workers."""
    from a2a_serverless import observability
    from a2a_serverless.cli.serving import check, say, serve
    from a2a_serverless.local.dotenv import load_dotenv
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import aws_backends
    from a2a_serverless.worker.adapter import WorkerAdapter
    from a2a_serverless.worker.agents import load_agent
    from a2a_serverless.worker.environment import take_environment

    observability.start()
    settings = load_settings()
    spec = agent_spec(options.agent)
    if path := load_dotenv(Path.cwd()):
        say(f"environment of {path}")
    take_environment(settings)
    agent = load_agent(spec)
    backends = aws_backends(settings)
    check(backends, settings)
    adapter = WorkerAdapter(backends, agent, settings)
    say(f"{spec} works on {settings.queue}, {options.concurrency} turns at a time")
    return serve(backends, adapter.serve(concurrency=options.concurrency), drain_s=DRAIN_S)
