"""Which tasks are meant: one value for lists, previews and acts, which is also a URL's query."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.tasks.identity import Scope, check_context_id
from a2a_serverless_tools.operate.rows import ATTENTIONS, STATES, TaskQuery
from a2a_serverless_tools.operate.wording import NO_REASON, iso

_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WORDS: Final = {"hour": "1h", "day": "1d", "week": "7d"}
_AGO: Final = re.compile(r"(\d{1,6})([smhd])")
_SCOPE: Final = re.compile(r"[A-Za-z0-9_-]{32}")


def span_ms(text: str) -> int | None:
    """Return the milliseconds of a text such as `90s`, `30m`, `1h` or `7d`; None: it is none."""
    match = _AGO.fullmatch(_WORDS.get(text, text))
    return None if match is None else int(match[1]) * _UNITS[match[2]]


def is_scope(text: str) -> bool:
    """Return True if a text has the form of an owner's digest."""
    return _SCOPE.fullmatch(text) is not None


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
    """What caller, context, reason, holder, correlation id or first line contain, or the id begins
    with."""
    context: str = ""
    since: str = ""
    until: str = ""

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> TaskFilter:
        """Return the filter in the query of a URL, the fields of a form, or arguments.

        Raises:
            InvalidArgumentError: a field's value chooses nothing.
        """
        given = cls(**{name: asked.get(name, "").strip() for name in cls.names()})
        if given.state and given.state not in STATES:
            raise InvalidArgumentError(
                f"{given.state} is no state: choose one of {', '.join(STATES)}."
            )
        if given.attention and given.attention not in ATTENTIONS:
            raise InvalidArgumentError(
                f"{given.attention} is nothing that needs attention: choose one of"
                f" {', '.join(ATTENTIONS)}."
            )
        if given.scope and not is_scope(given.scope):
            raise InvalidArgumentError(
                f"{given.scope} is no scope: it has 32 characters of A-Z a-z 0-9 _ -."
            )
        if given.tenant and not given.user:
            raise InvalidArgumentError("A tenant is part of a caller's name: name the caller, too.")
        if given.context:
            check_context_id(given.context)
        for text in (given.since, given.until):
            _at(text, 0)
        return given

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

    def sentence(self) -> str:
        """Return the fields as words: `state failed, since 1h`; `all tasks` without any."""
        return ", ".join(f"{name} {value}" for name, value in self.fields.items()) or "all tasks"

    def at(self, now_ms: int) -> TaskFilter:
        """Return the same choice with times in place of what is so long ago."""
        since, until = (iso(_at(text, now_ms)) or "" for text in (self.since, self.until))
        return replace(self, since=since, until=until)

    def listed(self, now_ms: int, *, limit: int, token: str = "") -> TaskQuery:
        """Return the query of one page of a list of these tasks."""
        return TaskQuery(
            scope=self.owner or None,
            state=self.state or None,
            context_id=self.context or None,
            since_ms=_at(self.since, now_ms),
            until_ms=_at(self.until, now_ms),
            attention=next((one for one in ATTENTIONS if one == self.attention), None),
            reason="" if self.reason == NO_REASON else self.reason or None,
            text=self.text,
            limit=limit,
            token=token,
        )


def _at(text: str, now_ms: int) -> int | None:
    """Return the time that a text means, in milliseconds; None: it is empty.

    Raises:
        InvalidArgumentError: it is no time.
    """
    if not text:
        return None
    if (ago := span_ms(text)) is not None:
        return max(0, now_ms - ago)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        msg = f"{text} is no time such as 30m, 1h, 7d, or 2026-11-27T08:00Z."
        raise InvalidArgumentError(msg) from None
    return max(0, round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))
