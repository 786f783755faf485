"""The states that agents keep for contexts: one item each, a JSON value and its version."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from a2a_serverless.clock import Clock
from a2a_serverless.errors import (
    ConcurrencyError,
    ConditionFailedError,
    InvalidArgumentError,
    StateTooLargeError,
    UnreadableTaskError,
)
from a2a_serverless.storage.codec import is_live, seconds
from a2a_serverless.storage.layout import context_item, context_owner
from a2a_serverless.storage.table import NEW, Added, Check, Item, Table, Update, When, are
from a2a_serverless.tasks.identity import Scope, check_context_id
from a2a_serverless.tasks.rules import ContextWrite, Timing, expiry


@dataclass(frozen=True, slots=True)
class Contexts:
    """The states of one scope's contexts. A state lives a task's time to live from its write."""

    table: Table
    scope: Scope
    clock: Clock
    timing: Timing

    async def load(self, context_id: str) -> tuple[Any | None, int]:
        """Return a context's state and its version; (None, 0) when there is none.

        Raises:
            UnreadableTaskError: it is damaged.
        """
        key = context_item(self.scope.digest, check_context_id(context_id))
        return self.read(context_id, await self.table.get(key))

    def read(self, context_id: str, item: Item | None) -> tuple[Any | None, int]:
        """Return the state and the version that an item holds, as `load`.

        Raises:
            UnreadableTaskError: it is damaged.
        """
        if item is None or not is_live(item, self.clock.now_ms()):
            return None, 0
        try:
            value, version = json.loads(item["value"]), item["version"]
            if isinstance(version, int):
                return value, version
        except (KeyError, TypeError, ValueError):
            pass
        msg = f"The state of context {context_id} is damaged: restore its item, or delete it."
        raise UnreadableTaskError(msg)

    async def put(self, context_id: str, write: ContextWrite) -> None:
        """Store a context's state without a commit.

        Raises:
            ConcurrencyError: `expected_version` is not met.
        """
        try:
            await self.table.write(self.update(context_id, write), exactly=True)
        except ConditionFailedError as failed:
            raise context_conflict(failed.items[0]) from failed

    def update(self, context_id: str, write: ContextWrite) -> Update:
        """Return the update that stores a state."""
        now_ms = self.clock.now_ms()
        when: When = ()
        if write.expected_version == 0:
            # A state that has expired and is still stored counts for nothing, as does its version.
            when = [[NEW, Check("expires_at", "<=", now_ms // 1000)]]
        elif write.expected_version is not None:
            when = are(version=write.expected_version)
        values = {
            "value": write.value,
            "expires_at": seconds(expiry(now_ms, self.timing.ttl_s)),
            "version": 1 if write.expected_version == 0 else Added(1),
            **context_owner(self.scope.digest, context_id),
        }
        return Update(key=context_item(self.scope.digest, context_id), values=values, when=when)


def context_write(value: Any, expected_version: int | None = None) -> ContextWrite:
    """Return a write of `value`, any JSON value, to a context's state."""
    try:
        encoded = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"A context's state must be a JSON value: {error}.") from error
    if len(encoded) > StateTooLargeError.LIMIT:
        raise StateTooLargeError(len(encoded))
    return ContextWrite(value=encoded, expected_version=expected_version)


def context_conflict(stored: Item | None) -> ConcurrencyError:
    """Return the error for a state, as it is stored, that has not the expected version."""
    version = stored.get("version") if stored else 0
    msg = "The context's state has changed since it was read; the task may be unchanged."
    return ConcurrencyError(msg, current_version=version if isinstance(version, int) else 0)
