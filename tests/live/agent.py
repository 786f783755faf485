"""The agent of the live checks: it does what a message says, in JSON, as in `{"do": "say"}`.

It is deployed in a stack of its own: the page `live` says how. It imports nothing of the tests.
"""

import asyncio
import hashlib
import json
import os
import tempfile
import time
import uuid
from typing import Any

from a2a.types import Message, Role, TaskState, TaskStatus, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict

from a2a_serverless.worker import FinalError, TaskContext, Worker
from a2a_serverless.worker.context import active_turn

if os.environ.get("LIVE_BROKEN"):
    raise ImportError("the agent of a bad version")

PROCESS = uuid.uuid4().hex
"""This process among all that run the agent."""

LONGEST_WAIT_S = 300.0
WORDS = frozenset(
    ("say", "ask", "fail", "steps", "wait", "nap", "digest", "file", "echo", "outlive", "denied")
)
PATTERN = bytes(range(256)) * 4096


class LiveAgent(Worker):
    """One method for each word that `do` may be."""

    async def handle(self, ctx: TaskContext) -> None:
        order = json.loads(ctx.parts[0].text)
        word = order.pop("do", "")
        if word not in WORDS:
            raise FinalError
        await getattr(self, word)(ctx, **order)

    async def say(self, ctx: TaskContext) -> None:
        """End at once; the answer names the process."""
        await ctx.complete(PROCESS)

    async def ask(self, ctx: TaskContext) -> None:
        """Ask for another order."""
        await ctx.request_input("what now?")

    async def fail(self, ctx: TaskContext) -> None:
        """Fail in each attempt, with what it has told."""
        await ctx.emit_text_artifact(PROCESS, "failed")
        raise RuntimeError

    async def steps(self, ctx: TaskContext, count: int, gap_s: float, effects: str = "") -> None:
        """Tell `count` times, every `gap_s`, the step and the seconds since the first one.

        `effects` is a file of this machine that gets a line for each step that is done: the task,
        the attempt, the process and its id there.
        """
        began, attempt = time.monotonic(), uuid.uuid4().hex
        for number in range(count):
            if effects:
                with open(effects, "a", encoding="utf-8") as file:  # noqa: ASYNC230, PTH123
                    file.write(f"{ctx.task_id} {attempt} {PROCESS} {os.getpid()}\n")
            told = f"{number} {time.monotonic() - began:.3f}\n"
            await ctx.emit_text_artifact(told, "steps", append=number > 0)
            await asyncio.sleep(gap_s)
        await ctx.respond(PROCESS)

    async def wait(self, ctx: TaskContext) -> None:
        """Work until the client cancels, or for five minutes."""
        await ctx.send_status("waiting")
        await asyncio.sleep(LONGEST_WAIT_S)
        await ctx.respond()

    async def nap(self, ctx: TaskContext, seconds: float) -> None:
        """Leave the process for a sleep, and end after it."""
        await ctx.sleep(seconds)
        await ctx.complete(PROCESS)

    async def digest(self, ctx: TaskContext, answer_bytes: int) -> None:
        """Say the digest of the second part, and answer with so many bytes."""
        digest = hashlib.sha256(ctx.parts[1].text.encode()).hexdigest()
        await ctx.emit_text_artifact("x" * answer_bytes, "large")
        await ctx.respond(digest)

    async def file(self, ctx: TaskContext, size: int) -> None:
        """Emit a file of so many bytes, and say its digest."""
        sha = hashlib.sha256()
        with tempfile.TemporaryFile() as file:
            for start in range(0, size, len(PATTERN)):
                chunk = PATTERN[: size - start]
                sha.update(chunk)
                file.write(chunk)
            file.seek(0)
            await ctx.emit_file(file, media_type="image/png", filename="large.png")
        await ctx.respond(sha.hexdigest())

    async def echo(self, ctx: TaskContext) -> None:
        """Give the parts behind the order back: as read, in an artifact; as they came, at the end.

        The last message goes deeper than `ctx`, as an executor's does.
        """
        files, (_, *parts) = iter(ctx.files), ctx.parts
        for number, part in enumerate(parts):
            named: Any = {"media_type": part.media_type, "filename": part.filename}
            named |= {"append": number > 0, "last_chunk": part is parts[-1]}
            if part.HasField("text"):
                await ctx.emit_artifact("echo", text=part.text, **named)
            elif part.HasField("data"):
                await ctx.emit_artifact("echo", data=MessageToDict(part.data), **named)
            else:
                with tempfile.NamedTemporaryFile() as file:
                    await ctx.save_file(next(files), file.name)
                    await ctx.emit_file(file.name, "echo", **named)
        said = Message(message_id=uuid.uuid4().hex, role=Role.ROLE_AGENT, parts=parts)
        status = TaskStatus(state=TaskState.TASK_STATE_COMPLETED, message=said)
        end = TaskStatusUpdateEvent(task_id=ctx.task_id, context_id=ctx.context_id, status=status)
        await active_turn(ctx).enqueue_event(end)

    async def outlive(self, ctx: TaskContext, until_ms: int, blocked_s: float) -> None:
        """Block the process if this attempt begins before `until_ms`, else end the turn."""
        if time.time() * 1000 >= until_ms:
            await ctx.complete("the attempt that ends", "outlived")
            return
        await ctx.emit_text_artifact("the attempt that is killed", "outlived")
        await asyncio.sleep(1)  # until it is stored
        time.sleep(blocked_s)  # noqa: ASYNC251 - no await: only Lambda can end it

    async def denied(self, ctx: TaskContext) -> None:
        """Try with the function's own role what it must not; the answer is the error's code."""
        if "AWS_LAMBDA_FUNCTION_NAME" not in os.environ:
            raise FinalError
        await ctx.complete(await asyncio.to_thread(_scan))


def _scan() -> str:
    import boto3  # noqa: PLC0415 - of Lambda's runtime, and for this order alone
    from botocore.exceptions import ClientError  # noqa: PLC0415

    client: Any = boto3.client("dynamodb")
    try:
        client.scan(TableName=os.environ["A2A_TABLE"], Limit=1)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "allowed"


agent = LiveAgent()
