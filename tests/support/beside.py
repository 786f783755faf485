"""What runs beside a block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def beside(running: Iterable[Coroutine[Any, Any, object]]) -> AsyncIterator[None]:
    """Run these beside the block, and cancel them with its end; none may have ended before."""
    tasks = [asyncio.create_task(each) for each in running]
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in found), found
