"""How an attempt fails, and what an agent may say about it."""

from __future__ import annotations

from a2a.utils import errors

from a2a_serverless.errors import A2AServerlessError

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
"""The SDK's errors that refuse a request for what it is: the next attempt's would be refused too.

Its others tell of a fault, mostly of another agent that this one calls, which may pass.
"""


class FinalError(Exception):
    """Raised by an agent: trying again cannot help, so the task fails at once.

    An exception class of your own does the same with the attribute `final = True`; so does one of
    them in an exception group, beside whatever else is in it.
    """

    final = True


class AgentFailedError(A2AServerlessError):
    """The agent raised; the cause is its exception."""


class StaleStateError(A2AServerlessError):
    """The conversation's state is not the one that the turn has loaded: start over with it.

    No ConcurrencyError: the turn is still this attempt's, which has to say what becomes of it.
    """


class DeadlineError(A2AServerlessError):
    """The time of the invocation runs out."""


def is_final(error: BaseException | None) -> bool:
    """Whether the exception says that no further attempt can succeed.

    In a group, as a TaskGroup raises it, one that says so is enough: it would come again.
    """
    if isinstance(error, BaseExceptionGroup) and any(map(is_final, error.exceptions)):
        return True
    return isinstance(error, REFUSALS) or bool(getattr(error, "final", False))
