"""The webhooks of a task: how far each has got, and its deliveries from the logs. Pure.

An item only has the last attempt. The attempts before it are in the logs of PushFunction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.push import GivenUp, Push, PushEvents, owed_events, pushed
from a2a_serverless_tools.operate.lines import LogLine

_Result: TypeAlias = Literal["told", "failed", "given up"]

_RESULTS: Final[Mapping[str, _Result]] = {
    "push_delivered": "told",
    "push_failed": "failed",
    "push_given_up": "given up",
    "push_receiver_given_up": "given up",
}
"""The outcome of an attempt by the `action` of its line in the log."""


_AS_STORED: Final = (
    *("version", "told", "told_count", "given_up", "failures", "failing_since"),
    *("refusals", "is_given_up", "answer", "answered_at"),
)
"""What is shown of a push configuration as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLine:
    """One attempt to tell a receiver of an event, as a line of the log has it."""

    config_id: str
    at: int
    """The end of the attempt, in milliseconds since the epoch."""
    version: int
    """The commit of the event; 0: the line does not name it."""
    attempt: int
    """Its number at this event; 0: unknown."""
    result: _Result
    answer: str
    """How it ended, such as `status 503`."""
    wait_ms: int | None
    """The milliseconds until the next attempt; None if none follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A push configuration and its delivery cursor, without its secrets."""

    config_id: str
    receiver: str
    """Scheme, host and port of its URL, without path and query, which may hold a secret."""
    version: int = 0
    """The commit of the last event that was told or given up."""
    told: int | None = None
    """The commit of the last event that the receiver has taken; None: it has taken none."""
    told_count: int = 0
    """How many events it has taken."""
    given_up: GivenUp | None = None
    """The events that it is not told of any more; None: there are none."""
    owed: int = 0
    """Events that it is to be told of, and was not so far."""
    failures: int = 0
    """Attempts at the next event that have failed."""
    failing_since: int | None = None
    """The time of the first failure since the last success, in milliseconds since the epoch; None:
    the last attempt has succeeded, or there was none."""
    refusals: int = 0
    """Events that the receiver has refused since the last one that it accepted."""
    is_given_up: bool = False
    """True if its URL has refused so many events that it is not called any more."""
    answer: str
    """How the last attempt ended; empty: there was none, or it is lost."""
    answered_at: int | None
    """The time at which the last attempt ended, in milliseconds since the epoch."""
    next_at: int | None = None
    """The earliest time of the next attempt, if one waits."""
    is_gone: bool = False
    """True if only the logs have it, because the configuration was deleted."""
    deliveries: tuple[DeliveryLine, ...] = ()
    """Its attempts in order; empty also if no logs were read."""

    @property
    def is_failing(self) -> bool:
        """Return True if an event has failed and is tried again."""
        return self.failures > 0 and not self.is_given_up

    @property
    def is_bad(self) -> bool:
        """Return True if something of it went wrong, and was not made good."""
        return bool(self.failures or self.refusals or self.is_given_up or self.given_up)


def webhooks_of(
    pushes: Iterable[Push], head: Head, records: Sequence[Record], which: PushEvents
) -> tuple[Webhook, ...]:
    """Return the webhooks of a task with this HEAD and these commits, in the order of `pushes`.

    `which` are the events that the deployment pushes.
    """
    events = list(pushed("", "", records, which))
    return tuple(
        Webhook(
            config_id=push.config.id,
            receiver=_receiver(push.config.url),
            owed=sum(1 for _ in owed_events(push, head, events)),
            next_at=push.next_at if push.failing_since is not None else None,
            **{name: getattr(push, name) for name in _AS_STORED},
        )
        for push in pushes
    )


def with_deliveries(webhooks: Iterable[Webhook], lines: Iterable[LogLine]) -> tuple[Webhook, ...]:
    """Return webhooks with their deliveries; after them, those that only the logs have."""
    found: dict[str, list[DeliveryLine]] = {}
    for one in sorted(_deliveries(lines), key=lambda delivery: delivery.at):
        found.setdefault(one.config_id, []).append(one)
    known = [replace(one, deliveries=tuple(found.pop(one.config_id, ()))) for one in webhooks]
    gone = (
        Webhook(
            config_id=config_id,
            receiver="a deleted webhook",
            answer=deliveries[-1].answer,
            answered_at=deliveries[-1].at,
            is_gone=True,
            deliveries=tuple(deliveries),
        )
        for config_id, deliveries in sorted(found.items())
    )
    return (*known, *gone)


def _deliveries(lines: Iterable[LogLine]) -> Iterator[DeliveryLine]:
    """Yield the attempts that lines report; a field of another form counts as unknown."""
    for line in lines:
        fields = line.fields
        result = _RESULTS.get(str(fields.get("action")))
        config_id = fields.get("config_id")
        if result is None or not isinstance(config_id, str):
            continue
        wait_s = _number(fields.get("wait_s"))
        yield DeliveryLine(
            config_id=config_id,
            at=line.at,
            version=int(_number(fields.get("version")) or 0),
            attempt=int(_number(fields.get("attempt")) or 0),
            result=result,
            answer=str(fields.get("reason") or ""),
            wait_ms=None if wait_s is None else round(wait_s * 1000),
        )


def _number(value: object) -> float | None:
    """Return a number of a line, even if it is written as text; None if it is not a number."""
    try:
        number = float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and 0 <= number < _MOST else None


_MOST: Final = 2.0**53
"""Numbers from this one on count as unknown."""


def _receiver(url: str) -> str:
    """Return scheme, host and port of a URL, without credentials."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that cannot be read"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
