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


async def main(framework: str) -> None:
    """Tell for each case what the SDK's own server, `theirs`, and this one, `ours`, show."""
    agents = importlib.import_module(f"tests.foreign.{framework}.agents")
    seen: dict[str, dict[str, Any]] = {}
    for cases, streams in ((agents.CASES, True), (agents.CANCELED, False)):
        for name, case in cases.items():
            theirs = await observed(case, stock, streams=streams)
            seen[name] = {"theirs": theirs, "ours": await observed(case, durable, streams=streams)}
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
