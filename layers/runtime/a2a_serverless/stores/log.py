"""The log of a task: what its saves have changed, and what is folded from them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import groupby
from typing import Any, Final, NamedTuple, Self

from a2a.server.cluster import TaskVersion, VersionedEvent
from a2a.types import StreamResponse
from a2a.utils.errors import InternalError
from google.protobuf.message import DecodeError

from a2a_serverless.clock import Clock, now_s
from a2a_serverless.errors import ConfigurationError, UnavailableError, UnreadableTaskError
from a2a_serverless.storage.blobs import put_whole, whole
from a2a_serverless.storage.s3 import S3Blobs
from a2a_serverless.storage.table import Item, Key, Put, Range, RefusedError, Table, beginning
from a2a_serverless.stores import layout
from a2a_serverless.stores.content import Change, apply, task_of
from a2a_serverless.tasks.blobs import BlobOwner, blob_at
from a2a_serverless.tasks.identity import digest, new_token
from a2a_serverless.values import dataclass

logger = logging.getLogger(__name__)

FORMAT: Final = 1
"""The `format` of the items that this release reads and writes."""

_LARGEST_BODY: Final = 350_000
"""The bytes of a body that one item has beside its other attributes; a longer one is in parts."""

WHOLE_TASK: Final = -1
"""In the place of an event's length: the event is the task itself, as that save left it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What is stored of a task beside its log: the attributes of its item."""

    incarnation: str
    """Random characters that tell the task from an earlier one with the same id."""
    version: int = 0
    owner: str
    state: int = 0
    base: int = 1
    """The version from which on the log has the whole task."""
    log_until: int
    """When the first item of the log from there on expires, in seconds since the epoch."""
    logged: int = 0
    """The bytes of the log from there on."""
    expires_at: int = 0
    scope_key: str = ""
    context_key: str = ""
    status_key: str = ""
    """The task's place in lists."""
    format: int = FORMAT

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Self:
        """Read the item of a HEAD.

        Raises:
            UnreadableTaskError: another release or another program has written it.
        """
        odd = [one.name for one in fields(cls) if type(item.get(one.name)).__name__ != one.type]
        if odd or item["format"] != FORMAT:
            raise UnreadableTaskError(
                f"The item {item['PK']} is not as this release writes it (format {FORMAT}, not"
                f" {item.get('format')!r}; wrong: {', '.join(odd) or 'none'}): use the release that"
                " wrote it, or another table."
            )
        return cls(**{name: item[name] for name in cls.__slots__})


class Stored(NamedTuple):
    """A task as it is stored."""

    head: Head
    contents: Sequence[bytes]


def number_of(version: TaskVersion) -> int:
    """Return the number of a version that a task store has returned.

    Raises:
        TypeError: another store has returned it.
    """
    number = version._value  # noqa: SLF001 - the SDK gives its stores no other way
    if not isinstance(number, int):
        raise TypeError(f"The store's versions are integers, not {type(number).__name__}.")
    return number


class TaskLog:
    """Reads and writes the logs of one table.

    Args:
        table: the table.
        bucket: where changes are that are too large for an item; None: in parts on the table.
        clock: what decides whether something has expired.
    """

    def __init__(self, table: Table, bucket: str | None, clock: Clock) -> None:
        self.table, self.clock = table, clock
        self._blobs = None if bucket is None else S3Blobs(bucket, clock)

    def live(self, item: Item | None) -> Head | None:
        """Return the HEAD in an item; None: there is none, or it has expired.

        Raises:
            UnreadableTaskError: as `Head.of`.
        """
        head = Head.of(item) if item else None
        return head if head and head.expires_at > now_s(self.clock) else None

    async def head(self, task_id: str) -> Head | None:
        """Return the HEAD of a task as of now; None: there is none, or it has expired."""
        return self.live(await self.item(task_id))

    async def item(self, task_id: str) -> Item | None:
        """Return the item of a task's HEAD, also of one that has expired; None: there is none."""
        return await self.table.get(layout.head_key(task_id)) if layout.fits(task_id) else None

    async def contents(self, task_id: str, head: Head) -> list[bytes] | None:
        """Return the contents of a task as of a HEAD; None: items of its log are gone."""
        entries = await self._entries(task_id, head, head.base)
        if len(entries) != head.version + 1 - head.base:
            return None
        contents: list[bytearray] = []
        for entry in entries:
            _apply(contents, entry)
        return [bytes(content) for content in contents]

    async def events(self, task_id: str, head: Head, after: int) -> list[VersionedEvent]:
        """Return the events behind a version, up to that of a HEAD."""
        events = []
        for entry in await self._entries(task_id, head, after + 1):
            event: Any = None
            if entry["event"] == WHOLE_TASK:
                then = replace(head, base=entry["base"], version=entry["version"])
                contents = await self.contents(task_id, then)
                event = contents and task_of(contents)
            elif entry["event"]:
                response = StreamResponse.FromString(entry["body"][: entry["event"]])
                event = getattr(response, str(response.WhichOneof("payload")))
            if event is not None:
                events.append(VersionedEvent(event=event, version=TaskVersion(entry["version"])))
        return events

    async def written(
        self, task_id: str, head: Head, change: Change, event: int, expires_at: int
    ) -> list[Put]:
        """Return the items of a change: the one to commit, and those to store before."""
        key = Key(layout.partition_of(task_id), layout.log_sort(head.incarnation, head.version))
        item = {
            **key._asdict(),
            "version": head.version,
            "base": head.base,
            "event": event,
            "count": change.length,
            "cuts": len(change.body),
            "expires_at": expires_at,
        }
        whole_body = change.body + json.dumps(change.cuts, separators=(",", ":")).encode()
        if len(whole_body) <= _LARGEST_BODY:
            return [Put(item=item | {"body": whole_body})]
        if self._blobs is not None:
            owner = _blob_owner(task_id, head.incarnation)
            blob = await put_whole(self._blobs, whole_body, owner)
            return [Put(item=item | {"blob": blob.place})]
        mark = new_token()
        parts: list[Put] = []
        for start in range(0, len(whole_body), _LARGEST_BODY):
            sort = f"{key.SK}#{mark}#{len(parts):06d}"
            part = {"body": whole_body[start : start + _LARGEST_BODY], "expires_at": expires_at}
            parts.append(Put(item=key._replace(SK=sort)._asdict() | part))
        return [Put(item=item | {"mark": mark}), *parts]

    async def delete(self, task_id: str, head: Head) -> None:
        """Delete the log of a task whose HEAD is deleted."""
        start = f"LOG#{head.incarnation}#"
        log = beginning(layout.partition_of(task_id), start, only=("PK", "SK"))
        await self.table.delete([Key(**item) for item in await self.table.all(log)])
        if self._blobs is not None:
            await self._blobs.delete(_blob_owner(task_id, head.incarnation))

    async def _entries(self, task_id: str, head: Head, first: int) -> list[Item]:
        """Return the items of the versions from one to a HEAD's, each with its whole `body`."""
        start, end = (layout.log_sort(head.incarnation, n) for n in (first, head.version))
        wanted = Range(partition=layout.partition_of(task_id), first=start, last=f"{end}$")
        entries = []
        for _, group in groupby(await self.table.all(wanted), lambda i: i["SK"][: len(start)]):
            entry, *parts = group
            if len(entry["SK"]) > len(start):
                continue  # parts whose version was never committed, or has expired before them
            if "mark" in entry:
                ours = f"{entry['SK']}#{entry['mark']}#"
                entry["body"] = b"".join(p["body"] for p in parts if p["SK"].startswith(ours))
            elif "blob" in entry:
                blob = blob_at(entry["blob"], _blob_owner(task_id, head.incarnation))
                entry["body"] = await whole(self._blobs, blob) if blob else None
            if entry.get("body") is None:
                raise UnreadableTaskError(
                    f"A part of the task {task_id} is in a bucket, and missing there: give the"
                    " store the bucket that it was stored with."
                )
            entries.append(entry)
        return entries


def _apply(contents: list[bytearray], entry: Item) -> None:
    """Turn contents into those of the next version, which an item of the log has.

    Raises:
        UnreadableTaskError: the item is damaged.
    """
    try:
        body = entry["body"]
        apply(contents, Change(entry["count"], json.loads(body[entry["cuts"] :]), body))
    except (LookupError, TypeError, ValueError) as error:
        raise UnreadableTaskError(f"The item {entry['PK']} {entry['SK']} is damaged.") from error


def _blob_owner(task_id: str, incarnation: str) -> BlobOwner:
    return BlobOwner("store", digest("store task", task_id), incarnation)


# -- errors ------------------------------------------------------------------------------------

_CAUSES: Final[Mapping[type[Exception], str]] = {
    UnavailableError: "is busy: try again",
    ConfigurationError: "cannot be used at the moment; the server's log says why",
    RefusedError: "is not one of this store; the server's log says why",
    UnreadableTaskError: "has an item that this release cannot read; the server's log says why",
    DecodeError: "has an item that is damaged; the server's log says more",
}
"""What a client is told. The names of tables and ids of others are for the log alone."""


@contextmanager
def sdk_errors() -> Iterator[None]:
    """Raise the errors of a table as the SDK's own, which its server turns into answers.

    Raises:
        InternalError: one sentence says what a client can do. The log has the cause.
    """
    try:
        yield
    except (*_CAUSES,) as error:
        (cause,) = [text for kind, text in _CAUSES.items() if isinstance(error, kind)]
        extra = {"action": "store_failed"}
        # A sentence: who reads it changes a deployment, and the trace is that of every request.
        logger.error("The task store's table %s: %s", cause.partition(";")[0], error, extra=extra)  # noqa: TRY400
        raise InternalError(f"The table of the task store {cause}.") from error
