"""What can be read of a task that may be damaged, for a person."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from a2a.types import TaskState

from a2a_serverless.clock import pause_s
from a2a_serverless.storage.codec import (
    EVENT_FORMS,
    HEAD_FORMS,
    REQUIRED,
    Commits,
    Forms,
    head_of,
    is_live,
    misfits_of,
)
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import EVENTS, HEAD, event_position, event_sort
from a2a_serverless.storage.table import Item
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import is_task_id
from a2a_serverless_tools.inspect.survey import Survey

_SURVEYS: Final = 4
"""How often a task is surveyed before what cannot be read counts as damage."""

_FIELDS: Final = {"status_key": "status_at", "created_key": "created_at"}
"""Names of HEAD's fields, where they are not the attribute's."""
_PLACEHOLDERS: Final[Mapping[str, str | int]] = {
    **{name: form() for name, form in REQUIRED.items()},
    "state": "TASK_STATE_UNSPECIFIED",
    "status_key": "0#",
    "created_key": "0#",
}
_TIME_KEY: Final = re.compile(r"(?:[\w-]*#)?\d{1,15}#.*", re.DOTALL)


async def survey_task(
    storage: DurableStorage, task_id: str, known: Survey | None = None
) -> Survey | None:
    """Return a task as far as it can be read; None when it does not exist or has expired.

    Unlike for `read`, damage is no error. `known` is an earlier survey of the task: if all of it
    could be read, and the task is still the same, only what was committed since is read.
    """
    if not is_task_id(task_id):
        return None
    known = None if known is None or known.unreadable else known
    attempt = 1
    while True:
        start = EVENTS if known is None else _behind(known.head)
        found = await storage.items_of(task_id, start)
        if known is not None and not _goes_on(known.head, found):
            known = None
            continue
        seen = _survey_of(found, known.records if known else ())
        if seen is None or not is_live(found[-1], storage.clock.now_ms()):
            return None
        if not seen.unreadable or attempt == _SURVEYS:
            return replace(seen, pushes=tuple(await storage.webhooks.surveyed(seen.head)))
        # A Query beside a transaction may see half of it: only what stays wrong is damage.
        await storage.clock.sleep(pause_s(attempt))
        attempt += 1


def _behind(head: Head) -> str:
    """Return the sort key behind the commits up to HEAD's version."""
    return event_sort(head.incarnation, head.version + 1)


def _goes_on(known: Head, found: Sequence[Item]) -> bool:
    """Return True if a task's items end with the HEAD that is known or with a later one of it.

    It is also true without any HEAD: the task is gone.
    """
    if not found or found[-1]["SK"] != HEAD:
        return True
    version = found[-1].get("version")
    is_same = found[-1].get("incarnation") == known.incarnation
    return is_same and isinstance(version, int) and version >= known.version


def _survey_of(found: Sequence[Item], known: tuple[Record, ...] = ()) -> Survey | None:
    """Return what a task's items say; None without a HEAD.

    `found` has the task's EVENT items in the order of their keys, and HEAD as the last one. It
    may lack those in `known`.
    """
    if not found or found[-1]["SK"] != HEAD:
        return None
    item, clauses = _readable(found[-1], HEAD_FORMS, "HEAD")
    absent = [name for name in REQUIRED if name not in item]
    if lacking := [name for name in absent if name not in found[-1]]:
        clauses.append(f"HEAD has no {' and no '.join(lacking)}")
    missing = {_FIELDS.get(name, name) for name in {*absent, *(found[-1].keys() - item.keys())}}
    state = item.get("state")
    if state is not None and state not in TaskState.keys():  # noqa: SIM118 - an enum of protobuf, no mapping
        clauses.append(f"HEAD has the state {state or repr('')}, which this release does not know")
        missing.add("state")
    head = head_of({name: _PLACEHOLDERS[name] for name in absent} | item)
    version = None if "version" in missing else head.version
    incarnation = head.incarnation
    if "incarnation" in missing:
        incarnation = _only_incarnation(found)
        if not incarnation:
            clauses.append("the commits cannot be told from those of an earlier task with the id")
            version = None
    records, damage = _records(found, incarnation, version, len(known))
    return Survey(
        head=head,
        records=(*known, *records),
        missing=frozenset(missing),
        unreadable=(*clauses, *(clause for _, clause in damage)),
        damage=damage,
    )


def _readable(item: Item, forms: Forms, name: str) -> tuple[Item, list[str]]:
    """Return an item without the attributes of a form that no release writes; a clause for each."""
    bad = misfits_of(item, forms)
    times = _FIELDS.keys() & forms.keys() & item.keys()
    bad |= {attr for attr in times if not _TIME_KEY.fullmatch(str(item[attr]))}
    clauses = [f"{name} has a value in {attr} that no release writes" for attr in sorted(bad)]
    return {attr: value for attr, value in item.items() if attr not in bad}, clauses


def _only_incarnation(found: Iterable[Item]) -> str:
    """Return the incarnation of all commits; empty if they have several, or there are none."""
    places = (event_position(item["SK"]) for item in found)
    incarnations = {place[0] for place in places if place is not None}
    return incarnations.pop() if len(incarnations) == 1 else ""


def _records(
    found: Iterable[Item], incarnation: str, newest: int | None, after: int
) -> tuple[tuple[Record, ...], tuple[tuple[int, str], ...]]:
    """Return the commits of an incarnation that can be read, and a clause for each other one.

    `newest` is HEAD's version: later commits were made after HEAD was read, and are left out. None:
    all commits are returned. Those up to version `after` are known.
    """
    parts: defaultdict[int, list[Item]] = defaultdict(list)
    for item in found:
        place = event_position(item["SK"])
        if place is not None and place[0] == incarnation and (newest is None or place[1] <= newest):
            parts[place[1]].append(item)
    records: list[Record] = []
    damage: list[tuple[int, str]] = []
    expected = after + 1
    for version, items in sorted(parts.items()):
        if version > expected:
            damage.append((expected, _not_there(expected, version - 1)))
        expected = version + 1
        commits = Commits(incarnation, version - 1)
        for item in items:
            readable, bad = _readable(item, EVENT_FORMS, f"version {version}")
            damage += [(version, clause) for clause in bad]
            commits.add([readable])
        records += commits.records
        if not commits.records:
            damage.append((version, f"version {version} is stored in part"))
    if newest is not None and newest >= expected:
        damage.append((expected, _not_there(expected, newest)))
    return tuple(records), tuple(damage)


def _not_there(first: int, last: int) -> str:
    if first == last:
        return f"version {first} is not there"
    return f"versions {first} to {last} are not there"
