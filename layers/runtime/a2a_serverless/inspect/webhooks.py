"""The webhooks of a task as its items tell of them: how far each is, and since when it fails. Pure.

Each attempt at a delivery, with its answer, is in the logs of PushFunction alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.push import Push


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A push configuration and its delivery cursor, without its secrets."""

    config_id: str
    receiver: str
    """Scheme and host of its URL: path and query may hold a secret."""
    version: int
    """The commit of the last event that was delivered or given up."""
    failures: int
    """Attempts at the next event that have failed."""
    failing_since: int | None
    """Milliseconds since the epoch; None: the last attempt has worked, or there was none."""
    refusals: int
    """Events that the receiver has refused since one that it took."""
    is_given_up: bool
    """Its URL has refused so many that it is called no more."""
    owed: int
    """Changes of the status after `version`, which it is owed if it asked for all of them."""

    @property
    def is_failing(self) -> bool:
        """Return True if an event is tried again."""
        return self.failing_since is not None and not self.is_given_up


def webhooks_of(pushes: Iterable[Push], records: Iterable[Record]) -> tuple[Webhook, ...]:
    """Return the webhooks of a task whose commits are `records`, in the order of `pushes`."""
    changes = [
        record.version
        for record in records
        for entry in record.entries
        if isinstance(entry, StatusChanged)
    ]
    return tuple(
        Webhook(
            config_id=push.config.id,
            receiver=_receiver(push.config.url),
            version=push.version,
            failures=push.failures,
            failing_since=push.failing_since,
            refusals=push.refusals,
            is_given_up=push.is_given_up,
            owed=sum(version > push.version for version in changes),
        )
        for push in pushes
    )


def _receiver(url: str) -> str:
    """Return scheme, host and port of a URL; what it has of credentials is left out."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that cannot be read"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
