"""Run the tests of an adapter in its framework's own environment, which has no pytest.

`python -m tests.foreign.adapters strands` prints the names of those that have passed, as JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys


async def main(framework: str) -> None:
    tests = vars(importlib.import_module(f"tests.foreign.{framework}.adapter"))
    names = [name for name in tests if name.startswith("test_")]
    for name in names:
        assert tests[name].__doc__, name
        await tests[name]()
    print(json.dumps(names))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
