"""The agent of the upgrade tests: says one thing, and the rest once its gate is open."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from a2a_serverless.worker import TaskContext
from tests.faults.agent import ARTIFACT, Faulty

GATE = "FAULTS_GATE"


class Gated(Faulty):
    """Understands `gated COUNT` and `stumbles COUNT` beside what `Faulty` does."""

    async def gated(self, ctx: TaskContext, count: float) -> None:
        await self._hold(ctx)
        await self._go_on(ctx, count)

    async def stumbles(self, ctx: TaskContext, count: float) -> None:
        """Do as `gated` does, but fail at the first start that passes the gate."""
        await self._hold(ctx)
        if not self._ledger.count(ctx.task_id, "stumbled"):
            self._ledger.note("stumbled", ctx.task_id)
            raise RuntimeError("as the message asked")
        await self._go_on(ctx, count)

    async def _hold(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("0", artifact_id=ARTIFACT, append=True)
        self._ledger.note("holds", ctx.task_id)
        gate = Path(os.environ[GATE])
        while not gate.exists():  # noqa: ASYNC110, ASYNC240 - another process opens it
            await asyncio.sleep(0.02)
        self._ledger.note("passes", ctx.task_id)

    async def _go_on(self, ctx: TaskContext, count: float) -> None:
        for number in range(1, int(count)):
            await ctx.emit_text_artifact(str(number), artifact_id=ARTIFACT, append=True)
        await ctx.respond("Done.")


agent = Gated
