"""The watch over running turns."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from a2a_serverless.tasks.head import Head
from a2a_serverless.worker.watch import Watch, Watched
from tests.support.workers import PacedClock


class Moody:
    """A registry and log whose first answer is an error that no repetition mends."""

    def __init__(self) -> None:
        self.looks = 0

    async def is_cancelled(self, _task_id: str) -> bool:
        self.looks += 1
        if self.looks == 1:
            msg = "ExpiredToken"
            raise RuntimeError(msg)
        return True

    async def head(self, _task_id: str) -> Head | None:
        return None


async def test_a_failed_look_does_not_end_the_watch() -> None:
    """Whatever the first look raises, the next one sees the cancel."""
    clock, moody, heard = PacedClock(), Moody(), asyncio.Event()
    turn = Watched(
        task_id="t",
        log=cast("Any", moody),
        registry=cast("Any", moody),
        on_cancel=heard.set,
        on_head=lambda _: None,
    )
    async with Watch(clock).over(turn):
        await clock.pass_time(1)
        assert not heard.is_set()
        await clock.pass_time(1)
        await heard.wait()
