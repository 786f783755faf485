"""`a2a-serverless` with a stopwatch on its requests: `… benchmarks.echo_probe LOG api|worker …`.

Appends to LOG a line for every request to AWS that was answered: the command, the operation, and
the nanoseconds at which it was sent and answered.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from a2a_serverless import aws
from a2a_serverless.worker.context import TaskContext, Worker
from a2a_serverless_tools import cli


class Echo(Worker):
    """Answers at once."""

    async def handle(self, ctx: TaskContext) -> None:
        """Return the text."""
        await ctx.respond(ctx.user_text)


agent = Echo()


def time_requests(path: str, command: str) -> None:
    """Note every request of the process's clients."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sent = threading.local()  # a call stays in its thread

    def before(**_: Any) -> None:
        sent.at_ns = time.monotonic_ns()

    def after(model: Any, **_: Any) -> None:
        line = f"{command} {model.name} {sent.at_ns} {time.monotonic_ns()}\n"
        os.write(file, line.encode())

    for client in (aws.client("dynamodb"), aws.client("sqs"), aws.client("sqs", long_poll=True)):
        client.meta.events.register("before-send", before)
        client.meta.events.register("after-call", after)


if __name__ == "__main__":
    time_requests(sys.argv[1], sys.argv[2])
    sys.exit(cli.main(sys.argv[2:]))
