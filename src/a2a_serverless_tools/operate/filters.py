"""Which tasks are meant: one value for lists, previews and acts, which is also a URL's query."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from a2a.types import TaskState

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.storage.layout import MAX_REASON, TROUBLES, WAIT_KINDS
from a2a_serverless.tasks.head import KNOWN, Head, Trouble, Wait, plain_state
from a2a_serverless.tasks.identity import Scope, check_context_id
from a2a_serverless_tools.operate.wording import NO_REASON, iso

STATES: Final[Mapping[str, TaskState]] = {plain_state(state): state for state in sorted(KNOWN)}
"""The states that a task can have, by their plain names."""

ATTENTIONS: Final[tuple[Trouble | Wait, ...]] = (*TROUBLES, *WAIT_KINDS)
"""What a task can need attention for."""

_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WORDS: Final = {"hour": "1h", "day": "1d", "week": "7d"}
_AGO: Final = re.compile(r"(\d{1,6})([smhd])")
SCOPE: Final = re.compile(r"[A-Za-z0-9_-]{32}")
"""The digest of an owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """A choice of tasks, as a person wrote it; an empty field chooses nothing.

    `since` and `until` are a time in ISO 8601, or so long ago. They are about the time of the
    status, or with `attention` about the time from which on the task has needed it.
    """

    user: str = ""
    tenant: str = ""
    scope: str = ""
    state: str = ""
    attention: str = ""
    """What the task needs attention for: one of `ATTENTIONS`."""
    reason: str = ""
    """The error of a failure, or what an open turn waits for; `NO_REASON`: none is known."""
    text: str = ""
    """A text, whatever its case. Caller, tenant, context, reason, holder or first line contains it,
    or the task's id begins with it, or it is the whole correlation id or scope."""
    context: str = ""
    since: str = ""
    until: str = ""
    created: str = ""
    """Since when the task was created, as `since`; it also ends a list of all owners."""

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> TaskFilter:
        """Return the filter in the query of a URL, the fields of a form, or arguments.

        Raises:
            InvalidArgumentError: a field's value chooses nothing.
        """
        given = cls(**{name: asked.get(name, "").strip() for name in cls.names()})
        for value, known, what in (
            (given.state, STATES, "no state"),
            (given.attention, ATTENTIONS, "nothing that needs attention"),
        ):
            if value and value not in known:
                choice = ", ".join(known)
                raise InvalidArgumentError(f"{value} is {what}: choose one of {choice}.")
        if given.scope and not SCOPE.fullmatch(given.scope):
            raise InvalidArgumentError(
                f"{given.scope} is no scope: it has 32 characters of A-Z a-z 0-9 _ -."
            )
        if given.tenant and not given.user:
            raise InvalidArgumentError("A tenant is part of a caller's name: name the caller, too.")
        if given.user and given.scope not in ("", given.owner):
            raise InvalidArgumentError(
                f"The scope {given.scope} is not that of {given.user}: leave one of both out."
            )
        if given.context:
            check_context_id(given.context)
        given.at(0)
        return given

    @classmethod
    def about(cls, text: str) -> TaskFilter:
        """Return the choice of an owner's tasks by the digest, or else of those with a text."""
        return cls(scope=text) if SCOPE.fullmatch(text) else cls(text=text)

    @classmethod
    def names(cls) -> Iterable[str]:
        """Return the names of the fields."""
        return cls.__dataclass_fields__

    @property
    def fields(self) -> dict[str, str]:
        """Return the fields that choose something."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def query(self) -> str:
        """Return the query of a URL that has this filter: the address of a view."""
        return urlencode(self.fields)

    @property
    def owner(self) -> str:
        """Return the digest of the owner; empty: of all owners."""
        return Scope.of(self.tenant, self.user).digest if self.user else self.scope

    @property
    def name(self) -> str:
        """Return the owner as a person knows it: the caller's name, or else the digest."""
        return self.user or self.scope

    @property
    def kind(self) -> str:
        """Return what its tasks need attention for, by whose index they are listed; empty: none.

        Failed and rejected tasks of all owners do, too.
        """
        is_trouble = not self.owner and self.state in TROUBLES
        return self.attention or (self.state if is_trouble else "")

    def bounded(self, now_ms: int) -> TaskFilter:
        """Return the same choice with fixed times, and an end of a list in the order of creation.

        Without `created` that is a day ago, or `since` if that is longer.
        """
        fixed, ago = self.at(now_ms), now_ms - _UNITS["d"]
        if self.owner or self.kind or self.created:
            return fixed
        return replace(fixed, created=iso(min(ago, fixed.since_ms or ago)) or "")

    def sentence(self) -> str:
        """Return the fields as words: `state failed, since 1h`; `all tasks` without any."""
        return ", ".join(f"{name} {value}" for name, value in self.fields.items()) or "all tasks"

    def at(self, now_ms: int) -> TaskFilter:
        """Return the same choice with times in place of what is so long ago.

        Raises:
            InvalidArgumentError: a time is none.
        """
        times = (self.since, self.until, self.created)
        since, until, created = (iso(_ms(text, now_ms)) or "" for text in times)
        return replace(self, since=since, until=until, created=created)

    @property
    def since_ms(self) -> int | None:
        """Return `since` of a filter with fixed times, in milliseconds; None: it has none."""
        return _ms(self.since)

    @property
    def until_ms(self) -> int | None:
        """Return `until`, as `since_ms`."""
        return _ms(self.until)

    @property
    def created_ms(self) -> int | None:
        """Return `created`, as `since_ms`."""
        return _ms(self.created)

    def has(self, head: Head, reason: str, at: int) -> bool:
        """Return True if a task is one of those, but for its text and why it needs attention.

        `at` is the time that `since` and `until` are about. The filter is one with times: see `at`.
        """
        wanted = "" if self.reason == NO_REASON else self.reason[:MAX_REASON]
        until = self.until_ms
        return (
            self.owner in ("", head.scope)
            and self.state in ("", plain_state(head.state))
            and self.context in ("", head.context_id)
            and (not self.reason or wanted == reason[:MAX_REASON])
            and at >= (self.since_ms or 0)
            and (until is None or at < until)
            and head.created_at >= (self.created_ms or 0)
        )


def _ms(text: str, now_ms: int = 0) -> int | None:
    """Return the time that a text means, in milliseconds since the epoch; None: it is empty.

    Raises:
        InvalidArgumentError: it is no time.
    """
    if not text:
        return None
    if match := _AGO.fullmatch(_WORDS.get(text, text)):
        return max(0, now_ms - int(match[1]) * _UNITS[match[2]])
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        msg = f"{text} is no time such as 30m, 1h, 7d, or 2026-11-27T08:00Z."
        raise InvalidArgumentError(msg) from None
    return max(0, round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))
