"""The failures of an agent and of an attempt, and going on after one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from a2a.utils import errors

from a2a_serverless.errors import (
    A2AServerlessError,
    InvalidAgentEventError,
    InvalidArgumentError,
)

REFUSALS = (
    errors.ContentTypeNotSupportedError,
    errors.ExtendedAgentCardNotConfiguredError,
    errors.ExtensionSupportRequiredError,
    errors.InvalidParamsError,
    errors.InvalidRequestError,
    errors.MethodNotFoundError,
    errors.PushNotificationNotSupportedError,
    errors.UnsupportedOperationError,
    errors.VersionNotSupportedError,
)
"""The SDK's errors that refuse the request itself: they would refuse the next attempt's, too.

The others report a fault that may pass, mostly of another agent that this one calls.
"""


class FinalError(Exception):
    """Raised by an agent: trying again cannot help, so the task fails at once.

    An exception class of your own does the same with the attribute `final = True`. In an exception
    group one of them is enough.
    """

    final = True


class WrongCallError(InvalidArgumentError, TypeError):
    """The agent has called its TaskContext with a value of the wrong type.

    The message spells out the right call. The next attempt would do the same, so the task fails.
    """

    final = True


class NotAsyncError(InvalidAgentEventError):
    """A method of the agent cannot be awaited: it is not `async`, or it yields."""


class AgentFailedError(A2AServerlessError):
    """The agent raised; the cause is its exception."""


class StaleStateError(A2AServerlessError):
    """The conversation's state is not the one that the turn has loaded: start over with it.

    Not a ConcurrencyError: the attempt still owns the turn, and has to settle it.
    """


class DeadlineError(A2AServerlessError):
    """The time of the invocation runs out."""


def is_final(error: BaseException | None) -> bool:
    """Return True if the exception says that no further attempt can succeed.

    In a group, such as a TaskGroup raises, one such exception is enough: it would come again.
    """
    if isinstance(error, BaseExceptionGroup) and any(map(is_final, error.exceptions)):
        return True
    return isinstance(error, REFUSALS) or bool(getattr(error, "final", False))


def comes_of_forgetting(error: BaseException) -> bool:
    """Return True for the error of code that uses a coroutine in place of what it gives."""
    return isinstance(error, TypeError | AttributeError) and "coroutine" in str(error)


def reason_of(error: BaseException) -> str:
    """Return the name of the error that ends an attempt: its cause's, such as the agent's own."""
    return type(error.__cause__ or error).__name__


@contextmanager
def going_on(
    log: logging.Logger,
    level: int,
    text: str,
    *,
    action: str,
    fields: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[None]:
    """Log an exception of the block and go on behind it, where a loop or a process must survive.

    `fields` are added to the line as they are when the exception comes.
    """
    try:
        yield
    except Exception:
        extra = {"action": action, **fields}
        # The line names the place of the block, not this one.
        log.log(level, text, extra=extra, exc_info=True, stacklevel=3)
