"""Listing: a validated query, its place in the order, the end of a page, and its opaque token."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from a2a.types import Task, TaskState
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from a2a_serverless.errors import InvalidArgumentError, PageTokenError
from a2a_serverless.storage.layout import status_key
from a2a_serverless.tasks.head import KNOWN, Head
from a2a_serverless.tasks.identity import Scope, check_context_id, digest

MAX_PAGE_BYTES: Final = 4_000_000
"""The most stored bytes that are read for one page; a larger task is shown alone."""

MAX_TOTAL: Final = 2**31 - 1
"""The largest number that the protocol's `totalSize` holds."""

Fitting = Callable[[Sequence[Task]], int]
"""Returns how many of the first tasks fit into one answer."""

_PLACE = re.compile(r"[0-9]{15}#[A-Za-z0-9._:-]{1,100}")


class ListTasksQuery(BaseModel):
    """What to list; the filters AND together (A2A 1.0.1, section 3.1.4).

    `status_timestamp_after` is an ISO 8601 time and inclusive.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    context_id: str | None = None
    status: SkipValidation[TaskState | None] = None
    page_size: int = Field(default=50, ge=1, le=100, strict=True)
    page_token: str | None = None
    history_length: int | None = Field(default=None, ge=0, strict=True)
    status_timestamp_after: str | None = None
    include_artifacts: bool = False


class ListTasksResult(BaseModel):
    """One page, newest status first.

    `total_size` counts what matched before paging, as `DurableStorage.list_tasks` says.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    tasks: list[Task] = Field(default_factory=list)
    next_page_token: str = ""
    page_size: int = 50
    total_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The first HEADs that a listing asks for, and how many tasks its filters match."""

    heads: list[Head]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What one page asks for.

    `since` is the lowest status key, `before` an exclusive upper one (the place where the last
    page ended). `total_size` is known from the second page on.
    """

    context_id: str | None
    state: TaskState | None
    since: str
    before: str | None
    total_size: int | None
    fingerprint: str

    @classmethod
    def of(cls, query: ListTasksQuery, scope: Scope) -> Listing:
        """Check a query.

        Raises:
            InvalidArgumentError: an unknown state, an unreadable time, an oversized context id.
            PageTokenError: the token is not ours, or of another query.
        """
        if query.context_id is not None:
            check_context_id(query.context_id)
        if query.status is not None and query.status not in KNOWN:
            raise InvalidArgumentError(f"{query.status!r} is not a state of a task.")
        since_ms = _milliseconds(query.status_timestamp_after)
        fingerprint = digest(
            "listing", scope.digest, query.context_id or "", str(query.status), str(since_ms)
        )
        before, total = _read_token(query.page_token, fingerprint)
        return cls(
            context_id=query.context_id,
            state=query.status,
            since=status_key(since_ms, ""),
            before=before,
            total_size=total,
            fingerprint=fingerprint,
        )

    def token_after(self, last: Head, total: int) -> str:
        """Return the token of the page that follows `last`."""
        place = [status_key(last.status_at, last.task_id), total, self.fingerprint]
        return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")

    def matches(self, head: Head) -> bool:
        """Return True if a HEAD of this scope passes the filters; the cursor is not looked at."""
        in_context = self.context_id is None or head.context_id == self.context_id
        in_state = self.state is None or head.state == self.state
        return in_context and in_state and status_key(head.status_at, head.task_id) >= self.since

    def found(self, heads: Iterable[Head], limit: int) -> Found:
        """Return what a listing finds, given all HEADs of its scope or of its context."""
        every = list(heads)
        total = self.total_size
        if total is None:
            total = sum(map(self.matches, every))
        return Found(heads=self.page(every)[:limit], total=total)

    def page(self, heads: Iterable[Head]) -> list[Head]:
        """Return those of `heads` that belong behind the cursor, newest status first."""
        keyed = {status_key(head.status_at, head.task_id): head for head in heads}
        return [
            keyed[place]
            for place in sorted(keyed, reverse=True)
            if (self.before is None or place < self.before) and self.matches(keyed[place])
        ]


def needs_log(head: Head, query: ListTasksQuery) -> bool:
    """Return True if HEAD alone does not have what a query wants to see of its task."""
    is_short = query.history_length == 0 and not query.include_artifacts
    return not is_short or head.status is None or head.metadata is None


def affordable(heads: Sequence[Head], query: ListTasksQuery) -> list[Head]:
    """Return the first of `heads`, at least one, that are read with at most `MAX_PAGE_BYTES`."""
    size = 0
    taken: list[Head] = []
    for head in heads:
        size += head.size if needs_log(head, query) else 0
        if taken and size > MAX_PAGE_BYTES:
            break
        taken.append(head)
    return taken


def _read_token(token: str | None, fingerprint: str) -> tuple[str | None, int | None]:
    if not token:
        return None, None
    try:
        padded = token + "=" * (-len(token) % 4)
        before, total, made_for = json.loads(
            base64.b64decode(padded, altchars=b"-_", validate=True)
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise PageTokenError from error
    is_place = isinstance(before, str) and _PLACE.fullmatch(before) is not None
    is_total = type(total) is int and 0 <= total <= MAX_TOTAL  # True is an int, too
    if not is_place or not is_total or made_for != fingerprint:
        raise PageTokenError
    return before, total


def _milliseconds(timestamp: str | None) -> int:
    if not timestamp:
        return 0
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError as error:
        raise InvalidArgumentError("status_timestamp_after must be an ISO 8601 time.") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))
