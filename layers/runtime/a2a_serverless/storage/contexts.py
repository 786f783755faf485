"""The states that agents keep for contexts: one item each, a JSON value and its version.

A long state is compressed. What an item has no room for then is a blob, which is stored before the
commit that names it, and deleted after the commit that replaces it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from a2a_serverless.clock import Clock
from a2a_serverless.errors import (
    A2AServerlessError,
    ConcurrencyError,
    ConditionFailedError,
    InvalidArgumentError,
    StateTooLargeError,
    UnreadableTaskError,
)
from a2a_serverless.storage.blobs import put_whole, whole
from a2a_serverless.storage.codec import gone, is_live, seconds
from a2a_serverless.storage.layout import context_item, context_key, context_owner
from a2a_serverless.storage.table import (
    STORED,
    Added,
    Delete,
    Item,
    Key,
    Table,
    Update,
    When,
    are,
)
from a2a_serverless.tasks.blobs import Blob, BlobOwner, blob_at
from a2a_serverless.tasks.entries import OFFLOAD_BYTES
from a2a_serverless.tasks.identity import Scope, check_context_id
from a2a_serverless.tasks.rules import ContextWrite, Timing, expiry
from a2a_serverless.values import dataclass

logger = logging.getLogger(__name__)

PLAIN_BYTES: Final = OFFLOAD_BYTES
"""A longer state is compressed."""
_LEVEL: Final = 1
"""Of zlib: what makes states long is base64, of which higher levels make no less."""


_TYPES: Final[Mapping[Any, type[str | bytes]]] = {"json": str, "zlib": bytes}


class State(NamedTuple):
    """The state of a context as it is stored; version 0: there is none."""

    value: Any | None = None
    version: int = 0
    place: str = ""
    """Of the blob that it is in; empty if the item has it."""


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
        state = await self.find(context_id)
        return state.value, state.version

    async def find(self, context_id: str) -> State:
        """Return a context's state, as `load`."""
        return await self.read(context_id, await self.table.get(self._key(context_id)))

    async def read(self, context_id: str, item: Item | None) -> State:
        """Return the state that an item holds, or a newer one that has replaced it; as `load`."""
        missing: Blob | None = None
        while item is not None and is_live(item, self.clock.now_ms()):
            blob = self._blob_in(context_id, item)
            content, form, version = (
                item.get("value"),
                item.get("form", "json"),
                item.get("version"),
            )
            if blob is not None:
                content, form = await whole(self.table.blobs, blob), "zlib"
            try:
                is_of_form = isinstance(content, _TYPES.get(form, ()))
                if is_of_form and isinstance(content, str | bytes) and isinstance(version, int):
                    place = "" if blob is None else blob.place
                    return State(await value_in(content), version, place)
            except (ValueError, zlib.error):
                pass
            if blob is None or blob == missing:
                what = "item" if blob is None else f"object {blob.key}"
                msg = f"The state of context {context_id} is damaged: restore its {what}, or delete"
                raise UnreadableTaskError(f"{msg} it.")
            # The commit that replaces a state deletes its blob: the item names another one then.
            missing, item = blob, await self.table.get(self._key(context_id))
        return State()

    async def offload(self, context_id: str, write: ContextWrite) -> ContextWrite:
        """Store a state that no item has room for as a blob; return the write that names it."""
        content, blobs = write.value, self.table.blobs
        if blobs is None or not isinstance(content, bytes) or fits_item(write):
            return write
        owner = self._owner(context_id, write.mark)
        blob = await put_whole(blobs, content, owner, "application/zlib")
        return replace(write, value=blob.place, form="blob")

    async def write_of(self, value: Any, replaced: State) -> ContextWrite:
        """Return the write that puts a state in the place of `replaced`; see `context_write`."""
        text, has_blobs = encoded(value), self.table.blobs is not None
        made = partial(
            _write_of, text, replaced.version, has_blobs=has_blobs, replaced=replaced.place
        )
        return await asyncio.to_thread(made) if len(text) > PLAIN_BYTES else made()

    def size_of(self, value: Any) -> tuple[int, int]:
        """Return the bytes that count of a state, and the most of them that can be kept."""
        text, has_blobs = encoded(value), self.table.blobs is not None
        most = _longest(has_blobs=has_blobs)
        if has_blobs or len(text) > most:
            return len(text), most
        return len(_compressed(text)), StateTooLargeError.LIMIT

    async def forget(self, context_id: str, place: str) -> None:
        """Delete the blob of a state that no item names; what is left expires by itself."""
        blob = blob_at(place, self._owner(context_id, ""))
        if blob is None or self.table.blobs is None:
            return
        try:
            await self.table.blobs.delete(blob.owner)
        except A2AServerlessError as error:
            extra = {"action": "state_left", "context_id": context_id}
            logger.warning(
                "The object of a state that no item names is left: %s", error, extra=extra
            )

    async def delete(self, context_id: str) -> bool:
        """Delete a context's state; return True if there was one."""
        key = self._key(context_id)
        if self.table.blobs is None:
            return await self.table.did(Delete(key=key, when=[STORED]))
        while (item := await self.table.get(key)) is not None:
            # The blob first: a deletion that is resumed finds it by the item.
            if (blob := self._blob_in(context_id, item)) is not None:
                await self.table.blobs.delete(blob.owner)
            # Of the state whose blob is gone: one that was stored since has a blob of its own.
            version = item.get("version")
            is_same = are(version=version) if isinstance(version, int) else [STORED]
            if await self.table.did(Delete(key=key, when=is_same)):
                return True
        return False

    async def put(self, context_id: str, write: ContextWrite) -> None:
        """Store a context's state without a commit.

        Raises:
            ConcurrencyError: `expected_version` is not met.
        """
        write = await self.offload(context_id, write)
        try:
            # As a transaction: after a lost answer, a plain write that is repeated would be refused
            # by the version that it has itself stored.
            await self.table.write(self.update(context_id, write), exactly=True)
        except ConditionFailedError as failed:
            raise context_conflict(failed.items[0]) from failed

    def update(self, context_id: str, write: ContextWrite) -> Update:
        """Return the update that stores a state."""
        now_ms = self.clock.now_ms()
        when: When = ()
        if write.expected_version == 0:
            # A state that has expired and is still stored counts for nothing, as does its version.
            when = [gone(now_ms)]
        elif write.expected_version is not None:
            when = are(version=write.expected_version)
        values = {
            "value": write.value,
            "expires_at": seconds(expiry(now_ms, self.timing.ttl_s)),
            "version": 1 if write.expected_version == 0 else Added(1),
            **context_owner(self.scope.digest, context_id),
        }
        if write.form == "json":
            return Update(key=self._key(context_id), values=values, remove=("form",), when=when)
        return Update(key=self._key(context_id), values={**values, "form": write.form}, when=when)

    def _key(self, context_id: str) -> Key:
        return context_item(self.scope.digest, check_context_id(context_id))

    def _owner(self, context_id: str, mark: str) -> BlobOwner:
        scope = self.scope.digest
        return BlobOwner.of_state(scope, context_key(scope, context_id), mark)

    def _blob_in(self, context_id: str, item: Item) -> Blob | None:
        if item.get("form") != "blob":
            return None
        return blob_at(item.get("value"), self._owner(context_id, ""))


def context_write(
    value: Any,
    expected_version: int | None = None,
    *,
    has_blobs: bool = False,
    replaced: str = "",
) -> ContextWrite:
    """Return a write of `value`, any JSON value, to a context's state.

    Raises:
        InvalidArgumentError: it is no JSON value.
        StateTooLargeError: it is larger than what can be kept; more can where there are blobs.
    """
    return _write_of(encoded(value), expected_version, has_blobs=has_blobs, replaced=replaced)


def encoded(value: Any) -> str:
    """Return a state as JSON.

    Raises:
        InvalidArgumentError: it is no JSON value, or two of its keys are the same as text.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"A context's state must be a JSON value: {error}.") from error
    if (key := key_twice(text)) is not None:
        msg = f"Two keys of a context's state are {key!r} as text: give each another text."
        raise InvalidArgumentError(msg)
    return text


def key_twice(text: str | bytes) -> str | None:
    """Return a key that an object of a JSON text has twice, whose first value is lost; None: none.

    Python writes such a text of `{1: "a", "1": "b"}`.
    """
    found: list[str] = []

    def note(pairs: list[tuple[str, None]]) -> None:
        if len(dict(pairs)) < len(pairs):
            found.append(Counter(name for name, _ in pairs).most_common(1)[0][0])

    json.loads(text, object_pairs_hook=note)
    return found[0] if found else None


def _write_of(
    text: str, expected_version: int | None, *, has_blobs: bool, replaced: str
) -> ContextWrite:
    """Return a write of a state that `encoded` has returned, as `context_write`."""
    most = _longest(has_blobs=has_blobs)
    if len(text) > most:
        raise StateTooLargeError(len(text), most)
    value = _compressed(text)
    if not has_blobs and len(value) > StateTooLargeError.LIMIT:
        raise StateTooLargeError(len(value), StateTooLargeError.LIMIT)
    return ContextWrite(
        value=value,
        form="json" if isinstance(value, str) else "zlib",
        expected_version=expected_version,
        replaced=replaced,
    )


def _longest(*, has_blobs: bool) -> int:
    return StateTooLargeError.LIMIT_OFFLOADED if has_blobs else StateTooLargeError.LIMIT_IN_LOG


def _compressed(text: str) -> str | bytes:
    return zlib.compress(text.encode(), _LEVEL) if len(text) > PLAIN_BYTES else text


def fits_item(write: ContextWrite) -> bool:
    """Return True if a state is stored in its item."""
    return len(write.value) <= StateTooLargeError.LIMIT


async def value_in(content: str | bytes) -> Any:
    """Return the state in a write, which has it as JSON or compressed.

    Raises:
        ValueError, zlib.error: it is damaged.
    """
    if isinstance(content, bytes):
        content = await asyncio.to_thread(zlib.decompress, content)
    return json.loads(content)


def context_conflict(stored: Item | None) -> ConcurrencyError:
    """Return the error for a state, as it is stored, that has not the expected version."""
    version = stored.get("version") if stored else 0
    msg = "The context's state has changed since it was read; the task may be unchanged."
    return ConcurrencyError(msg, current_version=version if isinstance(version, int) else 0)
