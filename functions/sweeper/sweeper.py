"""SweeperFunction: repairs overdue tasks every minute, and settles dead letters."""

from __future__ import annotations

from typing import Any

from a2a_serverless.starting import cold_start

with cold_start("a2a.server.agent_execution"):
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import aws_backends
    from a2a_serverless.worker.sweeper import SweeperFunction

    settings = load_settings()
    backends = aws_backends(settings, needs=("undecodable_queue",))
    function = SweeperFunction(backends, settings)


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Sweep on a schedule event, handle dead letters on an SQS event.

    Returns:
        The counts of the run, or the partial batch response, which names the records to keep in the
        dead letter queue.
    """
    return function.handle(event, context)
