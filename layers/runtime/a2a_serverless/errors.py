"""Every error that the runtime raises, named for what its caller has to decide.

    A2AServerlessError
    ├── ConfigurationError            fix the deployment: the start stops with one sentence
    ├── InvalidArgumentError          fix the call: nothing was read or written
    │   ├── PageTokenError
    │   ├── CommitTooLargeError
    │   ├── StateTooLargeError        keep less of the conversation, or begin another one
    │   └── UndecodableMessageError   keep the message elsewhere: no consumer can read it
    ├── AnswerTooLargeError           ask for less of the task, or for the task alone
    ├── TaskNotFoundError             the task does not exist in this scope (or has expired)
    ├── TaskTerminalStateError        the task has ended: no transition is possible any more
    ├── TaskNotAcceptingMessagesError the task is busy: wait until it asks
    ├── TaskNotCancelableError        the task has ended: there is nothing to cancel
    ├── ContextMismatchError          the message names another context than its task
    ├── IdempotencyConflictError      the key was used for another message
    ├── RepeatedKeyError              the key has opened a turn already: go on with that turn
    ├── UnsupportedOperationError     the operation makes no sense in this state
    │   ├── ConversationFullError     too many messages wait: send it when one has been answered
    │   ├── BeingDeletedError         all that the caller has is being deleted: send it afterwards
    │   ├── SleepersFullError         too many turns of the caller sleep: cancel one, or wait
    │   └── WebhooksFullError         the caller has too many webhooks: delete one, or wait
    ├── ConcurrencyError              another writer was first: reload, decide again
    │   └── FencedError               another attempt owns the turn: stop, write nothing
    ├── ConditionFailedError          another item is stored: nothing was written
    ├── TurnFinishedError             the turn is over: acknowledge, do nothing
    ├── InvalidAgentEventError        the agent's fault: the task fails
    ├── NewerReleaseError             leave the task to the newer release that wrote it
    ├── UnreadableTaskError           a stored item is damaged: show the others
    └── UnavailableError              AWS did not answer in time: try again later
        └── FullGroupError            a queue's group holds too many messages

The names of the storage errors are those of the a2akit Storage contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final


class A2AServerlessError(Exception):
    """Base of all errors of the runtime; the message defaults to the class docstring."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").split("\n", 1)[0])


class ConfigurationError(A2AServerlessError):
    """The deployment is not usable; the message is one sentence that names the missing piece."""


class InvalidArgumentError(A2AServerlessError, ValueError):
    """The call's arguments are outside of what the contract allows.

    `field` is the one that is wrong, in the names of A2A's JSON; empty if it is not a field.
    """

    def __init__(self, message: str | None = None, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class PageTokenError(InvalidArgumentError):
    """The page token is not one of this query's: ask for its first page, without a page token."""

    def __init__(self) -> None:
        super().__init__(field="pageToken")


class CommitTooLargeError(InvalidArgumentError):
    """One commit holds more than a DynamoDB transaction takes (4 MB).

    `advice` says what is large, and what to do.
    """

    def __init__(self, size: int, limit: int, advice: str) -> None:
        super().__init__(f"A commit of {size} bytes exceeds the limit of {limit} bytes: {advice}.")
        self.size = size
        self.limit = limit


class StateTooLargeError(InvalidArgumentError):
    """The state of a conversation is larger than what can be kept."""

    LIMIT: Final = 340_000
    """What one item holds, in bytes: of JSON, compressed if it is long."""
    LIMIT_OFFLOADED: Final = 50_000_000
    """The longest state where there is a store of blobs, in bytes of JSON."""
    LIMIT_IN_LOG: Final = 2_000_000
    """The longest one where there is none: a commit has it with the record of a step."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        super().__init__(
            f"The state of this conversation would have {size} bytes, and {limit} can be kept:"
            " begin another conversation, or have the agent keep less of each."
        )


class UndecodableMessageError(InvalidArgumentError):
    """The message is not one of this release; it stays unreadable however often it comes.

    The text names the fault, but quotes nothing of the message's content.
    """


class AnswerTooLargeError(A2AServerlessError):
    """One task is larger than an answer in one piece may be.

    `advice` says what to ask for instead.
    """

    def __init__(self, task_id: str, advice: str | None = None) -> None:
        advice = advice or (
            "list this page again without artifacts, with a smaller history length and a page size"
            " of 1, and get the task by its id"
        )
        super().__init__(f"Task {task_id} alone is larger than an answer may be: {advice}.")


class TaskNotFoundError(A2AServerlessError):
    """Task not found"""  # noqa: D415 - the words of A2A 0.3, section 8.2, for which clients look


class TaskTerminalStateError(A2AServerlessError):
    """The task is in a terminal state."""


class TaskNotAcceptingMessagesError(A2AServerlessError):
    """The task is not in a state that accepts a message."""


class TaskNotCancelableError(A2AServerlessError):
    """The task is in a terminal state and cannot be canceled."""


class ContextMismatchError(A2AServerlessError):
    """The message's contextId is not that of its task."""

    field = "message.contextId"


class IdempotencyConflictError(A2AServerlessError):
    """The idempotency key was used before with a different message."""


class RepeatedKeyError(A2AServerlessError):
    """A message with this idempotency key has opened a turn of the task already."""

    def __init__(self, turn: int) -> None:
        super().__init__()
        self.turn = turn


class UnsupportedOperationError(A2AServerlessError):
    """The operation is not supported in the task's current state."""


class ConversationFullError(UnsupportedOperationError):
    """50 messages wait in this conversation: send it when one has been answered."""


class BeingDeletedError(UnsupportedOperationError):
    """What the message would belong to is being deleted."""

    def __init__(self, wait_s: int) -> None:
        super().__init__(
            "The operator is deleting what this message would belong to, and nothing of it was"
            f" kept: send it again later, after at most {wait_s} seconds."
        )


class SleepersFullError(UnsupportedOperationError):
    """As many turns of the caller sleep as may."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"{most} of your tasks sleep, and no more may: cancel one (CancelTask), or send the"
            " message again when one has gone on."
        )


class WebhooksFullError(UnsupportedOperationError):
    """The caller has as many open webhooks as it may have."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"You have {most} open webhooks, and may have no more: delete one"
            " (DeleteTaskPushNotificationConfig), or wait until a task has ended and its webhooks"
            " were told."
        )


class ConcurrencyError(A2AServerlessError):
    """The stored version is not the expected one; `current_version` is what is stored."""

    def __init__(self, message: str | None = None, *, current_version: int | None = None) -> None:
        super().__init__(message)
        self.current_version = current_version


class FencedError(ConcurrencyError):
    """Another attempt owns the turn; this one must stop and write nothing more."""


class ConditionFailedError(A2AServerlessError):
    """A condition of a conditional write was not met, so nothing was written.

    `items` has the items as they were, by the place of their write in the request (0 for a single
    one); None if there is no item.
    """

    def __init__(self, items: Mapping[int, dict[str, Any] | None]) -> None:
        super().__init__()
        self.items = items


class TurnFinishedError(A2AServerlessError):
    """The turn is finished; a delivery of it has nothing left to do."""


class InvalidAgentEventError(A2AServerlessError):
    """The agent emitted something that no A2A task can hold.

    The client reads the message. `place` is the author's line, for the log alone; empty: unknown.
    """

    def __init__(self, message: str | None = None, *, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class NewerReleaseError(A2AServerlessError):
    """The task was written by a newer release of this service; this one can only read it."""


class UnreadableTaskError(A2AServerlessError):
    """A stored item is damaged, or of a format that is not read; the message names its key."""


class UnavailableError(A2AServerlessError):
    """A backend did not answer within the retry budget; the caller may try again later."""


class FullGroupError(UnavailableError):
    """A group of a queue holds all the messages that it can hold; later it takes more."""
