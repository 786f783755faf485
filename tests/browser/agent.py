"""The agent of the browser tests: what it is told decides what it does."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path
from tempfile import gettempdir

from a2a_serverless.worker import TaskContext, Worker

REPORT = """## Route for Saturday

The ferry at **09:40** is the last one with bicycle places; the coast road is closed until noon.

| leg | by | minutes |
|---|---|---|
| home to harbour | bicycle | 25 |
| harbour to island | ferry | 50 |
| island to camp | bicycle | 35 |

1. Book two bicycle places.
2. Leave at nine, *not later*.

More at [the harbour](https://harbour.example/times).
"""


OFFERS, INVOICE, ORDER = "Compare the three offers.", "Who pays invoice 4711?", "Place the order."


class Scripted(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        told = ctx.user_text
        if ctx.history:
            await ctx.complete(f"Thank you: {told}")
        elif told == "ask":
            await ctx.request_input("Which day?")
        elif told == "wait":
            await ctx.send_status("Waiting until it is canceled.")
            await asyncio.Event().wait()
        elif told == "return":
            for number, file in enumerate(ctx.files):
                content, kind = io.BytesIO(await ctx.read_file(file)), file.media_type
                name = file.filename
                await ctx.emit_file(content, f"file-{number}", media_type=kind, filename=name)
            await ctx.respond()
        elif told.startswith("steps "):
            await ctx.step("look", _look, key="tables")
            await asyncio.to_thread(opened, Path(told.removeprefix("steps ")))
            raise ValueError("the tables are empty")
        elif told == "approve":
            posted = await (await ctx.callback("approved")).wait()
            await ctx.complete(f"Approved: {posted.data}")
        elif told == OFFERS:
            await self._compare(ctx)
        elif told == INVOICE:
            await ctx.complete(f"It is paid by {customer('4711')}.")
        elif told == ORDER:
            await ctx.complete("The order is placed.")
        else:
            _, _, gate = told.partition("count ")
            await self._count(ctx, Path(gate))

    async def _count(self, ctx: TaskContext, gate: Path) -> None:
        """Tell twenty numbers, the second half of them once the test has made the file `gate`."""
        await ctx.send_status("Looking at the tables.")
        for number in range(20):
            if number > 10:
                await asyncio.to_thread(opened, gate)
            await ctx.emit_text_artifact(f"{number} ", artifact_id="count", append=number > 0)
            await asyncio.sleep(0.05)
        await ctx.respond("All twenty.")

    async def _compare(self, ctx: TaskContext) -> None:
        """Lose the shop in the middle of the first attempt; the second one has another price."""
        await ctx.send_status("Asking three shops.")
        is_first = begins(ctx.task_id)
        price = "999 EUR" if is_first else "120 EUR"
        await ctx.emit_text_artifact(f"The best price is {price}.", artifact_id="offers")
        if is_first:
            await asyncio.sleep(2)  # what was said is stored
            raise TimeoutError("the shop does not answer")
        await ctx.respond("Compared.")


def opened(gate: Path) -> None:
    """Wait for a file that a test makes; without a name there is nothing to wait for."""
    while not gate.exists():
        time.sleep(0.05)


async def _look() -> dict[str, int]:
    return {"found": 3}


def begins(task_id: str) -> bool:
    """Return True once for each task: each worker has an agent of its own, so a file knows."""
    begun = Path(gettempdir(), f"offers-{task_id}")
    if begun.exists():
        begun.unlink()
        return False
    begun.touch()
    return True


def customer(number: str) -> str:
    """Return the customer of an invoice; there is none."""
    return {"4710": "Ann"}[number]


agent = Scripted()
