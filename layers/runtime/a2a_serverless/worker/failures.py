"""The failures of an agent and of an attempt, and going on after one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

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


MOST_REASON = 200
"""The most characters of a reason that are stored and shown."""
MOST_CLIENT_TEXT = 1000
"""The most characters of a final exception's text for the client."""
MOST_WAIT_S = 1e10
"""The most seconds of a wait that is asked for."""
_SHOWN = 60
"""The most characters of a wrong argument that are shown."""


class FinalError(Exception):
    """Raised by an agent: trying again cannot help, so the task fails at once.

    An exception class of your own does the same with the attribute `final = True`. One such
    exception in an exception group is enough.

    Args:
        message: goes to the log.
        client_text: the reason that the client reads; without it the client gets a fixed sentence.
    """

    final = True
    client_text = ""

    def __init__(self, message: str = "", *, client_text: str = "") -> None:
        super().__init__(message or client_text)
        self.client_text = sayable(client_text, MOST_CLIENT_TEXT)


class RetryLater(Exception):  # noqa: N818 - it reads as what the agent wants
    """Raised by an agent: start the turn again later, because what it needs is not there yet.

    It uses up no attempt, and no worker waits meanwhile. The turn is started at most ten times in
    all, and all its waits together are at most `RetryMinutes`; beyond that its task fails.

    Args:
        after_s: the least seconds until the next start. The wait is longer if the turn's growing
            back-off is.
        reason: what the turn waits for, in a few words; the client and the operator read it.

    Raises:
        WrongCallError: `after_s` is no number from 0 on, or `reason` is no text.
    """

    def __init__(self, after_s: float, reason: str = "") -> None:
        given: Any = after_s
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not (is_number and 0 <= given <= MOST_WAIT_S) or not isinstance(reason, str):
            raise WrongCallError(
                f"RetryLater({_short(after_s)}, {_short(reason)}): give the seconds to wait, a"
                " number from 0 on, and the reason as text: RetryLater(30, 'the index is built')."
            )
        self.after_s = float(after_s)
        self.reason = sayable(" ".join(reason.split()), MOST_REASON)
        super().__init__(f"again in {self.after_s:g} s: {self.reason or 'no reason given'}")


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


def sayable(text: str, most: int) -> str:
    """Return a text that can be stored: its first characters, without halves of characters."""
    return text[:most].encode(errors="replace").decode()


def _short(value: object) -> str:
    try:
        text = sayable(repr(value), _SHOWN + 1)
    except ValueError:  # a number with too many digits
        text = type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def is_final(error: BaseException | None) -> bool:
    """Return True if the exception says that no further attempt can succeed.

    In a group, such as a TaskGroup raises, one such exception is enough: it would come again.
    """
    if isinstance(error, BaseExceptionGroup) and any(map(is_final, error.exceptions)):
        return True
    return isinstance(error, REFUSALS) or bool(getattr(error, "final", False))


def client_text_of(error: BaseException | None) -> str:
    """Return what a final exception, or one of a group, says to the client; empty: nothing."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(client_text_of, error.exceptions)), "")
    return error.client_text if isinstance(error, FinalError) else ""


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
