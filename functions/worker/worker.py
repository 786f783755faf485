"""The Lambda function that runs your agent: one SQS record is one turn of a task."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from a2a_serverless.starting import cold_start

with cold_start("a2a.server.agent_execution"):
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import aws_backends
    from a2a_serverless.worker.agents import deployed_agent, take_environment
    from a2a_serverless.worker.function import WorkerFunction

    settings = load_settings()
    agent = deployed_agent(
        settings.agent,
        folder=Path(__file__).parent,
        prepare=partial(take_environment, settings),
        is_serial=settings.is_serial,
    )
    function = WorkerFunction(aws_backends(settings), agent, settings)


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Process a batch of operations; return the ids of the records to deliver again."""
    return function.handle(event, context)
