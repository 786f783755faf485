"""What a client reads of each form of answer: CLIENT URL FORM...

Prints one JSON line with its version, and one for each form and way of calling. Runs in the
client's own environment, whose folder has the ways of calling, `READS`, and the name of its
`PACKAGE`.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import warnings
from functools import partial
from importlib.metadata import version

from tests.foreign.tried import tried


async def main(client: str, url: str, forms: list[str]) -> None:
    module = importlib.import_module(f"tests.foreign.{client}.reading")
    await tried("version", partial(_version, module.PACKAGE))
    for way, read in module.READS.items():
        for form in forms:
            await tried(f"{way}|{form}", partial(read, url, form))


async def _version(package: str) -> str:
    return version(package)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
