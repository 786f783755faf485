"""Push configurations: who is told of a task, and how far he has been told."""

from __future__ import annotations

from dataclasses import dataclass

from a2a.types import TaskPushNotificationConfig

from a2a_serverless.tasks.events import LAST

MAX_CONFIGS = 10
"""Push configurations of one task: every transition is delivered to each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """A push configuration of one incarnation of a task, and its delivery cursor.

    The receiver is owed the events behind event `index` of commit `version`; what is before has
    been delivered, or given up. The cursor only moves forward, one settled event at a time.
    """

    scope: str
    """Digest of the owner."""
    incarnation: str
    config: TaskPushNotificationConfig
    """With its id and its task's; token and credentials are in it. Not to be changed."""
    version: int
    index: int = LAST
    failures: int = 0
    """Attempts at the next event that have failed."""
    failing_since: int | None = None
    """When the receiver began to fail, in milliseconds; None: the last attempt reached it."""
