"""The agent of the fault tests. The message says what it does; the ledger what it did.

chunks N PAUSE    N chunks, PAUSE seconds apart, then completed
file N            a file, then as `chunks N 0`
file N 1          as above, with another file in each start
steps N PAUSE     N steps of a chunk and PAUSE seconds each, three more at once, then completed
steps N PAUSE SHARE   as above, where this share of the tries of the steps fails
naps S            a step of a chunk, a sleep of S seconds, three chunks, then completed
slow S / block S  S seconds without and with a blocked event loop, then three chunks
held N            a chunk, and N - 1 more ones when the test has released it
deaf              swallows every cancel until then, and emits nothing
meet N            as `chunks 10 0.15`, once N attempts of this turn have started
failing N         raises in its first N starts, then as `chunks 4 0`
silent            emits nothing until it is cancelled
ask               pauses for input; the next message says what comes then
"""

from __future__ import annotations

import asyncio
import random
import time

from a2a_serverless.worker import Retry, TaskContext, Worker
from a2a_serverless.worker.context import active_turn
from a2a_serverless.worker.steps import ParkedError
from tests.faults.ledger import Ledger

ARTIFACT = "out"
BRANCHES = 3
WAITS_LONG = 3
"""The number of the step after whose failures the agent waits for a second."""


class Faulty(Worker):
    def __init__(self) -> None:
        self._ledger = Ledger.of_process()

    async def handle(self, ctx: TaskContext) -> None:
        kind, *numbers = ctx.user_text.split()
        self._ledger.note("started", ctx.task_id)
        try:
            await getattr(self, kind)(ctx, *(float(number) for number in numbers))
        except asyncio.CancelledError:
            has_left = isinstance(active_turn(ctx).lease.reason, ParkedError)
            self._ledger.note("left" if has_left else "cancelled", ctx.task_id)
            raise
        self._ledger.note("returned", ctx.task_id)

    async def cancel(self, ctx: TaskContext) -> None:
        self._ledger.note("cancel called", ctx.task_id)

    async def chunks(self, ctx: TaskContext, count: float, pause_s: float) -> None:
        for number in range(int(count)):
            if number:
                await asyncio.sleep(pause_s)
            await ctx.emit_text_artifact(str(number), artifact_id=ARTIFACT, append=True)
            self._ledger.note("emitted", ctx.task_id)
        await ctx.respond("Done.")

    async def file(self, ctx: TaskContext, count: float, differs: float = 0) -> None:
        ends = self._ledger.count(ctx.task_id, "started") if differs else 0
        await ctx.emit_artifact("file", file_bytes=b"x" * 40_000 + bytes([ends]))
        await self.chunks(ctx, count, 0)

    async def much(self, ctx: TaskContext, count: float) -> None:
        for number in range(3):
            await ctx.emit_text_artifact("x" * 30_000, artifact_id=f"text {number}")
        await self.chunks(ctx, count, 0)

    async def steps(self, ctx: TaskContext, count: float, pause_s: float, fails: float = 0) -> None:
        async def part(number: int, artifact: str) -> None:
            if random.random() < fails:  # noqa: S311
                self._ledger.note(f"failed {number}", ctx.task_id)
                raise ConnectionError
            await self._part(ctx, number, artifact, pause_s)

        for number in range(int(count)):
            wait_s = 1 if number == WAITS_LONG else pause_s
            retry = Retry(tries=100, base_s=wait_s, cap_s=wait_s)
            await ctx.step("part", part, number, ARTIFACT, retry=retry)
        names = [f"branch {number}" for number in range(BRANCHES)]
        parts = (ctx.step("branch", part, int(count), it, key=it, retry=retry) for it in names)
        await ctx.gather(*parts)
        await ctx.respond("Done.")

    async def _part(self, ctx: TaskContext, number: int, artifact: str, pause_s: float) -> None:
        self._ledger.note(f"step {number}", ctx.task_id)
        await ctx.emit_text_artifact(str(number), artifact_id=artifact, append=True)
        await asyncio.sleep(pause_s)

    async def naps(self, ctx: TaskContext, seconds: float) -> None:
        await ctx.step("part", self._part, ctx, 0, ARTIFACT, 0)
        await ctx.sleep(seconds)
        await self._rest(ctx, 4)

    async def slow(self, ctx: TaskContext, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.chunks(ctx, 3, 0)

    async def block(self, ctx: TaskContext, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - what this agent is for
        await self.chunks(ctx, 3, 0)

    async def held(self, ctx: TaskContext, count: float) -> None:
        await ctx.emit_text_artifact("0", artifact_id=ARTIFACT, append=True)
        self._ledger.note("held", ctx.task_id)
        while not self._ledger.is_released(ctx.task_id):  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.02)
        await self._rest(ctx, int(count))

    async def _rest(self, ctx: TaskContext, count: int) -> None:
        for number in range(1, count):
            await ctx.emit_text_artifact(str(number), artifact_id=ARTIFACT, append=True)
        await ctx.respond("Done.")

    async def deaf(self, ctx: TaskContext) -> None:
        self._ledger.note("held", ctx.task_id)
        while not self._ledger.is_released(ctx.task_id):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                self._ledger.note("swallowed", ctx.task_id)

    async def meet(self, ctx: TaskContext, count: float) -> None:
        while self._ledger.count(ctx.task_id, "started") < count:  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.02)
        await self.chunks(ctx, 10, 0.15)

    async def failing(self, ctx: TaskContext, count: float) -> None:
        if self._ledger.count(ctx.task_id, "started") <= count:
            await ctx.emit_text_artifact("partial", artifact_id=ARTIFACT, append=True)
            raise RuntimeError("the password is hunter2")
        await self.chunks(ctx, 4, 0)

    async def silent(self, ctx: TaskContext) -> None:
        await asyncio.sleep(3600)

    async def ask(self, ctx: TaskContext) -> None:
        await ctx.request_input("What exactly?")


agent = Faulty
