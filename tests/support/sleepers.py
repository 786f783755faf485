"""Turns that sleep, as their worker has left them."""

from __future__ import annotations

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import Caller, StepId
from a2a_serverless.tasks.head import ASLEEP, AttemptEnd, Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.tasks.waits import SLEEP, Until
from tests.support.messages import request


async def asleep(storage: DurableStorage, caller: str, until_ms: int) -> Head:
    """Let a message of a caller come, whose turn sleeps until a time; return its HEAD."""
    own = storage.for_scope(Scope.of("", caller))
    opened = await own.open_task("ctx", request("work"), caller=Caller(user=caller))
    end = AttemptEnd(token="t", reason=ASLEEP, at=storage.clock.now_ms(), until=until_ms)
    record = Until(until_ms).record(StepId(SLEEP, "", 1))
    parks = Commit(entries=(record,), claims=True, token="t", parks=end)
    return await own.commit(opened.head, parks)
