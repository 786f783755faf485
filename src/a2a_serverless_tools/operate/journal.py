"""The journal: which operator has done what, as items of the table that expire.

An entry is written before an act and completed after it. It names a caller by the digest of the
owner alone, and a deletion of the caller finds it by the index by scope.
"""

from __future__ import annotations

import getpass
import re
import socket
from dataclasses import dataclass
from typing import Final

from a2a_serverless import aws
from a2a_serverless.clock import now_s
from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.storage import layout
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.dynamodb import DynamoTable
from a2a_serverless.storage.table import STORED, Check, Item, Key, Put, Range, Update, key_of
from a2a_serverless.tasks.identity import new_token

KEPT_S: Final = 90 * 86_400
"""Seconds for which an act is kept."""
MOST_CHARS: Final = 500
"""The most characters of each text of an act."""
_PLACE: Final = re.compile(rf"{layout.ACT}\d{{15}}#[A-Za-z0-9_-]{{1,32}}", re.ASCII)
_FORMS: Final = {
    "at": int,
    "by": str,
    "act": str,
    "scope": str,
    "task_id": str,
    "which": str,
    "outcome": str,
    "ended_at": int,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An act of an operator. Times are milliseconds since the epoch."""

    key: Key
    at: int = 0
    """When it began."""
    by: str = ""
    """The person: the identity that AWS knows, or else the name on the machine."""
    act: str = ""
    scope: str = ""
    """The owner of the task; empty if the act was about no task."""
    task_id: str = ""
    which: str = ""
    """The filter that has chosen the task, or what else the act was about."""
    outcome: str = ""
    """How it ended; empty: it has not, or its process was ended, and what it did is unknown."""
    ended_at: int | None = None


async def _person(storage: DurableStorage) -> str:
    """Return who acts: the ARN of the AWS credentials, else the user of this machine."""
    local = f"{_user()} on {socket.gethostname()}"
    if not isinstance(storage.table, DynamoTable):
        return local
    try:
        sts = aws.client("sts")
        if not aws.is_aws(sts, aws.client("dynamodb")):
            return local
        answer = await aws.call(sts.get_caller_identity)
    except aws.ERRORS as error:
        return f"{local}, whom AWS does not name ({aws.error_code(error) or 'no answer'})"
    return str(answer["Arn"])


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run as a number that has no name
        return "a user without a name"


class Journal:
    """Notes what one person does, before and after.

    Args:
        storage: in any scope.
        by: the person.
    """

    def __init__(self, storage: DurableStorage, by: str) -> None:
        self._storage = storage
        self.by = by[:MOST_CHARS]

    @classmethod
    async def of(cls, storage: DurableStorage) -> Journal:
        """Return the journal of who acts here.

        That is the identity of the AWS credentials, or else the user of this machine.
        """
        return cls(storage, await _person(storage))

    async def begin(
        self, act: str, *, scope: str = "", task_id: str = "", which: str = ""
    ) -> Entry:
        """Note that an act begins.

        Raises:
            UnavailableError: no answer within the retry budget; the act must not begin.
        """
        at = self._storage.clock.now_ms()
        entry = Entry(
            key=layout.act_key(at, new_token()),
            at=at,
            by=self.by,
            act=act,
            scope=scope,
            task_id=task_id,
            which=which[:MOST_CHARS],
        )
        values = {name: getattr(entry, name) for name in _FORMS if getattr(entry, name)}
        if task_id:
            values |= layout.act_owner(scope, task_id, at)
        expires = {"expires_at": at // 1000 + KEPT_S}
        await self._storage.table.write(Put(item={**entry.key._asdict(), **values, **expires}))
        return entry

    async def end(self, entry: Entry, outcome: str) -> None:
        """Note how an act has ended, if its entry was not deleted meanwhile."""
        ended = {"outcome": outcome[:MOST_CHARS], "ended_at": self._storage.clock.now_ms()}
        await self._storage.table.did(Update(key=entry.key, values=ended, when=[STORED]))

    async def forget(self, entry: Entry) -> None:
        """Take back an entry about a task that has gone meanwhile: its caller may be deleted."""
        await self._storage.table.delete([entry.key])


async def newest(
    storage: DurableStorage, *, limit: int, before: str = "", since_ms: int = 0
) -> list[Entry]:
    """Return the newest acts, of all persons; `before` is the SK of the last one of a page before.

    Raises:
        InvalidArgumentError: `before` is the place of no act.
        UnavailableError: no answer within the retry budget.
    """
    if before and not _PLACE.fullmatch(before):
        raise InvalidArgumentError("This is no place in the journal: look at its first page.")
    wanted = Range(
        partition=layout.JOURNAL,
        first=layout.act_key(since_ms, "").SK,
        last=before or None,
        newest_first=True,
        when=[Check("expires_at", ">", now_s(storage.clock))],
    )
    found = await storage.table.first(limit, wanted, lambda item: item["SK"] != before)
    return [_entry(item) for item in found]


async def about(storage: DurableStorage, scope: str, task_id: str, *, limit: int) -> list[Entry]:
    """Return the newest acts on a task, the newest first; the index lags behind a little.

    Raises:
        UnavailableError: no answer within the retry budget.
    """
    first, last = layout.acts_on(scope, task_id)
    partition = layout.scope_key(scope, layout.shard_of(task_id))
    wanted = Range(
        partition=partition, index=layout.BY_SCOPE, first=first, last=last, newest_first=True
    )
    keys = [key_of(item) for item in await storage.table.first(limit, wanted)]
    loaded = await storage.table.load(keys) if keys else {}
    at_s = now_s(storage.clock)
    live = [item for item in loaded.values() if item and item.get("expires_at", 0) > at_s]
    return sorted(map(_entry, live), key=lambda one: one.key, reverse=True)


def _entry(item: Item) -> Entry:
    """Return the act that an item holds; what is damaged counts as missing."""
    values = {name: item[name] for name, form in _FORMS.items() if isinstance(item.get(name), form)}
    return Entry(key=key_of(item), **values)
