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
"""The SDK's errors that refuse the request itself: the next attempt would be refused as well.

The SDK's other errors report a fault that may pass, mostly of another agent that this one calls.
"""


class FinalError(Exception):
    """Raised by an agent: trying again cannot help, so the task fails at once.

    An exception class of your own does the same with the attribute `final = True`. One such
    exception in an exception group is enough.
    """

    final = True


class WrongCallError(InvalidArgumentError, TypeError):
    """The agent has called its TaskContext with a value of the wrong type.

    The message spells out the right call. The next attempt would do the same, so the task fails.
    """

    final = True


class WrongMethodError(InvalidAgentEventError):
    """A method of the agent takes other arguments, is not `async`, or yields.

    The message has the right form.
    """


class AgentNotLoadedError(InvalidAgentEventError):
    """The agent of `dev` cannot be loaded: the turn fails, and its client reads why."""


class AgentFailedError(A2AServerlessError):
    """The agent raised; the cause is its exception."""


class StaleStateError(A2AServerlessError):
    """The conversation's state has changed since the turn loaded it: the turn has to start over.

    This is no ConcurrencyError: the attempt still owns the turn, and has to settle it.
    """


class DeadlineError(A2AServerlessError):
    """The invocation's time is running out."""


def is_final(error: BaseException | None) -> bool:
    """Return True if the exception says that no further attempt can succeed.

    In a group, such as a TaskGroup raises, one such exception is enough: it would come again.
    """
    if isinstance(error, BaseExceptionGroup) and any(map(is_final, error.exceptions)):
        return True
    return isinstance(error, REFUSALS) or bool(getattr(error, "final", False))


def comes_of_forgetting(error: BaseException) -> bool:
    """Return True for an error that arises when code uses a coroutine instead of its result."""
    return isinstance(error, TypeError | AttributeError) and "coroutine" in str(error)


def reason_of(error: BaseException) -> str:
    """Return the name of the error that ends an attempt; if it has a cause, the name of that."""
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
    """Log an exception of the block and go on after it, for loops and processes that must survive.

    `fields` are added to the line as they are when the exception comes.
    """
    try:
        yield
    except Exception:
        extra = {"action": action, **fields}
        # The line names the place of the block, not this one.
        log.log(level, text, extra=extra, exc_info=True, stacklevel=3)
