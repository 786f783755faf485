"""Run the agents of a framework on both servers, and print what a client has seen, as JSON.

Runs in that framework's own environment: `python -m tests.foreign.observe google_adk`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from typing import Any

from tests.conformance.sides import Case, Side, durable, outcome, stock


async def observed(case: Case, side: Side, *, streams: bool) -> dict[str, Any]:
    """The answers and the task, and the events of the same play in streams."""
    executor, script = case
    seen = await outcome(side, executor(), script)
    if not streams:
        return seen
    streamed = await outcome(side, executor(), script, streaming=True)
    return seen | {"events": streamed["answers"]}


async def observations(cases: dict[str, Case], *, streams: bool) -> dict[str, dict[str, Any]]:
    """Return for each case what the SDK's own server, `theirs`, and this one, `ours`, show."""
    return {
        name: {
            "theirs": await observed(case, stock, streams=streams),
            "ours": await observed(case, durable, streams=streams),
        }
        for name, case in cases.items()
    }


async def main(framework: str) -> None:
    agents = importlib.import_module(f"tests.foreign.{framework}.agents")
    seen = await observations(agents.CASES, streams=True)
    seen |= await observations(agents.CANCELED, streams=False)
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
