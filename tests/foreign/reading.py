"""What a framework reads of each form of answer: FRAMEWORK URL FORM...

Prints one JSON line for each form and way of calling. Runs in the framework's own environment,
whose folder has the ways of calling, `READS`.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import warnings
from functools import partial

from tests.foreign.tried import tried


async def main(framework: str, url: str, forms: list[str]) -> None:
    reads = importlib.import_module(f"tests.foreign.{framework}.reading").READS
    for way, read in reads.items():
        for form in forms:
            await tried(f"{way}|{form}", partial(read, url, form))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
