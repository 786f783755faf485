"""Wakes: the messages that have a configuration's receiver told of what he is owed.

A wake carries ids only. What is sent is read from the task's log when the wake is delivered, from
the configuration's own cursor on; so a wake may come late, twice, or after its work was done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from a2a_serverless.errors import UndecodableOperationError
from a2a_serverless.tasks.identity import digest


class PushWake(BaseModel):
    """There is something to tell: the task has been committed up to `version` at least.

    `incarnation` tells the task from a later one with the same id. `trace` holds the trace headers
    of whoever committed.
    """

    model_config = ConfigDict(frozen=True)

    scope: str = Field(min_length=1, max_length=64)
    task_id: str = Field(min_length=1, max_length=100)
    incarnation: str = Field(min_length=1, max_length=64)
    config_id: str = Field(min_length=1, max_length=100)
    version: int = Field(ge=1)
    trace: dict[str, str] = Field(default_factory=dict)

    @property
    def group(self) -> str:
        """The FIFO message group: one per configuration, so that a slow receiver delays himself."""
        return digest("push-group", *self._names)

    @property
    def deduplication_id(self) -> str:
        """Equal for wakes of one commit: SQS drops a repetition within 5 minutes."""
        return digest("push-wake", *self._names, str(self.version))

    @property
    def _names(self) -> tuple[str, ...]:
        return self.scope, self.task_id, self.incarnation, self.config_id


class PushLetter(BaseModel):
    """An event that a receiver was not told of, as the dead letter queue has it: no content."""

    model_config = ConfigDict(frozen=True)

    wake: PushWake
    event_id: str
    version: int
    """The event's commit."""
    index: int
    """The event's place among those of its commit."""
    reason: str
    attempts: int
    failing_since: int | None
    """Milliseconds since the epoch; None: the receiver answered before."""

    @property
    def deduplication_id(self) -> str:
        return digest("push-letter", self.event_id)


class WakeHandle(ABC):
    """One delivery of a wake: acknowledge it, or give it back."""

    def __init__(self, wake: PushWake, *, attempt: int) -> None:
        self.wake = wake
        self.attempt = attempt
        """How often the wake was delivered, from 1."""

    @abstractmethod
    async def ack(self) -> None:
        """Remove the wake; of an expired delivery nothing is removed."""

    @abstractmethod
    async def nack(self, *, delay_s: float) -> None:
        """Give the wake back: it, and what is behind it, comes after `delay_s` at the earliest.

        Raises:
            UnavailableError: no answer within the retry budget; the visibility gives it back.
        """


class PushQueue(ABC):
    """A queue of wakes with one group per configuration, and a place for what was given up.

    Every method raises:
        UnavailableError: no answer within the retry budget.
        ConfigurationError: the queue does not exist, or refuses this process.
    """

    async def check(self) -> None:  # noqa: B027 - nothing is to be checked where nothing is far
        """Make sure that the queues exist."""

    @abstractmethod
    async def send(self, wake: PushWake) -> None:
        """Enqueue a wake."""

    @abstractmethod
    async def bury(self, letter: PushLetter) -> None:
        """Keep the record of an event that was given up, where somebody may look for it."""

    @abstractmethod
    async def set_aside(self, record: Mapping[str, Any]) -> bool:
        """Copy a record that is no wake to the same place; False when there is none."""

    @abstractmethod
    def decode_record(self, record: Mapping[str, Any]) -> WakeHandle:
        """The delivery behind a record of an SQS event, which deletes what is not reported failed.

        Raises:
            UndecodableOperationError: the record does not hold a wake.
        """


def decode_wake(body: object) -> PushWake:
    """The wake behind a message's body.

    Raises:
        UndecodableOperationError: it is none; the text repeats nothing of it.
    """
    if not isinstance(body, str):
        msg = "The message has no text body."
        raise UndecodableOperationError(msg)
    try:
        return PushWake.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "body"
        msg = f"The message is no wake: {field}: {first['type']}."
        raise UndecodableOperationError(msg) from None
