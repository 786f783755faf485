"""The places of items: primary keys, and the keys of the indexes.

ARCHITECTURE.md has the table of items.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Literal, cast, get_args

from a2a_serverless.storage.table import Index, Key
from a2a_serverless.tasks.head import Attention, Trouble, Wait
from a2a_serverless.tasks.identity import PRINCIPAL_CHARS, Scope, digest

SHARDS = 4
"""Partitions of a scope's listing, of the hours and of the due index, each good for 1,000 writes a
second. A process takes the number from its settings (`A2A_SHARDS`). A larger one finds what was
written with a smaller one, and not the other way round."""
HOUR_MS: Final = 3_600_000
"""The milliseconds of an hour, by which indexes and counters are parted."""
LINES: Final = 4
"""Partitions of the line of those who wait for a share; a caller always waits in the same one."""

BY_SCOPE: Final = "by-scope"
BY_CONTEXT: Final = "by-context"
BY_DUE: Final = "by-due"
BY_ID: Final = "by-id"
BY_LINE: Final = "by-line"
BY_ATTENTION: Final = "by-attention"

INDEXES: Final[Mapping[str, Index]] = {
    BY_SCOPE: Index("scope_key", "status_key", frozenset({"state", "expires_at"})),
    BY_CONTEXT: Index("context_key", "status_key", frozenset({"state", "expires_at"})),
    BY_DUE: Index("due_key", "due_at", frozenset({"expires_at"})),
    BY_ID: Index("id_key", "created_key"),
    BY_LINE: Index("line_key", "line_at", frozenset({"due_at", "expires_at"})),
    BY_ATTENTION: Index("attention_key", "attention_at", frozenset({"incarnation", "expires_at"})),
}
"""The indexes of the table, as template.yaml has them.

An update of a stack adds one at a time, so that those of planned features are here too: without
entries they cost nothing. The page `indexes` names their users.
"""

HEAD: Final = "HEAD"
EVENTS: Final = "EVENT#"
CONTEXT: Final = "CONTEXT"
LINE: Final = "LINE"
PUSH: Final = "PUSH#"
PUSH_END: Final = "PUSH$"
"""Behind every push configuration; `HEAD` is before the first."""
SENT: Final = "SENT#"
GROUP: Final = "GROUP#"
FENCE: Final = "FENCE"
SLEEPERS: Final = "SLEEPERS#"
"""How the SK of a caller begins whose sleeping turns are counted; it is in the partition FENCE,
which each process reads that accepts messages."""
JOURNAL: Final = "JOURNAL"
"""The partition of what operators have done."""
ACT: Final = "ACT#"
WAITING: Final = "WAIT"
"""How the `line_key` of a turn that waits for a share of the workers begins."""
TROUBLE: Final = "TROUBLE"
WAITS: Final = "WAITS"
"""How each `attention_key` begins. There are half as many of them as `SHARDS`: few tasks have one,
and the first page asks for all."""
TROUBLES: Final[tuple[Trouble, ...]] = get_args(Trouble)
WAIT_KINDS: Final[tuple[Wait, ...]] = get_args(Wait)
MAX_REASON: Final = 100
"""The most characters of a reason in an index; the rest is cut off."""
WOKEN: Final = "WOKEN"
"""The `line_key` of the turns that have a share and that no attempt has taken yet."""


def task_partition(scope: str, task_id: str) -> str:
    """Return the PK of a task's items. `scope` is a digest: another scope has another key."""
    return f"TASK#{scope}#{task_id}"


def head_key(scope: str, task_id: str) -> Key:
    """Return the key of HEAD."""
    return Key(task_partition(scope, task_id), HEAD)


def owner_of(partition: str) -> tuple[str, str]:
    """Return scope digest and task id of a task's PK."""
    _, scope, task_id = partition.split("#", 2)
    return scope, task_id


def queue_partition(name: str) -> str:
    """Return the PK of a queue's groups, and their `due_key`."""
    return f"QUEUE#{name}"


def context_item(scope: str, context_id: str) -> Key:
    """Return the key of a context's item."""
    return Key(f"CONTEXT#{context_key(scope, context_id)}", CONTEXT)


def conversation_queue_key(scope: str, context_id: str) -> Key:
    """Return the key of the queue of a conversation's turns."""
    return context_item(scope, context_id)._replace(SK=LINE)


def context_owner(scope: str, context_id: str, sort: str = CONTEXT) -> dict[str, str]:
    """Return the attributes of a context's state or queue by which the index by scope finds it.

    Its place is before every task's of the scope: no listing reads it.
    """
    return {
        "scope_key": scope_key(scope, shard_of(context_id)),
        "status_key": in_scope(scope, f"{_BEFORE_TASKS}{sort}#{context_id}"),
    }


def context_in(entry: Mapping[str, Any]) -> str | None:
    """Return the context of an entry of the index by scope; None if the entry is a task's."""
    if not entry["PK"].startswith("CONTEXT#"):
        return None
    return place_in(entry).partition("#")[2]


def act_key(at_ms: int, mark: str) -> Key:
    """Return the key of an act of an operator in the journal, which is in the order of time."""
    return Key(JOURNAL, f"{ACT}{at_ms:015d}#{mark}")


def act_owner(scope: str, task_id: str, at_ms: int) -> dict[str, str]:
    """Return the attributes by which the index by scope finds an act on a task.

    Its place is before every task's of the scope, like that of a context.
    """
    return {
        "scope_key": scope_key(scope, shard_of(task_id)),
        "status_key": in_scope(scope, f"{_BEFORE_TASKS}{ACT}{task_id}#{at_ms:015d}"),
    }


def acts_on(scope: str, task_id: str) -> tuple[str, str]:
    """Return what every `status_key` of the acts on a task is between."""
    start = in_scope(scope, f"{_BEFORE_TASKS}{ACT}{task_id}")
    return f"{start}#", f"{start}$"


def barrier_item(owner: str, token: str) -> Key:
    """Return the key of the barrier that one deletion of what an owner has keeps up."""
    return Key(FENCE, f"{FENCE}#{owner}#{token}")


def barrier_owner(sort: str) -> str:
    """Return the owner in the SK of a barrier."""
    return sort.removeprefix(f"{FENCE}#").rpartition("#")[0]


def sleeper_item(principal: str) -> Key:
    """Return the key of the item that says that many turns of a caller sleep."""
    return Key(FENCE, f"{SLEEPERS}{principal}")


def owners_of(scope: str, context_id: str) -> list[str]:
    """Return the names of the barriers before a task: those of its principal, scope and context."""
    owners = [scope[:PRINCIPAL_CHARS], scope]
    return owners + [context_key(owner, context_id) for owner in owners]


_BEFORE_TASKS: Final = "!"
"""Sorts before the digits with which a task's place in its scope begins."""


@lru_cache(maxsize=1024)
def context_key(scope: str, context_id: str) -> str:
    """Return the key of the index by context: a digest, because clients may choose long ids."""
    return digest("context", scope, context_id)


def destination_key(kind: Literal["CONSENT", "HOST", "URL"], *names: str) -> Key:
    """Return the key of what is known of a destination of notifications: it is found by digest."""
    return Key(f"HOOK#{digest(f'destination {kind}', *names)}", kind)


def event_sort(incarnation: str, version: int, part: int | None = None) -> str:
    """Return the SK of a part of a commit; without `part` it sorts before all parts."""
    start = f"{EVENTS}{incarnation}#{version:012d}"
    return start if part is None else f"{start}#{part:03d}"


def event_position(sort: str) -> tuple[str, int, int] | None:
    """Return incarnation, version and part of an EVENT's SK; None if it is of another kind."""
    found = _EVENT.fullmatch(sort)
    return None if found is None else (found[1], int(found[2]), int(found[3]))


_EVENT: Final = re.compile(rf"{EVENTS}([^#]+)#(\d+)#(\d+)")


def incarnation_in(sort: str) -> str | None:
    """Return the incarnation in an SK of a task's items; None if it has none."""
    found = _OF_INCARNATION.match(sort)
    return None if found is None else found[1]


_OF_INCARNATION: Final = re.compile(rf"(?:{EVENTS}|{PUSH}|{SENT})([^#]+)#")


def sent_sort(incarnation: str, key_digest: str) -> str:
    """Return the SK of the item that says which turn a follow-up with this key has opened."""
    return f"{SENT}{incarnation}#{key_digest}"


def push_sort(incarnation: str, config_id: str) -> str:
    """Return the SK of a push configuration."""
    return f"{PUSH}{incarnation}#{config_id}"


def scope_key(scope: str, shard: int) -> str:
    """Return a key of the index by scope: the scopes of a principal share a partition."""
    return f"{scope[:PRINCIPAL_CHARS]}#{shard}"


def scope_keys(scope: str) -> list[str]:
    """Return keys of the index by scope, one for each shard."""
    return [scope_key(scope, shard) for shard in range(SHARDS)]


def in_scope(scope: str, place: str) -> str:
    """Return the `status_key` of a place in a scope, as `status_key` returns one."""
    return f"{scope[PRINCIPAL_CHARS:]}#{place}"


def place_in(entry: Mapping[str, Any]) -> str:
    """Return the place in its scope of an entry of the index by scope, or by context."""
    status_key: str = entry["status_key"]
    return status_key.partition("#")[2]


def task_in(place: str) -> str:
    """Return the task at a place in a scope."""
    return place.partition("#")[2]


def whole_scope(scope: str) -> tuple[str, str]:
    """Return what every `status_key` of a scope is between."""
    return in_scope(scope, ""), f"{Scope(scope).tenant}$"


def share_key(principal: str) -> str:
    """Return the `line_key` of the turns of a caller that an attempt has taken out of the line."""
    return f"SHARE#{principal}"


def asleep_key(principal: str) -> str:
    """Return the `line_key` of the turns of a caller that sleep."""
    return f"ASLEEP#{principal}"


def waiting_key(principal: str) -> str:
    """Return the `line_key` of the turns of a caller that wait for a share of the workers."""
    return waiting_keys()[zlib.crc32(principal.encode()) % LINES]


def waiting_keys() -> list[str]:
    """Return the `line_key` of each shard of the callers who wait."""
    return [f"{WAITING}#{shard}" for shard in range(LINES)]


def line_place(principal: str, at_ms: int, task_id: str) -> str:
    """Return the place of a turn in the line: its caller's turns stand together, by time."""
    return f"{principal}#{status_key(at_ms, task_id)}"


def principal_in(entry: Mapping[str, Any]) -> str:
    """Return the caller of an entry of the index by line."""
    line_at: str = entry["line_at"]
    return line_at.partition("#")[0]


def due_key(shard: int) -> str:
    """Return the due index's key of a shard."""
    return f"TURN#{shard}"


def push_due_key(shard: int) -> str:
    """Return the due index's key of the push configurations that wait."""
    return f"HOOKS#{shard}"


ATTENTION: Final = ("attention_key", "attention_at")
"""The attributes of an item that the index of what needs attention has."""


def attention_values(task_id: str, noted: Attention) -> dict[str, str]:
    """Return the attributes by which the index of what needs attention finds an item.

    What is over stands there by its time, and open turns by what they wait for, then by time.
    """
    shard = shard_of(task_id) // 2
    at, reason = status_key(noted.at, task_id), noted.reason[:MAX_REASON]
    if noted.kind in TROUBLES:
        place = f"{at}#{noted.kind}#{noted.correlation_id}#{reason}"
        return {"attention_key": f"{TROUBLE}#{shard}", "attention_at": place}
    return {"attention_key": f"{WAITS}#{shard}", "attention_at": f"{noted.kind}#{at}##{reason}"}


def attention_in(place: str) -> Attention | None:
    """Return what the place of an entry of that index says; None: no release writes such a one."""
    is_over = place[:1].isdecimal()
    names = (
        ("at", "task", "kind", "id", "reason")
        if is_over
        else ("kind", "at", "task", "id", "reason")
    )
    found = dict(zip(names, place.split("#", 4), strict=False))
    kinds: tuple[str, ...] = TROUBLES if is_over else WAIT_KINDS
    if len(found) < len(names) or found["kind"] not in kinds or not found["at"].isdecimal():
        return None
    return Attention(
        kind=cast("Trouble | Wait", found["kind"]),
        at=int(found["at"]),
        reason=found["reason"],
        correlation_id=found["id"],
    )


def attention_keys(kind: Literal["TROUBLE", "WAITS"]) -> list[str]:
    """Return the keys of that index: of all that is over, or of all open turns that wait."""
    return [f"{kind}#{shard}" for shard in range((SHARDS + 1) // 2)]


def open_webhook(scope: str, task_id: str, config_id: str) -> dict[str, str]:
    """Return the attributes by which the index by scope counts a caller's open webhooks.

    Their partition is none of those with the caller's tasks.
    """
    return {"scope_key": open_webhooks(scope), "status_key": f"{task_id}#{config_id}"}


def open_webhooks(scope: str) -> str:
    """Return the key of the index by scope of a caller's open webhooks, in all its tenants."""
    return f"HOOKS#{Scope(scope).principal}"


def tells_of_push(sort: str, item: Mapping[str, Any]) -> bool:
    """Return True if an item is a push configuration that was set, and not tried since."""
    return sort.startswith(PUSH) and "set_mark" in item and "answered_at" not in item


def push_names(sort: str) -> tuple[str, str]:
    """Return incarnation and id of a push configuration from its SK."""
    incarnation, _, config_id = sort.removeprefix(PUSH).partition("#")
    return incarnation, config_id


def id_key(task_id: str) -> str:
    """Return the index key under which a task of any scope is found by its id."""
    return f"ID#{task_id}"


def hour_key(at_ms: int, shard: int) -> str:
    """Return the index key of the tasks of one shard created in the hour of a time."""
    return f"HOUR#{hour_of(at_ms)}#{shard}"


def hour_of(at_ms: int) -> str:
    """Return the hour of a time in UTC, such as `2026-11-27T19`, as text that sorts correctly."""
    return _hour(at_ms // HOUR_MS)


@lru_cache(maxsize=64)
def _hour(number: int) -> str:
    return datetime.fromtimestamp(number * HOUR_MS / 1000, UTC).strftime("%Y-%m-%dT%H")


def status_key(status_at: int, task_id: str) -> str:
    """Return a task's place in listings, by status time, then id, as text that sorts correctly."""
    return f"{status_at:015d}#{task_id}"


def shard_of(task_id: str) -> int:
    """Return the shard of a task in every sharded index."""
    return zlib.crc32(task_id.encode()) % SHARDS
