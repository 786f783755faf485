"""`a2a-serverless` with a stopwatch on its requests: `… benchmarks.echo_probe LOG api|worker …`.

Appends to LOG a line for every request to AWS that was answered: the command, the operation, and
the nanoseconds at which it was sent and answered. With `BENCH_METER`, a folder, it counts units
instead, and writes them there when it ends.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3

from a2a_serverless import aws
from a2a_serverless.worker import lease
from a2a_serverless.worker.context import TaskContext, Worker
from a2a_serverless_tools import cli
from benchmarks.meter import Meter

METER = "BENCH_METER"


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


def count_units(folder: str) -> None:
    """Count the units of the process's client of the table.

    On a busy machine a turn would be claimed before its echo comes, by a commit of its own.
    """
    vars(lease)["CLAIM_AFTER_S"] = 60.0
    client = aws.client("dynamodb")
    session = boto3.Session(region_name=client.meta.region_name)
    observer = session.client("dynamodb", endpoint_url=client.meta.endpoint_url)
    until_end = ExitStack()
    usage = until_end.enter_context(Meter(client, observer, os.environ["A2A_TABLE"]).measure())

    def write() -> None:
        told = {"write": usage.write_units, "read": usage.read_units, "requests": usage.requests}
        Path(folder, f"{os.getpid()}.units").write_text(json.dumps(told), encoding="utf-8")

    until_end.callback(write)
    atexit.register(until_end.close)


if __name__ == "__main__":
    if METER in os.environ:
        count_units(os.environ[METER])
    else:
        time_requests(sys.argv[1], sys.argv[2])
    sys.exit(cli.main(sys.argv[2:]))
