"""PushFunction: sends committed events to webhooks, signed and in order, and retries failures."""

from __future__ import annotations

from typing import Any

from a2a_serverless.starting import cold_start

with cold_start("a2a.types"):
    from a2a_serverless.push.function import PushFunction
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import aws_backends

    settings = load_settings()
    backends = aws_backends(settings, needs=("push_queue", "push_dead_letter_queue"))
    function = PushFunction(backends.storage, backends.pushing(), settings)


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Process records of the table's stream or of the push queue.

    Returns:
        The partial batch response, which names the records to pass again.
    """
    return function.handle(event, context)
