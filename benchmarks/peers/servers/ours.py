"""This project, with the agent of `benchmarks.peers`, and a count of what it writes.

`python -m benchmarks.peers.servers.ours WRITTEN …` is `a2a-serverless …`. It appends to WRITTEN the
bytes of each request that writes to DynamoDB, and of each message that is sent to SQS.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from a2a_serverless import aws
from a2a_serverless.worker.context import TaskContext, Worker
from a2a_serverless_tools import cli
from benchmarks.peers.agent import work

WRITES = ("TransactWriteItems", "PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem")


class Ticker(Worker):
    """Does what its message asks for."""

    async def handle(self, ctx: TaskContext) -> None:
        """Emit the chunks, then complete."""

        async def emit(text: str) -> None:
            await ctx.emit_text_artifact(text, "ticks", append=True)

        await ctx.respond(await work(ctx.user_text, ctx.task_id, emit))


agent = Ticker()


def count_writes(path: str) -> None:
    """Note the length of every request of this process that writes."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(request: Any, **_: Any) -> None:
        os.write(file, f"{len(request.body)}\n".encode())

    for operation in WRITES:
        aws.client("dynamodb").meta.events.register(f"before-send.dynamodb.{operation}", note)
    aws.client("sqs").meta.events.register("before-send.sqs.SendMessage", note)


if __name__ == "__main__":
    if os.environ.get("AWS_ENDPOINT_URL_DYNAMODB"):
        count_writes(sys.argv[1])
    sys.exit(cli.main(sys.argv[2:]))
