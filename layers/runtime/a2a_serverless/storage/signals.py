"""Signals from outside: storing what ends a wait of an agent's code."""

from __future__ import annotations

import secrets
from typing import Final
from weakref import WeakKeyDictionary

from a2a_serverless.errors import (
    ConcurrencyError,
    TaskNotFoundError,
    TurnFinishedError,
    UnavailableError,
)
from a2a_serverless.storage.changes import pause_after
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import REBASES
from a2a_serverless.storage.table import NEW, Key, Put, Table
from a2a_serverless.tasks.entries import StepId
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.tasks.waits import Signal, SignalDecision, on_signal

_SECRETS: Final[WeakKeyDictionary[Table, bytes]] = WeakKeyDictionary()
"""What this process has read: the secret of a table stays, and strangers ask for it, too."""


async def wait_secret(table: Table) -> bytes:
    """Return the secret with which the addresses of waits are made; the first caller makes it.

    Raises:
        UnavailableError: no answer within the retry budget.
    """
    if table not in _SECRETS:
        key = Key("WAITS", "SECRET")
        item = await table.get(key)
        if item is None:
            made = {**key._asdict(), "secret": secrets.token_bytes(32)}
            item = made if await table.did(Put(item=made, when=[NEW])) else await table.get(key)
        if item is None:
            raise UnavailableError("The secret of callbacks was deleted while it was made.")
        _SECRETS[table] = bytes(item["secret"])
    return _SECRETS[table]


async def signal(
    storage: DurableStorage,
    task_id: str,
    incarnation: str,
    *,
    turn: int,
    step_id: StepId,
    given: Signal,
) -> SignalDecision:
    """End a wait of the code that began with turn `turn`, once; return what has become of it.

    A turn that sleeps goes on with a copy of its operation; if this process dies before it sends
    that, the sweeper does.

    Raises:
        ConcurrencyError: `REBASES` races were lost.
        NewerReleaseError: only a newer release may write the task.
        UnavailableError: as `DurableStorage.commit`; sent again, the signal counts once.
    """
    for attempt in range(1, REBASES + 1):
        log = await storage.read(task_id, incarnation=incarnation, is_whole=False)
        decision = on_signal(log, turn, step_id)
        if log is None or decision is not SignalDecision.TAKE:
            return decision
        entry = await storage.offload_record(log.head, given.record(step_id))
        try:
            await storage.commit(log.head, Commit(entries=(entry,)))
        except (ConcurrencyError, TaskNotFoundError, TurnFinishedError):
            # HEAD, read anew, says what has come in between.
            await pause_after(storage.clock, attempt)
        else:
            return decision
    msg = f"The task was changed by others {REBASES} times while a signal came for it."
    raise ConcurrencyError(msg)
