"""Jobs: the messages that start the delivery to a configuration's receiver.

A job carries ids only. The events are read from the task's log when the job is delivered, from the
configuration's own cursor on; so a job may come late, twice, or after its work was done.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from a2a_serverless.queues.fifo import FifoQueue
from a2a_serverless.storage.keys import KeyStore
from a2a_serverless.storage.leases import Slots
from a2a_serverless.tasks.identity import digest
from a2a_serverless.values import dataclass


class PushJob(BaseModel):
    """News for one receiver: the task has been committed up to `version` at least.

    `incarnation` tells the task from a later one with the same id. `wake` is the time at which a
    configuration was due that has waited in the table, or the mark of one that was set; 0: the job
    is that of a commit. `trace` holds the trace headers of the commit.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    scope: str = Field(min_length=1, max_length=64)
    task_id: str = Field(min_length=1, max_length=100)
    incarnation: str = Field(min_length=1, max_length=64)
    config_id: str = Field(min_length=1, max_length=100)
    version: int = Field(ge=1)
    wake: int = Field(default=0, exclude_if=lambda at: at == 0)
    trace: dict[str, str] = Field(default_factory=dict)

    @property
    def group(self) -> str:
        """Return the FIFO group: one per configuration, so that a slow receiver delays no other."""
        return digest("push-group", *self._names)

    @property
    def deduplication_id(self) -> str:
        """Return an id that jobs of one commit share: SQS drops a repetition within 5 minutes."""
        woken = [str(self.wake)] if self.wake else []
        return digest("push-wake", *self._names, str(self.version), *woken)

    @property
    def _names(self) -> tuple[str, ...]:
        return self.scope, self.task_id, self.incarnation, self.config_id


class PushDeadLetter(BaseModel):
    """An undelivered event, as the dead letter queue has it: without its content."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    job: PushJob
    event_id: str
    version: int
    """The event's commit."""
    index: int
    """The event's place among those of its commit."""
    reason: str
    attempts: int
    failing_since: int | None
    """Milliseconds since the epoch; None: the previous event was delivered."""

    @property
    def group(self) -> str:
        """Return the FIFO message group: that of the job."""
        return self.job.group

    @property
    def deduplication_id(self) -> str:
        """Return an id that dead letters about one event share."""
        return digest("push-letter", self.event_id)

    @property
    def task_id(self) -> str:
        """Return the event's task."""
        return self.job.task_id

    @property
    def trace(self) -> Mapping[str, str]:
        """Return no headers: nothing continues the trace of a dead letter."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PushBackends:
    """The queues, keys and limits of push; what it stores of webhooks is in the storage."""

    jobs: FifoQueue[PushJob]
    """One group per configuration."""
    dead_letters: FifoQueue[PushDeadLetter] | None = None
    """Events that were given up."""
    keys: KeyStore
    """Publishes the public keys."""
    slots: Slots | None = None
    """Limits how many slow requests run at once; None: no limit."""

    async def check(self) -> None:
        """Make sure that the queues exist.

        Raises:
            UnavailableError, ConfigurationError: one is missing, or does not answer.
        """
        await self.jobs.check()
        if self.dead_letters is not None:
            await self.dead_letters.check()

    async def dead_letter(self, record: PushDeadLetter) -> None:
        """Send the record of an event that was given up to its queue, for a person to find.

        Without that queue only the process's log has the event.

        Raises:
            UnavailableError, ConfigurationError: the queue did not take it.
        """
        if self.dead_letters is not None:
            await self.dead_letters.send(record)
