"""Push configurations: the receiver of a task's events, its delivery cursor, what can be stored."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from a2a.types import (
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskStatusUpdateEvent,
)

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.tasks.entries import copied
from a2a_serverless.tasks.fold import LAST, Fold, Record, events_of
from a2a_serverless.tasks.head import RESTING, Attention, Head
from a2a_serverless.tasks.identity import Dialect, digest, is_task_id
from a2a_serverless.values import dataclass

PushEvents = Literal["ends", "statuses", "all"]
"""The events to push: interrupted and terminal states, all states, or artifacts too."""

Pushed: TypeAlias = TaskStatusUpdateEvent | TaskArtifactUpdateEvent

MAX_CONFIGS = 10
"""The most configurations of one task: every transition is delivered to each."""

MAX_REFUSALS: Final = 10
"""Notifications of one task that a URL may refuse in a row before the URL is given up."""

MAX_ANSWER_CHARS: Final = 200
"""The longest `Push.answer`, which says how an attempt ended; the rest is cut off."""

NO_CONSENT: Final = "no consent"
RECEIVER_FAILS: Final = "the receiver fails"
"""How `Push.answer` begins if the receiver was not called: why not."""

LONG_WAIT_MS: Final = 60_000
"""A wait from this one on is spent in the table, and a shorter one on the queue."""

CONFIG_ID_OF_0_1: Final = "a2a-0.1"
"""The id of the configuration of a client of A2A 0.1, where a task has one without an id."""

MAX_CONFIG_BYTES: Final = 16 * 1024
MAX_URL_BYTES: Final = 2048
MAX_TOKEN_BYTES: Final = 1024
MAX_SCHEME_BYTES: Final = 64
MAX_CREDENTIALS_BYTES: Final = 4096

_SCHEME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FIELD_VALUE = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """The events that a configuration's receiver is not told of: how many, and the last one."""

    count: int
    version: int
    """The last one's commit."""
    at: int
    """The time at which it was given up, in milliseconds since the epoch."""
    reason: str
    """How the last attempt at it ended, such as `status 503`."""
    behind: tuple[int, int]
    """The cursor before the first of them: the place from which they are sent again."""

    @property
    def attention(self) -> Attention:
        """Return why a person may have to look at the task."""
        return Attention(kind="untold", at=self.at, reason=self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """A push configuration of one incarnation of a task, and its delivery cursor.

    The receiver is owed the events after event `index` of commit `version`; the earlier ones were
    delivered, or given up. The cursor only moves forward, one settled event at a time. Each write
    replaces the configuration that was read as a whole, as with HEAD.
    """

    scope: str
    """Digest of the owner."""
    incarnation: str
    config: TaskPushNotificationConfig = field(repr=False)
    """With its id and its task's; token and credentials are in it. Not to be changed."""
    version: int
    index: int = LAST
    dialect: Dialect = "1.0"
    set_mark: int = field(default=0, compare=False)
    """Random, from when a client has set it until its receiver was told of a status; 0 afterwards,
    and if it came with a message."""
    failures: int = 0
    """Attempts at the next event that have failed."""
    failing_since: int | None = None
    """Time of the first failure since a success, in milliseconds; None: the last attempt worked."""
    refusals: int = 0
    """Events that the receiver has refused for good since the last one that it accepted."""
    answer: str = field(default="", compare=False)
    """How the last attempt ended, such as `status 503`; empty: none was made, or it is unknown."""
    answered_at: int | None = field(default=None, compare=False)
    """The time at which it ended, in milliseconds since the epoch."""
    next_at: int | None = field(default=None, compare=False)
    """The earliest time of the next attempt at the event that has failed; None: none waits."""
    told: int | None = field(default=None, compare=False)
    """The commit of the last event that the receiver has taken; None: it has taken none."""
    told_count: int = field(default=0, compare=False)
    """How many events it has taken."""
    given_up: GivenUp | None = field(default=None, compare=False)
    due_at: int | None = field(default=None, compare=False)
    """The time at which the sweeper sends its job; None: it does not wait in the table."""
    is_open: bool = field(default=True, compare=False)
    """False once its receiver was told of the task's end, or that was given up."""
    expires_at: int = field(default=0, compare=False)
    """That of its task."""
    mark: str = field(default="", compare=False, repr=False)
    """Names the write that has made it; the next write replaces it under this mark, or fails."""
    rest: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The attributes that only a newer release knows; each write keeps them."""
    url_refusals: int = field(default=0, compare=False)
    """The refusals of all the task's configurations that have this URL; `tallied` counts them."""

    @property
    def attention(self) -> Attention | None:
        """Return why a person may have to look: what was given up, or else what fails."""
        if self.given_up is not None:
            return self.given_up.attention
        if self.due_at is None or self.failing_since is None:
            return None
        host = urlsplit(self.config.url).hostname or ""
        return Attention(kind="owed", at=self.failing_since, reason=host)

    def answered(self, answer: str, at: int, *, next_at: int | None = None) -> Push:
        """Return the configuration with the outcome of an attempt, and the time of the next one.

        A wait of `LONG_WAIT_MS` or more is spent in the table, where the sweeper finds it.
        """
        due_at = next_at if next_at is not None and next_at - at >= LONG_WAIT_MS else None
        said = answer[:MAX_ANSWER_CHARS]
        return replace(self, answer=said, answered_at=at, next_at=next_at, due_at=due_at)

    def settled(self, event: tuple[int, int], answer: str, at: int, *, is_told: bool) -> Push:
        """Return the configuration behind an event, after the attempt that told it or gave it up.

        `event` is the event's commit, and its place among the commit's events.
        """
        version, index = event
        after = replace(self.answered(answer, at), version=version, index=index)
        if is_told:
            return replace(after, told=version, told_count=self.told_count + 1)
        lost = GivenUp(
            count=1 + (self.given_up.count if self.given_up else 0),
            version=version,
            at=at,
            reason=after.answer,
            behind=self.given_up.behind if self.given_up else self.cursor,
        )
        return replace(after, given_up=lost)

    @property
    def cursor(self) -> tuple[int, int]:
        """Return the place behind which the receiver is owed the events."""
        return self.version, self.index

    @property
    def may_redeliver(self) -> bool:
        """Return True if events were given up, or its URL is not called any more."""
        return self.given_up is not None or self.is_given_up

    def without_refusals(self) -> Push:
        """Return the configuration as if its receiver had neither failed nor refused."""
        return replace(self, failures=0, failing_since=None, refusals=0)

    def woken(self, at: int) -> Push:
        """Return the configuration open and due: the sweeper sends its job from `at` on."""
        return replace(self, due_at=at, is_open=True)

    def redelivered(self, events: Iterable[tuple[int, int]]) -> Push:
        """Return the configuration with its cursor before the first event that was given up.

        `events` are the places of all events that are pushed. What the receiver has taken since is
        sent again, too, in its order, and is not counted as told until then. Its failures and
        refusals are forgotten.
        """
        again = replace(self.without_refusals(), given_up=None)
        if self.given_up is None:
            return again
        version, index = behind = self.given_up.behind
        taken = sum(behind < event <= self.cursor for event in events) - self.given_up.count
        count = max(0, self.told_count - max(0, taken))
        return replace(again, version=version, index=index, told_count=count)

    def instead_of(self, old: Push | None, *, is_inline: bool = False) -> Push:
        """Return this configuration, as a client gives it, in the place of the one with its id.

        The receiver is owed what it was owed before, and its failures are forgotten. Its refusals
        too, unless it came with a message (`is_inline`): a client may send its configuration with
        each message, which must not reset the count for a URL that refuses.
        """
        if old is None:
            return self
        given = replace(
            old.without_refusals(),
            config=self.config,
            dialect=self.dialect,
            set_mark=self.set_mark,
            answer="",
            answered_at=None,
            next_at=None,
            is_open=True,
            rest={name: value for name, value in old.rest.items() if name != "dialect"},
        )
        return replace(given, refusals=old.refusals, set_mark=old.set_mark) if is_inline else given

    @property
    def is_given_up(self) -> bool:
        """Return True if its URL is not called any more, until the configuration is set again."""
        return self.url_refusals >= MAX_REFUSALS


def tallied(pushes: Iterable[Push]) -> list[Push]:
    """Return the configurations of one task, each with the refusals of its URL."""
    held = list(pushes)
    refused: Counter[str] = Counter()
    for push in held:
        refused[push.config.url] += push.refusals
    return [replace(push, url_refusals=refused[push.config.url]) for push in held]


def pushed(
    task_id: str, context_id: str, records: Sequence[Record], which: PushEvents
) -> Iterator[tuple[tuple[int, int], Pushed]]:
    """Yield the events of commits that `which` pushes, each with its place: commit and index.

    Artifacts that a restart shows again are among them if the commits begin with the first.
    """
    fold = Fold(task_id, context_id)
    is_whole = which == "all" and bool(records) and records[-1].version == len(records)
    for record in records:
        if is_whole:
            fold.add(record)
        for index, event in enumerate(events_of(record, fold)):
            if isinstance(event, Pushed) and _is_pushed(event, which):
                yield (record.version, index), event


def owed_events(
    push: Push, head: Head, events: Iterable[tuple[tuple[int, int], Pushed]]
) -> Iterator[tuple[tuple[int, int], Pushed | None]]:
    """Yield those of a task's pushed `events` that the receiver is owed; None: the state as it is.

    A client may come with its configuration after the last event of a task that has ended, or waits
    for it. Its receiver is told of that state, at a place behind all events (A2A 1.0.1, section
    4.3.3: at least one attempt for each webhook). A status that it is owed says the same.
    """
    place, knows_state = push.cursor, push.set_mark == 0 or head.state not in RESTING
    for at, event in events:
        if at > push.cursor:
            place, knows_state = at, knows_state or isinstance(event, TaskStatusUpdateEvent)
            yield at, event
    if not knows_state:
        version, index = place
        yield (version, max(index, LAST) + 1), None


def _is_pushed(event: Pushed, which: PushEvents) -> bool:
    if not isinstance(event, TaskStatusUpdateEvent):
        return which == "all"
    return which != "ends" or event.status.state in RESTING


def problems(config: TaskPushNotificationConfig) -> Iterator[tuple[str, str]]:
    """Yield the faults for which `config` cannot be stored or sent, as (JSON field, reason).

    Token, scheme and credentials go into header fields as they are, so they must be visible ASCII,
    with spaces only inside (RFC 9110, section 5.5). Whether the URL may be called is not decided
    here. No reason quotes a value: it may be a secret.
    """
    auth = config.authentication
    if config.id and not is_task_id(config.id):
        yield "id", "must have 1 to 100 characters of A-Z a-z 0-9 . _ : -"
    if not config.url:
        yield "url", "is missing"
    if _CONTROL.search(config.url):
        yield "url", "has control characters"
    if config.HasField("authentication") and not _SCHEME.fullmatch(auth.scheme):
        yield "authentication.scheme", "must be one word such as Bearer"
    for name, text, limit in (
        ("url", config.url, MAX_URL_BYTES),
        ("token", config.token, MAX_TOKEN_BYTES),
        ("authentication.scheme", auth.scheme, MAX_SCHEME_BYTES),
        ("authentication.credentials", auth.credentials, MAX_CREDENTIALS_BYTES),
    ):
        if len(text.encode()) > limit:
            yield name, f"has more than {limit} bytes"
    for name, text in (("token", config.token), ("authentication.credentials", auth.credentials)):
        if not _FIELD_VALUE.fullmatch(text):
            yield name, "has characters that no HTTP header field holds"


def checked(config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
    """Return a copy of `config`, if it can be stored and its texts can be sent.

    Raises:
        InvalidArgumentError: names the first of its `problems`.
    """
    for name, why in problems(config):
        raise InvalidArgumentError(f"The push configuration's {name} {why}.")
    if config.ByteSize() >= MAX_CONFIG_BYTES:
        raise InvalidArgumentError(
            f"A push configuration must have less than {MAX_CONFIG_BYTES} bytes."
        )
    return copied(config)


def inline_id(config: TaskPushNotificationConfig) -> str:
    """Return the id of a configuration that came with a message and has none.

    The id follows from the URL, so that a client that sends its configuration with every message
    of a task has one configuration, whose cursor goes on, and not a new one with each message.
    """
    return config.id or digest("push-inline", config.url)


def inline_push(config: TaskPushNotificationConfig, dialect: Dialect, head: Head) -> Push:
    """Return the configuration that comes with the commit to `head`, the first commit it is owed.

    Raises:
        InvalidArgumentError: it cannot be stored.
    """
    own = checked(config)
    own.id, own.task_id = inline_id(own), head.task_id
    return Push(
        scope=head.scope,
        incarnation=head.incarnation,
        config=own,
        dialect=dialect,
        version=head.version - 1,
        expires_at=head.expires_at,
    )


def check_room(held: Iterable[str], config_id: str) -> None:
    """Refuse a configuration `config_id` beside `MAX_CONFIGS` others; `held` are the task's ids."""
    others = sum(other != config_id for other in held)
    if others >= MAX_CONFIGS:
        raise InvalidArgumentError(f"A task may have at most {MAX_CONFIGS} push configurations.")
